// Local search over the order in which blocks are placed.
#ifndef COOP_CORE_PACKING_ORDER_SEARCH_H_
#define COOP_CORE_PACKING_ORDER_SEARCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/packing/problem.h"

namespace coop {

// Places blocks greedily in `order`. Where one ends above what is asked for, it
// has come too late: it moves forward, and all is placed anew ("squeaky wheel").
// Stops at a peak of at most `target`, or once `work` reaches `work_end`.
// Replaces `best` by what is better.
void ImproveByOrder(const PackingProblem& problem, std::vector<int32_t> order,
                    Bytes target, uint64_t seed, int64_t work_end,
                    int64_t& work, PackingSolution& best);

}  // namespace coop

#endif  // COOP_CORE_PACKING_ORDER_SEARCH_H_
