"""Small steps of images, points, graphs and scenes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.small.training import (
    Step,
    classified,
    integers,
    mean_square,
    normal,
    normalised,
    perceptron,
    trained,
    weights,
)


def radiance_field() -> Step:
    """Colours along rays, through cumulated transparencies, as in NeRF."""

    def encoded(points: Any) -> Any:
        waves = (points[..., None] * 2.0 ** jnp.arange(6)).reshape(*points.shape[:-1], -1)
        return jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1)

    def loss(params: Any, origins: Any, directions: Any, colours: Any) -> Any:
        times = jnp.linspace(0.0, 1.0, 32)
        points = origins[:, None] + directions[:, None] * times[:, None]
        found = perceptron(jax.nn.relu, params, encoded(points))
        opacity = 1 - jnp.exp(-jax.nn.softplus(found[..., 3]) / 32)
        ones = jnp.ones_like(opacity[:, :1])
        before = jnp.concatenate([ones, 1 - opacity[:, :-1] + 1e-10], 1)
        parts = jnp.cumprod(before, 1) * opacity
        seen = (parts[..., None] * jax.nn.sigmoid(found[..., :3])).sum(1)
        return mean_square(seen, colours)

    params = weights(0, (36, 128), *[(128, 128)] * 4, (128, 4))
    batch = (normal(seed, 128, 3) for seed in (1, 2, 3))
    return trained(loss, params, optax.adam(1e-3), *batch)


def signal_unet() -> Step:
    """A U-Net of three levels over signals, with transposed convolutions."""
    dimensions = ("NWC", "WIO", "NWC")

    def loss(params: Any, x: Any, y: Any) -> Any:
        skipped = []
        for kernel in params["down"]:
            x = jax.lax.conv_general_dilated(
                x, kernel, (2,), "SAME", dimension_numbers=dimensions
            )
            x = jax.nn.gelu(x)
            skipped.append(x)
        for level, kernel in enumerate(params["up"]):
            x = jax.lax.conv_transpose(
                x, kernel, (2,), "SAME", dimension_numbers=dimensions
            )
            if level < 2:
                x = jnp.concatenate([jax.nn.gelu(x), skipped[1 - level]], -1)
        return jnp.mean(jnp.abs(x - y))

    def kernel(seed: int, channels: int, features: int) -> Any:
        return normal(seed, 5, channels, features) / (5 * channels) ** 0.5

    params = {
        "down": [kernel(0, 4, 16), kernel(1, 16, 32), kernel(2, 32, 64)],
        "up": [kernel(3, 64, 32), kernel(4, 64, 16), kernel(5, 32, 4)],
    }
    batch = normal(1, 16, 1024, 4), normal(2, 16, 1024, 4)
    return trained(loss, params, optax.adam(1e-3), *batch)


def spatial_transformer() -> Step:
    """Images are sampled at affine coordinates before they are classified."""
    side = 32
    grid = jnp.stack(jnp.meshgrid(*[jnp.linspace(-1, 1, side)] * 2, indexing="ij"))

    def warped(image: Any, changes: Any) -> Any:
        affine = changes.reshape(2, 3) + jnp.eye(2, 3)
        places = jnp.einsum("ij,jhw->ihw", affine[:, :2], grid)
        places = places + affine[:, 2][:, None, None]
        scaled = (places + 1) * (side - 1) / 2
        return jax.scipy.ndimage.map_coordinates(image, scaled, 1, mode="nearest")

    def loss(params: Any, images: Any, labels: Any) -> Any:
        flat = images.reshape(-1, side * side)
        changes = perceptron(jnp.tanh, params["places"], flat)
        seen = jax.vmap(warped)(images, changes).reshape(-1, side * side)
        return classified(perceptron(jax.nn.relu, params["classes"], seen), labels)

    params = {
        "places": weights(0, (1024, 64), (64, 6), scale=0.01),
        "classes": weights(1, (1024, 128), (128, 10)),
    }
    batch = normal(1, 128, side, side), integers(2, 10, 128)
    return trained(loss, params, optax.adam(1e-3), *batch)


def depthwise_network() -> Step:
    """Depthwise convolutions and products over channels, as in ConvNeXt."""
    channels = 32

    def loss(params: Any, x: Any, y: Any) -> Any:
        for kernel, scale, up, down in params:
            h = jax.lax.conv_general_dilated(
                *(x, kernel, (1, 1), "SAME"),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=channels,
            )
            x = x + jax.nn.gelu((normalised(h, 1e-6) * scale) @ up) @ down
        return mean_square(x, y)

    shapes = (channels, 4 * channels), (4 * channels, channels)
    params = [
        (0.1 * normal(i, 7, 7, 1, channels), jnp.ones(channels), *weights(i, *shapes))
        for i in range(4)
    ]
    batch = normal(1, 4, 32, 32, channels), normal(2, 4, 32, 32, channels)
    return trained(loss, params, optax.adamw(1e-3), *batch)


def capsules() -> Step:
    """Three rounds of routing by agreement, unrolled."""

    def loss(params: Any, x: Any, labels: Any) -> Any:
        votes = jnp.einsum("iojk,bik->bioj", params, x)
        logits = jnp.zeros(votes.shape[:3])
        for number in range(3):
            total = (jax.nn.softmax(logits, 2)[..., None] * votes).sum(1)
            square = (total**2).sum(-1, keepdims=True)
            found = total * jnp.sqrt(square) / (1 + square)
            if number < 2:
                logits = logits + jnp.einsum("bioj,boj->bio", votes, found)
        return classified(jnp.linalg.norm(found + 1e-6, axis=-1), labels)

    batch = normal(1, 32, 128, 8), integers(2, 10, 32)
    params = 0.1 * normal(0, 128, 10, 16, 8)
    return trained(loss, params, optax.adam(1e-3), *batch)


def molecules() -> Step:
    """Messages between all pairs of atoms, which also move, as in EGNN."""

    def loss(params: Any, h: Any, places: Any, y: Any) -> Any:
        for of_messages, of_atoms, of_places in params:
            moves = places[:, :, None] - places[:, None]
            atoms = h.shape[1]
            shape = h.shape[0], atoms, atoms, h.shape[2]
            pairs = [
                jnp.broadcast_to(h[:, :, None], shape),
                jnp.broadcast_to(h[:, None], shape),
                (moves**2).sum(-1, keepdims=True),
            ]
            messages = perceptron(jax.nn.silu, of_messages, jnp.concatenate(pairs, -1))
            messages = jax.nn.silu(messages)
            places = places + (moves * jnp.tanh(messages @ of_places)).mean(2)
            summed = jnp.concatenate([h, messages.sum(2)], -1)
            h = h + perceptron(jax.nn.silu, of_atoms, summed)
        return mean_square(places, y)

    params = [
        (
            weights(i, (33, 64), (64, 32)),
            weights(i + 9, (48, 64), (64, 16)),
            weights(i + 19, (32, 1))[0],
        )
        for i in range(3)
    ]
    batch = normal(1, 8, 24, 16), normal(2, 8, 24, 3), normal(3, 8, 24, 3)
    return trained(loss, params, optax.adam(1e-3), *batch)


def graph_attention() -> Step:
    """Softmax over the edges into each node, by sums and maxima of segments."""
    nodes, edges, width = 1024, 8192, 64

    def loss(params: Any, x: Any, sources: Any, targets: Any, y: Any) -> Any:
        for w, of_source, of_target in params:
            h = x @ w
            scores = (h @ of_source)[sources] + (h @ of_target)[targets]
            scores = jax.nn.leaky_relu(scores)[:, 0]
            most = jax.ops.segment_max(scores, targets, nodes)
            parts = jnp.exp(scores - most[targets])
            parts = parts / jax.ops.segment_sum(parts, targets, nodes)[targets]
            summed = jax.ops.segment_sum(parts[:, None] * h[sources], targets, nodes)
            x = x + jax.nn.elu(summed)
        return mean_square(x, y)

    params = [weights(i, (width, width), (width, 1), (width, 1)) for i in range(4)]
    ends = integers(1, nodes, edges), integers(2, nodes, edges)
    batch = normal(3, nodes, width), *ends, normal(4, nodes, width)
    return trained(loss, params, optax.adam(1e-3), *batch)
