#include "core/packing/order_search.h"

#include <algorithm>
#include <random>
#include <utility>

#include "core/packing/greedy.h"

namespace coop {

void ImproveByOrder(const PackingProblem& problem, std::vector<int32_t> order,
                    Bytes target, uint64_t seed, int64_t work_end,
                    int64_t& work, PackingSolution& best) {
  // So many failures in a row, and the walk starts again from the best order.
  constexpr int kPatience = 400;
  std::mt19937_64 random(seed);
  GreedyPacker packer(problem);
  std::vector<int32_t> walk = order;
  int failures = 0;
  while (best.peak_bytes > target && work < work_end) {
    // At least a hundredth of the way at once: many small steps take too long.
    const Bytes limit = std::max(
        target, best.peak_bytes - 1 - (best.peak_bytes - target) / 100);
    auto solution = packer.Place(walk, Fit::kLowest, limit, work);
    work += std::ssize(walk) / 4;
    if (solution) {
      best = *std::move(solution);
      order = walk;
      failures = 0;
      continue;
    }
    if (++failures % kPatience == 0) walk = order;
    const auto late = std::find(walk.begin(), walk.end(), packer.obstacle());
    const auto position = static_cast<uint64_t>(late - walk.begin());
    if (position == 0) return;  // Only fixed blocks are in its way.
    // Mostly a little forward, sometimes far.
    const uint64_t reach =
        random() % 4 == 0 ? position : 1 + (position - 1) / 4;
    const auto to = late - static_cast<std::ptrdiff_t>(1 + random() % reach);
    std::rotate(to, late, late + 1);
  }
}

}  // namespace coop
