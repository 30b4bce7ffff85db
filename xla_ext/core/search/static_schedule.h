// A rollout to a schedule: every value gets an offset, all live ranges known.
#ifndef COOP_CORE_SEARCH_STATIC_SCHEDULE_H_
#define COOP_CORE_SEARCH_STATIC_SCHEDULE_H_

#include <compare>
#include <functional>
#include <optional>
#include <span>

#include "core/graph/graph.h"
#include "core/packing/packing.h"
#include "core/schedule/schedule.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"

namespace coop {

// What a block holds, in plans of one graph: a tensor, and the position on whose
// behalf it is made; of a workspace, -2 minus the operation.
struct BlockName {
  TensorIdx tensor = kNone;
  Position position = kNone;

  auto operator<=>(const BlockName&) const = default;
};

// nullopt: no packing, and no schedule.
using BlockPacker = std::function<std::optional<Packing>(
    std::span<const PackingBlock>, std::span<const BlockName>)>;

// The schedule that does what `rollout` did. Its capacity and peak are what the
// packing needs, options.target_peak_bytes or more. Values are dropped right
// after their last read: as evicted if they are made again, as freed if not.
[[nodiscard]] Schedule MakeStaticSchedule(const Graph& graph,
                                          const GapTable& gaps,
                                          const Rollout& rollout,
                                          const PackingOptions& options);

// The same, packed by `pack`.
[[nodiscard]] std::optional<Schedule> MakeStaticSchedule(
    const Graph& graph, const GapTable& gaps, const Rollout& rollout,
    Bytes alignment, const BlockPacker& pack);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_STATIC_SCHEDULE_H_
