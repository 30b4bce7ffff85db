"""Layouts: the orders in memory that the step as written has its values in.

XLA:TPU chooses an order of dimensions for every value, by what uses it. Results have
theirs from outside, and what is fused with them follows. Behind a fence that is no longer
so: there the product that makes a weight's gradient chose, and moments in another order
than their arguments have, whose place they cannot take, were kept until the end of the step
and copied there (of BERT-large those of 24 layers). So a fence is given the order that
results have, and that in which the step as written keeps what passes: chosen anew, a value
passed a fence in one order and was copied to others by its readers (the queries, keys and
values of a Swin transformer).

Not what convolutions read or make: kernels are small, images are large, and one follows the
other. Given their orders, XLA:TPU padded a U-Net's images to several times their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.trace.program import Program
from coop_jax.xla.buffer_assignment import StoredModule
from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.shapes import Order, dimension_orders, dimensions_of, leaves


def layouts_of(
    program: Program,
    module: StoredModule,
    kept: Mapping[Any, StoredBuffer],
    num_partitions: int = 1,
) -> dict[Any, Order]:
    """The order of every result and of what is kept, where it has several dimensions and
    is not of a convolution.

    Arguments:
        module: what the program was compiled to.
        kept: where each value is stored, by variable.
        num_partitions: that values may be divided into.

    Returns:
        By variable.
    """
    orders = {
        var: order
        for var, buffer in kept.items()
        if (order := _order_in(module, buffer, var.aval.shape, num_partitions)) is not None
    }
    orders |= _layouts_of_results(program, module)
    left_to_xla = {
        v.aval.shape
        for eqn in program.eqns
        if eqn.primitive.name == "conv_general_dilated"
        for v in [*eqn.invars, *eqn.outvars]
    }
    return {
        var: order
        for var, order in orders.items()
        if len(order) == len(var.aval.shape) > 1 and var.aval.shape not in left_to_xla
    }


def _layouts_of_results(program: Program, module: StoredModule) -> dict[Any, Order]:
    """The orders of dimensions that XLA gave to a program's results."""
    root = module.instructions.get(module.roots.get(module.entry, -1))
    orders = dimension_orders(root.shape) if root is not None else []
    if len(orders) != len(program.outvars):
        return {}
    return {
        var: order
        for var, order in zip(program.outvars, orders, strict=True)
        if not isinstance(var, Literal)
    }


def _order_in(
    module: StoredModule, buffer: StoredBuffer, whole: tuple[int, ...], num_partitions: int
) -> Order | None:
    """None if it is stored in another shape: as what it is a view of, or joined."""
    shape = module.instructions[buffer.instruction].shape
    array = dict(leaves(shape)).get(buffer.shape_index, b"")
    part = dimensions_of(array)
    is_part = len(part) == len(whole) and all(
        n and not m % n for m, n in zip(whole, part, strict=True)
    )
    if not is_part or math.prod(whole) > num_partitions * math.prod(part):
        return None
    [order] = dimension_orders(array)
    return order
