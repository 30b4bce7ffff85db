"""Message passing: a graph network, whose gathers XLA:CPU makes as early as it can."""

import jax
import jax.numpy as jnp
import numpy as np
from steps import QUICK, traced

from coop_jax.compile.as_written import compile_both
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import problem_of

_EDGES, _NODES, _WIDTH = 8192, 1024, 32


def message_passing_step(weights, nodes, senders, receivers):
    def loss(weights):
        hidden = nodes
        for w in weights:
            sent = hidden @ w
            gate = jax.nn.sigmoid(jnp.sum(sent[senders] * hidden[receivers], -1))
            messages = sent[senders] * gate[:, None]
            hidden = hidden + jnp.zeros_like(hidden).at[receivers].add(messages)
        return jnp.mean(hidden**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def arguments():
    weights = [jnp.full((_WIDTH, _WIDTH), 0.01 * (i + 1)) for i in range(3)]
    nodes = jnp.linspace(-1, 1, _NODES * _WIDTH).reshape(_NODES, _WIDTH)
    senders, receivers = np.random.default_rng(0).integers(0, _NODES, (2, _EDGES))
    return weights, nodes, jnp.asarray(senders), jnp.asarray(receivers)


def problem_for(fn, *args):
    step = traced(fn, *args)
    tagged = compile_both(step).tagged
    return problem_of(step, QUICK, lambda line: None, tagged, XLA_PLACES)
