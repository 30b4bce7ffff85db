// The smallest pool that can be planned, and the largest that is of use.
#ifndef COOP_CORE_MINIMUM_H_
#define COOP_CORE_MINIMUM_H_

#include <optional>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/options.h"
#include "core/schedule/schedule.h"

namespace coop {

// The schedule without any eviction in a pool that is always large enough. Its
// statistics.peak_bytes is the capacity from which more memory is of no use.
// Placed from the left throughout, or the peak would mean nothing.
[[nodiscard]] Schedule PlanUnconstrained(const Graph& graph,
                                         const PlanOptions& options);

struct MinimumPool {
  Bytes capacity = 0;
  Schedule schedule;
  // The operation that forbids less: the one that failed at the largest smaller
  // capacity tried or, if the lower bound itself was enough, the one that sets
  // it. May be -1 or num_ops, see PlanFailure and LowerBound.
  OpIdx blocking_op = kNone;
  // That failure; nullopt at the lower bound.
  std::optional<PlanFailure> failure_below;
  bool is_at_bound = false;  // The lower bound: nothing is below it.
};

// The smallest capacity that can be planned with `options`, found by bisection
// between the lower bound and the unconstrained peak, until the two are at most
// `tolerance` bytes apart (default: 0.5 % of the smaller, at least the
// alignment). Feasibility need not be monotone in the capacity: a smaller
// feasible one may exist. nullopt if nothing can be planned, which takes an
// overhead limit below 1.
[[nodiscard]] std::optional<MinimumPool> FindMinimumPool(
    const Graph& graph, const PlanOptions& options,
    std::optional<Bytes> tolerance = std::nullopt);

// The same in two calls, for several graphs of one program, of which one has the
// smallest pool: first by plans with little effort, for all of them; then, with the
// result of that, with all of the effort. Of a graph whose pool is certain to be
// larger than `most`, that of another, nothing more is planned: nullopt.
[[nodiscard]] std::optional<MinimumPool> FindMinimumPoolQuickly(
    const Graph& graph, const PlanOptions& options,
    std::optional<Bytes> tolerance = std::nullopt);
[[nodiscard]] std::optional<MinimumPool> FindMinimumPool(
    const Graph& graph, const PlanOptions& options, const MinimumPool& quick,
    std::optional<Bytes> most, std::optional<Bytes> tolerance = std::nullopt);

}  // namespace coop

#endif  // COOP_CORE_MINIMUM_H_
