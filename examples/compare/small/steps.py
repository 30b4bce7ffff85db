"""Thirty-one small steps of many kinds, by name."""

from __future__ import annotations

from collections.abc import Callable

from compare.small import dense, images_and_graphs, objectives, sequences
from compare.small.training import Step

STEPS: dict[str, Callable[[], Step]] = {
    make.__name__: make
    for make in (
        dense.residual_mlp,
        dense.wide_mlp,
        dense.low_rank_adapters,
        dense.distillation,
        dense.hypernetwork,
        dense.spline_network,
        dense.flow,
        dense.ordinary_differential_equation,
        dense.adversarial,
        sequences.state_space,
        sequences.linear_attention,
        sequences.fourier_mixing,
        sequences.alignment_free,
        sequences.latent_attention,
        sequences.dropped_transformer,
        sequences.translation,
        images_and_graphs.radiance_field,
        images_and_graphs.signal_unet,
        images_and_graphs.spatial_transformer,
        images_and_graphs.depthwise_network,
        images_and_graphs.capsules,
        images_and_graphs.molecules,
        images_and_graphs.graph_attention,
        objectives.quantized_autoencoder,
        objectives.contrastive,
        objectives.policy_gradient,
        objectives.accumulated_gradients,
        objectives.gaussian_process,
        objectives.optimal_transport,
        objectives.equilibrium,
        objectives.two_towers,
    )
}
