"""A graph network that simulates: encode, pass messages, decode.

Battaglia et al., "Interaction Networks", 2016, in the form of Pfaff et al., "Learning
Mesh-Based Simulation with Graph Networks", 2021, and of GraphCast (Lam et al., 2023):
edges are updated from their ends, nodes from the sum of their edges, both by MLPs with
layer normalization and added. Swish; Adam with a decaying rate. Graphs are random and
joined to one.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from compare.second.gradient_step import gradient_step
from flax import linen as nn
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)

LEARNING_RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class Sizes:
    graphs: int = 16
    nodes: int = 4096  # per graph
    edges: int = 24576  # per graph
    node_features: int = 12
    edge_features: int = 7
    outputs: int = 3
    width: int = 128
    steps: int = 6


class MLP(nn.Module):
    """Two hidden layers, and layer normalization of what comes out."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.swish(nn.Dense(self.width)(x))
        x = nn.swish(nn.Dense(self.width)(x))
        return nn.LayerNorm()(nn.Dense(self.width)(x))


class MessagePassing(nn.Module):
    """Updates edges from their nodes, then nodes from their edges."""

    width: int

    @nn.compact
    def __call__(
        self, nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        ends = jnp.concatenate([edges, nodes[senders], nodes[receivers]], axis=-1)
        messages = MLP(self.width, name="edge_mlp")(ends)
        received = jax.ops.segment_sum(messages, receivers, num_segments=nodes.shape[0])
        joined = jnp.concatenate([nodes, received], axis=-1)
        update = MLP(self.width, name="node_mlp")(joined)
        return nodes + update, edges + messages


class GraphNet(nn.Module):
    """Features of nodes and edges to an acceleration per node."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, graph: dict[str, jax.Array]) -> jax.Array:
        sizes = self.sizes
        nodes = MLP(sizes.width, name="node_encoder")(graph["nodes"])
        edges = MLP(sizes.width, name="edge_encoder")(graph["edges"])
        passing = self.wrap(MessagePassing, remat=nn.remat)
        for number in range(sizes.steps):
            block = passing(sizes.width, name=f"step_{number}")
            nodes, edges = block(nodes, edges, graph["senders"], graph["receivers"])
        nodes = nn.swish(nn.Dense(sizes.width, name="decoder_in")(nodes))
        return nn.Dense(sizes.outputs, name="decoder_out")(nodes)


def random_graphs(key: jax.Array, sizes: Sizes) -> dict[str, jax.Array]:
    """Graphs joined to one, with features of nodes and edges and targets of nodes."""
    keys = jax.random.split(key, 5)
    num_nodes, num_edges = sizes.graphs * sizes.nodes, sizes.graphs * sizes.edges
    offsets = jnp.repeat(jnp.arange(sizes.graphs) * sizes.nodes, sizes.edges)

    def ends(key):
        return offsets + jax.random.randint(key, (num_edges,), 0, sizes.nodes)

    return {
        "nodes": jax.random.normal(keys[0], (num_nodes, sizes.node_features)),
        "edges": jax.random.normal(keys[1], (num_edges, sizes.edge_features)),
        "targets": jax.random.normal(keys[2], (num_nodes, sizes.outputs)),
        "senders": ends(keys[3]),
        "receivers": ends(keys[4]),
    }


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Mean squared error of accelerations; Adam with a decaying rate."""
    sizes = sizes or Sizes()
    model = GraphNet(sizes, wrap)
    optimizer = optax.adam(optax.exponential_decay(LEARNING_RATE, 100_000, 0.1))

    def make_args(key):
        param_key, batch_key = jax.random.split(key)
        graph = random_graphs(batch_key, sizes)
        params = model.init(param_key, graph)["params"]
        return TrainState(params, (), optimizer.init(params)), graph

    def step(state, graph):
        def loss_of(params):
            predicted = model.apply({"params": params}, graph)
            return jnp.mean((predicted - graph["targets"]) ** 2), ()

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("graph_net", scale, step, make_args)
