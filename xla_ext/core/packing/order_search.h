// Local search over the order in which blocks are placed.
#ifndef COOP_CORE_PACKING_ORDER_SEARCH_H_
#define COOP_CORE_PACKING_ORDER_SEARCH_H_

#include <cstdint>
#include <random>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/packing/greedy.h"
#include "core/packing/problem.h"

namespace coop {

// Places blocks greedily in an order. Where one ends above what is asked for, it
// has come too late: it moves forward, and all is placed anew ("squeaky wheel").
class OrderSearch {
 public:
  // `problem` must outlive this.
  OrderSearch(const PackingProblem& problem, std::vector<int32_t> order,
              uint64_t seed);

  // Goes on where it stopped, until a peak of at most `target`, or until `work`
  // reaches `work_end`. Replaces `best` by what is better.
  void Run(Bytes target, int64_t work_end, const Deadline& deadline,
           int64_t& work, PackingSolution& best);

  // Nothing can be moved: only fixed blocks are in the way.
  [[nodiscard]] bool has_ended() const { return has_ended_; }

 private:
  const PackingProblem& problem_;
  GreedyPacker packer_;
  std::mt19937_64 random_;
  std::vector<int32_t> order_;  // The best, and where the walk is.
  std::vector<int32_t> walk_;
  int failures_ = 0;
  bool has_ended_ = false;
};

}  // namespace coop

#endif  // COOP_CORE_PACKING_ORDER_SEARCH_H_
