// Static packing of blocks with known lifetimes.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/checks.h"
#include "bindings/module.h"
#include "bindings/numbers.h"
#include "core/graph/graph.h"
#include "core/packing/packing.h"
#include "core/packing/refit.h"
#include "core/schedule/schedule.h"
#include "core/schedule/xla_heap.h"

namespace coop {
namespace {

// Of a Python function that is called `function`.
std::vector<PackingBlock> ToBlocks(
    const std::string& function, AnyArray first, AnyArray last, AnyArray bytes,
    const std::optional<AnyArray>& fixed_offsets) {
  const auto named = [&](const char* argument) {
    return function + "(...): `" + argument + "`";
  };
  const auto firsts = ToVector<int64_t>(first, named("first").c_str());
  const auto lasts = ToVector<int64_t>(last, named("last").c_str());
  const auto sizes = ToVector<int64_t>(bytes, named("bytes").c_str());
  const auto fixed =
      fixed_offsets
          ? ToVector<int64_t>(*fixed_offsets, named("fixed_offsets").c_str())
          : std::vector<int64_t>(firsts.size(), kNone);
  const auto check_length = [&](const char* name, size_t length) {
    if (length == firsts.size()) return;
    throw nb::value_error((named(name) + " must have one entry per block (" +
                           std::to_string(firsts.size()) +
                           ", the length of `first`), got " +
                           std::to_string(length))
                              .c_str());
  };
  check_length("last", lasts.size());
  check_length("bytes", sizes.size());
  check_length("fixed_offsets", fixed.size());
  std::vector<PackingBlock> blocks;
  blocks.reserve(firsts.size());
  // Differences of steps must not overflow.
  constexpr int64_t kLastStep = int64_t{1} << 62;
  for (size_t i = 0; i < firsts.size(); ++i) {
    if (std::min(firsts[i], lasts[i]) < -kLastStep ||
        std::max(firsts[i], lasts[i]) > kLastStep) {
      RaiseValueError(function,
                      "(...): `first` and `last` must be in [-2**62, 2**62], "
                      "but block ",
                      i, " lives from ", firsts[i], " to ", lasts[i]);
    }
    blocks.push_back({firsts[i], lasts[i], sizes[i], fixed[i]});
  }
  return blocks;
}

Packing PackArrays(AnyArray first, AnyArray last, AnyArray bytes,
                   std::optional<AnyArray> fixed_offsets, IntArg alignment,
                   IntArg effort, IntArg seed, IntArg target_peak_bytes,
                   std::optional<FloatArg> seconds) {
  const auto blocks = ToBlocks("pack", first, last, bytes, fixed_offsets);
  PackingOptions options;
  const char* const function = "pack(...)";
  options.alignment = ToInt64(alignment, function, "alignment");
  options.effort = ToCount(effort, function, "effort");
  options.seed = ToSeed(seed, function, "seed");
  options.target_peak_bytes =
      ToCount(target_peak_bytes, function, "target_peak_bytes");
  if (seconds) {
    options.seconds = ToDouble(*seconds, function, "seconds");
    if (!(*options.seconds > 0)) {
      RaiseValueError("pack(...): `seconds` must be positive, got ",
                      *options.seconds);
    }
  }
  // May take seconds, and touches no Python object.
  const nb::gil_scoped_release release;
  return Pack(blocks, options);
}

std::optional<Packing> RefitArrays(AnyArray first, AnyArray last, AnyArray bytes,
                                   AnyArray wished, IntArg capacity,
                                   IntArg alignment, IntArg effort, IntArg seed) {
  const auto blocks = ToBlocks("refit", first, last, bytes, std::nullopt);
  const auto places = ToVector<int64_t>(wished, "refit(...): `wished`");
  if (places.size() != blocks.size()) {
    RaiseValueError("refit(...): `wished` must have one entry per block (",
                    blocks.size(), ", the length of `first`), got ",
                    places.size());
  }
  RefitOptions options;
  const char* const function = "refit(...)";
  options.alignment = ToInt64(alignment, function, "alignment");
  options.capacity = ToCount(capacity, function, "capacity");
  options.effort = ToCount(effort, function, "effort");
  options.seed = ToSeed(seed, function, "seed");
  CheckBlocks("refit", blocks, options.alignment);
  for (const Offset place : places) {
    if (place == kNone || (place >= 0 && place % options.alignment == 0)) continue;
    RaiseValueError(
        "refit(...): `wished` must hold multiples of the alignment, or -1, got ",
        place);
  }
  const nb::gil_scoped_release release;
  int64_t work = 0;
  auto offsets = Refit(blocks, places, options, work);
  if (!offsets) return std::nullopt;
  Packing packing =
      PackingAt(*std::move(offsets), blocks, options.alignment);
  packing.lower_bound_bytes =
      Pack(blocks, {.alignment = options.alignment, .effort = 0})
          .lower_bound_bytes;
  return packing;
}

std::string Repr(const Packing& packing) {
  return "Packing(" + std::to_string(packing.offsets.size()) +
         " blocks, peak_bytes=" + std::to_string(packing.peak_bytes) +
         ", lower_bound_bytes=" + std::to_string(packing.lower_bound_bytes) +
         ")";
}

}  // namespace

void BindPacking(nb::module_& m) {
  nb::class_<Packing>(m, "Packing", "Offsets of blocks, from `pack`.")
      .def_prop_ro(
          "offsets",
          [](nb::handle_t<Packing> self) {
            return ViewVector(nb::cast<const Packing&>(self).offsets, self);
          },
          "int64: where each block begins, in the order given.")
      .def_ro("peak_bytes", &Packing::peak_bytes,
              "The highest end of any block.")
      .def_ro("lower_bound_bytes", &Packing::lower_bound_bytes,
              "The most bytes live at one step, or the highest end of a fixed "
              "block: no packing has a lower peak.")
      .def("__repr__", &Repr);

  const PackingOptions defaults;
  m.def("pack", &PackArrays, nb::arg("first"), nb::arg("last"),
        nb::arg("bytes"), nb::arg("fixed_offsets") = nb::none(), nb::kw_only(),
        nb::arg("alignment") = defaults.alignment,
        nb::arg("effort") = defaults.effort, nb::arg("seed") = defaults.seed,
        nb::arg("target_peak_bytes") = defaults.target_peak_bytes,
        nb::arg("seconds") = nb::none(), R"(
Offsets for blocks with known lifetimes, for the least peak it can find.

Two blocks that live at a common step never share bytes. The problem (dynamic
storage allocation) is NP-hard: the result is the optimum where its peak is its
lower bound, and otherwise the best found within `effort`.

Parameters
----------
first, last : int64 arrays
    The steps at which each block lives: first to last, both included.
bytes : int64 array
    Sizes; each is rounded up to `alignment`. A block of 0 bytes lies at 0.
fixed_offsets : int64 array, optional
    Where a block must lie; -1 for one that may be anywhere.
alignment : int
    Every offset is a multiple of it; a power of two.
effort : int
    What may be spent on improving, in elementary steps of a few nanoseconds.
    Not wall clock: the result is the same on every machine. 0 is one greedy
    packing.
seed : int
    Of the random choices of the search.
target_peak_bytes : int
    Stop at the first packing whose peak is at most this.
seconds : float, optional
    Stop after so long, if `effort` is not spent before. Also, more effort is then
    never worse.

Returns
-------
Packing
    `offsets`, `peak_bytes` and `lower_bound_bytes`.
)");
  m.def(
      "xla_heap_bytes",
      [](AnyArray first, AnyArray last, AnyArray bytes, IntArg alignment) {
        const auto blocks =
            ToBlocks("xla_heap_bytes", first, last, bytes, std::nullopt);
        const Bytes rounded_to =
            ToInt64(alignment, "xla_heap_bytes(...)", "alignment");
        const nb::gil_scoped_release release;
        return XlaHeapBytes(blocks, rounded_to);
      },
      nb::arg("first"), nb::arg("last"), nb::arg("bytes"), nb::kw_only(),
      nb::arg("alignment") = defaults.alignment, R"(
The peak of XLA's packing of blocks with known lifetimes.

Blocks in order of size, or of lifetime, each in the smallest gap that holds it;
the better of the two. Arguments as of `pack`.
)");
  m.def(
      "xla_heap_bytes",
      [](const Graph& graph, const Schedule& schedule) {
        const nb::gil_scoped_release release;
        return XlaHeapBytes(graph, schedule);
      },
      nb::arg("graph"), nb::arg("schedule"), R"(
The same for a schedule's tensors and workspaces, in its order of operations.

Where XLA, and not the planner, places the tensors, this is what a plan needs.
`ValueError` if the schedule is not one of this graph.
)");
  m.def("refit", &RefitArrays, nb::arg("first"), nb::arg("last"),
        nb::arg("bytes"), nb::arg("wished"), nb::arg("capacity"), nb::kw_only(),
        nb::arg("alignment") = defaults.alignment,
        nb::arg("effort") = int64_t{1'000'000}, nb::arg("seed") = defaults.seed,
        R"(
Offsets for blocks most of which have a place already: `pack`, near what is wished.

Parameters
----------
first, last, bytes : int64 arrays
    As of `pack`.
wished : int64 array
    Where each block should lie; -1 for one that may be anywhere. Blocks that meet
    there are moved.
capacity : int
    No block ends above.
alignment, seed : int
    As of `pack`.
effort : int
    What may be spent, in pairs of blocks that are looked at.

Returns
-------
Packing or None
    None: nothing was found.
)");
}

}  // namespace coop
