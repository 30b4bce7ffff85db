#include "core/packing/order_search.h"

#include <algorithm>
#include <utility>

namespace coop {

OrderSearch::OrderSearch(const PackingProblem& problem,
                         std::vector<int32_t> order, uint64_t seed)
    : problem_(problem),
      packer_(problem),
      random_(seed),
      order_(std::move(order)),
      walk_(order_) {}

void OrderSearch::Run(Bytes target, int64_t work_end, const Deadline& deadline,
                      int64_t& work, PackingSolution& best) {
  // So many failures in a row, and the walk starts again from the best order.
  constexpr int kPatience = 400;
  while (best.peak_bytes > target && work < work_end && !has_ended_ &&
         !deadline.IsOver()) {
    // At least a hundredth of the way at once: many small steps take too long.
    const Bytes limit = std::max(
        target, best.peak_bytes - 1 - (best.peak_bytes - target) / 100);
    auto solution = packer_.Place(walk_, Fit::kLowest, limit, work);
    work += std::ssize(walk_) / 4;
    if (solution) {
      best = *std::move(solution);
      order_ = walk_;
      failures_ = 0;
      continue;
    }
    if (++failures_ % kPatience == 0) walk_ = order_;
    const auto late =
        std::find(walk_.begin(), walk_.end(), packer_.obstacle());
    const auto position = static_cast<uint64_t>(late - walk_.begin());
    // Only fixed blocks are in its way.
    has_ended_ = position == 0;
    if (has_ended_) return;
    // Mostly a little forward, sometimes far.
    const uint64_t reach =
        random_() % 4 == 0 ? position : 1 + (position - 1) / 4;
    const auto to = late - static_cast<std::ptrdiff_t>(1 + random_() % reach);
    std::rotate(to, late, late + 1);
  }
}

}  // namespace coop
