"""Bodies: the values that XLA stores of a body of a loop or a branch.

A body is compiled as a step of its own to be read, under a scope for each equation, as the
step itself is: by rules alone the plans of training steps in loops need more bytes and
time.
"""

from __future__ import annotations

import dataclasses

import jax

from coop_jax.compile.as_written import compile_tagged_once
from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph.stored_values import StoredValues, from_rules
from coop_jax.trace.in_shard_maps import runnable
from coop_jax.trace.program import Program
from coop_jax.trace.shard_types import mesh_of_shards


def has_stored_bodies(traced: TracedStep) -> bool:
    """Whether a body alone says which values XLA stores of it: how XLA divides them over
    several devices depends on the step around it; that of a mapped step names axes."""
    return traced.num_devices() == 1 and traced.program.mapped is None


def stored_of_body(traced: TracedStep, body: Program) -> StoredValues:
    """The values that XLA stores of a body in a step; those of rules where XLA refuses to
    compile it, and of a body of shards, which names axes."""
    if any(mesh_of_shards(v.aval) is not None for v in (*body.invars, *body.outvars)):
        return from_rules(body)
    step = _as_step(traced, body)
    tagged = compile_tagged_once(step)
    if tagged is None:
        return from_rules(body)
    return traced.backend.stored_values(body, tagged)


def _as_step(traced: TracedStep, body: Program) -> TracedStep:
    """The body as a step of its inputs, none of them donated."""
    on_device = jax.sharding.SingleDeviceSharding(traced.device())
    inputs = tuple(
        jax.ShapeDtypeStruct(
            v.aval.shape, v.aval.dtype, sharding=on_device, weak_type=v.aval.weak_type
        )
        for v in body.invars
    )
    run = runnable(body)
    options = {"compiler_options": traced.jit_options.get("compiler_options")}
    step = TracedStep.trace(lambda *values: run(*values), options, inputs, {})
    return dataclasses.replace(
        step,
        program=body,
        _compilations=traced._compilations,
        _read_bodies=traced._read_bodies,
    )
