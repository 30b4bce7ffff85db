"""Time model: seconds of any version of a step, all priced by the same operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from coop_jax.backends import stored_values
from coop_jax.comparison.recompute_counts import Executed
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.targets import Target
from coop_jax.trace.cse import equation_key
from coop_jax.trace.program import Program


class TimeModel:
    """The planner's model of time, for steps that recompute in any way.

    The operations are those of the unmodified step, as XLA fuses and stores them, each
    with the seconds that the planner assumes for it; the seconds of a step are their sum,
    each times its number of executions. So a recomputation costs the same whether it is
    that of `jax.checkpoint` or of coop_jax.

    Arguments:
        unmodified: the executed equations of the unmodified step.
        compile_tagged: tags a program and compiles it in place of the step, so that the
            executable carries its buffer assignment; returns None if XLA refuses to.
        target: the device, whose rates are used.
    """

    def __init__(
        self,
        unmodified: Executed,
        compile_tagged: Callable[[Program], Any],
        target: Target,
    ) -> None:
        self._compile_tagged = compile_tagged
        self._target = target
        self._numbers: dict[Hashable, int] = {}
        self._graph = self._graph_of(unmodified.program)
        self._anchors = self._anchor_numbers(self._graph, unmodified.program)

    @property
    def graph(self) -> StepGraph:
        """The operations of the unmodified step."""
        return self._graph

    def seconds(self, step: Executed) -> float:
        """Modelled seconds of one execution.

        A step whose program differs from the unmodified one, recomputation aside (JAX
        may add up cotangents in another order), is compiled and priced by itself.
        """
        values = self._value_numbers(step.program)
        times = dict(zip(values, step.times, strict=True))
        if all(number in times for number in self._anchors):
            counts = [times[number] for number in self._anchors]
            graph = self._graph
        else:
            graph = self._graph_of(step.program)
            counts = [step.times[operation.anchor] for operation in graph.operations]
        return float(np.dot(counts, np.asarray(graph.core.op_seconds)))

    def _graph_of(self, program: Program) -> StepGraph:
        compiled = self._compile_tagged(program)
        if compiled is None:
            return build_graph(program, from_rules(program), self._target)
        return build_graph(program, stored_values(program, compiled), self._target)

    def _anchor_numbers(self, graph: StepGraph, program: Program) -> list[int]:
        values = self._value_numbers(program)
        return [values[operation.anchor] for operation in graph.operations]

    def _value_numbers(self, program: Program) -> list[int]:
        """A number for every equation, equal for equations that compute equal values, in
        all programs of this model.

        An equation that cannot be compared has a number of its own.
        """

        def number(key: Hashable) -> int:
            return self._numbers.setdefault(key, len(self._numbers))

        value: dict[Any, Hashable] = {
            v: ("argument", i) for i, v in enumerate(program.invars)
        }
        for v, const in zip(program.constvars, program.consts, strict=True):
            value[v] = ("constant", str(v.aval), np.asarray(const).tobytes())
        numbers = []
        for eqn in program.eqns:
            key = equation_key(eqn, value.__getitem__)
            numbers.append(number(object() if key is None else key))
            for i, v in enumerate(eqn.outvars):
                value[v] = (numbers[-1], i)
        return numbers
