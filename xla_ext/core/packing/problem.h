// A packing problem without the steps and blocks that make no difference.
#ifndef COOP_CORE_PACKING_PROBLEM_H_
#define COOP_CORE_PACKING_PROBLEM_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/packing/packing.h"

namespace coop {

// A block in sections of time [begin, end).
struct SectionBlock {
  int32_t begin;
  int32_t end;
  Bytes bytes;                  // Rounded up, positive.
  Offset fixed_offset = kNone;
  int64_t source = 0;           // The index of the caller's block.
};

// Blocks that no step separates from the other blocks of the problem. Sections
// are not steps: only steps at which a block begins and after which one ends
// before another begins are kept. At any other step the live blocks are a part
// of a neighbour's, so it forbids nothing that the neighbour does not; two
// blocks meet at a step if and only if they meet in a section.
struct PackingProblem {
  std::vector<SectionBlock> blocks;  // By begin, then end, then source.
  int32_t num_sections = 0;
  std::vector<Bytes> load;           // The bytes live in each section.
  Bytes lower_bound_bytes = 0;
  bool has_fixed = false;
};

// Offsets of a problem's blocks, and the highest end.
struct PackingSolution {
  std::vector<Offset> offsets;
  Bytes peak_bytes = 0;
};

// The independent parts of `blocks`, which must be legal; blocks of no bytes are
// left out. O(n log n).
[[nodiscard]] std::vector<PackingProblem> SplitPacking(
    std::span<const PackingBlock> blocks, Bytes alignment);

}  // namespace coop

#endif  // COOP_CORE_PACKING_PROBLEM_H_
