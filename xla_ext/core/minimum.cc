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

std::optional<MinimumPool> FindMinimumPool(const Graph& graph,
                                           const PlanOptions& options,
                                           std::optional<Bytes> tolerance) {
  std::optional<MinimumPool> best;
  std::optional<PlanFailure> failure;
  // Whether there is a plan shows sooner than how good one can be.
  PlanOptions quick = options;
  quick.search.effort /= kQuicker;
  quick.search.any_plan = true;
  const auto is_feasible = [&](Bytes capacity, const PlanOptions& how) {
    PlanResult result = Plan(graph, capacity, how);
    if (auto* schedule = std::get_if<Schedule>(&result)) {
      best = {.capacity = capacity,
              .schedule = std::move(*schedule),
              .failure_below = std::nullopt};
      return true;
    }
    failure = std::get<PlanFailure>(result);
    return false;
  };

  const LowerBound bound = FindLowerBound(graph, options.common.alignment);
  Bytes low = bound.bytes;
  if (is_feasible(low, quick) && is_feasible(low, options)) {
    best->blocking_op = bound.position;
    return best;
  }

  // Fragmentation may defeat a plan at the unconstrained peak, hence the loop.
  const Bytes total = TotalBytes(graph, options.common.alignment);
  Bytes high = PlanUnconstrained(graph, options).statistics.peak_bytes;
  high = std::max(high, low + options.common.alignment);
  while (!is_feasible(high, quick)) {
    if (high >= total) return std::nullopt;
    low = high;
    high = std::min(2 * high, total);
  }

  const auto step = [&] {
    return std::max(tolerance.value_or(low / 200), options.common.alignment);
  };
  const auto bisect = [&](const PlanOptions& how, const auto& enough) {
    while (high - low > enough()) {
      const Bytes middle =
          RoundUp(low + (high - low) / 2, options.common.alignment);
      if (middle >= high) break;
      (is_feasible(middle, how) ? high : low) = middle;
    }
  };
  bisect(quick, step);
  // A search may miss a plan in a room between two others: with all of the effort in
  // steps further down, as long as they have plans, and between the last two.
  PlanOptions thorough = options;
  thorough.search.any_plan = true;
  for (low = bound.bytes; high - low > step();) {
    const Bytes below = std::max(
        low, RoundUp(high - high / kPartBelow, options.common.alignment));
    if (below >= high) break;
    (is_feasible(below, thorough) ? high : low) = below;
    if (low == below) break;
  }
  bisect(thorough, [&] {
    return tolerance ? step() : std::max(step(), high / kPartOfEnd);
  });
  // What is named can be planned with all of the effort, too.
  while (high < total && !is_feasible(high, options)) {
    low = high;
    high = std::min(high + RoundUp(step(), options.common.alignment), total);
  }
  best->blocking_op = failure->op;
  best->failure_below = failure;
  return best;
}

}  // namespace coop
