"""Checkpoint policies: the `jax.checkpoint` policies of a comparison, and their `wrap`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from typing import Any

import jax

Policy = Callable[..., Any]
Wrap = Callable[..., Any]

_QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
_MLP_IN = ("mlpwi", "mlpwi_0", "mlpwi_1")
_MLP_OUT = ("mlpwo",)
# The saved values of a transformer block, under MaxText's names for values and policies:
# the set that its users choose from and tune.
_NAMED = {
    "save_qkv_proj": _QKV,
    "save_out_proj": ("out_proj",),
    "save_dot_except_mlp": (*_QKV, "out_proj"),
    "save_dot_except_mlpwi": (*_QKV, "out_proj", *_MLP_OUT),
    "minimal": (*_QKV, "out_proj", *_MLP_IN, *_MLP_OUT),
    "minimal_with_context": (*_QKV, "context", "out_proj", *_MLP_IN, *_MLP_OUT),
}


def unwrapped(block: Any, remat: Wrap = jax.checkpoint, **options: Any) -> Any:
    """The `wrap` of an unmodified step: the block as it is."""
    del remat, options
    return block


def wrap_with(policy: Policy) -> Wrap:
    """The `wrap` of a policy: `wrap(block, remat=jax.checkpoint, **options)`.

    It returns `remat(block, policy=policy, **options)`.
    """
    return functools.partial(_wrapped, policy)


def _wrapped(
    policy: Policy, block: Any, remat: Wrap = jax.checkpoint, **options: Any
) -> Any:
    return remat(block, policy=policy, **options)


def default_policies(names: Set[str]) -> dict[str, Policy]:
    """The policies worth trying on a step, by name.

    Arguments:
        names: those that `jax.ad_checkpoint.checkpoint_name` gave to values of the step.
            Of the policies that save by name, those are returned whose names occur and
            that differ; for names that are not MaxText's, one that saves them all.
    """
    known = jax.checkpoint_policies
    policies: dict[str, Policy] = {
        name: getattr(known, name)
        for name in (
            "nothing_saveable",
            "dots_saveable",
            "dots_with_no_batch_dims_saveable",
        )
    }
    seen: set[frozenset[str]] = {frozenset()}
    for policy, saved in [*_NAMED.items(), ("all_names", tuple(names))]:
        present = frozenset(saved) & names
        if present not in seen:
            seen.add(present)
            policies[policy] = known.save_only_these_names(*sorted(present))
    return policies
