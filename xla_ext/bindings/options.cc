// PlanOptions, all parts in one list of keyword arguments.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "bindings/checks.h"
#include "bindings/module.h"
#include "bindings/numbers.h"
#include "core/options.h"

namespace coop {

namespace nb = nanobind;

namespace {

// Enumerators as Python sees them.
template <typename Enum, size_t kSize>
using Names = std::array<std::pair<const char*, Enum>, kSize>;

constexpr Names<PolicyKind, 5> kPolicies{
    {{"coop", PolicyKind::kCoop},
     {"dtr", PolicyKind::kDtr},
     {"dte", PolicyKind::kDte},
     {"lookahead", PolicyKind::kLookahead},
     {"search", PolicyKind::kSearch}}};
constexpr Names<Neighbourhood, 3> kNeighbourhoods{
    {{"estar", Neighbourhood::kExact},
     {"eq", Neighbourhood::kComponents},
     {"local", Neighbourhood::kLocal}}};

template <typename Enum, size_t kSize>
Enum Parse(const Names<Enum, kSize>& names, const char* argument,
           nb::handle given) {
  if (!nb::isinstance<nb::str>(given)) {
    RaiseWrongType("PlanOptions", argument, "a string", given);
  }
  const std::string text = nb::cast<std::string>(given);
  std::string allowed;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    allowed += (allowed.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  RaiseValueError("PlanOptions: `", argument, "` must be one of ", allowed,
                  ", got '", text, "'");
}

void CheckRanges(const PlanOptions& options) {
  // Written so that a NaN fails.
  if (options.coop.density_threshold &&
      !(*options.coop.density_threshold >= 0)) {
    RaiseValueError(
        "PlanOptions: `density_threshold` must not be negative, got ",
        *options.coop.density_threshold);
  }
  if (options.common.overhead_limit &&
      !(*options.common.overhead_limit >= 1)) {
    RaiseValueError("PlanOptions: `overhead_limit` must be at least 1, got ",
                    *options.common.overhead_limit);
  }
  if (options.search.seconds && !(*options.search.seconds > 0)) {
    RaiseValueError("PlanOptions: `seconds` must be positive, got ",
                    *options.search.seconds);
  }
}

// A field of one of the parts, as a property.
template <auto kPart, auto kField>
auto Get(const PlanOptions& options) {
  return (options.*kPart).*kField;
}

template <typename Enum, size_t kSize>
std::string NameOf(const Names<Enum, kSize>& names, Enum wanted) {
  for (const auto& [name, value] : names) {
    if (value == wanted) return name;
  }
  return "?";
}

}  // namespace

void BindOptions(nb::module_& m) {
  nb::class_<PlanOptions>(m, "PlanOptions", R"(
The choices a caller has about a plan.

Arguments:
  policy: "coop", one of its baselines "dtr" and "dte", "lookahead" (Coop with
    exact next uses in place of staleness), or "search", which compares whole
    plans and is never worse than the others.
  alignment: every block starts at a multiple of it; a power of two.
  sliding_window: (coop) off: one tensor at a time, as in DTE.
  partition: (coop, lookahead) cheap operations' outputs at the high end of the
    pool, the others at the low end.
  recomputable_in_place: (coop, lookahead) an output may overwrite an input that
    is needed later but can be recomputed. Off: copy on write, unless
    `copy_on_write` says otherwise.
  density_threshold: (coop, lookahead) seconds per byte below which an operation
    is cheap. Default: Otsu's split of the graph's operations.
  copy_on_write: every output gets a fresh block, also over an input that nothing
    needs any more, and an overwritten pinned tensor moves. Default: True for the
    baselines.
  dtr_neighbourhood: "estar", "eq" or "local".
  ignore_small: (dtr) skip tensors below 1 % of the average size.
  sampling: (dtr) look at about 2 sqrt(n) of n candidates, drawn with `seed`.
  search_effort: (search) operations that may be simulated to find a plan; about
    20 million a second. A count: the plan is the same everywhere. What is above
    10 million goes on from the plan found with that.
  packing_effort: (search) steps of about a nanosecond to find offsets.
  limits_live_bytes: (search) the capacity limits the bytes alive at once, and
    the offsets take what they need: for a compiler that places tensors itself.
  seconds: (search) go on until so much time has passed, or the plan is proven to
    be the best, and end then even if `search_effort` is not spent: the plan then
    depends on the machine. Default: `search_effort` alone ends the search.
  seed: of `sampling` and of the search.
  overhead_limit: a plan that runs more than this many times the program's
    seconds counts as none. The search's plan does not depend on it.
)")
      .def(
          "__init__",
          [](PlanOptions* options, nb::object policy, IntArg alignment,
             BoolArg sliding_window, BoolArg partition,
             BoolArg recomputable_in_place,
             std::optional<FloatArg> density_threshold,
             std::optional<BoolArg> copy_on_write,
             nb::object dtr_neighbourhood, BoolArg ignore_small,
             BoolArg sampling, IntArg search_effort, IntArg packing_effort,
             BoolArg limits_live_bytes, std::optional<FloatArg> seconds,
             IntArg seed,
             std::optional<FloatArg> overhead_limit) {
            const auto flag = [](BoolArg value, const char* name) {
              return ToBool(value, "PlanOptions", name);
            };
            const auto number = [](std::optional<FloatArg> value,
                                   const char* name) -> std::optional<double> {
              if (!value) return std::nullopt;
              return ToDouble(*value, "PlanOptions", name);
            };
            PlanOptions chosen{
                .policy = Parse(kPolicies, "policy", policy),
                .common = {.alignment = ToAlignment(alignment, "PlanOptions"),
                           .seed = ToSeed(seed, "PlanOptions", "seed"),
                           .overhead_limit =
                               number(overhead_limit, "overhead_limit")},
                .copy_on_write = std::nullopt,
                .coop = {.sliding_window =
                             flag(sliding_window, "sliding_window"),
                         .partition = flag(partition, "partition"),
                         .recomputable_in_place = flag(
                             recomputable_in_place, "recomputable_in_place"),
                         .density_threshold =
                             number(density_threshold, "density_threshold")},
                .dtr = {.neighbourhood =
                            Parse(kNeighbourhoods, "dtr_neighbourhood",
                                  dtr_neighbourhood),
                        .ignore_small = flag(ignore_small, "ignore_small"),
                        .sampling = flag(sampling, "sampling")},
                .search = {.effort = ToCount(search_effort, "PlanOptions",
                                             "search_effort"),
                           .packing_effort = ToCount(
                               packing_effort, "PlanOptions", "packing_effort"),
                           .limits_live_bytes =
                               flag(limits_live_bytes, "limits_live_bytes"),
                           .preferred_bytes = std::nullopt,
                           .seconds = number(seconds, "seconds")},
            };
            if (copy_on_write) {
              chosen.copy_on_write = flag(*copy_on_write, "copy_on_write");
            }
            CheckRanges(chosen);
            new (options) PlanOptions(chosen);
          },
          nb::kw_only(), nb::arg("policy").none() = "coop", nb::arg("alignment").none() = 64,
          nb::arg("sliding_window").none() = true, nb::arg("partition").none() = true,
          nb::arg("recomputable_in_place").none() = true,
          nb::arg("density_threshold").none() = nb::none(),
          nb::arg("copy_on_write").none() = nb::none(),
          nb::arg("dtr_neighbourhood").none() = "eq", nb::arg("ignore_small").none() = false,
          nb::arg("sampling").none() = false,
          nb::arg("search_effort").none() = PlanOptions{}.search.effort,
          nb::arg("packing_effort").none() = PlanOptions{}.search.packing_effort,
          nb::arg("limits_live_bytes").none() = false,
          nb::arg("seconds").none() = nb::none(), nb::arg("seed").none() = 0,
          nb::arg("overhead_limit").none() = nb::none())
      .def_prop_ro("policy",
                   [](const PlanOptions& options) {
                     return NameOf(kPolicies, options.policy);
                   })
      .def_prop_ro("alignment",
                   &Get<&PlanOptions::common, &CommonOptions::alignment>)
      .def_prop_ro("sliding_window",
                   &Get<&PlanOptions::coop, &CoopOptions::sliding_window>)
      .def_prop_ro("partition",
                   &Get<&PlanOptions::coop, &CoopOptions::partition>)
      .def_prop_ro("recomputable_in_place",
                   &Get<&PlanOptions::coop,
                        &CoopOptions::recomputable_in_place>)
      .def_prop_ro("density_threshold",
                   &Get<&PlanOptions::coop, &CoopOptions::density_threshold>)
      .def_prop_ro("copy_on_write",
                   [](const PlanOptions& options) {
                     return CopiesOnWrite(options);
                   })
      .def_prop_ro("dtr_neighbourhood",
                   [](const PlanOptions& options) {
                     return NameOf(kNeighbourhoods, options.dtr.neighbourhood);
                   })
      .def_prop_ro("ignore_small",
                   &Get<&PlanOptions::dtr, &DtrOptions::ignore_small>)
      .def_prop_ro("sampling",
                   &Get<&PlanOptions::dtr, &DtrOptions::sampling>)
      .def_prop_ro("search_effort",
                   &Get<&PlanOptions::search, &PlanSearchOptions::effort>)
      .def_prop_ro("packing_effort",
                   &Get<&PlanOptions::search,
                        &PlanSearchOptions::packing_effort>)
      .def_prop_ro("limits_live_bytes",
                   &Get<&PlanOptions::search,
                        &PlanSearchOptions::limits_live_bytes>)
      .def_prop_ro("seconds",
                   &Get<&PlanOptions::search, &PlanSearchOptions::seconds>)
      .def_prop_ro("seed",
                   &Get<&PlanOptions::common, &CommonOptions::seed>)
      .def_prop_ro("overhead_limit",
                   &Get<&PlanOptions::common, &CommonOptions::overhead_limit>);
}

}  // namespace coop
