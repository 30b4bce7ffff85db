// The vocabulary of the planner: indices, units and the two ends of the pool.
#ifndef COOP_CORE_BASE_TYPES_H_
#define COOP_CORE_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <limits>

namespace coop {

using OpIdx = int64_t;      // Operations are numbered in execution order, ...
using Position = int64_t;   // ... so an operation's index is also its position.
using TensorIdx = int64_t;
using Bytes = int64_t;
using Offset = int64_t;     // Bytes from the start of the pool.
using Seconds = double;

// The one sentinel for an absent index.
inline constexpr int64_t kNone = -1;
// The position that is never reached.
inline constexpr Position kNever = std::numeric_limits<Position>::max();

// The end of the chosen free piece that a new block is cut from.
enum class Side { kLeft, kRight };  // Low, high addresses.

// Indices are signed so that kNone exists; containers count in size_t.
constexpr size_t At(int64_t index) { return static_cast<size_t>(index); }

// All bytes of a graph together are fewer, so that sums of them, rounded up,
// never overflow.
inline constexpr Bytes kMostBytes = Bytes{1} << 61;
// Nor do squares of seconds: more than the age of the universe.
inline constexpr Seconds kMostSeconds = 1e18;

// `bytes` rounded up to a multiple of `alignment`.
constexpr Bytes RoundUp(Bytes bytes, Bytes alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace coop

#endif  // COOP_CORE_BASE_TYPES_H_
