// Gaps, the live-range intervals of the search: the stretches of a program between
// two uses of a tensor, or parts of them. A plan of the search is one decision per
// gap: is the tensor kept in it?
#ifndef COOP_CORE_SEARCH_GAPS_H_
#define COOP_CORE_SEARCH_GAPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/csr.h"
#include "core/base/types.h"
#include "core/graph/graph.h"

namespace coop {

using GapIdx = int64_t;

// A value that is neither kept nor retained is made again by whatever asks for
// it. The operation that ends the gap asks for it; so may, in between, other
// recomputations.
enum : uint8_t {
  // The value resident when the gap begins stays for what asks for it in the gap.
  kKeepInGap = 1,
  // It stays for the operation that ends the gap. Without kKeepInGap: what is
  // made again within the gap stays, until the operation that ends it. In a gap
  // that ends with no use: until the next gap, whose decision then holds.
  kKeepToEnd = 2,
  kKeep = kKeepInGap | kKeepToEnd,
  // Alone, in a gap that ends with a split: not kept, and made again there, for the
  // gap behind it. What it is made from may be gone by the time it is asked for.
  kMakeAtEnd = 4,
};
using Decisions = std::vector<uint8_t>;  // By gap.

// A gap is parted behind what is recomputed on behalf of `position`: the
// decision up to there and the one from there on are two.
struct Split {
  TensorIdx tensor = kNone;
  Position position = kNone;
  bool is_for_early_run = false;  // The value may be made again there.

  auto operator<=>(const Split&) const = default;
};

// The gaps of every tensor that takes room in the pool and may leave it:
// between its producer and its first use, between two uses, and behind its last
// use, where only recomputations read it.
class GapTable {
 public:
  // `splits` lie within gaps, not at uses.
  explicit GapTable(const Graph& graph, std::span<const Split> splits = {});

  [[nodiscard]] int64_t size() const { return std::ssize(tensor_); }
  [[nodiscard]] bool has_gaps(TensorIdx t) const {
    return first_[At(t)] != kNone;
  }
  [[nodiscard]] GapIdx first(TensorIdx t) const { return first_[At(t)]; }
  [[nodiscard]] TensorIdx tensor(GapIdx gap) const { return tensor_[At(gap)]; }
  // The positions of the uses or splits around the gap: begin < p <= end inside
  // of it. kNever at the end of the last gap.
  [[nodiscard]] Position begin(GapIdx gap) const { return begin_[At(gap)]; }
  [[nodiscard]] Position end(GapIdx gap) const { return end_[At(gap)]; }
  // The value may leave in this gap: whoever asks can make it again.
  [[nodiscard]] bool may_drop(GapIdx gap) const {
    return may_drop_[At(gap)] != 0;
  }
  // It ends, or begins, with a split rather than with a use.
  [[nodiscard]] bool ends_with_split(GapIdx gap) const {
    return end(gap) != kNever && gap + 1 < size() && begins_with_split(gap + 1);
  }
  [[nodiscard]] bool begins_with_split(GapIdx gap) const {
    return begins_with_split_[At(gap)] != 0;
  }
  [[nodiscard]] bool is_behind_last_use(GapIdx gap) const {
    return is_behind_[At(gap)] != 0;
  }
  // The gap of `t` that holds `position`.
  [[nodiscard]] GapIdx at(TensorIdx t, Position position) const;
  // The tensors of which a gap is parted at `position`.
  [[nodiscard]] std::span<const TensorIdx> split_at(Position position) const;
  [[nodiscard]] std::span<const Split> splits() const { return splits_; }
  // What an operation reads, or makes, of the tensors that have gaps, in its order.
  [[nodiscard]] std::span<const TensorIdx> inputs(OpIdx op) const {
    return inputs_[op];
  }
  [[nodiscard]] std::span<const TensorIdx> outputs(OpIdx op) const {
    return outputs_[op];
  }
  [[nodiscard]] bool has_early_runs() const { return has_early_runs_; }

  // Nothing is dropped between uses; nothing is kept behind the last one.
  [[nodiscard]] Decisions KeepAll() const;
  // The `decisions` of a table with fewer splits, by the gaps of this one.
  [[nodiscard]] Decisions Refine(const GapTable& coarser,
                                 const Decisions& decisions) const;

 private:
  std::vector<Split> splits_;  // By tensor, then position.
  bool has_early_runs_ = false;
  Csr<TensorIdx> split_at_;
  Csr<TensorIdx> inputs_;
  Csr<TensorIdx> outputs_;
  std::vector<GapIdx> first_;
  std::vector<GapIdx> last_;
  std::vector<TensorIdx> tensor_;
  std::vector<Position> begin_;
  std::vector<Position> end_;
  std::vector<uint8_t> may_drop_;
  std::vector<uint8_t> begins_with_split_;
  std::vector<uint8_t> is_behind_;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_GAPS_H_
