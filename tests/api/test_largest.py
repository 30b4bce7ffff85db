"""The largest size that fits: near the true one, verified, in few compilations."""

from __future__ import annotations

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from models import transformer_problem
from steps import LITTLE_CODE, NEEDS_CUDA, NEEDS_TPU, QUICK, mlp_step, pooled_step

import coop_jax
from coop_jax import InfeasibleBudgetError, fit, largest
from coop_jax.api.size_search import SizeSearch
from coop_jax.api.sized_step import Estimate
from coop_jax.compile.traced_step import TracedStep

MAX_MORE = 4
MAX_SIZES_OF_LOOPED = 4  # Planned beside the answer.
MLP_SIZES = range(64, 1025, 64)


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, "float32")


def mlp(batch):
    return mlp_step, ([shape(64, 64)] * 6, shape(batch, 64))


def convolution(batch):
    weights = [[shape(3, 3, 8, 8)] * 3]
    return pooled_step, (weights, shape(batch, 16, 16, 8))


def transformer(batch):
    steps = []

    def arguments():
        problem = transformer_problem(
            num_layers=1,
            width=32,
            num_heads=2,
            vocab_size=64,
            batch_size=batch,
            sequence_length=64,
            dropout_rate=0.0,  # Its random bits take XLA most of the time.
        )
        steps.append(problem.train_step)
        return problem.state, problem.batch, problem.key

    args = jax.eval_shape(arguments)
    return steps[0], args


def scanned(batch):
    def step(weights, x):
        def loss(weights):
            def body(x, w):
                return x + jnp.tanh(jnp.tanh(x @ w) @ w.T), None

            return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    return step, (shape(8, 64, 64), shape(batch, 64))


def equinox(batch):
    model = eqx.nn.MLP(32, 32, 32, 4, activation=jax.nn.relu, key=jax.random.key(0))
    optimizer = optax.sgd(0.1)

    def step(model, x):
        def loss_of(model):
            return jnp.mean((jax.vmap(model)(x) - x) ** 2)

        grads = eqx.filter_grad(loss_of)(model)
        updates, _ = optimizer.update(grads, optimizer.init(model), model)
        return eqx.apply_updates(model, updates)

    return step, (model, jnp.ones((batch, 32)))


@pytest.fixture
def compilations(monkeypatch):
    """The number of compilations by XLA, counted where they are made."""
    count = collections.Counter()
    compile_lowered = TracedStep.compile_lowered

    def counted(self, *args, **kwargs):
        count["all"] += 1
        return compile_lowered(self, *args, **kwargs)

    monkeypatch.setattr(TracedStep, "compile_lowered", counted)
    return count


@pytest.mark.parametrize(
    ("make_step", "sizes", "budget"),
    [
        pytest.param(mlp, MLP_SIZES, 700_000, id="mlp"),
        pytest.param(
            *(convolution, range(4, 129, 4), "1MiB"),
            id="convolution",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(transformer, range(2, 65, 2), "2MiB"),
            id="transformer",
            marks=[pytest.mark.slow, pytest.mark.hand],
        ),
        pytest.param(
            *(scanned, range(128, 4097, 128), "2MiB"),
            id="scanned",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(equinox, range(128, 4097, 128), "700kB"),
            id="equinox",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_is_within_one_item_of_the_largest(make_step, sizes, budget, compilations):
    # Loops have no plans but of the search; of the others the planner does not matter.
    planner = "search" if make_step is scanned else "lookahead"
    options = {"budget": budget, "planner": planner, "donate_argnums": 0}
    options["compiler_options"] = LITTLE_CODE
    found = largest(make_step, sizes, **options)
    total = compilations["all"]
    assert found.num_compilations == total
    assert found.size in sizes
    assert not found.plan.is_unmodified
    # Planned from scratch, it fits: with the same recomputation, for fewer compilations.
    # Order fences may differ: they are read of an executable that misses.
    compilations.clear()
    step, args = make_step(found.size)
    plan = fit(step, *args, **options)
    assert plan.compute_overhead == found.plan.compute_overhead
    assert max(plan.measured_bytes, found.measured_bytes) <= plan.budget_bytes
    if make_step is not scanned:
        assert total <= compilations["all"] + MAX_MORE
    step, args = make_step(sizes[sizes.index(found.size) + 2])
    with pytest.raises(InfeasibleBudgetError):
        fit(step, *args, **options)


def test_all_sizes_fit():
    found = largest(mlp, [64, 128], budget="1GiB", planner=QUICK)
    assert (found.size, found.next_size, found.plan.is_unmodified) == (128, None, True)
    assert "largest size 128" in str(found)
    assert "none: all sizes fit" in str(found)


def test_none_fits():
    with pytest.raises(
        InfeasibleBudgetError,
        match=r"`largest\(sizes=...\)` must have a size that fits the budget. Got none: "
        r"size 64, the smallest of 16, does not. `largest\(budget=...\)` must be at least "
        r"\d+ bytes .*Got 70000 bytes.*reduce the batch",
    ) as caught:
        largest(mlp, MLP_SIZES, budget=70_000, planner=QUICK)
    assert 70_000 < caught.value.smallest_bytes


def test_flax_nnx_and_other_options(capfd):
    def make_step(batch):
        def step(model, x, scale):
            grads = nnx.grad(lambda model: jnp.mean(model(x) ** 2) * scale)(model)
            nnx.update(model, jax.tree.map(lambda w, g: w - g, nnx.state(model), grads))

        return step, (nnx.Linear(16, 16, rngs=nnx.Rngs(0)), jnp.ones((batch, 16)), 2.0)

    found = largest(
        make_step, [16, 32], target="cpu", budget="1MiB", static_argnums=2, verbose=True
    )
    assert (found.size, found.plan.target) == (32, "cpu")
    assert "[coop_jax] size 32: its stored values" in capfd.readouterr().err


def test_on_a_mesh(compilations):
    mesh = jax.make_mesh((4,), ("x",))

    def on(spec, *sizes):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(sizes, "float32", sharding=sharding)

    def make_step(batch):
        return mlp_step, ([on((), 64, 64)] * 3, on(("x",), batch, 64))

    sizes = range(256, 4097, 256)
    options = {"budget": 500_000, "planner": "lookahead", "donate_argnums": 0}
    found = largest(make_step, sizes, **options)
    total = compilations["all"]
    assert found.measured_bytes <= 500_000
    assert total <= found.plan.num_compilations + MAX_MORE
    step, args = make_step(sizes[sizes.index(found.size) + 2])
    with pytest.raises(InfeasibleBudgetError):
        fit(step, *args, **options)


@pytest.mark.parametrize(
    ("sizes", "error", "match"),
    [
        ([], ValueError, r"`largest\(sizes=...\)` must have at least one size. Got \[\]"),
        ([1, 3, 2], ValueError, r"must increase. Got 2 after 3. Sort them, each once"),
        ([1, 1], ValueError, r"must increase. Got 1 after 1"),
        ([1.5], TypeError, r"must be ints. Got 1.5 of type float"),
        ([True], TypeError, r"must be ints. Got True of type bool"),
        (8, TypeError, r"must be an iterable of ints such as .*Got 8 of type int"),
        ("8", TypeError, r"must be an iterable of ints such as .*Got '8' of type str"),
    ],
)
def test_sizes_are_checked(sizes, error, match):
    with pytest.raises(error, match=match):
        largest(mlp, sizes, budget="1GiB")


@pytest.mark.parametrize(
    ("make_step", "match"),
    [
        (3, r"`largest\(make_step, ...\)` must be given a callable .*Got 3 of type int"),
        (lambda n: mlp_step, r"`make_step\(size\)` must return the step and .*size 8\."),
        (lambda n: (mlp_step, shape(n)), r"must return the step and the tuple of its"),
        (
            lambda n: (coop_jax.remat_train_step(mlp_step, budget="1GiB"), ()),
            r"must be given steps as written. Got one made by `remat_train_step`",
        ),
    ],
)
def test_steps_are_checked(make_step, match):
    with pytest.raises(TypeError, match=match):
        largest(make_step, [8, 16], budget="1GiB")


@pytest.mark.parametrize(
    ("budget", "match"),
    [
        ("60%", r"`largest\(budget=...\)` must be bytes or \"device\".*Got '60%'"),
        ("12 gigs", r"`largest\(budget=...\)` must look like"),
        ("device", r"`largest\(budget=\"device\"\)` needs a device that reports"),
    ],
)
def test_budgets_are_checked(budget, match):
    with pytest.raises(ValueError, match=match):
        largest(mlp, [64], budget=budget)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("h200", marks=NEEDS_CUDA),
        pytest.param("tpu v5e", marks=NEEDS_TPU),
    ],
)
def test_absent_devices(target):
    found = largest(mlp, [8, 64], target=target, donate_argnums=0)
    assert found.size == 64
    assert found.plan.target == target


class Measured:
    """A step that needs so many bytes, by rules and by its smallest plan."""

    def __init__(self, needed, estimate, *, is_looped=False):
        self.needed, self.estimate, self.is_looped = needed, estimate, is_looped
        self.bytes, self.is_measured = None, False
        self.num_compilations = 0

    def read(self):
        if self.is_looped:
            return
        self.bytes, self.num_compilations = self.needed, max(1, self.num_compilations)

    def keeps(self, budget_bytes, *, is_expected):
        self.read()
        fits = self.needed <= budget_bytes
        if self.is_looped:  # It is planned as a whole.
            self.num_compilations = 10
            if not fits:
                self.bytes, self.is_measured = self.needed, True
            return fits
        self.is_measured = True
        self.num_compilations = 2 if fits else 3 + is_expected
        return fits

    def fit(self, budget_bytes):
        if self.needed > budget_bytes:
            raise InfeasibleBudgetError(budget_bytes, self.needed, None)
        return "fitted"


@pytest.mark.parametrize("is_looped", [False, True])
@pytest.mark.parametrize("growth", ["linear", "quadratic", "stairs"])
@pytest.mark.parametrize("factor", [0.5, 1, 1.3, 3])
@pytest.mark.parametrize("budget", [50, 1000, 1234, 30_000, 10**9])
def test_the_search_ends_near_the_largest(is_looped, growth, factor, budget):
    """Of steps that need what is predicted of them, times a factor."""
    pool = {
        "linear": lambda n: 7 * n,
        "quadratic": lambda n: n * n // 8 + n,
        "stairs": lambda n: 100 * (n // 14),
    }[growth]
    sizes = range(3, 600, 3)

    def make(n):
        needed = 40 + round(factor * pool(n))
        return Measured(needed, Estimate(40, pool(n)), is_looped=is_looped)

    search = SizeSearch(sizes, make, budget)
    fitting = [i for i, n in enumerate(sizes) if make(n).needed <= budget]
    if not fitting:
        with pytest.raises(InfeasibleBudgetError):
            search.run()
        return
    index, fitted = search.run()
    assert fitted == "fitted"
    assert fitting[-1] - 1 <= index <= fitting[-1]
    others = search.num_compilations - search.steps[index].num_compilations
    assert others <= (10 * MAX_SIZES_OF_LOOPED if is_looped else MAX_MORE)
    assert len(search.steps) < (40 if is_looped else 30), "few sizes are traced"
