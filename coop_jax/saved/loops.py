"""Loops of a file: the plans of a step's loops as JSON, and back.

A file names the pairs of loops by their places, the values that an iteration keeps and the
equations that it runs again, one list of pairs for the step and one for each level inside
of its planned loops; and the bodies that are planned for fewer bytes, each a straight line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.loops.bodies import bodies_of, runs_of_bodies, with_bodies
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.frontier import Retained, retained_of
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.menu import iterations_of
from coop_jax.loops.parts import Part, PlannedPair
from coop_jax.saved.document import Node, PlanFault
from coop_jax.saved.fingerprint import Names, digest, texts_of
from coop_jax.saved.straight_line import StraightLine, line_contents, line_of
from coop_jax.search.placements import XlaPlacement
from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.search.tight_bodies import TightBody, may_be_tight, named_loop
from coop_jax.targets import Target
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import may_run_again

_PAIR_KEYS = ("path", "forward", "backward", "line", "parts")
_PART_KEYS = ("start", "count", "group", "kept", "again")
_MOST = 2**31 - 1


def loops_contents(loops: LoopsOfProgram) -> dict[str, Any]:
    """The plans of loops as a part of a document.

    Bodies and what is around the loops are planned in programs that JAX traces anew: a
    file has the digest of the last one.
    """
    return {
        "pairs": [[_pair_contents(pair) for pair in level] for level in loops.levels],
        "tightened": list(loops.tightened),
        "bodies": [
            {
                "path": list(body.path),
                "line": _compat.source_line(body.eqn),
                "plan": line_contents(StraightLine(body.graph, body.schedule)),
            }
            for body in loops.bodies
        ],
        "program": digest(texts_of(loops.program)),
    }


def loops_of(
    node: Node, program: Program, target: Target, placement: XlaPlacement
) -> LoopsOfProgram:
    """The plans of a document, for a program that is that of the file.

    Arguments:
        program: the step's flat program.
        placement: realizes the bodies' schedules.

    Raises:
        PlanFault: they are no plans of this program's loops.
    """
    pairs_node, tightened_node, bodies_node, digest_node = node.fields(
        "pairs", "tightened", "bodies", "program"
    )
    program = with_broadcasts_inside(program)
    levels = []
    for level in pairs_node.items():
        planned = _level_of(level, program, target)
        levels.append(planned)
        program = with_planned_pairs(program, planned)
    bodies = _Bodies(bodies_node, target, placement)
    tightened = [n.number(0, _MOST) for n in tightened_node.items()]
    eqns = list(program.eqns)
    for place, item in zip(tightened, tightened_node.items(), strict=True):
        if place >= len(eqns) or not may_be_tight(eqns[place]):
            raise item.fault("the place of a loop whose body is planned")
        eqns[place] = bodies.written(program.eqns[place], (place,), 1, None)
    bodies.check_all_used()
    program = dataclasses.replace(program, eqns=tuple(eqns))
    if digest_node.text() != digest(texts_of(program)):
        raise PlanFault(
            "Its loops, as this version of JAX and coop_jax writes them, are not those "
            "that it was made with"
        )
    return LoopsOfProgram(tuple(levels), tuple(bodies.planned), tuple(tightened), program)


def _names(iteration: Iteration) -> Names:
    body = iteration.pair.forward.body
    return Names([*body.constvars, *body.invars], iteration.forward)


def _pair_contents(planned: PlannedPair) -> dict[str, Any]:
    iteration = planned.iteration
    pair, names = iteration.pair, _names(iteration)
    place = {id(eqn): i for i, eqn in enumerate(iteration.forward)}
    parts = [
        {
            "start": part.start,
            "count": part.count,
            "group": part.group,
            "kept": sorted(map(names.of_value, part.retained.values), key=_in_order),
            "again": [place[id(eqn)] for eqn in part.retained.recomputed],
        }
        for part in planned.parts
    ]
    return {
        "path": list(planned.path),
        "forward": pair.forward_index,
        "backward": pair.backward_index,
        "line": _compat.source_line(pair.forward.eqn),
        "parts": parts,
    }


def _level_of(node: Node, program: Program, target: Target) -> tuple[PlannedPair, ...]:
    """The planned pairs of a program in which those of the levels before are planned."""
    found = {
        (path, it.pair.forward_index, it.pair.backward_index): (it, path, num_runs)
        for it, path, num_runs in iterations_of(program, target)
    }
    pairs = {}
    for item in node.items():
        pair = _pair_of(item, found, target)
        key = pair.path, pair.iteration.pair.forward_index
        if key in pairs:
            raise item.fault("a pair of loops that occurs once")
        pairs[key] = pair
    return tuple(pairs.values())


def _in_order(name: str) -> tuple[int, str]:
    return len(name), name


def _pair_of(
    node: Node,
    found: Mapping[Any, tuple[Iteration, tuple[int, ...], int]],
    target: Target,
) -> PlannedPair:
    path, forward, backward, line, parts_node = node.fields(*_PAIR_KEYS)
    line.text()
    key = tuple(path.each(Node.number)), forward.number(), backward.number()
    if key not in found:
        raise PlanFault(
            f"`{node.where}` has the loops {key[1]} and {key[2]} of {list(key[0])}, which "
            "are no forward loop and its backward loop in this step"
        )
    iteration, path, num_runs = found[key]
    parts = tuple(_part_of(item, iteration, target) for item in parts_node.items())
    covered = 0
    for item, part in zip(parts_node.items(), parts, strict=True):
        if part.start != covered or part.count % part.group:
            raise item.fault("iterations that follow those before, in whole groups")
        covered += part.count
    if covered != iteration.pair.length:
        raise parts_node.fault(f"parts of all {iteration.pair.length} iterations")
    is_divided = len(parts) > 1 or any(part.group > 1 for part in parts)
    if is_divided and not iteration.pair.may_be_divided:
        raise parts_node.fault("one part without groups: these loops cannot be divided")
    return PlannedPair(iteration, parts, path, num_runs)


def _part_of(node: Node, iteration: Iteration, target: Target) -> Part:
    start, count, group, kept_node, again_node = node.fields(*_PART_KEYS)
    known = _names(iteration).values()
    kept = [item.named(known) for item in kept_node.items()]
    for var, item in zip(kept, kept_node.items(), strict=True):
        if not _compat.is_array(var.aval):
            raise item.fault("an array")
        if var not in iteration.bytes_if_kept and not item.text().startswith("eqn"):
            raise item.fault("a value that an iteration can keep")
    last = len(iteration.forward) - 1
    again = [item.number(0, last) for item in again_node.items()]
    if again != sorted(set(again)):
        raise again_node.fault("equations in their order, each once")
    _check_retained(node, iteration, kept, again)
    size = group.number(1, _MOST)
    if size > 1 and not iteration.may_run_forward_again:
        raise group.fault("1: this loop's body may not run again")
    retained: Retained = retained_of(iteration, kept, again, target)
    return Part(start.number(0, _MOST), count.number(1, _MOST), retained, size)


def _check_retained(
    node: Node, iteration: Iteration, kept: Sequence[Any], again: Sequence[int]
) -> None:
    """Everything that the backward body needs is kept, made again, or there anyway."""
    forward = iteration.pair.forward
    there = {*forward.body.constvars, *forward.body_consts, *forward.body_entries}
    there |= {*iteration.stacked_anyway, *kept}
    for index in again:
        eqn = iteration.forward[index]
        if not may_run_again(eqn):
            raise node.fault(f"without equation {index}, which may not run again")
        missing = [v for v in reads(eqn) if v not in there]
        if missing:
            name = _names(iteration).of_value(missing[0])
            raise PlanFault(
                f"`{node.where}` runs equation {index} again, which needs {name}, and "
                "neither keeps that nor makes it again"
            )
        there.update(writes(eqn))
    missing = [v for v in iteration.needed if v not in there]
    if missing:
        raise PlanFault(
            f"`{node.where}` neither keeps {_names(iteration).of_value(missing[0])} nor "
            "makes it again, and the backward loop needs it"
        )


class _Bodies:
    """The planned bodies of a document, written into their loops."""

    def __init__(self, node: Node, target: Target, placement: XlaPlacement) -> None:
        self.planned: list[TightBody] = []
        self._target = target
        self._placement = placement
        self._plans: dict[tuple[int, ...], Node] = {}
        for item in node.items():
            path, line, plan = item.fields("path", "line", "plan")
            line.text()
            place = tuple(path.each(Node.number))
            if place in self._plans:
                raise path.fault("the path of a loop that occurs once")
            self._plans[place] = plan

    def written(self, eqn: Any, path: tuple[int, ...], num_runs: int, around: Any) -> Any:
        """An equation with the planned bodies of it and of the equations in it.

        Arguments:
            path: as of `TightBody`, without the number of a body at its end.
            num_runs: of the equation.
            around: the loop that has it in its body; None: there is none.
        """
        named, runs_inside = named_loop(eqn, around), num_runs * runs_of_bodies(eqn)
        bodies = bodies_of(eqn)
        for number, body in enumerate(bodies):
            place = *path, number
            bodies[number] = self._written_body(body, place, runs_inside, named)
        return with_bodies(eqn, bodies)

    def _written_body(
        self, program: Program, path: tuple[int, ...], num_runs: int, named: Any
    ) -> Program:
        eqns = list(program.eqns)
        for index, inner in enumerate(program.eqns):
            if may_be_tight(inner):
                eqns[index] = self.written(inner, (*path, index), num_runs, named)
        program = dataclasses.replace(program, eqns=tuple(eqns))
        node = self._plans.pop(path, None)
        if node is None:
            return program
        line = line_of(node, program, self._target)
        made = self._placement.realize(line.graph, line.schedule)
        body = named, line.graph, line.schedule, made.segments, num_runs, path
        self.planned.append(TightBody(*body))
        return made.program

    def check_all_used(self) -> None:
        """Raises `PlanFault` for a plan of a loop that is not there."""
        for path, node in self._plans.items():
            raise PlanFault(f"`{node.where}` is of a loop at {list(path)}, which is none")
