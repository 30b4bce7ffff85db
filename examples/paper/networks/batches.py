"""Random batches: the data is as synthetic as in the paper's memory measurements."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def labelled_images(
    key: jax.Array, batch_size: int, image_size: int, num_classes: int
) -> dict[str, jax.Array]:
    """Square RGB images `[batch, size, size, 3]` and a class label for each."""
    image_key, label_key = jax.random.split(key)
    return {
        "images": jax.random.normal(image_key, (batch_size, image_size, image_size, 3)),
        "labels": jax.random.randint(label_key, (batch_size,), 0, num_classes),
    }


def tokens(key: jax.Array, batch_size: int, length: int, vocabulary_size: int) -> jax.Array:
    """Token ids `[batch, length]`."""
    return jax.random.randint(
        key, (batch_size, length), 0, vocabulary_size, dtype=jnp.int32
    )
