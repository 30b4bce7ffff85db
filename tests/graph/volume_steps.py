"""A step of convolutions of one volume."""

import jax
import jax.numpy as jnp


def volume_step(kernels, volume):
    def loss(kernels):
        h = volume
        for kernel in kernels:
            h = jax.lax.conv_general_dilated(
                h, kernel, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
            )
            h = jax.nn.relu(h)
        return (h**2).mean()

    return jax.tree.map(lambda k, g: k - g, kernels, jax.grad(loss)(kernels))


def volume_shapes(side=64, channels=32, layers=4):
    kernel = jax.ShapeDtypeStruct((3, 3, 3, channels, channels), jnp.float32)
    volume = jax.ShapeDtypeStruct((1, side, side, side, channels), jnp.float32)
    return [kernel] * layers, volume
