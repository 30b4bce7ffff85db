// Gaps: the stretches of a program between two uses of a tensor, and whether the
// tensor is to be there in them. A plan of the search is one decision per gap.
#ifndef COOP_CORE_GAPS_H_
#define COOP_CORE_GAPS_H_

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/types.h"

namespace coop {

using GapIdx = int64_t;

// A value that is neither kept nor retained is made again by whatever asks for
// it. The operation that ends the gap asks for it; so may, in between, other
// recomputations.
enum : uint8_t {
  // The value there when the gap begins stays for what asks for it in the gap.
  kKeepInGap = 1,
  // It stays for the operation that ends the gap. Without kKeepInGap: what is
  // made again within the gap stays, until the operation that ends it.
  kKeepToEnd = 2,
  kKeep = kKeepInGap | kKeepToEnd,
};
using Decisions = std::vector<uint8_t>;  // By gap.

// The gaps of every tensor that takes room in the pool and may leave it. Gap
// k of a tensor lies between its use k - 1 (its producer, for k = 0) and use k;
// the last one is behind its last use, where only recomputations read it.
class GapTable {
 public:
  explicit GapTable(const Graph& graph);

  [[nodiscard]] int64_t size() const { return std::ssize(tensor_); }
  [[nodiscard]] bool has_gaps(TensorIdx t) const {
    return first_[At(t)] != kNone;
  }
  [[nodiscard]] GapIdx first(TensorIdx t) const { return first_[At(t)]; }
  [[nodiscard]] TensorIdx tensor(GapIdx gap) const { return tensor_[At(gap)]; }
  // The positions of the uses around the gap: begin < p <= end inside of it.
  // kNever at the end of the last gap.
  [[nodiscard]] Position begin(GapIdx gap) const { return begin_[At(gap)]; }
  [[nodiscard]] Position end(GapIdx gap) const { return end_[At(gap)]; }
  // The value may leave in this gap: whoever asks can make it again.
  [[nodiscard]] bool may_drop(GapIdx gap) const {
    return may_drop_[At(gap)] != 0;
  }
  // The gap of `t` that holds `position`.
  [[nodiscard]] GapIdx at(TensorIdx t, Position position) const;

  // Nothing is dropped between uses; nothing is kept behind the last one.
  [[nodiscard]] Decisions KeepAll() const;

 private:
  std::vector<GapIdx> first_;
  std::vector<TensorIdx> tensor_;
  std::vector<Position> begin_;
  std::vector<Position> end_;
  std::vector<uint8_t> may_drop_;
};

}  // namespace coop

#endif  // COOP_CORE_GAPS_H_
