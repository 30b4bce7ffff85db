"""Iteration: one iteration of a pair of loops as one straight-line program.

The body of the forward loop, a gap, the body of the backward loop. What the second body
computes of the first one's values alone (what `jax.checkpoint` makes again, factors of
derivatives) is merged with it where it is the same, and may be computed on either side of
the gap where it is not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from coop_jax.base._compat import DropVar, Literal
from coop_jax.loops.pairs import LoopPair
from coop_jax.targets import Target
from coop_jax.trace.costs import seconds_again, whole_bytes
from coop_jax.trace.cse import merge_equal
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again
from coop_jax.trace.ties import behind_selections, ties


@dataclasses.dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of a pair of loops.

    Attributes:
        pair: the pair.
        forward: the equations that need nothing but what the forward body is given, in
            order. Some only the backward body reads.
        backward: the other equations, in order.
        forward_results: values that the forward loop carries on and stacks: one per
            result of its body.
        backward_results: those of the backward loop.
        forward_seconds: modelled time of the forward body.
        inside: plans of inner pairs, one loop of the forward and one of the backward body,
            that keep less than as written (`loops.thin_inside`).
        bytes_if_kept: by input of the forward body, the bytes per iteration that it takes
            to have it in the backward body: 0 for what lies there anyway, one less than its
            size for an entry of a stack that the loop reads.
    """

    pair: LoopPair
    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    forward_results: tuple[Any, ...]
    backward_results: tuple[Any, ...]
    bytes_if_kept: dict[Any, int]
    forward_seconds: float
    inside: tuple[Any, ...] = ()

    @staticmethod
    def of(pair: LoopPair, outlive: Iterable[Any], target: Target) -> Iteration:
        """The iteration of a pair.

        Arguments:
            pair: the pair.
            outlive: variables of the program around it whose values are kept until the
                backward loop in any case.
            target: the device whose rates are the prices.
        """
        forward, backward = pair.forward.body, pair.backward.body
        as_joint = _shared(pair)

        def joint(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else as_joint.get(atom, atom)

        eqns = list(forward.eqns)
        eqns += [
            eqn.replace(invars=[joint(v) for v in eqn.invars]) for eqn in backward.eqns
        ]
        results = [*forward.outvars, *map(joint, backward.outvars)]
        eqns, results = merge_equal(eqns, results)
        num_results = len(forward.outvars)
        own = {v for eqn in forward.eqns for v in writes(eqn)}
        early, late = divided(eqns, {*forward.constvars, *forward.invars}, own)
        return Iteration(
            pair,
            tuple(early),
            tuple(late),
            tuple(results[:num_results]),
            tuple(results[num_results:]),
            _bytes_if_kept(pair, set(outlive)),
            sum(seconds_again(eqn, target) for eqn in forward.eqns),
        )

    @functools.cached_property
    def _comparisons(self) -> dict[Any, list[Any]]:
        """By result of a forward equation that compares with what was selected: what runs
        if it runs again."""
        return {
            self.forward[index].outvars[0]: behind_selections(self.forward, index, between)
            for index, between in ties(self.forward).items()
        }

    @functools.cached_property
    def _moved(self) -> frozenset[int]:
        """The forward equations, by `id`, that the backward body alone needs."""
        first = self.pair.forward.num_carry
        live = {
            v
            for number, v in enumerate(self.forward_results)
            if not isinstance(v, Literal)
            and (number < first or number - first not in self.pair.residuals)
        }
        moved = []
        for eqn in reversed(self.forward):
            if may_run_again(eqn) and not any(v in live for v in writes(eqn)):
                moved.append(id(eqn))
            else:
                live.update(reads(eqn))
        return frozenset(moved)

    def seconds_again(self, eqn: Any, target: Target) -> float:
        """Modelled time that it takes to run a forward equation in the backward body: none
        for what the forward body does not need, and then does not run."""
        return 0.0 if id(eqn) in self._moved else seconds_again(eqn, target)

    def run_again(self, eqns: Iterable[Any]) -> list[Any]:
        """Forward equations as they run again: each comparison selects again, too."""
        found: list[Any] = []
        for eqn in eqns:
            made = writes(eqn)
            found += self._comparisons.get(made[0], [eqn]) if made else [eqn]
        return found

    @property
    def stacked_anyway(self) -> dict[Any, int]:
        """The values that the forward loop stacks for others than its backward loop, with
        the number of the stack."""
        values = self.forward_results[self.pair.forward.num_carry :]
        return {
            value: number
            for number, value in enumerate(values)
            if number not in self.pair.residuals
            and not isinstance(value, Literal)
            and not isinstance(self.pair.forward.stacks_written[number], DropVar)
        }

    @property
    def carried_bytes(self) -> int:
        """Bytes that the forward loop hands from one iteration to the next."""
        return sum(whole_bytes(v.aval) for v in self.pair.forward.body_carry)

    @property
    def may_run_forward_again(self) -> bool:
        """Whether all of the forward body may be evaluated another time."""
        return all(map(may_run_again, self.forward))

    @property
    def needed(self) -> list[Any]:
        """The forward values that the backward body reads."""
        forward = {v for eqn in self.forward for v in writes(eqn)} | set(self.bytes_if_kept)
        read = [v for eqn in self.backward for v in reads(eqn)]
        read += [v for v in self.backward_results if not isinstance(v, Literal)]
        return [v for v in dict.fromkeys(read) if v in forward]


def _shared(pair: LoopPair) -> dict[Any, Any]:
    """The backward body's inputs that are values of the forward body, with these values."""
    forward, backward = pair.forward, pair.backward
    shared: dict[Any, Any] = {}
    entries = dict(zip(forward.stacks_read, forward.body_entries, strict=True))
    entries |= {
        stack: value
        for stack, value in zip(
            forward.stacks_written, forward.body_entries_out, strict=True
        )
        if not isinstance(stack, DropVar)
    }
    consts = {
        atom: var
        for atom, var in zip(forward.consts, forward.body_consts, strict=True)
        if not isinstance(atom, Literal)
    }
    for stack, var in zip(backward.stacks_read, backward.body_entries, strict=True):
        if not isinstance(stack, Literal) and stack in entries:
            shared[var] = entries[stack]
    for atom, var in zip(backward.consts, backward.body_consts, strict=True):
        if not isinstance(atom, Literal) and atom in consts:
            shared[var] = consts[atom]
    return shared


def divided(eqns: list[Any], given: set[Any], own: set[Any]) -> tuple[list[Any], list[Any]]:
    """The equations that can be computed of the forward body's inputs, and the others.

    Arguments:
        eqns: all equations.
        given: the forward body's inputs.
        own: what its own equations write: those stay with it, whatever they do.
    """
    known = set(given)
    early, late = [], []
    for eqn in eqns:
        is_own = any(v in own for v in writes(eqn)) or not reads(eqn)
        may = is_own or may_run_again(eqn)
        if may and all(v in known for v in reads(eqn)):
            early.append(eqn)
            known.update(writes(eqn))
        else:
            late.append(eqn)
    return early, late


def _bytes_if_kept(pair: LoopPair, outlive: set[Any]) -> dict[Any, int]:
    forward, backward = pair.forward, pair.backward
    cost = dict.fromkeys([*forward.body.constvars, *forward.body_consts], 0)
    read = {v for v in backward.stacks_read if not isinstance(v, Literal)}
    for stack, var in zip(forward.stacks_read, forward.body_entries, strict=True):
        is_free = isinstance(stack, Literal) or stack in read or stack in outlive
        size = whole_bytes(var.aval)
        # The stack lies there while the forward loop runs: of two choices of as many bytes
        # the better one keeps it, and stacks nothing instead.
        cost[var] = 0 if is_free else size - (size > 1)
    cost |= {var: whole_bytes(var.aval) for var in forward.body_carry}
    return cost
