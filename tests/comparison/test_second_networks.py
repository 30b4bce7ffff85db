"""The second set of networks: steps of the right kind, and one that is planned."""

import jax
import numpy as np
import pytest
from compare import networks
from compare.second import moe, t5, wavenet
from compare.second.networks import NETWORKS
from paper.networks.training_step import DONATED, Scale
from steps import QUICK

import coop_jax
from coop_jax.comparison.checkpoint_policies import wrap_with
from coop_jax.comparison.recompute_counts import recomputes, saved_names

NOTHING = wrap_with(jax.checkpoint_policies.nothing_saveable)
NAMED = {"moe", "t5", "dit", "conformer", "vlm"}
SMALL = {"moe", "wavenet", "unet3d", "point_net"}
every_network = pytest.mark.parametrize("name", NETWORKS)


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def test_ten_networks_that_are_not_of_the_first_set():
    assert len(NETWORKS) == 10
    assert not set(NETWORKS) & set(networks.NETWORKS)


@every_network
def test_sizes(name):
    network = NETWORKS[name]
    assert network.name == name
    assert set(network.sizes) == {"cpu", "tpu v5e"}
    assert network.full not in network.sizes.values()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SMALL else pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_steps_keep_their_state_and_can_be_wrapped(name):
    network = NETWORKS[name]
    args = network.step("cpu").args
    traced = jax.jit(network.make_step("cpu")(NOTHING)).trace(*args)
    state, loss = traced.out_info
    assert shapes(state) == shapes(args[0])
    assert loss.shape == ()
    assert recomputes(traced.jaxpr)
    has_names = {"context", "out_proj", "mlpwo"} <= saved_names(traced.jaxpr)
    assert has_names == (name in NAMED)


@pytest.mark.slow
def test_a_planned_step_computes_the_same():
    sizes = wavenet.Sizes(batch=2, samples=64, levels=8, width=8, skip=8, dilations=(1,))
    training_step = wavenet.training_step(Scale.REDUCED, sizes)
    state, batch = training_step.concrete(seed=0)
    expected, loss = jax.jit(training_step.step)(state, batch)
    planned = coop_jax.remat_train_step(
        training_step.step, budget="90%", planner=QUICK, donate_argnums=DONATED
    )
    updated, planned_loss = planned(state, batch)
    np.testing.assert_allclose(planned_loss, loss, rtol=1e-5)
    got, wanted = jax.tree.leaves(updated), jax.tree.leaves(expected)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_every_token_is_routed_to_two_experts_while_there_is_room():
    probabilities = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 12, 4)))
    with_room = np.asarray(moe.route(probabilities, capacity=12))
    assert np.all(np.sum(with_room > 0, axis=(2, 3)) == moe.CHOICES)
    np.testing.assert_allclose(with_room.sum(axis=(2, 3)), 1, rtol=1e-6)
    tight = np.asarray(moe.route(probabilities, capacity=3))
    seated = np.sum(tight > 0, axis=1)  # group, expert, slot
    assert seated.max() == 1
    assert np.sum(seated) < np.sum(with_room > 0)


def test_positions_are_exact_when_near_and_never_leave_the_table():
    for is_causal in (False, True):
        buckets = t5.buckets(300, is_causal)
        assert buckets.min() == 0
        assert buckets.max() == t5.BUCKETS - 1
        exact = t5.BUCKETS // (2 if is_causal else 4)
        np.testing.assert_array_equal(buckets[exact - 1, :exact], np.arange(exact)[::-1])
        assert (buckets[0, 5] == 0) == is_causal  # nothing attends to what comes later
