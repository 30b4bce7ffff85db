// A rollout to a schedule: every value gets an offset, all live ranges known.
#ifndef COOP_CORE_SEARCH_STATIC_SCHEDULE_H_
#define COOP_CORE_SEARCH_STATIC_SCHEDULE_H_

#include "core/graph/graph.h"
#include "core/packing/packing.h"
#include "core/schedule/schedule.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"

namespace coop {

// The schedule that does what `rollout` did. Its capacity and peak are what the
// packing needs, options.target_peak_bytes or more. Values are dropped right
// after their last read: as evicted if they are made again, as freed if not.
[[nodiscard]] Schedule MakeStaticSchedule(const Graph& graph,
                                          const GapTable& gaps,
                                          const Rollout& rollout,
                                          const PackingOptions& options);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_STATIC_SCHEDULE_H_
