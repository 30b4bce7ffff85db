"""Straight line: the plan of a program without regard to what is in its loops.

Of a program the graph follows from the values that XLA stores, and of a schedule on that
graph the segments and fences follow. So these are what a file has; the operations are in
it to be read, and compared with those of the graph that is made anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.backends.tpu.bf16_storage import read_unrounded
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues, from_rules
from coop_jax.plan.decoded import RECOMPUTE, AnySchedule
from coop_jax.plan.named_graph import MOST_BYTES, MOST_BYTES_OF_ONE
from coop_jax.saved.document import Node, PlanFault
from coop_jax.saved.fingerprint import Names
from coop_jax.saved.schedule import SavedSchedule, schedule_contents, schedule_of
from coop_jax.targets import Target
from coop_jax.trace.program import Program

_STORED_KEYS = (
    *("source", "in_place", "partitions", "values", "scratch", "halved", "orders"),
    *("partial_results", "expansions"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class StraightLine:
    """A plan of a straight line.

    Attributes:
        graph, schedule: the schedule and the graph that it was planned on.
        is_guarded, ordered_before, is_for_memory: as of `Candidate`.
    """

    graph: StepGraph
    schedule: AnySchedule
    is_guarded: bool = True
    ordered_before: frozenset[int] = frozenset()
    is_for_memory: bool = False


def line_contents(line: StraightLine) -> dict[str, Any]:
    """A plan as a part of a document."""
    graph = line.graph
    stored = _stored_contents(graph.program, graph.stored)
    return {
        "order": "early" if graph.is_early else "of XLA",
        "memory_fences": line.is_guarded,
        "order_fences": sorted(line.ordered_before),
        "order_for_memory": line.is_for_memory,
        "stored": stored,
        "operations": [list(op.equations) for op in graph.operations],
        "schedule": schedule_contents(graph, line.schedule),
    }


def line_of(node: Node, program: Program, target: Target) -> StraightLine:
    """The plan of a document, for a program that is that of the file.

    Raises:
        PlanFault: it is no plan of this program.
    """
    order, guarded, ordered, for_memory, *rest = node.fields(
        *("order", "memory_fences", "order_fences", "order_for_memory"),
        *("stored", "operations", "schedule"),
    )
    stored_node, operations, schedule_node = rest
    is_early = order.one_of(("early", "of XLA")) == "early"
    is_guarded = guarded.flag()
    stored = _stored_of(stored_node, program)
    graph = build_graph(program, stored, target, early=is_early)
    rows = operations.items()
    for index, (row, operation) in enumerate(zip(rows, graph.operations, strict=False)):
        equations = tuple(n.number() for n in row.items())
        if equations != operation.equations:
            raise PlanFault(
                f"`{row.where}` has the equations {list(equations)}, and operation {index} "
                f"of this step {list(operation.equations)}"
            )
    if len(rows) != len(graph.operations):
        raise PlanFault(
            f"`{operations.where}` has {len(rows)} operations, and this step "
            f"{len(graph.operations)}"
        )
    schedule: SavedSchedule = schedule_of(schedule_node, graph)
    runs = schedule.steps[:, 0] <= RECOMPUTE
    last = int(runs.sum()) - 1
    before = frozenset(number.number(1, last) for number in ordered.items())
    return StraightLine(graph, schedule, is_guarded, before, for_memory.flag())


def check_halved(graph: StepGraph, stored: Callable[[Program], StoredValues]) -> None:
    """Check that what a plan keeps as bfloat16 is what XLA rounds in the program itself.

    The program shows it where matrix products alone read a value. For others a compilation
    has to: they would be other numbers.

    Arguments:
        graph: of the plan.
        stored: returns what XLA stores of a program; called if it is needed.

    Raises:
        PlanFault: XLA keeps one of the values as float32.
    """
    narrowed = graph.stored.narrowed
    unshown = read_unrounded(graph.program, narrowed)
    known = stored(graph.program).narrowed if unshown else {}
    for value in unshown:
        if value not in known or not known[value] <= narrowed[value]:
            name = Names.of(graph.program).of_value(value)
            raise PlanFault(
                f"It keeps {name} as bfloat16, and XLA keeps it as float32 for some of its "
                "readers"
            )


def _stored_contents(program: Program, stored: StoredValues) -> dict[str, Any]:
    names = Names.of(program)
    values = [
        [name, stored.stored_bytes.get(var, -1), stored.position.get(var, -1)]
        for name, var in names.values().items()
        if var in stored.stored_bytes or var in stored.position
    ]
    by_name = names.of_value
    halved = [[by_name(v), sorted(readers)] for v, readers in stored.narrowed.items()]
    return {
        "source": stored.source,
        "in_place": stored.in_place,
        "partitions": stored.num_partitions,
        "values": [] if stored.source == "rules" else values,
        "scratch": [[i, size] for i, size in sorted(stored.workspace_bytes.items())],
        "halved": halved,
        "orders": [[by_name(v), list(order)] for v, order in stored.layouts.items()],
        "partial_results": sorted(stored.partial_results),
        "expansions": sorted(map(by_name, stored.expansions)),
    }


def _stored_of(node: Node, program: Program) -> StoredValues:
    source, in_place, partitions, values, scratch, *others = node.fields(*_STORED_KEYS)
    halved, orders, partial, expansions = others
    last = len(program.eqns) - 1
    workspace = scratch.numbers(last, MOST_BYTES_OF_ONE)
    known = Names.of(program).values()
    rows = [
        (name.named(known), size.number(-1, MOST_BYTES_OF_ONE), made_at.number(-1))
        for name, size, made_at in (row.row(3) for row in values.items())
    ]
    sizes = {var: size for var, size, _ in rows if size >= 0}
    if sum(sizes.values()) + sum(workspace.values()) > MOST_BYTES:
        raise values.fault(f"at most {MOST_BYTES} bytes in all")
    if source.one_of(("compiled", "rules")) == "rules":
        if rows or any(other.items() for other in others):
            raise node.fault('without values where the source is "rules"')
        return from_rules(program).with_scratch(workspace)
    return StoredValues(
        sizes,
        workspace,
        {var: made_at for var, _, made_at in rows if made_at >= 0},
        0,
        "compiled",
        num_partitions=partitions.number(1),
        in_place=in_place.one_of(("elementwise", "scatters", "fusions")),  # type: ignore
        layouts=dict(_order(row, known) for row in orders.items()),
        narrowed=dict(_halved(row, known, program) for row in halved.items()),
        partial_results=dict(_partial(n, program, sizes) for n in partial.items()),
        expansions=frozenset(_expansion(n, known, program) for n in expansions.items()),
    )


def _expansion(node: Node, known: dict[str, Any], program: Program) -> Any:
    value = node.named(known)
    if not any(value in eqn.outvars for eqn in program.eqns):
        raise node.fault("a value that an equation makes")
    return value


def _partial(node: Node, program: Program, sizes: dict[Any, int]) -> tuple[int, Any]:
    index = node.number(0, len(program.eqns) - 1)
    for v in program.eqns[index].outvars:
        if v in sizes:
            return index, v
    raise node.fault("an equation whose result is stored")


def _order(node: Node, known: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    name, order = node.row(2)
    var = name.named(known)
    dimensions = tuple(n.number() for n in order.items())
    rank = len(getattr(var.aval, "shape", ()))
    if sorted(dimensions) != list(range(rank)):
        raise order.fault(f"the order of the {rank} dimensions of {name.value}")
    return var, dimensions


def _halved(
    node: Node, known: dict[str, Any], program: Program
) -> tuple[Any, frozenset[int]]:
    name, readers = node.row(2)
    var = name.named(known)
    whole = frozenset(n.number(0, len(program.eqns) - 1) for n in readers.items())
    if str(getattr(var.aval, "dtype", "")) != "float32":
        raise name.fault("a float32 value")
    return var, whole
