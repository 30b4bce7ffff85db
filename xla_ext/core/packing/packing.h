// Static packing: where blocks with known lifetimes live, for the least peak.
#ifndef COOP_CORE_PACKING_PACKING_H_
#define COOP_CORE_PACKING_PACKING_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/types.h"

namespace coop {

// In use at the steps first, ..., last; `bytes` is rounded up to the alignment.
struct PackingBlock {
  int64_t first = 0;
  int64_t last = 0;
  Bytes bytes = 0;  // A block of no bytes lies at 0 and is in nobody's way.
  Offset fixed_offset = kNone;  // Where it must be, if not kNone.
};

struct PackingOptions {
  Bytes alignment = 64;  // Of every offset; a power of two.
  // The effort for improving the first packing, in elementary steps of
  // a few nanoseconds. Not wall clock: the same input packs the same way on
  // every machine. 0: one greedy packing.
  int64_t effort = 300'000'000;
  // If given, it takes so long at most, and its ways to improve take turns: more
  // effort or time goes on where less stops, so it is never worse. Without, they
  // share the effort beforehand, which gets further in little.
  std::optional<double> seconds;
  uint64_t seed = 0;
  Bytes target_peak_bytes = 0;  // A packing with at most this is good enough.
};

struct Packing {
  std::vector<Offset> offsets;  // Of each block, in the order given.
  Bytes peak_bytes = 0;         // The highest end of any block.
  // The most bytes live at one step, or the highest end of a fixed block: no
  // packing has a lower peak. One that reaches it need not exist.
  Bytes lower_bound_bytes = 0;
};

// Throws std::invalid_argument for a negative size, a block that ends before it
// begins, sizes whose sum is no Bytes, and misaligned fixed blocks. The message
// begins with `function`, the name of what was given the blocks.
void CheckBlocks(std::string_view function,
                 std::span<const PackingBlock> blocks, Bytes alignment);

// Dynamic storage allocation is NP-hard. Greedy orders come first
// (greedy.h); where they miss the lower bound, a search over skylines
// (skyline_search.h) and a local search over the order (order_search.h) share the
// effort that is left or, with seconds, take turns (turns.h) with a search over
// what blocks are composed of (composed_search.h).
//
// Throws std::invalid_argument as CheckBlocks does, and for fixed blocks that
// are in each other's way.
[[nodiscard]] Packing Pack(std::span<const PackingBlock> blocks,
                           const PackingOptions& options = {});

}  // namespace coop

#endif  // COOP_CORE_PACKING_PACKING_H_
