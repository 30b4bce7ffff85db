"""Layer search: the choice follows the budget, and XLA's figure decides."""

import jax
import jax.numpy as jnp
import pytest
from steps import NEEDS_TPU, TARGET, copied, largest_difference, traced

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.backends import stored_values
from coop_jax.base.budget import format_bytes
from coop_jax.compile.as_written import compile_tagged, unplanned_bytes
from coop_jax.emit.inside_readers import made_again, with_inside_readers
from coop_jax.emit.layers_again import Layers
from coop_jax.plan.planner import planner_options
from coop_jax.search.as_it_is import as_it_is
from coop_jax.search.candidates import MAX_COMPILATIONS
from coop_jax.search.layer_search import LayerSearch
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import layer_search
from coop_jax.xla.absent_devices import named_device, placed
from coop_jax.xla.memory_figures import memory_figures

LAYERS = 6
# What XLA needs at least of that step as written: more before JAX 0.12.
LEAST_PART = 0.5 if jax.__version_info__ >= (0, 12) else 0.6


def layered_step(weights, x):
    def loss(weights):
        y = x
        for first, second in weights:
            y = y + jnp.tanh(y @ first) @ second
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def arguments():
    keys = iter(jax.random.split(jax.random.key(0), 2 * LAYERS + 1))
    weights = [
        (
            jax.random.normal(next(keys), (32, 128)) / 8,
            jax.random.normal(next(keys), (128, 32)) / 8,
        )
        for _ in range(LAYERS)
    ]
    return weights, jax.random.normal(next(keys), (2048, 32))


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def search_of(step, log=lambda line: None):
    tagged = compile_tagged(step)
    stored = stored_values(step.program, tagged)
    options = planner_options("search", TARGET.alignment_bytes)

    def measure(inside, expected_bytes):
        return as_it_is(
            with_inside_readers(step.program, inside),
            *(TARGET, options, expected_bytes, XLA_PLACES.placement(step)),
            *(step.compile, log, lambda compiled: None),
            leaves_unchanged=False,  # XLA:CPU copies weights before they are updated.
        )

    layers = Layers(step.program, stored, TARGET)
    return LayerSearch(layers, unplanned_bytes(tagged, stored), measure), tagged


def test_a_step_with_layers_made_again_keeps_budgets_and_values():
    args = arguments()
    step = traced(layered_step, *args, donate_argnums=0)
    lines = []
    search, tagged = search_of(step, lines.append)
    whole_bytes = memory_figures(tagged).total_bytes
    for part in (0.9, 0.7, LEAST_PART):
        before = search.num_compilations
        found = search.best(int(part * whole_bytes))
        # And what keeps the fewest bytes, of layers and of two at a time.
        assert search.num_compilations - before <= MAX_COMPILATIONS + 2
        assert found is not None
        measured, inside = found
        assert measured.total_bytes <= part * whole_bytes
        shown = format_bytes(measured.candidate.predicted_bytes)
        assert any(f"predicted {shown}, XLA says" in line for line in lines)
        again = made_again(step.program, inside)
        names = [step.program.eqns[index].primitive.name for index in again]
        assert "dot_general" in names
        results = measured.compiled(*copied(args))
        assert largest_difference(results, jax.jit(layered_step)(*args)) < 1e-5


@NEEDS_TPU
def test_fewer_bytes_take_more_products():
    """Where layers are made again: XLA:CPU copies what others update in place."""
    weights = [(spec(256, 1024), spec(1024, 256))] * LAYERS
    args = placed((weights, spec(16384, 256)), named_device("tpu v5e"))
    step = traced(layered_step, *args, donate_argnums=0)
    tagged = compile_tagged(step)
    search = layer_search(step, "search", lambda line: None, tagged)
    whole_bytes = memory_figures(tagged).total_bytes
    numbers = []
    for part in (0.9, 0.7, 0.5):
        measured, inside = search.best(int(part * whole_bytes))
        assert measured.total_bytes <= part * whole_bytes
        again = made_again(step.program, inside)
        names = [step.program.eqns[index].primitive.name for index in again]
        numbers.append(names.count("dot_general"))
    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[-1]


def test_the_smallest_budget_of_layers_works():
    step = traced(layered_step, *arguments(), donate_argnums=0)
    search, tagged = search_of(step)
    measured, inside = search.smallest()
    assert search.num_compilations == 2  # Of layers and of two at a time.
    assert measured.total_bytes < memory_figures(tagged).total_bytes
    found, again = search.best(measured.total_bytes)
    assert (found, again) == (measured, inside)
    assert search.smallest_compiled == (measured, inside)


def test_an_error_names_what_layers_need_if_that_is_less():
    plans = InfeasibleBudgetError(100, 400, "`mul`", least_bytes=300)
    assert plans.beside_program(500) is plans
    layers = plans.beside_program(250)
    assert layers.smallest_bytes == 250
    text = "must be at least 250 bytes (250 bytes, as compiled by XLA)"
    assert text in str(layers)

    unasked = InfeasibleBudgetError(100, lambda: 400, "`mul`", least_bytes=300)
    assert unasked.beside_program(350).smallest_bytes == 350
    assert unasked.beside_program(500).smallest_bytes == 400
    assert text in str(unasked.beside_program(250))


@NEEDS_TPU
def test_the_smallest_budget_named_for_a_tpu_works():
    """Of all ways to make values again."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    weights = [
        tuple(jax.random.normal(key, shape) for shape in ((256, 1024), (1024, 256)))
        for key in keys
    ]
    args = weights, jnp.ones((16384, 256))
    with pytest.raises(InfeasibleBudgetError) as caught:
        coop_jax.fit(layered_step, *args, budget="10%", target="tpu v5e", donate_argnums=0)
    smallest = caught.value.smallest_bytes
    plan = coop_jax.fit(
        layered_step, *args, budget=smallest, target="tpu v5e", donate_argnums=0
    )
    assert plan.measured_bytes <= smallest


def test_no_choice_keeps_less_than_the_arguments():
    step = traced(layered_step, *arguments(), donate_argnums=0)
    search, tagged = search_of(step)
    assert search.best(memory_figures(tagged).argument_bytes) is None
    assert search.num_compilations == 2  # Of layers and of two at a time.


def test_a_step_without_blocks_has_no_layers():
    step = traced(lambda x: jnp.sin(x) @ x, jnp.ones((8, 8)))
    search, _ = search_of(step)
    assert search.best(2**30) is None
    assert search.num_compilations == 0
