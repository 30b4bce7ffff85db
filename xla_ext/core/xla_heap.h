// What a schedule needs where XLA, and not the planner, places the tensors.
#ifndef COOP_CORE_XLA_HEAP_H_
#define COOP_CORE_XLA_HEAP_H_

#include <span>
#include <vector>

#include "core/graph.h"
#include "core/packing.h"
#include "core/schedule.h"
#include "core/types.h"

namespace coop {

// Which block XLA places next; each goes into the smallest gap that holds it.
enum class HeapOrder {
  // GlobalDecreasingSizeBestFitHeap: the largest first, or the longest-lived
  // first; the better of the two.
  kBySizeOrLength,
  // XLA:TPU's main memory: as they begin, like an allocator at run time.
  kByTime,
};

// The peak of XLA's packing.
[[nodiscard]] Bytes XlaHeapBytes(std::span<const PackingBlock> blocks,
                                 Bytes alignment, HeapOrder order);

// By time: where every block begins; those of no bytes at 0.
[[nodiscard]] std::vector<Offset> XlaHeapOffsets(
    std::span<const PackingBlock> blocks, Bytes alignment);

// By size or length, for the tensors and workspaces of `schedule`, in its own
// order of operations; a tensor that takes over another's block shares it.
[[nodiscard]] Bytes XlaHeapBytes(const Graph& graph, const Schedule& schedule);

}  // namespace coop

#endif  // COOP_CORE_XLA_HEAP_H_
