// Plans: making them, checking them, and the pools worth asking for.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "bindings/numbers.h"
#include "core/graph/bounds.h"
#include "core/minimum.h"
#include "core/options.h"
#include "core/planner.h"
#include "core/schedule/schedule.h"
#include "core/schedule/validator.h"

namespace coop {
namespace {

// "step 12: overlap: tensor 3 at [0, 64) overlaps ..."
std::vector<std::string> ValidateAsText(const Graph& graph,
                                        const Schedule& schedule,
                                        const Limits& limits) {
  std::vector<std::string> texts;
  for (const auto& [violation, step, text] :
       Validate(graph, schedule, limits)) {
    texts.push_back("step " + std::to_string(step) + ": " + Name(violation) +
                    ": " + text);
  }
  return texts;
}

}  // namespace

void BindPlan(nb::module_& m) {
  m.def(
      "plan",
      [](const Graph& graph, IntArg capacity, const PlanOptions& options,
         std::optional<IntArg> preferred_bytes, const Schedule* known) {
        const Bytes pool_bytes = ToCount(capacity, "plan", "capacity");
        PlanOptions preferring = options;
        preferring.search.preferred_bytes =
            ToOptionalCount(preferred_bytes, "plan", "preferred_bytes");
        nb::gil_scoped_release release;
        return Plan(graph, pool_bytes, preferring, known);
      },
      nb::arg("graph"), nb::arg("capacity"), nb::arg("options"),
      nb::arg("preferred_bytes") = nb::none(), nb::arg("known") = nb::none(), R"(
A schedule for a pool of `capacity` bytes, or why there is none.

`preferred_bytes` (search): keep so few bytes alive wherever no single operation
needs more, if that can be done. `known` (search): a valid schedule of the same
graph, with the same alignment; where it fits, the plan is never worse.
)");
  m.def("unconstrained", &PlanUnconstrained, nb::arg("graph"),
        nb::arg("options"), nb::call_guard<nb::gil_scoped_release>(),
        "The schedule without eviction. More capacity than its "
        "`statistics.peak_bytes` is of no use.");
  m.def(
      "validate",
      [](const Graph& graph, const Schedule& schedule,
         std::optional<IntArg> pool_bytes, std::optional<IntArg> live_bytes) {
        const Limits limits{
            .pool_bytes = ToOptionalCount(pool_bytes, "validate", "pool_bytes"),
            .live_bytes = ToOptionalCount(live_bytes, "validate", "live_bytes"),
        };
        nb::gil_scoped_release release;
        return ValidateAsText(graph, schedule, limits);
      },
      nb::arg("graph"), nb::arg("schedule"), nb::kw_only(),
      nb::arg("pool_bytes") = nb::none(), nb::arg("live_bytes") = nb::none(),
      R"(
Everything wrong with `schedule`, empty if it is valid.

An independent replay. `pool_bytes` and `live_bytes` are what was promised of it:
the most that its highest end address, or the bytes in use at once, may be.

Each text reads "step <step>: <violation>: <what>", the violation being one of
malformed, order, not_recomputable, missing_operand, overwritten, placement,
out_of_range, alignment, overlap, take_over, not_resident, pinned,
missing_output, peak, live_bytes, statistics, limit. The last four are of what
is claimed: the highest end address, the most bytes in use at once (if a schedule
from arrays claims it), the counts and seconds of a plan, and the limits.
)");
  nb::class_<MinimumPool>(m, "MinimumPool", "The smallest pool that was found.")
      .def_ro("capacity", &MinimumPool::capacity)
      .def_ro("schedule", &MinimumPool::schedule)
      .def_ro("blocking_operation", &MinimumPool::blocking_op,
              "The operation that forbids less: the one that failed just below "
              "or, at the lower bound, the one that sets it.")
      .def_ro("failure_below", &MinimumPool::failure_below,
              "Why the largest smaller pool that was tried does not do; None "
              "if this one is at the lower bound.");
  m.def(
      "minimum_pool",
      [](const Graph& graph, const PlanOptions& options,
         std::optional<IntArg> tolerance) {
        const auto tolerance_bytes =
            ToOptionalCount(tolerance, "minimum_pool", "tolerance");
        nb::gil_scoped_release release;
        return FindMinimumPool(graph, options, tolerance_bytes);
      },
      nb::arg("graph"), nb::arg("options"), nb::arg("tolerance") = nb::none(),
      R"(
The smallest pool, by bisection, that `options` can plan in.

`tolerance` is in bytes, 0.5 % by default, and never finer than the alignment.
A smaller feasible pool may exist, as feasibility need not be monotone.
)");
  m.def(
      "minimum_pool_quickly",
      [](const Graph& graph, const PlanOptions& options) {
        nb::gil_scoped_release release;
        return FindMinimumPoolQuickly(graph, options);
      },
      nb::arg("graph"), nb::arg("options"), R"(
A first pool, found with little effort, that `minimum_pool_from` goes on from.

The two together find the pool of `minimum_pool`.
)");
  m.def(
      "minimum_pool_from",
      [](const Graph& graph, const PlanOptions& options, const MinimumPool& quick,
         std::optional<IntArg> most) {
        const auto most_bytes = ToOptionalCount(most, "minimum_pool_from", "most");
        nb::gil_scoped_release release;
        return FindMinimumPool(graph, options, quick, most_bytes);
      },
      nb::arg("graph"), nb::arg("options"), nb::arg("quick"),
      nb::arg("most") = nb::none(), R"(
The smallest pool, from that of `minimum_pool_quickly` for the same graph and options.

None as soon as it is certain to be larger than `most` bytes.
)");
  m.def(
      "lower_bound",
      [](const Graph& graph, IntArg alignment) {
        const LowerBound bound =
            FindLowerBound(graph, ToAlignment(alignment, "lower_bound"));
        return std::pair(bound.bytes, bound.position);
      },
      nb::arg("graph"), nb::arg("alignment").none() = 64, R"(
(bytes, operation): no pool smaller than that can do, because of the operation.

The operation is -1 if it is the graph inputs together, `num_ops` if it is the
outputs together.
)");
}

}  // namespace coop
