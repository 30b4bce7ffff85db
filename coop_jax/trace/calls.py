"""Calls: equations that are lowered to what a jaxpr among their parameters computes.

A `jit` is one, and so is what remains of rules for gradients and batches once they have
been applied: `custom_vjp`, `custom_vmap`, the solver of `custom_linear_solve`. Kept whole,
they would be operations that need at once what their equations need one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# By primitive name, the parameter that holds the called jaxpr.
_CALLED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "call_jaxpr",
    "custom_vmap_call": "call",
    "linear_call": "callee",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "remat_opt": "fwd_jaxpr",
    "checkpoint": "jaxpr",
}
_LINEAR_SOLVE = "custom_linear_solve"


def called_jaxpr(eqn: Any) -> Any | None:
    """The jaxpr, closed or not, that an equation calls; None if it is no call."""
    name = eqn.primitive.name
    if name == _LINEAR_SOLVE:
        return eqn.params["jaxprs"].solve
    parameter = _CALLED.get(name)
    if parameter is None:
        return None
    # JAX 0.10 names that of `eval_jaxpr` otherwise.
    return eqn.params.get(parameter, eqn.params.get("jaxpr"))


def operands_of_call(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Those of an equation's operands that its jaxpr is called with.

    Of `custom_linear_solve` the constants of the solver, and the right-hand sides; those of
    the linear map and of its transposition are for gradients alone.
    """
    if eqn.primitive.name != _LINEAR_SOLVE:
        return [*operands]
    lengths = eqn.params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    after = first + lengths.solve
    return [*operands[first:after], *operands[after + lengths.transpose_solve :]]
