"""Swin-T: a hierarchical transformer with attention inside shifted windows.

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
2021, the tiny model: width 96, depths 2, 2, 6, 2, windows of 7x7, stochastic depth 0.2.
28.3 million parameters.

The paper's sizes: batch 40, 224x224. AdamW with learning rate 1e-3 and weight decay
0.05, which spares norms, biases and the position bias tables, as in the Swin paper.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from paper.networks import batches
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 40
    image: int = 224
    classes: int = 1000
    patch: int = 4
    window: int = 7
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    drop_path: float = 0.2


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(
        batch=8,
        image=64,
        classes=10,
        window=4,
        width=16,
        depths=(2, 2, 2),
        heads=(1, 2, 4),
    ),
}
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
INIT = nnx.initializers.truncated_normal(0.02)
MASKED = -100.0  # added to a logit; finite, so that no row of a softmax is all -inf


def relative_positions(window: int) -> np.ndarray:
    """For each pair of a window's positions its row in the bias table."""
    rows, columns = np.indices((window, window)).reshape(2, -1)
    row_offsets = rows[:, None] - rows + window - 1
    column_offsets = columns[:, None] - columns + window - 1
    return row_offsets * (2 * window - 1) + column_offsets


def shift_mask(size: int, window: int, shift: int) -> np.ndarray:
    """The numbers to add to the logits `[windows, 1, position, position]` after a shift.

    The shift is cyclic, so a window at the border holds patches from opposite edges:
    they do not attend to each other. Along one axis, three kinds of patches share no
    neighbourhood: those of unshifted windows, those before the cut, and those after it.
    """
    kinds = np.repeat([0, 1, 2], [size - window, window - shift, shift])
    regions = 3 * kinds[:, None] + kinds
    num = size // window
    regions = regions.reshape(num, window, num, window).swapaxes(1, 2)
    regions = regions.reshape(num**2, 1, window**2)
    return np.where(regions[..., None] == regions[..., None, :], 0.0, MASKED).astype(
        np.float32
    )


def to_windows(x: jax.Array, window: int) -> jax.Array:
    """`[batch, size, size, channels]` to `[batch, windows, positions, channels]`."""
    batch, size, _, channels = x.shape
    num = size // window
    x = x.reshape(batch, num, window, num, window, channels).swapaxes(2, 3)
    return x.reshape(batch, num**2, window**2, channels)


def from_windows(x: jax.Array, size: int) -> jax.Array:
    """Inverse of `to_windows`."""
    batch, num_windows, num_positions, channels = x.shape
    num, window = round(num_windows**0.5), round(num_positions**0.5)
    x = x.reshape(batch, num, num, window, window, channels).swapaxes(2, 3)
    return x.reshape(batch, size, size, channels)


class WindowAttention(nnx.Module):
    """Multi-head attention within each window, with a bias per relative position."""

    def __init__(self, width: int, heads: int, window: int, rngs: nnx.Rngs):
        self.heads = heads
        self.window = window
        self.qkv = nnx.Linear(width, 3 * width, kernel_init=INIT, rngs=rngs)
        self.out = nnx.Linear(width, width, kernel_init=INIT, rngs=rngs)
        self.position_bias = nnx.Param(
            INIT(rngs.params(), ((2 * window - 1) ** 2, heads), jnp.float32)
        )

    def __call__(self, x: jax.Array, mask: np.ndarray | None) -> jax.Array:
        qkv = self.qkv(x).reshape(*x.shape[:-1], 3, self.heads, -1)
        qkv = checkpoint_name(qkv, "qkv_proj")
        query, key, value = jnp.unstack(qkv, axis=-3)
        query = query * query.shape[-1] ** -0.5
        logits = jnp.einsum("bwqhd,bwkhd->bwhqk", query, key)
        bias = self.position_bias[...][relative_positions(self.window)]
        logits = logits + jnp.transpose(bias, (2, 0, 1))
        if mask is not None:
            logits = logits + mask
        weights = nnx.softmax(logits)
        mixed = jnp.einsum("bwhqk,bwkhd->bwqhd", weights, value)
        mixed = checkpoint_name(mixed, "context")
        return checkpoint_name(self.out(mixed.reshape(x.shape)), "out_proj")


class Block(nnx.Module):
    """Window attention and an MLP, both pre-normalized and dropped per example."""

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        shift: int,
        drop_path: float,
        rngs: nnx.Rngs,
    ):
        self.window = window
        self.shift = shift
        self.attention_norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.attention = WindowAttention(width, heads, window, rngs)
        self.mlp_norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.mlp_in = nnx.Linear(width, 4 * width, kernel_init=INIT, rngs=rngs)
        self.mlp_out = nnx.Linear(4 * width, width, kernel_init=INIT, rngs=rngs)
        self.drop_path = nnx.Dropout(drop_path, broadcast_dims=(1, 2, 3))

    def __call__(self, x: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        x = x + self.drop_path(self.attend(self.attention_norm(x)), rngs=rngs)
        y = checkpoint_name(self.mlp_in(self.mlp_norm(x)), "mlpwi")
        y = self.mlp_out(nnx.gelu(y, approximate=False))
        return x + self.drop_path(checkpoint_name(y, "mlpwo"), rngs=rngs)

    def attend(self, x: jax.Array) -> jax.Array:
        size, window, shift = x.shape[1], self.window, self.shift
        if shift == 0:
            attended = self.attention(to_windows(x, window), None)
            return from_windows(attended, size)
        x = jnp.roll(x, (-shift, -shift), axis=(1, 2))
        mask = shift_mask(size, window, shift)
        x = from_windows(self.attention(to_windows(x, window), mask), size)
        return jnp.roll(x, (shift, shift), axis=(1, 2))


class PatchMerging(nnx.Module):
    """Each 2x2 patches become one, of twice the width."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(4 * width, epsilon=1e-5, rngs=rngs)
        self.reduce = nnx.Linear(
            4 * width, 2 * width, use_bias=False, kernel_init=INIT, rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, size, _, width = x.shape
        x = x.reshape(batch, size // 2, 2, size // 2, 2, width).swapaxes(2, 3)
        x = x.reshape(batch, size // 2, size // 2, 4 * width)
        return self.reduce(self.norm(x))


class SwinTransformer(nnx.Module):
    """Patches, stages of blocks with patch merging in between, and a classifier."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, wrap: Wrap = as_written):
        self.apply = wrap(Block.__call__, remat=nnx.remat)
        patch = (sizes.patch, sizes.patch)
        self.embed = nnx.Conv(
            3, sizes.width, patch, strides=patch, padding="VALID", rngs=rngs
        )
        self.embed_norm = nnx.LayerNorm(sizes.width, epsilon=1e-5, rngs=rngs)
        # Later blocks are dropped more often.
        drop_paths = iter(np.linspace(0, sizes.drop_path, sum(sizes.depths)).tolist())
        layers = []
        size, width = sizes.image // sizes.patch, sizes.width
        for stage, (depth, heads) in enumerate(zip(sizes.depths, sizes.heads, strict=True)):
            if stage > 0:
                layers.append(PatchMerging(width, rngs))
                size, width = size // 2, 2 * width
            for block in range(depth):
                # A single window has nowhere to shift to.
                is_shifted = block % 2 == 1 and size > sizes.window
                shift = sizes.window // 2 if is_shifted else 0
                layers.append(
                    Block(width, heads, sizes.window, shift, next(drop_paths), rngs)
                )
        self.layers = nnx.List(layers)
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.classifier = nnx.Linear(width, sizes.classes, kernel_init=INIT, rngs=rngs)

    def __call__(self, images: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        x = self.embed_norm(self.embed(images))
        for layer in self.layers:
            x = self.apply(layer, x, rngs) if isinstance(layer, Block) else layer(x)
        return self.classifier(jnp.mean(self.norm(x), (1, 2)))


def is_decayed(params: nnx.State) -> nnx.State:
    """Weight decay's mask: kernels only."""

    def is_kernel(path, param):
        return param.ndim > 1 and "position_bias" not in jax.tree_util.keystr(path)

    return jax.tree_util.tree_map_with_path(is_kernel, params)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Swin-T's step: cross-entropy and AdamW."""
    sizes = sizes or SIZES[scale]
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY, mask=is_decayed)

    def split_model(key):
        return nnx.split(SwinTransformer(sizes, nnx.Rngs(key), wrap), nnx.Param)

    graph, _ = jax.eval_shape(split_model, jax.random.key(0))

    def make_args(key):
        param_key, batch_key, drop_key = jax.random.split(key, 3)
        _, params = split_model(param_key)
        batch = batches.labelled_images(batch_key, sizes.batch, sizes.image, sizes.classes)
        return TrainState(params, (), optimizer.init(params)), batch, drop_key

    def step(state, batch, key):
        def loss_of(params):
            model = nnx.merge(graph, params)
            logits = model(batch["images"], nnx.Rngs(dropout=key))
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            ).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, (), optimizer_state), loss

    return TrainingStep.build("swin", scale, step, make_args)
