"""Steps of layers that are alike, under `jax.checkpoint` or not."""

import jax
import jax.numpy as jnp

LAYERS = 4


def residual_step(weights, x, remat=lambda layer: layer):
    """Layers in the way of a transformer's MLP; the weights are cast, and updated."""

    def layer(y, pair):
        first, second = (w.astype(jnp.bfloat16) for w in pair)
        return y + jax.nn.gelu(y @ first) @ second

    def loss(weights):
        y = x
        for pair in weights:
            y = remat(layer)(y, pair)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def residual_arguments(width=256, tokens=4096):
    wide = jax.ShapeDtypeStruct((width, 4 * width), "float32")
    back = jax.ShapeDtypeStruct((4 * width, width), "float32")
    x = jax.ShapeDtypeStruct((tokens, width), "bfloat16")
    return [(wide, back)] * LAYERS, x


def attention_step(parameters, x, labels, remat=lambda layer: layer):
    """Layers of attention and an MLP on an argument, a head that is large beside them, SGD.

    The first layer reads an argument: no bytes pass into it, and as many out of it as out
    of the others.
    """

    def normal(y):
        mean = jnp.mean(y.astype(jnp.float32) ** 2, -1, keepdims=True)
        return y * jax.lax.rsqrt(mean).astype(y.dtype)

    def layer(y, weights):
        q, k, v, out, up, down = (w.astype(jnp.bfloat16) for w in weights)
        z = normal(y)
        heads = (t.reshape(*t.shape[:2], 4, -1) for t in (z @ q, z @ k, z @ v))
        y = y + jax.nn.dot_product_attention(*heads).reshape(y.shape) @ out
        return y + jax.nn.gelu(normal(y) @ up) @ down

    def loss(parameters):
        layers, head = parameters
        y = x
        for weights in layers:
            y = remat(layer)(y, weights)
        logits = (y @ head.astype(jnp.bfloat16)).astype(jnp.float32)
        found = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -jnp.mean(found)

    value, gradients = jax.value_and_grad(loss)(parameters)
    return jax.tree.map(lambda w, g: w - 0.1 * g, parameters, gradients), value


def attention_arguments(width=128, words=2048):
    def weights(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    square, up, down = (weights(width, width), weights(width, 512), weights(512, width))
    layers = [(square, square, square, square, up, down)] * LAYERS
    x = jax.ShapeDtypeStruct((8, 256, width), "bfloat16")
    labels = jax.ShapeDtypeStruct((8, 256), "int32")
    return (layers, weights(width, words)), x, labels
