"""Ten networks on which nothing was tuned, at a size for each target.

They and their sizes were written before any of them was planned, and stay as they are:
what the first ten taught is judged by these.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from compare.network import Network
from compare.second import (
    conformer,
    dit,
    efficientnet,
    graph_net,
    moe,
    point_net,
    t5,
    unet3d,
    vlm,
    wavenet,
)

_V5E = "tpu v5e"
_SMALL_B0 = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 2, 3, 1),
    (6, 112, 1, 5, 1),
)


def _network(module, name: str, cpu: dict, v5e: dict) -> Network:
    full = module.Sizes()
    sizes = {
        "cpu": dataclasses.replace(full, **cpu),
        _V5E: dataclasses.replace(full, **v5e),
    }
    return Network(name, module.training_step, full, sizes)


NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        _network(
            moe,
            "moe",
            cpu={
                "batch": 8,
                "sequence": 128,
                "vocabulary": 1024,
                "width": 128,
                "hidden": 256,
                "heads": 4,
                "experts": 4,
                "dtype": jnp.float32,
            },
            v5e={"batch": 4},
        ),
        _network(
            t5,
            "t5",
            cpu={
                "batch": 8,
                "source": 192,
                "target": 64,
                "vocabulary": 1024,
                "width": 128,
                "hidden": 384,
                "layers": 3,
                "heads": 4,
            },
            v5e={"batch": 8},
        ),
        _network(
            dit,
            "dit",
            cpu={
                "batch": 16,
                "latent": 24,
                "width": 128,
                "layers": 4,
                "heads": 4,
                "classes": 100,
                "dtype": jnp.float32,
            },
            v5e={"batch": 32},
        ),
        _network(
            efficientnet,
            "efficientnet",
            cpu={
                "batch": 8,
                "image": 96,
                "classes": 100,
                "stem": 16,
                "stages": _SMALL_B0,
                "head": 320,
            },
            v5e={"batch": 32},
        ),
        _network(
            graph_net,
            "graph_net",
            cpu={"graphs": 4, "nodes": 512, "edges": 3072, "width": 64},
            v5e={"graphs": 4},
        ),
        _network(
            wavenet,
            "wavenet",
            cpu={
                "batch": 4,
                "samples": 2048,
                "width": 32,
                "skip": 64,
                "dilations": (1, 2, 4, 8, 16, 32, 64, 128),
            },
            # Not a batch of 4: XLA:TPU aborts on the step as written (a failed check in
            # its `space_to_batch_converter`), so this is half of the full samples.
            v5e={"batch": 8, "samples": 8192},
        ),
        _network(
            unet3d,
            "unet3d",
            cpu={"batch": 1, "side": 32, "features": (16, 32, 64)},
            v5e={"batch": 1, "side": 64},
        ),
        _network(
            conformer,
            "conformer",
            cpu={
                "batch": 8,
                "frames": 400,
                "labels": 16,
                "vocabulary": 256,
                "width": 96,
                "heads": 4,
                "kernel": 15,
            },
            v5e={"batch": 8},
        ),
        _network(
            vlm,
            "vlm",
            cpu={
                "batch": 8,
                "image": 96,
                "patch": 8,
                "vision_width": 128,
                "vision_layers": 3,
                "vision_heads": 4,
                "text": 48,
                "vocabulary": 1024,
                "width": 160,
                "hidden": 512,
                "layers": 3,
                "heads": 4,
                "dtype": jnp.float32,
            },
            v5e={"batch": 16},
        ),
        _network(
            point_net,
            "point_net",
            cpu={
                "batch": 4,
                "points": 512,
                "classes": 16,
                "levels": (
                    (256, 16, (32, 32, 64)),
                    (64, 16, (64, 64, 128)),
                    (16, 8, (128, 128, 256)),
                ),
                "back": ((128, 128), (128, 64), (64, 64)),
            },
            v5e={"batch": 16},
        ),
    )
}
