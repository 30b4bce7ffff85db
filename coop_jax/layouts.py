"""Layouts: the order in memory that a step's arguments and results have.

XLA:TPU chooses an order of dimensions for every value, by what uses it. Arguments and
results have theirs from outside, and what is fused with them follows. Behind a fence that
is no longer so: there XLA:TPU let the product that makes a gradient choose, and had to
copy weights and moments of another order, all of them alive until the end of the step
(BERT-large's tightest plan needed 5.0 GiB rather than 4.2). So a fence is told the order
of what lies outside.
"""

from __future__ import annotations

from typing import Any

from coop_jax._compat import Literal
from coop_jax.program import Program
from coop_jax.xla_proto import StoredModule
from coop_jax.xla_schedule import dimension_orders

Order = tuple[int, ...]
"""Dimensions, the outermost first."""


def layouts_outside(program: Program, module: StoredModule) -> dict[Any, Order]:
    """The order of every result and donated argument with several dimensions.

    By variable. An argument has that of the results of its type: one of them takes its
    place.
    """
    root = module.instructions.get(module.roots.get(module.entry, -1))
    orders = dimension_orders(root.shape) if root is not None else []
    if len(orders) != len(program.outvars):
        return {}
    results = [
        (var, order)
        for var, order in zip(program.outvars, orders, strict=True)
        if not isinstance(var, Literal) and len(order) == len(var.aval.shape) > 1
    ]
    of_type = {_type(var): order for var, order in results}
    donated = [v for v, d in zip(program.invars, program.donated, strict=True) if d]
    found = {v: of_type[_type(v)] for v in donated if _type(v) in of_type}
    return found | dict(results)


def _type(var: Any) -> tuple[Any, Any]:
    return var.aval.shape, var.aval.dtype
