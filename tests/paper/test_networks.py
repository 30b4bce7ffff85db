"""The paper's eight networks: the right sizes, and steps that train."""

import functools

import jax
import numpy as np
import pytest
from paper.networks import DONATED, NETWORKS, Scale, spos, swin
from paper.networks.training_step import UNOPTIMISED

from coop_jax.trace.inline import flatten

# Published, in millions. Inception V3's count includes its auxiliary classifier.
PARAMETERS = {
    "resnet50": 25.56,
    "inception_v3": 27.16,
    "unet": 31.04,
    "swin": 28.29,
    "bert_large": 335.0,
    "gpt3": 2650.0,
}
BATCH_SIZES = {
    "bilstm": 2048,
    "spos": 256,
    "resnet50": 115,
    "inception_v3": 96,
    "unet": 5,
    "swin": 40,
    "bert_large": 16,
    "gpt3": 2,
}

# Seconds each: one is enough where the others are not asked for.
SLOW_TO_COMPILE = set(NETWORKS) - {"gpt3"}
LONGEST = {"inception_v3", "swin", "spos"}

every_network = pytest.mark.parametrize("name", NETWORKS)


@functools.cache
def paper_step(name):
    return NETWORKS[name](Scale.PAPER)


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def test_the_registry_has_the_eight_networks_in_the_papers_order():
    assert list(NETWORKS) == list(BATCH_SIZES)


@every_network
def test_paper_scale_is_shapes_alone(name):
    training_step = paper_step(name)
    assert training_step.name == name
    assert training_step.scale is Scale.PAPER
    leaves = jax.tree.leaves(training_step.args)
    assert leaves
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    for leaf in jax.tree.leaves(training_step.args[1]):
        assert leaf.shape[0] == BATCH_SIZES[name]


@pytest.mark.parametrize(("name", "millions"), PARAMETERS.items())
def test_parameters_match_the_published_number(name, millions):
    assert paper_step(name).num_parameters == pytest.approx(1e6 * millions, rel=0.01)


@pytest.mark.slow
@every_network
def test_paper_scale_traces_into_a_flat_program_that_keeps_its_state(name):
    training_step = paper_step(name)
    jitted = jax.jit(training_step.step, donate_argnums=DONATED)
    traced = jitted.trace(*training_step.args)
    state, loss = traced.out_info
    # Like for like, so that every donated buffer finds its successor.
    assert shapes(state) == shapes(training_step.args[0])
    assert loss.shape == ()
    infos = jax.tree.leaves(
        traced.args_info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo)
    )
    program = flatten(traced.jaxpr, [info.donated for info in infos])
    assert sum(program.donated) == len(jax.tree.leaves(training_step.args[0]))
    # Every step's tensors are in the program: no loop hides them.
    loops = {"scan", "while"}
    assert not loops & {eqn.primitive.name for eqn in program.eqns}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.slow] if name in SLOW_TO_COMPILE else []),
                *([pytest.mark.hand] if name in LONGEST else []),
            ],
        )
        for name in NETWORKS
    ],
)
def test_reduced_scale_trains(name):
    training_step = NETWORKS[name](Scale.REDUCED)
    state, *rest = training_step.concrete(seed=0)
    assert shapes((state, *rest)) == shapes(training_step.args)
    # Compiled without optimisation, which for networks this small is the longer part.
    step = jax.jit(
        training_step.step,
        donate_argnums=DONATED,
        compiler_options=UNOPTIMISED,
    )
    statistics = jax.tree.map(np.array, state.statistics)
    losses = []
    for _ in range(3):  # one batch and one key: only the weights change
        state, loss = step(state, *rest)
        losses.append(float(loss))
    assert np.all(np.isfinite(losses))
    assert losses[0] > losses[1] > losses[2]
    assert all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(state))
    moved = [
        not np.array_equal(before, after)
        for before, after in zip(
            jax.tree.leaves(statistics), jax.tree.leaves(state.statistics), strict=True
        )
    ]
    # Only SPOS has some off its path.
    assert all(moved) or (name == "spos" and any(moved))


def test_a_random_path_is_reproducible_and_visits_all_blocks():
    path = spos.random_path(seed=3)
    assert len(path) == 20
    assert path == spos.random_path(seed=3)
    assert set(path) <= set(range(4))
    assert len({spos.random_path(seed) for seed in range(20)}) == 20


def test_a_step_leaves_what_is_off_its_path_alone():
    training_step = spos.training_step(Scale.REDUCED, seed=1)
    jitted = jax.jit(training_step.step, donate_argnums=DONATED)
    jaxpr = jitted.trace(*training_step.args).jaxpr
    closed = getattr(jaxpr, "jaxpr", jaxpr)
    names = jax.tree_util.tree_leaves_with_path(training_step.args[0])
    path = spos.random_path(1, len(spos.SIZES[Scale.REDUCED].channels))
    on_path = {spos.choice_name(*choice) for choice in enumerate(path)}
    inputs = closed.invars[: len(names)]
    outputs = closed.outvars[: len(names)]
    passed_through = [
        before is after for before, after in zip(inputs, outputs, strict=True)
    ]
    expected = []
    for keys, _ in names:
        block = next((key.key for key in keys if "block_" in str(key)), None)
        expected.append(block is not None and block not in on_path)
    assert passed_through == expected


def test_windows_and_back():
    x = np.arange(2 * 6 * 6 * 3.0).reshape(2, 6, 6, 3)
    windows = swin.to_windows(x, 3)
    assert windows.shape == (2, 4, 9, 3)
    np.testing.assert_array_equal(windows[0, 1, 3], x[0, 1, 3])
    np.testing.assert_array_equal(swin.from_windows(windows, 6), x)


def test_shifted_windows_attend_only_to_neighbours():
    size, window, shift = 8, 4, 2
    positions = np.indices((size, size)).transpose(1, 2, 0)
    shifted = np.roll(positions, (-shift, -shift), axis=(0, 1))
    shifted = swin.to_windows(shifted[None], window)[0]  # windows, positions, 2
    distance = np.abs(shifted[:, :, None] - shifted[:, None]).max(axis=-1)
    mask = swin.shift_mask(size, window, shift)[:, 0]
    # In one window after the shift and neighbours before it <=> not masked.
    np.testing.assert_array_equal(mask == 0, distance < window)


def test_relative_positions_depend_on_the_offset_alone():
    index = swin.relative_positions(3)
    assert index.shape == (9, 9)
    assert set(index.ravel()) == set(range(25))
    assert index[0, 4] == index[4, 8]
    assert index[0, 4] != index[4, 0]


def test_weight_decay_spares_norms_biases_and_position_biases():
    params = swin.training_step(Scale.REDUCED).args[0].params
    for keys, is_decayed in jax.tree_util.tree_leaves_with_path(swin.is_decayed(params)):
        assert is_decayed == ("kernel" in jax.tree_util.keystr(keys))
