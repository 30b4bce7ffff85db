"""Layouts: the order in memory that a step's arguments and results have.

XLA:TPU chooses an order of dimensions for every value, by what uses it. Arguments and
results have theirs from outside, and what is fused with them follows. Behind a fence that
is no longer so: there the product that makes a weight's gradient chose, and weights and
moments in another order, which cannot be updated in their place, were copied at the end of
the step (BERT-large's tightest plan needed 5.0 GiB rather than 4.2). So a fence is told
the order of what lies outside.

Not that of convolutions' kernels: they are small, their images are large, and one follows
the other. Told the kernels' order, XLA:TPU padded the images (U-Net's tightest plan needed
3.0 GiB rather than 2.3).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coop_jax._compat import Literal
from coop_jax.program import Program, reads
from coop_jax.xla_proto import StoredModule
from coop_jax.xla_schedule import dimension_orders

Order = tuple[int, ...]
"""Dimensions, the outermost first."""


def layouts_outside(program: Program, module: StoredModule) -> dict[Any, Order]:
    """The order of every result with several dimensions, and of what it takes the place of
    if nothing else reads that, by variable; without convolutions' kernels.

    Arguments:
        module: what the program was compiled to.
    """
    root = module.instructions.get(module.roots.get(module.entry, -1))
    orders = dimension_orders(root.shape) if root is not None else []
    if len(orders) != len(program.outvars):
        return {}
    kernels = {
        v.aval.shape
        for eqn in program.eqns
        if eqn.primitive.name == "conv_general_dilated"
        for v in eqn.invars
    }
    results = {
        var: order
        for var, order in zip(program.outvars, orders, strict=True)
        if not isinstance(var, Literal)
        and len(order) == len(var.aval.shape) > 1
        and var.aval.shape not in kernels
    }
    of_type = {_type(var): order for var, order in results.items()}
    readers = Counter(v for eqn in program.eqns for v in reads(eqn))
    replaced = {
        var: of_type[_type(var)]
        for var, donated in zip(program.invars, program.donated, strict=True)
        if donated and readers[var] == 1 and _type(var) in of_type
    }
    return replaced | results


def _type(var: Any) -> tuple[Any, Any]:
    return var.aval.shape, var.aval.dtype
