// A rollout to a schedule: every value gets a block, packed knowing all lifetimes.
#ifndef COOP_CORE_STATIC_SCHEDULE_H_
#define COOP_CORE_STATIC_SCHEDULE_H_

#include "core/gaps.h"
#include "core/graph.h"
#include "core/packing.h"
#include "core/rollout.h"
#include "core/schedule.h"

namespace coop {

// The schedule that does what `rollout` did. Its capacity and peak are what the
// packing needs, options.target_peak_bytes or more. Values are dropped right
// after their last read: as evicted if they are made again, as freed if not.
[[nodiscard]] Schedule MakeStaticSchedule(const Graph& graph,
                                          const GapTable& gaps,
                                          const Rollout& rollout,
                                          const PackingOptions& options);

}  // namespace coop

#endif  // COOP_CORE_STATIC_SCHEDULE_H_
