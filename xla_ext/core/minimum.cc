#include "core/minimum.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/graph/bounds.h"
#include "core/planner.h"

namespace coop {
namespace {

// Of the effort of a plan, the part that bisecting spends on each.
constexpr int64_t kQuicker = 5;
// Of what it ends at, the steps that are tried below, and the last of them.
constexpr Bytes kPartBelow = 16;
constexpr Bytes kPartOfEnd = 64;

// Room for everything ever made side by side.
Bytes TotalBytes(const Graph& graph, Bytes alignment) {
  Bytes total = 0;
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (!graph.is_external(t)) total += RoundUp(graph.bytes(t), alignment);
  }
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    total += RoundUp(graph.workspace_bytes(op), alignment);
  }
  return total;
}

}  // namespace

Schedule PlanUnconstrained(const Graph& graph, const PlanOptions& options) {
  PlanOptions from_the_left = options;
  from_the_left.coop.partition = false;
  // So that the packing is a tight one.
  from_the_left.search.limits_live_bytes = true;
  from_the_left.common.overhead_limit = std::nullopt;
  PlanResult result =
      Plan(graph, TotalBytes(graph, options.common.alignment), from_the_left);
  if (auto* schedule = std::get_if<Schedule>(&result)) {
    return std::move(*schedule);
  }
  throw std::logic_error(
      "no plan in a pool with room for everything. This is a bug in coop_jax, "
      "please report it");
}

namespace {

class MinimumSearch {
 public:
  MinimumSearch(const Graph& graph, const PlanOptions& options,
                std::optional<Bytes> tolerance)
      : graph_(graph),
        options_(options),
        tolerance_(tolerance),
        bound_(FindLowerBound(graph, options.common.alignment)),
        total_(TotalBytes(graph, options.common.alignment)) {}

  std::optional<MinimumPool> Quick() {
    // Whether there is a plan shows sooner than how good one can be.
    PlanOptions quick = options_;
    quick.search.effort /= kQuicker;
    quick.search.any_plan = true;
    low_ = bound_.bytes;
    if (IsFeasible(low_, quick) && IsFeasible(low_, options_)) {
      best_->blocking_op = bound_.position;
      best_->is_at_bound = true;
      return std::move(best_);
    }
    // Fragmentation may defeat a plan at the unconstrained peak, hence the loop.
    high_ = PlanUnconstrained(graph_, options_).statistics.peak_bytes;
    high_ = std::max(high_, low_ + options_.common.alignment);
    while (!IsFeasible(high_, quick)) {
      if (high_ >= total_) return std::nullopt;
      low_ = high_;
      high_ = std::min(2 * high_, total_);
    }
    Bisect(quick, [&] { return Step(); });
    best_->failure_below = failure_;
    return std::move(best_);
  }

  std::optional<MinimumPool> GoOn(const MinimumPool& quick,
                                  std::optional<Bytes> most) {
    if (most && bound_.bytes > *most) return std::nullopt;
    if (quick.is_at_bound) return quick;
    best_ = quick;
    failure_ = quick.failure_below;
    high_ = quick.capacity;
    // A search may miss a plan in a room between two others: with all of the effort in
    // steps further down, as long as they have plans, and between the last two.
    PlanOptions thorough = options_;
    thorough.search.any_plan = true;
    for (low_ = bound_.bytes; high_ - low_ > Step();) {
      const Bytes below = std::max(
          low_, RoundUp(high_ - high_ / kPartBelow, options_.common.alignment));
      if (below >= high_) break;
      (IsFeasible(below, thorough) ? high_ : low_) = below;
      if (low_ == below) break;
    }
    // From here on the end is above `low_`, and before the last step at least `high_`.
    if (most && low_ >= *most) return std::nullopt;
    Bisect(thorough, [&] {
      return tolerance_ ? Step() : std::max(Step(), high_ / kPartOfEnd);
    });
    if (most && high_ > *most) return std::nullopt;
    // What is named can be planned with all of the effort, too.
    while (high_ < total_ && !IsFeasible(high_, options_)) {
      low_ = high_;
      high_ = std::min(high_ + RoundUp(Step(), options_.common.alignment), total_);
    }
    best_->blocking_op = failure_->op;
    best_->failure_below = failure_;
    return std::move(best_);
  }

 private:
  bool IsFeasible(Bytes capacity, const PlanOptions& how) {
    PlanResult result = Plan(graph_, capacity, how);
    if (auto* schedule = std::get_if<Schedule>(&result)) {
      best_ = {.capacity = capacity,
               .schedule = std::move(*schedule),
               .failure_below = std::nullopt};
      return true;
    }
    failure_ = std::get<PlanFailure>(result);
    return false;
  }

  [[nodiscard]] Bytes Step() const {
    return std::max(tolerance_.value_or(low_ / 200), options_.common.alignment);
  }

  template <typename Enough>
  void Bisect(const PlanOptions& how, const Enough& enough) {
    while (high_ - low_ > enough()) {
      const Bytes middle =
          RoundUp(low_ + (high_ - low_) / 2, options_.common.alignment);
      if (middle >= high_) break;
      (IsFeasible(middle, how) ? high_ : low_) = middle;
    }
  }

  const Graph& graph_;
  const PlanOptions& options_;
  const std::optional<Bytes> tolerance_;
  const LowerBound bound_;
  const Bytes total_;
  Bytes low_ = 0;
  Bytes high_ = 0;
  std::optional<MinimumPool> best_;
  std::optional<PlanFailure> failure_;
};

}  // namespace

std::optional<MinimumPool> FindMinimumPoolQuickly(const Graph& graph,
                                                  const PlanOptions& options,
                                                  std::optional<Bytes> tolerance) {
  return MinimumSearch(graph, options, tolerance).Quick();
}

std::optional<MinimumPool> FindMinimumPool(const Graph& graph,
                                           const PlanOptions& options,
                                           const MinimumPool& quick,
                                           std::optional<Bytes> most,
                                           std::optional<Bytes> tolerance) {
  return MinimumSearch(graph, options, tolerance).GoOn(quick, most);
}

std::optional<MinimumPool> FindMinimumPool(const Graph& graph,
                                           const PlanOptions& options,
                                           std::optional<Bytes> tolerance) {
  MinimumSearch search(graph, options, tolerance);
  const std::optional<MinimumPool> quick = search.Quick();
  if (!quick) return std::nullopt;
  return search.GoOn(*quick, std::nullopt);
}

}  // namespace coop
