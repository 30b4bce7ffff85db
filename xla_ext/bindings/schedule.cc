// Schedules and what they cost, or why there is none.

#include "core/schedule/schedule.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "bindings/numbers.h"

namespace coop {
namespace {

void BindStatistics(nb::module_& m) {
  nb::class_<Statistics>(m, "Statistics", "The cost of a plan.")
      .def_ro("compute_seconds", &Statistics::compute_seconds,
              "Every operation once.")
      .def_ro("recompute_seconds", &Statistics::recompute_seconds)
      .def_ro("recompute_bound_seconds", &Statistics::recompute_bound_seconds,
              "No schedule in this capacity recomputes less: how far "
              "`recompute_seconds` is from the optimum at most. 0 unless the "
              "search made the plan.")
      .def_prop_ro("compute_overhead", &Statistics::compute_overhead,
                   "Seconds of everything run over `compute_seconds`.")
      .def_ro("forced_evictions", &Statistics::forced_evictions,
              "Evictions to make room.")
      .def_ro("eager_evictions", &Statistics::eager_evictions,
              "Evictable tensors freed because the program let go of them.")
      .def_ro("recomputations", &Statistics::recomputations,
              "Operations run again.")
      .def_ro("pieces_examined", &Statistics::pieces_examined,
              "Tensors whose cost was computed, by all searches together.")
      .def_ro("search_seconds", &Statistics::search_seconds,
              "Searching and evicting; the only figure that varies between "
              "equal plans.")
      .def_ro("peak_bytes", &Statistics::peak_bytes,
              "The highest end address of any block.")
      .def_ro("max_live_bytes", &Statistics::max_live_bytes,
              "The most bytes in use while an operation runs.")
      .def_ro("density_threshold", &Statistics::density_threshold,
              "Seconds per byte below which an operation counted as cheap.")
      .def_ro("fragmentation_rate", &Statistics::fragmentation_rate,
              "Mean over `Schedule.events` of free bytes over capacity, the "
              "block just found counted as free.")
      .def_ro("fragmentation_rate_block_used",
              &Statistics::fragmentation_rate_block_used,
              "The same with that block counted as used.")
      .def("__repr__", [](const Statistics& statistics) {
        std::ostringstream text;
        text << "Statistics(compute_overhead=" << statistics.compute_overhead()
             << ", forced_evictions=" << statistics.forced_evictions
             << ", eager_evictions=" << statistics.eager_evictions
             << ", recomputations=" << statistics.recomputations
             << ", peak_bytes=" << statistics.peak_bytes << ")";
        return text.str();
      });
}

void BindScheduleClass(nb::module_& m) {
  nb::class_<Schedule>(m, "Schedule", R"(
A plan: what runs when, and where everything lives.

Made by `plan`, or from arrays, to check a schedule that came from elsewhere.
The arrays are read-only views, all int64. Of the statistics, one from arrays
has those that it is given: `peak_bytes`, the highest end address, and
`max_live_bytes`, the most bytes in use at once (-1 if it is not given).
)")
      .def(
          "__init__",
          [](Schedule* schedule, AnyArray steps, AnyArray placements,
             AnyArray initial_placements, AnyArray workspaces, IntArg capacity,
             IntArg peak_bytes, IntArg alignment, BoolArg copy_on_write,
             std::optional<IntArg> max_live_bytes) {
            Schedule made{
                .steps = ToRecords<Step>(steps, "Schedule: `steps`"),
                .placements =
                    ToRecords<Placement>(placements, "Schedule: `placements`"),
                .initial_placements = ToRecords<InitialPlacement>(
                    initial_placements, "Schedule: `initial_placements`"),
                .workspaces = ToRecords<WorkspacePlacement>(
                    workspaces, "Schedule: `workspaces`"),
                .events = {},
                .capacity = ToCount(capacity, "Schedule", "capacity"),
                .alignment = ToAlignment(alignment, "Schedule"),
                .copy_on_write =
                    ToBool(copy_on_write, "Schedule", "copy_on_write"),
                .statistics = {},
                .has_statistics = false,
            };
            made.statistics.peak_bytes =
                ToInt64(peak_bytes, "Schedule", "peak_bytes");
            made.statistics.max_live_bytes =
                ToOptionalCount(max_live_bytes, "Schedule", "max_live_bytes")
                    .value_or(kNone);
            new (schedule) Schedule(std::move(made));
          },
          nb::arg("steps"), nb::arg("placements"),
          nb::arg("initial_placements"), nb::arg("workspaces"),
          nb::arg("capacity"), nb::arg("peak_bytes"),
          nb::arg("alignment") = 64, nb::arg("copy_on_write") = false,
          nb::arg("max_live_bytes") = nb::none())
      .def_prop_ro_static(
          "COMPUTE",
          [](nb::handle) { return static_cast<int>(StepKind::kCompute); },
          "Step kind: run an operation for the first time.")
      .def_prop_ro_static(
          "RECOMPUTE",
          [](nb::handle) { return static_cast<int>(StepKind::kRecompute); },
          "Step kind: run it again, for its outputs that are not resident.")
      .def_prop_ro_static(
          "EVICT",
          [](nb::handle) { return static_cast<int>(StepKind::kEvict); },
          "Step kind: drop a tensor to make room.")
      .def_prop_ro_static(
          "FREE", [](nb::handle) { return static_cast<int>(StepKind::kFree); },
          "Step kind: drop a tensor that the program has let go of.")
      .def_prop_ro(
          "steps",
          [](nb::handle_t<Schedule> self) {
            return ViewRecords(nb::cast<const Schedule&>(self).steps, self);
          },
          "(n, 2) rows (kind, operation or tensor), in order.")
      .def_prop_ro(
          "placements",
          [](nb::handle_t<Schedule> self) {
            return ViewRecords(nb::cast<const Schedule&>(self).placements,
                               self);
          },
          "(m, 4) rows (step, tensor, offset, taken over): what each compute "
          "or recompute step makes in the pool and where. If the block is that "
          "of an input, `taken over` names it (else -1); its evict or free "
          "step is among those right before, though the operation still reads "
          "it.")
      .def_prop_ro(
          "initial_placements",
          [](nb::handle_t<Schedule> self) {
            return ViewRecords(
                nb::cast<const Schedule&>(self).initial_placements, self);
          },
          "(k, 2) rows (tensor, offset): the graph inputs in the pool.")
      .def_prop_ro(
          "workspaces",
          [](nb::handle_t<Schedule> self) {
            return ViewRecords(nb::cast<const Schedule&>(self).workspaces,
                               self);
          },
          "(j, 2) rows (step, offset).")
      .def_prop_ro(
          "events",
          [](nb::handle_t<Schedule> self) {
            return ViewRecords(nb::cast<const Schedule&>(self).events, self);
          },
          "(e, 4) rows (requested bytes, evictions, free bytes with the block "
          "just found, nanoseconds), one per allocation that had to evict.")
      .def_ro("capacity", &Schedule::capacity)
      .def_ro("alignment", &Schedule::alignment)
      .def_ro("copy_on_write", &Schedule::copy_on_write)
      .def_ro("statistics", &Schedule::statistics)
      .def_ro("has_statistics", &Schedule::has_statistics,
              "Whether a planner made it; one from arrays has those of the "
              "statistics that it was given.")
      .def("__repr__", [](const Schedule& schedule) {
        return "Schedule(steps=" + std::to_string(schedule.steps.size()) +
               ", capacity=" + std::to_string(schedule.capacity) +
               ", peak_bytes=" +
               std::to_string(schedule.statistics.peak_bytes) + ")";
      });
}

std::string ReasonOf(const PlanFailure& failure) {
  switch (failure.reason) {
    case PlanFailure::Reason::kOutOfMemory:
      return "out_of_memory";
    case PlanFailure::Reason::kOverheadLimit:
      return "overhead_limit";
    case PlanFailure::Reason::kEffort:
      return "effort";
  }
  return "?";
}

void BindFailure(nb::module_& m) {
  nb::class_<PlanFailure>(m, "PlanFailure", "Why there is no schedule.")
      .def_prop_ro("reason", &ReasonOf,
                   "\"out_of_memory\", \"overhead_limit\", or \"effort\" where "
                   "neither a plan nor a reason was found in the effort.")
      .def_ro("op", &PlanFailure::op,
              "The operation that could not run; -1: placing the graph inputs.")
      .def_ro("requested_by", &PlanFailure::requested_by,
              "The operation on whose behalf it was to run again; `op` itself "
              "if it was its turn; `num_ops` for the outputs at the end.")
      .def_ro("requested_bytes", &PlanFailure::requested_bytes)
      .def_ro("free_bytes", &PlanFailure::free_bytes)
      .def_ro("largest_free_bytes", &PlanFailure::largest_free_bytes)
      .def_ro("pinned_bytes", &PlanFailure::pinned_bytes,
              "In use and not evictable at that moment.")
      .def_ro("capacity", &PlanFailure::capacity)
      .def("__repr__", [](const PlanFailure& failure) {
        std::ostringstream text;
        text << "PlanFailure(reason='" << ReasonOf(failure)
             << "', op=" << failure.op
             << ", requested_by=" << failure.requested_by
             << ", requested_bytes=" << failure.requested_bytes
             << ", free_bytes=" << failure.free_bytes
             << ", largest_free_bytes=" << failure.largest_free_bytes
             << ", pinned_bytes=" << failure.pinned_bytes
             << ", capacity=" << failure.capacity << ")";
        return text.str();
      });
}

}  // namespace

void BindSchedule(nb::module_& m) {
  BindStatistics(m);
  BindScheduleClass(m);
  BindFailure(m);
}

}  // namespace coop
