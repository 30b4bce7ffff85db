// The heap of a schedule where XLA, and not the planner, places the tensors.
#ifndef COOP_CORE_SCHEDULE_XLA_HEAP_H_
#define COOP_CORE_SCHEDULE_XLA_HEAP_H_

#include <span>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/packing/packing.h"
#include "core/schedule/schedule.h"

namespace coop {

// The peak of XLA's packing: each block in the smallest gap that holds it, the
// largest first or the longest-lived first, the better of the two
// (GlobalDecreasingSizeBestFitHeap).
[[nodiscard]] Bytes XlaHeapBytes(std::span<const PackingBlock> blocks,
                                 Bytes alignment);

// The same for the tensors and workspaces of `schedule`, in its own
// order of operations; a tensor that takes over another's block shares it.
// Throws std::invalid_argument if it is not a schedule of this graph: an index
// out of range, or a tensor that is made by another operation, or ended when it
// is not resident. All other rules are the validator's.
[[nodiscard]] Bytes XlaHeapBytes(const Graph& graph, const Schedule& schedule);

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_XLA_HEAP_H_
