"""`TrainingStep`: one network's whole training step, and what to call it with.

A step is a pure function `step(state, batch[, key]) -> (state, loss)` over pytrees. Its
arguments exist twice: as shapes, which are enough to trace and plan the step at the
paper's sizes without allocating a byte, and as arrays, made from a seed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

DONATED = 0
"""The argument of every step that may be donated: its state."""

UNOPTIMISED = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Compiler options for what takes longer to compile than to run."""


Wrap = Callable[..., Any]


def as_written(block: Any, remat: Any = None, **options: Any) -> Any:
    """The `wrap` of networks without `jax.checkpoint`: leaves a block as it is.

    Another `wrap` returns `remat(block, policy=..., **options)`, as `coop_jax.compare`
    asks for; every network says with it which blocks one would wrap by hand.
    """
    del remat, options
    return block


def named_attention(attention: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An attention function that names its operands and its result, for policies that
    save by name. Names are those of MaxText; they compute nothing."""

    @functools.wraps(attention)  # Flax passes the arguments that its signature has
    def named(query, key, value, *args, **kwargs):
        query = checkpoint_name(query, "query_proj")
        key = checkpoint_name(key, "key_proj")
        value = checkpoint_name(value, "value_proj")
        context = attention(query, key, value, *args, **kwargs)
        return checkpoint_name(context, "context")

    return named


class Scale(enum.Enum):
    """How large a network is built."""

    PAPER = "paper"  # the sizes of the paper's experiment: traced and planned
    REDUCED = "reduced"  # the same architecture, compiled and run in seconds on a CPU


class TrainState(NamedTuple):
    """The state that a step carries over to the next one; made to be donated.

    Attributes:
        params: what the gradient is taken for.
        statistics: running means and variances of batch normalization; `()` if none.
        optimizer: the optimizer's state.
    """

    params: Any
    statistics: Any
    optimizer: Any


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingStep:
    """A network's training step at one scale.

    Attributes:
        name: the network's name in `NETWORKS`.
        scale: the scale it was built at.
        step: `step(*args) -> (state, loss)`, pure; `DONATED` says what may be donated.
        args: `(state, batch)`, or `(state, batch, key)` if the step draws random
            numbers, as a pytree of `jax.ShapeDtypeStruct`s.
        num_parameters: scalars in `state.params`.
        make_args: makes `args` from a PRNG key, as arrays.
    """

    name: str
    scale: Scale
    step: Callable[..., tuple[TrainState, jax.Array]]
    args: tuple[Any, ...]
    num_parameters: int
    make_args: Callable[[jax.Array], tuple[Any, ...]]

    @classmethod
    def build(
        cls,
        name: str,
        scale: Scale,
        step: Callable[..., tuple[TrainState, jax.Array]],
        make_args: Callable[[jax.Array], tuple[Any, ...]],
    ) -> TrainingStep:
        """A step whose shapes and parameter count are read off `make_args`."""
        args = jax.eval_shape(make_args, jax.random.key(0))
        leaves = jax.tree.leaves(args[0].params)
        num_parameters = sum(math.prod(leaf.shape) for leaf in leaves)
        return cls(name, scale, step, args, num_parameters, make_args)

    def concrete(self, seed: int) -> tuple[Any, ...]:
        """`args` as arrays: freshly initialised weights and random data.

        At the paper's scale this allocates what the paper's state and batch need.
        """
        # It runs once, and XLA:CPU takes ten times as long to optimise a hundred random
        # initialisers as to run them.
        make_args = jax.jit(self.make_args, compiler_options=UNOPTIMISED)
        return make_args(jax.random.key(seed))
