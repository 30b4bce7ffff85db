"""Backend: what differs between XLA:CPU, XLA:GPU and XLA:TPU, as one small interface.

The defaults are those of a backend without any peculiarity; `backends.cpu`, `backends.gpu`
and `backends.tpu` override what their XLA does otherwise, each for quirks that can be
switched off (`backends.quirk`). No other module compares names of platforms (but for the
tables of `coop_jax.targets`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from coop_jax.backends.quirk import Quirk
from coop_jax.base import _compat
from coop_jax.emit.hints import NO_HINTS, FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues, from_rules
from coop_jax.plan import planner
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import PlanOptions, unconstrained
from coop_jax.targets import Target
from coop_jax.trace.program import Program
from coop_jax.xla.buffer_assignment import read_stored_module


class Backend:
    """One backend of XLA.

    Arguments:
        without: names of quirks that are switched off, to measure what they are worth.

    Attributes:
        quirks: in which it differs from this class.
        without: those that are switched off.
        compiler_options: of every version of a step; those of the user take precedence.
        reading_options: compiler options of what is compiled to be read and never runs.
        checkpoint_options: compiler options without which XLA undoes `jax.checkpoint`.
        checkpoint_in_loops_options: the same for a step with one in the body of a loop.
        inputs_pass_fences_free: whether an input that is not donated passes a fence
            without being copied.
        has_guards: whether fences stand for memory's sake alone, too.
        has_arena: whether the arena's custom calls exist for it.
        gathers_early: whether a value that a mesh divides is gathered as soon as it can be
            and kept for all readers up to the next fence (`search.copies_alive`).
        combines_sums: whether sums over devices that do not depend on each other become one
            collective, however many bytes they have (`emit.combined_sums`).
        free_temporary_bytes: the most bytes of temporaries that a run has without taking
            time for it, where `seconds_for_temporaries` is more than 0 beyond; else 0.
        has_second_memory: whether XLA moves values to a memory on the chip, so that a
            schedule may need less than it keeps alive.
        sweeps_pools: whether schedules of many sizes are compared rather than one corrected
            (`search.sweep_search`).
        fuses_into_readers: whether the step is also planned with cheap values made again
            inside of their readers, where XLA fuses them (`emit.inside_readers`).
        runs_layers_again: whether it is also compiled with its layers made again, each in
            one stretch, as `jax.checkpoint` does (`emit.layers_again`).

    Raises:
        ValueError: if it has no quirk of such a name.
    """

    quirks: tuple[Quirk, ...] = ()
    compiler_options: Mapping[str, Any] = MappingProxyType({})
    reading_options: Mapping[str, Any] = MappingProxyType({})
    checkpoint_options: Mapping[str, Any] = MappingProxyType({})
    checkpoint_in_loops_options: Mapping[str, Any] = MappingProxyType({})
    inputs_pass_fences_free = True
    has_guards = True
    has_arena = False
    gathers_early = False
    combines_sums = False
    free_temporary_bytes = 0
    has_second_memory = False
    sweeps_pools = False
    fuses_into_readers = False
    runs_layers_again = False

    def __init__(self, *, without: Collection[str] = ()) -> None:
        known = {quirk.name: quirk for quirk in self.quirks}
        unknown = sorted(set(without) - set(known))
        if unknown:
            raise ValueError(
                f"`{type(self).__name__}(without=...)` takes names of its quirks: "
                f"{', '.join(known) or 'it has none'}. Got {', '.join(map(repr, unknown))}."
            )
        self.without = frozenset(known[name] for name in without)

    def has(self, quirk: Quirk) -> bool:
        """Is this quirk of its own switched on?"""
        assert quirk in self.quirks, "a backend asks for quirks that it lists"
        return quirk not in self.without

    def switched(self, *, without: Collection[str]) -> Backend:
        """The same backend with quirks of these names switched off, and no others."""
        return type(self)(without=without)

    def prepare(self, program: Program) -> Program:
        """The program with equations that this backend evaluates otherwise replaced."""
        return program

    @property
    def options_for_memory(self) -> Mapping[str, Any]:
        """Compiler options by which XLA orders a program for memory, not for what can run
        at the same time; none where it has one order."""
        return MappingProxyType({})

    def options_of_plans(self, program: Program) -> Mapping[str, Any]:
        """Compiler options of all programs that replace a step on one device.

        Arguments:
            program: the step.
        """
        del program
        return MappingProxyType({})

    def without_rematerialization(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Compiler options, and those by which XLA rematerializes nothing by itself."""
        return dict(options)

    def compile(
        self,
        lowered: Any,
        device: Any,
        jit_options: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Any:
        """Compile a `jax.stages.Lowered` for one device.

        Arguments:
            jit_options: compiler options that it was jitted with.
            options: compiler options beyond those.
        """
        del device, jit_options
        # Without options of its own, `jax.jit` later runs this very executable.
        return lowered.compile(dict(options) or None)

    def stored_values(self, program: Program, compiled: Any) -> StoredValues:
        """The values that XLA stores of a program whose tagged form was compiled; by rules
        where the platform does not publish its optimized module."""
        attribution = self._attribution(program, compiled)
        if attribution is None:
            return from_rules(program)
        return self._read(attribution)

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        """The requirements of this backend on fences, beside those of the schedule.

        Arguments:
            stored: what XLA stores; None where nothing was compiled.
        """
        del program, stored
        return NO_HINTS

    def expected_bytes(
        self, graph: StepGraph, schedule: AnySchedule, options: PlanOptions
    ) -> int:
        """Temporaries that XLA is expected to need for a schedule with fences."""
        assert isinstance(schedule, planner.Schedule), "the core's own"
        return planner.expected_bytes(graph, schedule, options)

    def expected_bytes_as_written(
        self,
        program: Program,
        stored: StoredValues,
        target: Target,
        options: PlanOptions,
        compiled: Any,
    ) -> int:
        """Temporaries that XLA is expected to need for the step as written.

        Without fences, what XLA makes early takes its bytes for much of the step.

        Arguments:
            compiled: the tagged step; None where XLA refuses to compile it.
        """
        del compiled
        graph = build_graph(program, stored.without_early(), target)
        schedule = unconstrained(graph, options)
        early_bytes = sum(stored.early_bytes.values())
        return early_bytes + self.expected_bytes(graph, schedule, options)

    def seconds_for_temporaries(self, num_bytes: int) -> float:
        """Seconds that a run takes to have so many bytes of temporaries, whatever is
        written to them."""
        del num_bytes
        return 0.0

    def _read(self, attribution: Attribution) -> StoredValues:
        stored = attribution.stored_values()
        if not self.gathers_early:
            return stored
        return dataclasses.replace(stored, resharded=attribution.resharded_copies())

    def _attribution(
        self, program: Program, compiled: Any, **habits: bool
    ) -> Attribution | None:
        """The buffers of a compiled step, attributed; `habits` as of `Attribution`."""
        module = read_stored_module(compiled)
        if module is None:
            return None
        num_partitions = 1  # The values of a mapped step are those of one device.
        if program.mapped is None:
            shardings = _compat.input_shardings(compiled)
            num_partitions = max((len(s.device_set) for s in shardings), default=1)
        return Attribution(program, module, num_partitions, **habits)
