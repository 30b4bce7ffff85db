"""Layouts: the order in memory that a step's results have.

XLA:TPU chooses an order of dimensions for every value, by what uses it. Results have
theirs from outside, and what is fused with them follows. Behind a fence that is no longer
so: there the product that makes a weight's gradient chose, and moments in another order
than their arguments have, whose place they cannot take, were kept until the end of the step
and copied there (of BERT-large those of 24 layers). So a fence is told the order that
results have.

Not that of convolutions' kernels: they are small, their images are large, and one follows
the other. Told the kernels' order, XLA:TPU padded a U-Net's images to twice their size.
"""

from __future__ import annotations

from typing import Any

from coop_jax._compat import Literal
from coop_jax.program import Program
from coop_jax.xla_proto import StoredModule
from coop_jax.xla_shape import dimension_orders

Order = tuple[int, ...]
"""Dimensions, the outermost first."""


def layouts_of_results(program: Program, module: StoredModule) -> dict[Any, Order]:
    """The order of every result with several dimensions but convolutions' kernels.

    Arguments:
        module: what the program was compiled to.

    Returns:
        By variable.
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
    return {
        var: order
        for var, order in zip(program.outvars, orders, strict=True)
        if not isinstance(var, Literal)
        and len(order) == len(var.aval.shape) > 1
        and var.aval.shape not in kernels
    }
