"""Llama: training steps of Llama's decoder on a mesh, in MaxText's manner.

The layers are scanned, values have MaxText's names for policies of `jax.checkpoint`, master
weights and AdamW's moments are float32, arithmetic is bfloat16, and every weight is divided
over all chips (FSDP). Attention is Pallas' splash kernel on TPU, cuDNN's on GPU and XLA's
on CPU. Arguments are types without arrays: 8 billion weights need no memory here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_EPSILON = 1e-5
_ROTATION_BASE = 1e4
_SPLASH_BLOCK = 1024
_SPLASH_BLOCKS = (
    "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute"
).split()


@dataclasses.dataclass(frozen=True)
class LlamaSizes:
    """Sizes of a decoder.

    Attributes:
        layers: blocks of the scan.
        width: of the residual stream.
        heads, groups: of queries; of keys and values, shared by `heads // groups`.
        each: the width of a head.
        hidden: width of a SwiGLU.
        vocabulary: size of the embedding, and of the separate output.
    """

    layers: int
    width: int
    heads: int
    groups: int
    each: int
    hidden: int
    vocabulary: int


SIZES = {
    "tiny": LlamaSizes(2, 512, 4, 2, 128, 1408, 2048),
    "llama2-7b": LlamaSizes(32, 4096, 32, 32, 128, 11008, 32000),
    "llama3-8b": LlamaSizes(32, 4096, 32, 8, 128, 14336, 128256),
    "llama3-70b": LlamaSizes(80, 8192, 64, 8, 128, 28672, 128256),
}

_QKV = ("query_proj", "key_proj", "value_proj")
_MINIMAL = (*_QKV, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
_saved = jax.checkpoint_policies.save_only_these_names
# MaxText's `remat_policy`, by its names.
POLICIES: dict[str, Callable[..., Any]] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "save_out_proj": _saved("out_proj"),
    "save_qkv_proj": _saved(*_QKV),
    "minimal": _saved(*_MINIMAL),
    "minimal_with_context": _saved(*_MINIMAL, "context"),
}


def llama_problem(
    sizes: LlamaSizes,
    mesh: Mesh,
    batch: int,
    sequence: int,
    first: int = 0,
    *,
    has_two_stacks: bool = False,
) -> tuple[Callable[..., Callable], tuple]:
    """A training step of a decoder over a mesh, with the types of its arguments.

    Arguments:
        sizes: the sizes.
        mesh: one axis, over which batch and weights are divided.
        batch: sequences of all devices together.
        sequence: tokens of each.
        first: layers in a scan of their own, as one divides them by hand to save more of
            the others.
        has_two_stacks: whether the weights of these are apart; else their stack is sliced.

    Returns:
        `make_step`, and the types `(state, tokens, targets)`. `make_step(wrap)` is the step
        `(state, tokens, targets) -> (state, loss)` whose layers are wrapped by `wrap`;
        `make_step(wrap_first, wrap)` if some are in a scan of their own. The state is to be
        donated.
    """
    (axis,) = mesh.axis_names
    optimizer = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    divided = functools.partial(_divided, mesh, axis)

    def scanned(wrap: Callable, x: jax.Array, stack: dict) -> jax.Array:
        layer = wrap(functools.partial(_layer, sizes, mesh))
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, stack)[0]

    def make_step(*wraps: Callable) -> Callable:

        def loss_of(weights: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
            x = divided(weights["embedding"].astype(jnp.bfloat16)[tokens])
            stacks = weights["layers"]
            if first and not has_two_stacks:
                whole = stacks[0]
                stacks = [
                    jax.tree.map(lambda w: w[:first], whole),
                    jax.tree.map(lambda w: w[first:], whole),
                ]
            for wrap, stack in zip(wraps, stacks, strict=True):
                x = scanned(wrap, x, stack)
            logits = _normed(x, weights["norm"]) @ weights["out"].astype(jnp.bfloat16)
            losses = optax.softmax_cross_entropy_with_integer_labels(
                divided(logits).astype(jnp.float32), targets
            )
            return losses.mean()

        def train_step(state: tuple, tokens: jax.Array, targets: jax.Array) -> tuple:
            weights, moments = state
            loss, grads = jax.value_and_grad(loss_of)(weights, tokens, targets)
            updates, moments = optimizer.update(grads, moments, weights)
            return (optax.apply_updates(weights, updates), moments), loss

        return train_step

    lengths = [first, sizes.layers - first] if has_two_stacks else [sizes.layers]
    weights = _weights(sizes, mesh, axis, lengths)
    moments = optax.tree_map_params(
        optimizer,
        lambda leaf, like: _typed(leaf, like.sharding),
        jax.eval_shape(optimizer.init, weights),
        weights,
        transform_non_params=lambda leaf: _typed(
            leaf, NamedSharding(mesh, PartitionSpec())
        ),
    )
    words = jax.ShapeDtypeStruct(
        (batch, sequence), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec(axis))
    )
    return make_step, ((weights, moments), words, words)


def _layer(sizes: LlamaSizes, mesh: Mesh, x: jax.Array, w: dict) -> jax.Array:
    (axis,) = mesh.axis_names
    x = checkpoint_name(_divided(mesh, axis, x), "decoder_layer_input")
    half = {name: value.astype(jnp.bfloat16) for name, value in w.items()}
    y = _normed(x, half["norm1"])
    query = checkpoint_name(jnp.einsum("bsd,dhk->bshk", y, half["query"]), "query_proj")
    key = checkpoint_name(jnp.einsum("bsd,dhk->bshk", y, half["key"]), "key_proj")
    value = checkpoint_name(jnp.einsum("bsd,dhk->bshk", y, half["value"]), "value_proj")
    mixed = _attention(sizes, mesh, _rotated(query), _rotated(key), value)
    mixed = checkpoint_name(mixed, "context")
    x += checkpoint_name(jnp.einsum("bshk,hkd->bsd", mixed, half["o"]), "out_proj")
    y = _normed(x, half["norm2"])
    gate = checkpoint_name(y @ half["gate"], "mlpwi_0")
    up = checkpoint_name(y @ half["up"], "mlpwi_1")
    down = checkpoint_name((jax.nn.silu(gate) * up) @ half["down"], "mlpwo")
    return _divided(mesh, axis, x + down)


def _attention(
    sizes: LlamaSizes, mesh: Mesh, query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
    """Causal attention of `[batch, sequence, heads, each]`."""
    platform = mesh.devices.flat[0].platform
    if platform == "tpu":
        return _splash_attention(sizes, mesh, query, key, value)
    implementation = "xla" if platform == "cpu" else "cudnn"
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=True, implementation=implementation
    )


def _splash_attention(
    sizes: LlamaSizes, mesh: Mesh, query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    length = query.shape[1]
    blocks = dict.fromkeys(_SPLASH_BLOCKS, min(_SPLASH_BLOCK, length))
    mask = splash_attention_mask.CausalMask((length, length))

    def local(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask([mask] * sizes.heads),
            head_shards=1,
            q_seq_shards=1,
            block_sizes=splash_attention_kernel.BlockSizes(
                **blocks, use_fused_bwd_kernel=True
            ),
        )
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        return jax.vmap(kernel)(query * sizes.each**-0.5, key, value).swapaxes(1, 2)

    spec = PartitionSpec(*mesh.axis_names)
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(
        query, key, value
    )


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + _EPSILON)
    return (wide * inverse).astype(jnp.bfloat16) * scale.astype(jnp.bfloat16)


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary position embeddings of `[batch, sequence, heads, each]`."""
    length, each = x.shape[1], x.shape[-1]
    rates = _ROTATION_BASE ** (-jnp.arange(0, each, 2) / each)
    angles = jnp.arange(length)[:, None] * rates
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    first, second = jnp.split(x, 2, -1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, -1).astype(x.dtype)


def _divided(mesh: Mesh, axis: str, x: jax.Array) -> jax.Array:
    """`x` with its first axis divided over the mesh."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(axis)))


def _weights(
    sizes: LlamaSizes, mesh: Mesh, axis: str, lengths: list[int]
) -> dict[str, Any]:
    """The types of the weights, in stacks of layers; the axis of the width is divided."""
    s = sizes

    def typed(*shape: int | None) -> jax.ShapeDtypeStruct:
        spec = [axis if length is None else None for length in shape]
        whole = [s.width if length is None else length for length in shape]
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(whole, jnp.float32, sharding=sharding)

    def stack(length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            "norm1": typed(length, None),
            "norm2": typed(length, None),
            "query": typed(length, None, s.heads, s.each),
            "key": typed(length, None, s.groups, s.each),
            "value": typed(length, None, s.groups, s.each),
            "o": typed(length, s.heads, s.each, None),
            "gate": typed(length, None, s.hidden),
            "up": typed(length, None, s.hidden),
            "down": typed(length, s.hidden, None),
        }

    return {
        "layers": [stack(length) for length in lengths],
        "embedding": typed(s.vocabulary, None),
        "out": typed(None, s.vocabulary),
        "norm": typed(None),
    }


def _typed(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
