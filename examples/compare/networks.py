"""The ten networks of the comparison, at a size for each target.

    network = NETWORKS["gpt2"]
    step = network.step("cpu")
    coop_jax.compare(network.make_step("cpu"), *step.args, donate_argnums=DONATED)

The paper's eight, GPT-2 small and ViT-B. Every network says which blocks one wraps in
`jax.checkpoint` by hand: a residual block, an Inception block, a transformer layer, a
stage of U-Net, sqrt(T) time steps of an LSTM.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import optax
from compare import vit
from compare.network import Network
from paper.networks import (
    bert_large,
    bilstm,
    gpt3,
    inception_v3,
    resnet50,
    spos,
    swin,
    unet,
)
from paper.networks.training_step import Scale, TrainingStep


def _gpt2(scale: Scale, **options: Any) -> TrainingStep:
    """GPT-2 small: GPT-3's architecture at 124 million parameters, with Adam."""
    built = gpt3.training_step(scale, optimizer=optax.adam(1e-4), **options)
    return dataclasses.replace(built, name="gpt2")


_V5E = "tpu v5e"
_GPT2 = gpt3.Sizes(batch=8, sequence=512, width=768, layers=12, heads=12)

NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network(
            "gpt2",
            _gpt2,
            _GPT2,
            {
                "cpu": gpt3.Sizes(
                    batch=8, sequence=128, vocabulary=2048, width=256, layers=4, heads=4
                )
            },
        ),
        Network(
            "vit",
            vit.training_step,
            vit.Sizes(),
            {
                "cpu": vit.Sizes(
                    batch=16, image=96, patch=8, width=192, layers=4, heads=3, classes=10
                ),
                _V5E: vit.Sizes(batch=32),
            },
        ),
        Network(
            "bert_large",
            bert_large.training_step,
            bert_large.Sizes(),
            {
                "cpu": bert_large.Sizes(
                    batch=16, sequence=128, vocabulary=2048, width=256, layers=4, heads=4
                ),
                _V5E: bert_large.Sizes(batch=3),
            },
        ),
        Network(
            "gpt3",
            gpt3.training_step,
            gpt3.Sizes(),
            {
                "cpu": gpt3.Sizes(
                    batch=4, sequence=256, vocabulary=1024, width=320, layers=4, heads=4
                ),
                _V5E: gpt3.Sizes(layers=6),
            },
        ),
        Network(
            "swin",
            swin.training_step,
            swin.Sizes(),
            {
                "cpu": swin.Sizes(
                    batch=8,
                    image=112,
                    classes=100,
                    width=64,
                    depths=(2, 2, 2),
                    heads=(2, 4, 8),
                ),
                _V5E: swin.Sizes(batch=16),
            },
        ),
        Network(
            "resnet50",
            resnet50.training_step,
            resnet50.Sizes(),
            {
                "cpu": resnet50.Sizes(batch=16, image=96, classes=100, blocks=(2, 2, 3, 2)),
                _V5E: resnet50.Sizes(batch=64),
            },
        ),
        Network(
            "inception_v3",
            inception_v3.training_step,
            inception_v3.Sizes(),
            {
                "cpu": inception_v3.Sizes(
                    batch=16,
                    image=139,
                    classes=100,
                    divisor=2,
                    pools=(32, 64),
                    factored=(128, 160),
                    expanded=1,
                ),
                _V5E: inception_v3.Sizes(batch=64),
            },
        ),
        Network(
            "unet",
            unet.training_step,
            unet.Sizes(),
            {
                "cpu": unet.Sizes(
                    batch=4, height=124, width=156, features=(24, 48, 96, 192, 384)
                ),
                _V5E: unet.Sizes(batch=3),
            },
        ),
        Network(
            "spos",
            spos.training_step,
            spos.Sizes(),
            {
                "cpu": spos.Sizes(
                    batch=32,
                    channels=(64,) * 2 + (160,) * 2 + (320,) * 4,
                    halving=(2, 4),
                    head=256,
                ),
                _V5E: spos.Sizes(batch=128),
            },
        ),
        Network(
            "bilstm",
            bilstm.training_step,
            bilstm.Sizes(),
            {
                "cpu": bilstm.Sizes(batch=1024, sequence=25, hidden=128),
                _V5E: bilstm.Sizes(batch=1024),
            },
        ),
    )
}
