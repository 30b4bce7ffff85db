"""Exchange: a boundary of a step that keeps idle values in an arena, as a primitive.

    arena, *passed, *loaded = exchange(arena, *to_pass, *to_store)

In one call, values are stored into the arena and others are loaded from it; values passed
through are returned unchanged, later. Like a fence, it keeps the operations after it apart
from those before it (`fence.py`). The handlers are in `xla_ext/ffi`: see `exchange.h` for
the contract.

* CPU: one custom call that aliases the arena and all values that pass.
* GPU: the custom call has the arena, stores and loads only, between two barriers, which
  the other values pass: a custom call's aliased operands would be copied where XLA may not
  overwrite them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from coop_jax.arena.layout import Stay
from coop_jax.base import _compat
from coop_jax.base._compat import Primitive
from coop_jax.base.custom_calls import register_targets

_EXCHANGE = "coop_exchange"
_CHECKED = "coop_checked_exchange"
_EMPTY = "coop_empty_arena"

exchange_p = Primitive("coop_exchange")
exchange_p.multiple_results = True
empty_arena_p = Primitive("coop_empty_arena")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The stores and loads of one boundary.

    Attributes:
        boundary: its number; boundary `k` is before segment `k`.
        stores, loads: values that are stored into the arena and loaded from it.
        is_first, is_last: whether it is the first, the last exchange of a step.
        exchange_log: number of the log of checked exchanges; None: not in checked mode.
        names: of the stores and then of the loads, for a checked exchange's messages.
    """

    boundary: int
    stores: tuple[Stay, ...]
    loads: tuple[Stay, ...]
    is_first: bool
    is_last: bool
    exchange_log: int | None = None
    names: tuple[str, ...] = ()

    def attributes(self, num_pass_through: int) -> dict[str, Any]:
        """The attributes of the custom call, by name; offsets and tensors are int64[n]."""
        attributes: dict[str, Any] = {
            "num_pass_through": np.int64(num_pass_through),
            "store_offsets": _array(s.offset for s in self.stores),
            "load_offsets": _array(s.offset for s in self.loads),
        }
        if self.exchange_log is not None:
            attributes |= {
                "store_tensors": _array(s.tensor for s in self.stores),
                "load_tensors": _array(s.tensor for s in self.loads),
                "names": "\n".join(self.names),
                "boundary": np.int64(self.boundary),
                "is_first": self.is_first,
                "is_last": self.is_last,
                "books": np.int64(self.exchange_log),
            }
        return attributes


def arena_aval(num_bytes: int) -> Any:
    """The arena's type: uint8[num_bytes]."""
    return jax.core.ShapedArray((num_bytes,), np.dtype(np.uint8))


def empty_arena(aval: Any) -> Any:
    """An arena of type `aval` as an array or a tracer; its contents are not set."""
    return empty_arena_p.bind(num_bytes=aval.shape[0])


def empty_arena_equation(arena: Any) -> Any:
    """The equation that makes an arena in a buffer of XLA, whose contents are not set."""
    return _compat.new_jaxpr_eqn(
        [], [arena], empty_arena_p, {"num_bytes": arena.aval.shape[0]}, frozenset()
    )


def exchange_equation(
    arenas: tuple[Any, Any],
    before: Sequence[Any],
    after: Sequence[Any],
    stored: Sequence[Any],
    loaded: Sequence[Any],
    what: Exchange,
) -> Any:
    """The exchange as an equation between jaxpr variables.

    Arguments:
        arenas: the arena's variable before and after.
        before, after: values that pass, one to one.
        stored, loaded: values of `what.stores` and of `what.loads`, in their order.
        what: the stores and loads.
    """
    return _compat.new_jaxpr_eqn(
        [arenas[0], *before, *stored],
        [arenas[1], *after, *loaded],
        exchange_p,
        {"what": what, "loaded": tuple(v.aval for v in loaded)},
        frozenset(),
    )


def _array(values: Any) -> np.ndarray:
    return np.fromiter(values, np.int64)


@exchange_p.def_abstract_eval
def _exchange_abstract_eval(*avals, what, loaded):
    return [*avals[: len(avals) - len(what.stores)], *loaded]


@empty_arena_p.def_abstract_eval
def _empty_arena_abstract_eval(*, num_bytes):
    return arena_aval(num_bytes)


def _call(ctx, operands, results, num_pass_through, what):
    """Results of the custom call; the arena and the values that pass are aliased."""
    register_targets()
    lowering = jax.ffi.ffi_lowering(
        _EXCHANGE if what.exchange_log is None else _CHECKED,
        operand_output_aliases={i: i for i in range(1 + num_pass_through)},
    )
    avals_in, values = operands
    # Keys pass as the words that store them.
    ctx = ctx.replace(
        avals_in=[_compat.physical_aval(a) for a in avals_in],
        avals_out=[_compat.physical_aval(a) for a in results],
    )
    return lowering(ctx, *values, **what.attributes(num_pass_through))


def _lower_cpu(ctx, *operands, what, loaded):
    del loaded
    num_pass_through = len(operands) - 1 - len(what.stores)
    return _call(ctx, (ctx.avals_in, operands), ctx.avals_out, num_pass_through, what)


def _lower_cuda(ctx, *operands, what, loaded):
    """The custom call of an exchange on an NVIDIA GPU."""
    num_passed = len(operands) - 1 - len(what.stores)
    held = list(_compat.hlo.OptimizationBarrierOp(operands).results)
    moved = slice(1 + num_passed, None)
    arena, *brought = _call(
        ctx,
        ([ctx.avals_in[0], *ctx.avals_in[moved]], [held[0], *held[moved]]),
        [ctx.avals_in[0], *loaded],
        0,
        what,
    )
    results = [arena, *held[1 : 1 + num_passed], *brought]
    return _compat.hlo.OptimizationBarrierOp(results).results


def _lower_empty(ctx, *, num_bytes):
    del num_bytes
    register_targets()
    return jax.ffi.ffi_lowering(_EMPTY)(ctx)


for _platform, _rule in (("cpu", _lower_cpu), ("cuda", _lower_cuda)):
    _compat.register_lowering(exchange_p, _rule, platform=_platform)
    _compat.register_lowering(empty_arena_p, _lower_empty, platform=_platform)
