"""Problem: a step whose plans are searched, and the bytes of a plan of it.

Every search needs the same of a plan: its expected bytes, its program, and, compiled,
XLA's figure. A plan is compiled once, whichever search asks for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coop_jax.base.budget import format_bytes
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import (
    Planned,
    PlanOptions,
    SmallestPool,
    key_of,
    least_recomputation,
    smallest_of,
)
from coop_jax.plan.refused_pools import RefusedPools
from coop_jax.search.around_copies import planned_around_copies
from coop_jax.search.candidates import (
    SLACK_ON_MESHES,
    SLACK_WORTH_USING,
    Candidate,
    Measured,
)
from coop_jax.search.copies_alive import LiveWithCopies, live_with_copies
from coop_jax.search.order_feedback import OrderFences
from coop_jax.search.placements import (
    XlaPlacement,
    changes_nothing,
    unless_unchanged,
    with_options,
)
from coop_jax.search.worthwhile_bytes import Worthwhile
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured

WithScratch = Callable[[Mapping[int, int]], Sequence[StepGraph]]


@dataclasses.dataclass(eq=False)
class Problem:
    """A step whose plans are searched.

    Attributes:
        graphs: the step's graph, in every order of operations that it may be planned in.
        options: of the planner.
        fixed_bytes: bytes that no plan changes: arguments, results and others.
        placement: makes programs of schedules.
        compile_program: compiles a rewritten program.
        log: receives a line for every compilation.
        with_scratch: returns the graphs with scratch of equations, in bytes by index; None:
            a plan that misses is corrected by its error alone.
        readable: returns an executable of a program with its buffer assignment, from one
            that may lack it; None: executables are read as they are.
        least_fixed_bytes: bytes of arguments and results alone; None: `fixed_bytes`.
        least_graphs: the graphs that bound the bytes of all plans; None: `graphs`.
        unmodified_bytes: bytes of the step as written, or with its loops planned, which is
            a budget that works; None if they are not known, or XLA refuses to compile it.
        caller: the function that errors name.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known: then compiled plans are compared by what they recompute.
        options_for_memory: compiler options by which XLA orders a program for memory; none
            where there is one order.
        leaves_unchanged: whether a schedule that changes nothing is the program as it is,
            without the order that plans give to updates in place: for a program that was
            compiled, so that its bytes are known to be `unmodified_bytes`.
    """

    graphs: Sequence[StepGraph]
    options: PlanOptions
    fixed_bytes: int
    placement: XlaPlacement
    compile_program: Callable[[Program], Any]
    log: Callable[[str], None]
    with_scratch: WithScratch | None = None
    readable: Callable[[Program, Any], Any] | None = None
    least_fixed_bytes: int | None = None
    least_graphs: Sequence[StepGraph] | None = None
    unmodified_bytes: int | None = None
    caller: str = "remat_train_step"
    seconds_of: Callable[[Any], float | None] = lambda compiled: None
    leaves_unchanged: bool = False
    options_for_memory: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.least_fixed_bytes is None:
            self.least_fixed_bytes = self.fixed_bytes
        self._plans: dict[tuple[Any, ...], Planned | None] = {}
        self._compiled: dict[tuple[bytes, tuple[int, ...], bool], Measured] = {}
        # Of compiled plans, by whether fences are spared: see `search.other_orders`.
        self.order_fences: dict[tuple[Measured, bool], OrderFences] = {}
        self._readable: dict[Measured, Any] = {}
        self._smallest: dict[tuple[StepGraph, ...], tuple[StepGraph, SmallestPool]] = {}
        self._refused = RefusedPools()
        self._scratch_as_read = {
            operation.anchor: graph.scratch_of(number)
            for graph in self.graphs
            for number, operation in enumerate(graph.operations)
        }

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The plans compiled so far."""
        return tuple(self._compiled.values())

    @property
    def is_gathered_early(self) -> bool:
        """Whether the step is one of several devices, and what it gathers is packed between
        its values: plans of it miss by more, and take longer to compile."""
        is_divided = self.graphs[0].stored.num_partitions > 1
        return is_divided and self.placement.backend.gathers_early

    @property
    def is_on_host_devices(self) -> bool:
        """Whether the step is one of several devices of a host, divided by XLA or mapped by
        hand: its plans take longer to compile than the step as written."""
        graph = self.graphs[0]
        is_divided = graph.stored.num_partitions > 1 or graph.program.mapped is not None
        return is_divided and self.placement.backend.gathers_early

    @functools.cached_property
    def worthwhile(self) -> Worthwhile:
        """The pool that is worth the time that memory takes; all of it for the paper's
        planners, in an arena, and on devices of a host, which take pages together."""
        backend, free_bytes = self.placement.backend, None
        assert self.least_fixed_bytes is not None, "set in `__post_init__`"
        unplanned_bytes = self.fixed_bytes - self.least_fixed_bytes
        uses_all = self.options.policy != "search" or self.placement.has_arena
        if backend.free_temporary_bytes and not (uses_all or self.is_on_host_devices):
            free_bytes = backend.free_temporary_bytes - unplanned_bytes
        return Worthwhile(
            self.graphs[0],
            self.options,
            lambda pool: backend.seconds_for_temporaries(pool + unplanned_bytes),
            free_bytes,
        )

    @property
    def slack_worth_using(self) -> float:
        """The part of the room for which one more plan is compiled."""
        return SLACK_ON_MESHES if self.is_gathered_early else SLACK_WORTH_USING

    def smallest_of(self, graphs: Sequence[StepGraph]) -> tuple[StepGraph, SmallestPool]:
        """The smallest pool that can be planned in any of the graphs, with the graph that
        has it.

        Found once for the same graphs, as it takes a bisection.

        Arguments:
            graphs: the problem's own, or those with learnt scratch.
        """
        key = tuple(graphs)
        if key not in self._smallest:
            self._smallest[key] = smallest_of(key, self.options)
        return self._smallest[key]

    def plan(
        self,
        graphs: Sequence[StepGraph],
        room: int,
        preferred: int | None = None,
        *,
        spares_partial_results: bool = True,
    ) -> Planned | None:
        """The plan that recomputes least, of the problem's graphs or of those with learnt
        scratch; made once. Arguments as of `least_recomputation`.

        Arguments:
            spares_partial_results: plans with partial results count only where there is
                none without: what they store is written and read in every step, and not
                priced. So do plans without expansions, whose fences are not. False for a
                further candidate, which its executable judges.
        """
        if spares_partial_results:
            fused = [g for g in graphs if not g.stores_more]
            if len(fused) < len(graphs):
                plan = self.plan(fused, room, preferred)
                if plan is not None:
                    return plan
        key = (*graphs, room, preferred)
        if key not in self._plans:
            self._plans[key] = self._planned(graphs, room, preferred)
        return self._plans[key]

    def least_recomputed(self, pool_bytes: int) -> float:
        """Seconds that a plan of the problem's graphs for a pool is expected to recompute
        at least: as many as the plans that were made for more; 0 without any."""
        own = set(self.graphs)
        for_more = (
            planned[1].statistics.recompute_seconds
            for (*graphs, room, preferred), planned in self._plans.items()
            if planned is not None and own == set(graphs)
            if pool_bytes <= (room if preferred is None else preferred)
        )
        return max(for_more, default=0.0)

    def _planned(
        self, graphs: Sequence[StepGraph], room: int, preferred: int | None
    ) -> Planned | None:
        if any(graph.stored.resharded for graph in graphs):
            return planned_around_copies(
                graphs, self._least_recomputation, room, preferred, self._with_copies
            )
        return self._least_recomputation(graphs, room, preferred)

    def _least_recomputation(
        self, graphs: Sequence[StepGraph], room: int, preferred: int | None
    ) -> Planned | None:
        return least_recomputation(graphs, self.options, room, preferred, self._refused)

    def _with_copies(self, graph: StepGraph, schedule: AnySchedule) -> LiveWithCopies:
        segments = self.placement.segments(graph, schedule)
        return live_with_copies(graph, schedule, segments, self._scratch_as_read)

    def planned_bytes(self, graph: StepGraph, schedule: AnySchedule) -> int:
        """All bytes that the compiled step of a schedule is expected to need; those of the
        step as written, where these are known, for the same program."""
        if self.unmodified_bytes is not None and self._changes_nothing(graph, schedule):
            return self.unmodified_bytes
        expected = self.placement.expected_bytes(graph, schedule, self.options)
        if graph.stored.resharded:
            counted = schedule.statistics.max_live_bytes
            expected += self._with_copies(graph, schedule).most_bytes - counted
        return self.fixed_bytes + expected

    def _changes_nothing(self, graph: StepGraph, schedule: AnySchedule) -> bool:
        """Whether the program of a schedule is the step as written.

        Such a plan may be expected to need less than that: what XLA makes early, like
        weights that it gathers from all devices before the first of them is read, is late
        behind fences, and here is none.
        """
        if schedule.statistics.recompute_seconds or self.placement.has_arena:
            return False
        return changes_nothing(self.placement.segments(graph, schedule))

    def candidate(
        self,
        graph: StepGraph,
        schedule: AnySchedule,
        error: int = 0,
        *,
        is_guarded: bool = True,
        ordered_before: frozenset[int] = frozenset(),
        is_for_memory: bool = False,
    ) -> Candidate:
        """A schedule with its program.

        Arguments:
            graph, schedule: the schedule and the graph that it was planned on.
            error: bytes by which XLA's figure for an earlier plan exceeded its planned
                bytes.
            is_guarded, ordered_before: see `XlaPlacement.segments`.
            is_for_memory: whether XLA orders the program for memory.
        """
        planned_bytes = self.planned_bytes(graph, schedule)
        realized = self.placement.realize(
            graph, schedule, is_guarded=is_guarded, ordered_before=ordered_before
        )
        if self.leaves_unchanged:
            realized = unless_unchanged(realized, graph)
        if is_for_memory:
            realized = with_options(realized, self.options_for_memory)
        return Candidate(
            graph=graph,
            schedule=schedule,
            realized=realized,
            planned_bytes=planned_bytes,
            predicted_bytes=planned_bytes + error,
            is_guarded=is_guarded,
            ordered_before=ordered_before,
            is_for_memory=is_for_memory,
        )

    def compile_plan(
        self,
        graph: StepGraph,
        schedule: AnySchedule,
        error: int = 0,
        *,
        is_guarded: bool = True,
        ordered_before: frozenset[int] = frozenset(),
        is_for_memory: bool = False,
    ) -> Measured:
        """A candidate with XLA's figure; arguments as of `candidate`."""
        candidate = self.candidate(
            *(graph, schedule, error),
            is_guarded=is_guarded,
            ordered_before=ordered_before,
            is_for_memory=is_for_memory,
        )
        counts = tuple(len(s.executions) for s in candidate.realized.segments)
        key = key_of(graph, schedule), counts, is_for_memory
        if key not in self._compiled:
            self._compiled[key] = self._compile(candidate)
        return self._compiled[key]

    def read(self, measured: Measured) -> Any:
        """A plan's executable with its buffer assignment."""
        if self.readable is None:
            return measured.compiled
        if measured not in self._readable:
            program = measured.candidate.realized.program
            self._readable[measured] = self.readable(program, measured.compiled)
        return self._readable[measured]

    def is_compiled(self, graph: StepGraph, schedule: AnySchedule) -> bool:
        """Whether the plan was compiled, with memory fences or without."""
        return any(key == key_of(graph, schedule) for key, *_ in self._compiled)

    def _compile(self, candidate: Candidate) -> Measured:
        """Compile a candidate, and log its figures."""
        compiled, total_bytes = compile_measured(
            lambda: self.compile_program(candidate.realized.program)
        )
        measured = Measured(candidate, compiled, total_bytes, self.seconds_of)
        self.log(
            f"compilation {len(self._compiled) + 1}: predicted "
            f"{format_bytes(candidate.predicted_bytes)}, XLA says "
            f"{format_bytes(measured.total_bytes)}, recomputes "
            f"{measured.recompute_seconds:.2e} s"
        )
        return measured
