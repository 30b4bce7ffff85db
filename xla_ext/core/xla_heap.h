// What a schedule needs where XLA, and not the planner, places the tensors.
#ifndef COOP_CORE_XLA_HEAP_H_
#define COOP_CORE_XLA_HEAP_H_

#include <span>

#include "core/graph.h"
#include "core/packing.h"
#include "core/schedule.h"
#include "core/types.h"

namespace coop {

// The peak of XLA's packing: each block in the smallest gap that holds it, the
// largest first or the longest-lived first, the better of the two
// (GlobalDecreasingSizeBestFitHeap).
[[nodiscard]] Bytes XlaHeapBytes(std::span<const PackingBlock> blocks,
                                 Bytes alignment);

// The same for the tensors and workspaces of `schedule`, in its own
// order of operations; a tensor that takes over another's block shares it.
[[nodiscard]] Bytes XlaHeapBytes(const Graph& graph, const Schedule& schedule);

}  // namespace coop

#endif  // COOP_CORE_XLA_HEAP_H_
