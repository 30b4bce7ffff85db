"""Planned steps on a GPU that is there: budgets, results, plan files, an arena."""

import jax
import jax.numpy as jnp
import pytest
from models import transformer_problem
from models.scanned_decoder import DecoderSizes, decoder_problem
from steps import ADAM, adam_step, copied, mlp_arguments, mlp_step

import coop_jax
from coop_jax import _ext, targets
from coop_jax.xla.memory_figures import memory_figures

pytestmark = pytest.mark.gpu

STEPS = 3
# Of cuBLAS on Hopper 32 MiB; an H200 wanted 40 MiB more than was planned for an absent one.
WORKSPACES_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"no GPU that JAX can use: {str(error).splitlines()[0]}")


@pytest.fixture(autouse=True)
def exact_products():
    """By default products round float32 operands to ten bits of mantissa."""
    with jax.default_matmul_precision("float32"):
        yield


def mlp():
    return mlp_step, mlp_arguments(batch=8192, width=256), "60%", {}


def adam():
    keys = jax.random.split(jax.random.key(0), 6)
    weights = [
        (0.1 * jax.random.normal(key, (128, 512)), jnp.zeros((512, 128))) for key in keys
    ]
    args = weights, ADAM.init(weights), jnp.ones((4096, 128))
    return adam_step, args, "75%", {"donate_argnums": (0, 1)}


def transformer():
    problem = transformer_problem(num_layers=3, batch_size=32)
    args = problem.state, problem.batch, problem.key
    return problem.train_step, args, "60%", {"donate_argnums": 0}


def scanned_decoder():
    sizes = DecoderSizes(layers=6, width=64, hidden=192, vocabulary=256, batch=8)
    return *decoder_problem(sizes), "70%", {"donate_argnums": 0}


CASES = [mlp, adam, transformer, scanned_decoder]


def results_of(step, args, donates):
    """What a few calls give; arguments that the step replaces are those of the last."""
    found = []
    args = copied(args)
    for _ in range(STEPS):
        results = step(*args)
        found.append(copied(results))
        args = (*results[: len(donates)], *args[len(donates) :])
    return found


def assert_close(first, second):
    """Nearly the same trees, by norms: Adam makes much of small gradients' roundings."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    floats = [(a, b) for a, b in pairs if jnp.issubdtype(a.dtype, jnp.floating)]
    difference = sum(float(jnp.sum((a - b) ** 2)) for a, b in floats)
    assert difference**0.5 < 2e-3 * sum(float(jnp.sum(b**2)) for _, b in floats) ** 0.5


@pytest.mark.parametrize("case", CASES)
def test_the_budget_is_kept_and_the_results_are_the_same(gpu, case):
    fn, args, budget, options = case()
    args = jax.device_put(args, gpu)
    step = coop_jax.remat_train_step(fn, budget=budget, **options)
    plan = step.plan(*args)
    assert not plan.is_unmodified
    assert plan.measured_bytes <= plan.budget_bytes
    compiled = step.lower(*args).compile()
    assert memory_figures(compiled).total_bytes == plan.measured_bytes
    donates = options.get("donate_argnums", ())
    donates = (donates,) if isinstance(donates, int) else donates
    written = results_of(jax.jit(fn, **options), args, donates)
    assert_close(results_of(step, args, donates), written)


@pytest.mark.parametrize("case", [adam, scanned_decoder])
def test_a_plan_for_an_absent_gpu_starts_on_one_that_is_there(gpu, case, tmp_path):
    target = targets.known_target(gpu)
    if target is None:
        pytest.skip(f"no absent target is a {gpu.device_kind}")
    fn, args, budget, options = case()
    plan = coop_jax.fit(fn, *args, budget=budget, target=target.name, **options)
    plan.save(tmp_path / "plan.json")
    args = jax.device_put(args, gpu)
    step = coop_jax.remat_train_step(
        fn, budget=plan.budget_bytes, plan=tmp_path / "plan.json", **options
    )
    started = step.plan(*args)
    assert started.num_compilations == 1
    assert started.measured_bytes <= plan.budget_bytes
    # Products are chosen by timing on the device that is there; cuBLAS's want a workspace.
    assert abs(started.measured_bytes - plan.measured_bytes) <= WORKSPACES_BYTES
    jax.block_until_ready(step(*args))


def test_the_budget_of_the_device(gpu):
    fn, args, _, options = adam()
    plan = coop_jax.remat_train_step(fn, budget="device", **options).plan(
        *jax.device_put(args, gpu)
    )
    assert plan.is_unmodified
    memory_bytes = targets.memory_bytes(gpu)
    assert 0.9 * memory_bytes < plan.budget_bytes <= memory_bytes


@pytest.mark.skipif(not _ext.has_cuda, reason="built without CUDA")
def test_an_arena(gpu):
    fn, args, budget, options = mlp()
    args = jax.device_put(args, gpu)
    step = coop_jax.remat_train_step(fn, budget=budget, placement="arena", **options)
    plan = step.plan(*args)
    assert plan.measured_bytes <= plan.budget_bytes
    assert_close(step(*args), jax.jit(fn)(*args))
