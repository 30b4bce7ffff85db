"""Under a transformation: a planned step called inside of `jit`, `grad`, `vmap`, ...

Nothing can be compiled there, so the step is planned from the prediction alone, which is
not verified. It is one call with two meanings: evaluated or lowered, it is the rewritten
program; differentiated, it is the step as written, with the rules of its `custom_jvp` and
`custom_vjp` functions, which inlining takes out of the rewritten program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from coop_jax.api.call_arguments import kind_of_arguments
from coop_jax.base import _compat, _compat_jit
from coop_jax.compile.traced_step import TracedStep
from coop_jax.plan.planner import PlanOptions
from coop_jax.search.predicted import predict_step
from coop_jax.trace.program import all_equations

Flat = Callable[[list[Any]], list[Any]]
Function = Callable[..., list[Any]]


class TransformedCalls:
    """Calls of a jitted step inside of transformations; each kind is planned once.

    Arguments:
        jitted: the step as written.
        budget, planner: as in `remat_train_step`.
        caller: the public function that errors name.
    """

    def __init__(
        self, jitted: Any, budget: int | str, planner: str | PlanOptions, caller: str
    ) -> None:
        self._jitted = jitted
        self._budget = budget
        self._planner = planner
        self._caller = caller
        # By kind of arguments: the jaxpr that was planned, and the function to call.
        self._planned: dict[Any, tuple[Any, Flat]] = {}

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        traced = TracedStep.of(self._jitted, args, kwargs)
        closed, captured = _compat_jit.traced_parts(traced.traced)
        results = self._flat(traced, closed, args, kwargs)(
            [*captured, *traced.leaves(args, kwargs)]
        )
        return jax.tree.unflatten(traced.out_tree, results)

    def clear(self) -> None:
        self._planned.clear()

    def _flat(self, traced: TracedStep, closed: Any, args: tuple, kwargs: dict) -> Flat:
        """The planned flat function of a traced step, kept by the types of arguments."""
        kind = kind_of_arguments(self._jitted, args, kwargs)
        jaxpr, flat = self._planned.get(kind, (None, None))
        # Values that a function closes over may differ between calls; so does its jaxpr.
        if flat is None or jaxpr is not closed:
            flat = self._plan(traced, closed)
            self._planned[kind] = closed, flat
        return flat

    def _plan(self, traced: TracedStep, closed: Any) -> Flat:
        """Plan a step that is traced inside of a transformation."""
        as_written = _compat.jaxpr_as_fun(closed)
        if not _compat_jit.may_have_derivative_rule(closed):
            return lambda inputs: as_written(*inputs)
        program = predict_step(traced, self._budget, self._planner, self._caller)
        planned = _with_derivative_of(as_written, traced.flat_function(program), closed)
        shardings = _compat_jit.leaf_shardings(traced.traced)
        no_constraints = [None] * len(traced.captured)
        run = jax.jit(
            planned,
            in_shardings=_or_none([*no_constraints, *shardings[0]]),
            out_shardings=_or_none(shardings[1]),
        )
        return lambda inputs: run(*inputs)


def _with_derivative_of(as_written: Function, planned: Function, closed: Any) -> Function:
    """The planned step, with the derivative of the step as written.

    In forward and reverse mode, unless a `custom_vjp` function in it allows only the
    latter.
    """
    # Jitted, so that outside of `jit` it runs as one computation.
    as_written = jax.jit(as_written)
    if not _has_custom_vjp(closed):
        both_ways = jax.custom_jvp(planned)
        both_ways.defjvp(
            lambda primals, tangents: _derivative(as_written, primals, tangents),
            symbolic_zeros=True,
        )
        return both_ways
    backwards = jax.custom_vjp(planned)
    backwards.defvjp(
        lambda *inputs: jax.vjp(as_written, *inputs),
        lambda pullback, cotangents: pullback(cotangents),
    )
    return backwards


def _has_custom_vjp(closed: Any) -> bool:
    return any(
        eqn.primitive.name.startswith("custom_vjp_call") for eqn in all_equations(closed)
    )


def _derivative(
    function: Function, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results and tangents of `jax.jvp` with respect to the arguments that have a
    tangent."""
    active = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

    def of_active(*values: Any) -> list[Any]:
        inputs = list(primals)
        for i, value in zip(active, values, strict=True):
            inputs[i] = value
        return function(*inputs)

    return jax.jvp(of_active, [primals[i] for i in active], [tangents[i] for i in active])


def _or_none(shardings: list[Any]) -> tuple[Any, ...] | None:
    return None if all(s is None for s in shardings) else tuple(shardings)
