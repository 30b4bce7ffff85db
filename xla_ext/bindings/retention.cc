// What a loop's body keeps for its gradient.

#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "bindings/numbers.h"
#include "core/loops/frontier.h"
#include "core/loops/retention.h"

namespace coop {
namespace {

constexpr const char* kFrontierDoc = R"(
The best ways to keep values or to make them again, from the least time to the
fewest bytes: the corners of the lower convex hull of bytes and seconds.

Equations are in execution order; equation `i` reads `operands[operands_ptr[i]:
operands_ptr[i + 1]]`. Of choices with the same bytes and seconds, the one that
runs least again.

Arguments:
  value_bytes: int64, the bytes that keeping each value takes.
  value_maker: int64, the equation that makes each value; -1 if it is given.
  equation_seconds: float64, the time of running each equation again.
  equation_may_run_again: bool.
  operands_ptr, operands: int64, as above.
  needed: int64, the values that must be there in the end.
  seconds_per_byte: float, the time that keeping a byte takes, in [1e-30, 1e18].
)";

std::vector<Retention> FrontierOfArrays(
    AnyArray value_bytes, AnyArray value_maker, AnyArray equation_seconds,
    AnyArray equation_may_run_again, AnyArray operands_ptr, AnyArray operands,
    AnyArray needed, FloatArg seconds_per_byte) {
  const RetentionProblem problem{
      .value_bytes =
          ToVector<int64_t>(value_bytes, "retention_frontier: `value_bytes`"),
      .value_maker =
          ToVector<int64_t>(value_maker, "retention_frontier: `value_maker`"),
      .equation_seconds = ToVector<double>(
          equation_seconds, "retention_frontier: `equation_seconds`"),
      .equation_may_run_again =
          ToVector<bool>(equation_may_run_again,
                         "retention_frontier: `equation_may_run_again`"),
      .operands_ptr =
          ToVector<int64_t>(operands_ptr, "retention_frontier: `operands_ptr`"),
      .operands =
          ToVector<int64_t>(operands, "retention_frontier: `operands`"),
      .needed = ToVector<int64_t>(needed, "retention_frontier: `needed`"),
      .seconds_per_byte =
          ToDouble(seconds_per_byte, "retention_frontier", "seconds_per_byte"),
  };
  // May take seconds, and touches no Python object.
  const nb::gil_scoped_release release;
  CheckRetention("retention_frontier", problem);
  return RetentionFrontier(problem);
}

}  // namespace

void BindRetention(nb::module_& m) {
  nb::class_<Retention>(m, "Retention",
                        "What is kept and what runs again, from "
                        "`retention_frontier`.")
      .def_ro("kept_bytes", &Retention::kept_bytes)
      .def_prop_ro(
          "kept",
          [](nb::handle_t<Retention> self) {
            return ViewVector(nb::cast<const Retention&>(self).kept, self);
          },
          "int64: the kept values, ascending.")
      .def_prop_ro(
          "recomputed",
          [](nb::handle_t<Retention> self) {
            return ViewVector(nb::cast<const Retention&>(self).recomputed, self);
          },
          "int64: the equations that run again, ascending.");
  m.def("retention_frontier", &FrontierOfArrays, nb::arg("value_bytes"),
        nb::arg("value_maker"), nb::arg("equation_seconds"),
        nb::arg("equation_may_run_again"), nb::arg("operands_ptr"),
        nb::arg("operands"), nb::arg("needed"), nb::arg("seconds_per_byte"),
        kFrontierDoc);
}

}  // namespace coop
