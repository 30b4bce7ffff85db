// One packing from one order of the blocks.
#ifndef COOP_CORE_PACKING_GREEDY_H_
#define COOP_CORE_PACKING_GREEDY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/packing/problem.h"

namespace coop {

enum class Fit {
  kLowest,  // The lowest gap that holds the block.
  kBest,    // The smallest one.
};

// Puts blocks one after the other into gaps between those placed before.
class GreedyPacker {
 public:
  explicit GreedyPacker(const PackingProblem& problem);

  // Fixed blocks first, then the others in this order; nullopt once a block
  // would end above `limit`. Adds to `work` what it did, in elementary steps.
  [[nodiscard]] std::optional<PackingSolution> Place(
      std::span<const int32_t> order, Fit fit, Bytes limit, int64_t& work);

  // The block that ended above `limit` in the last Place().
  [[nodiscard]] int32_t obstacle() const { return obstacle_; }

 private:
  struct Placed {
    Offset offset;
    Offset end_offset;
    int32_t begin;
    int32_t end;
  };
  // Neighbours in address order. The span of their lifetimes lets a block that
  // lives at another time skip them together.
  struct Chunk {
    int32_t begin;
    int32_t end;
    std::vector<Placed> placed;
  };

  [[nodiscard]] Offset FindGap(const SectionBlock& block, Fit fit,
                               int64_t& work) const;
  void Insert(const SectionBlock& block, Offset offset, int64_t& work);

  const PackingProblem& problem_;
  std::vector<Chunk> chunks_;
  int32_t obstacle_ = kNone;
};

// Orders to begin with, the most promising first. The number of them is fixed.
inline constexpr int kNumGreedyOrders = 5;
[[nodiscard]] std::vector<int32_t> GreedyOrder(const PackingProblem& problem,
                                               int which);

}  // namespace coop

#endif  // COOP_CORE_PACKING_GREEDY_H_
