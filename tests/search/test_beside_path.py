"""Plans for the room that a search over the path leaves."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from loops.planned_at_random import TARGET, assert_equal_bits
from loops.planned_at_random import traced as program_of
from scanned_steps import STEPS, normal

from coop_jax import targets
from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.search.beside_path import Compiled, fastest_beside, shape_of
from coop_jax.searches import loop_search_of
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, BATCH, DEVICES = 24, 128, 1024, 4
REST = 10**8  # Bytes that plans need beside what they keep.


def step(weights, x):
    """What a layer keeps has three choices or more."""

    def loss(weights):
        def body(x, w):
            x = x + jnp.tanh(jnp.tanh(x @ w["into"]) @ w["out"])
            return x + jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]), None

        return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


SHAPES = {
    "into": (LAYERS, WIDTH, WIDTH),
    "out": (LAYERS, WIDTH, WIDTH),
    "up": (LAYERS, WIDTH, 4 * WIDTH),
    "down": (LAYERS, 4 * WIDTH, WIDTH),
}
ARGUMENTS = {name: normal(*shape) for name, shape in SHAPES.items()}, normal(BATCH, WIDTH)


@pytest.fixture(scope="module")
def menu():
    return menu_of(program_of(step, ARGUMENTS), TARGET)


def compiled_at(menu, pairs, further_bytes=0, further_seconds=0.0):
    kept_bytes = sum(pair.kept_bytes for pair in pairs)
    seconds = sum(pair.seconds for pair in pairs)
    return Compiled(
        pairs,
        menu.first_bytes - kept_bytes,
        REST + kept_bytes + further_bytes,
        1 + seconds + further_seconds,
    )


def apart(menu, pairs):
    """How far the choices of two loops are from each other."""
    (pair,) = pairs
    less, more = (menu.choices[0].hull.index(part.retained) for part in pair.parts)
    return less - more


def test_mixtures_beside_the_path_keep_all_that_they_may(menu):
    (choices,) = menu.choices
    hull = choices.hull
    assert len(hull) > 2
    first, last = (LAYERS * each.kept_bytes for each in (hull[0], hull[-1]))
    for kept_bytes in range(last, first, (first - last) // 20):
        found = list(choices.mixtures(kept_bytes))
        for planned in found:
            less, more = planned.parts
            assert hull.index(less.retained) - hull.index(more.retained) > 1
            assert min(less.count, more.count) > 1
            assert planned.kept_bytes <= kept_bytes
            each = more.retained.kept_bytes - less.retained.kept_bytes
            assert planned.kept_bytes + each > kept_bytes or less.count == 2
        assert len({shape_of([p]) for p in found}) == len(found)


@pytest.mark.parametrize("name", ["two loops", "half precision", "recurrent"])
def test_plans_beside_the_path_give_equal_bits(name):
    values, args = STEPS[name][0]()
    program = program_of(values, args)
    menu = menu_of(program, TARGET)
    planned = list(menu.beside(menu.stretches[0][1] // 2))
    for pairs in planned[:2]:
        kept_bytes = sum(pair.kept_bytes for pair in pairs)
        assert menu.first_bytes - kept_bytes >= menu.stretches[0][1] // 2
        assert_equal_bits(program, with_planned_pairs(program, pairs), args)


def test_where_the_model_is_right_nothing_is_faster_than_the_path(menu):
    for saved_bytes in range(1, menu.stretches[0][1], menu.stretches[0][1] // 9):
        one = compiled_at(menu, menu.saving(saved_bytes))
        assert fastest_beside(menu, [one], one.seconds, one.total_bytes, 1) is None


def test_a_corner_that_needs_less_than_was_taken_from_mixtures_is_found(menu):
    """As XLA needs less for one loop than for two."""
    place, after = menu.corner_places[1:3]
    two = compiled_at(menu, menu.saving((place + after) // 2), 5 * 10**6, 0.1)
    one = compiled_at(menu, menu.saving(after))
    corner = compiled_at(menu, menu.saving(place))
    found = fastest_beside(menu, [two, one], one.seconds, corner.total_bytes, 1)
    assert found is not None
    pairs, expected_bytes = found
    assert shape_of(pairs) == shape_of(corner.pairs)
    assert expected_bytes == corner.total_bytes


def test_where_neighbours_gain_nothing_others_are_found(menu):
    """As choices do that are hardly below the line between those around them."""
    after = compiled_at(menu, menu.saving(menu.corner_places[2]))
    two = compiled_at(menu, menu.saving(menu.corner_places[2] * 7 // 8), 0, 0.1)
    found = fastest_beside(menu, [after, two], after.seconds, two.total_bytes, 1)
    assert found is not None
    assert apart(menu, found[0]) > 1


def test_it_ends_and_never_asks_for_more_than_a_budget_or_the_same_again(menu):
    known = [compiled_at(menu, menu.saving(menu.stretches[0][1]), 0, 1.0)]
    budget = REST + menu.first_bytes // 2
    for count in itertools.count():
        assert count < 100
        found = fastest_beside(menu, known, known[0].seconds, budget, 1)
        if found is None:
            break
        pairs, expected_bytes = found
        assert REST + sum(pair.kept_bytes for pair in pairs) == expected_bytes <= budget
        assert shape_of(pairs) not in {shape_of(one.pairs) for one in known}
        known.append(compiled_at(menu, pairs))
    assert count > 0


@pytest.mark.skipif(len(jax.devices()) < DEVICES, reason="needs four devices")
def test_the_search_over_several_devices_uses_the_room_that_the_path_leaves():
    mesh = targets.mesh(f"cpu x{DEVICES}", {"fsdp": DEVICES})

    def typed(shape, *spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    weights = {name: typed(shape, None, "fsdp") for name, shape in SHAPES.items()}
    args = weights, typed((BATCH, WIDTH), "fsdp")
    needed = memory_figures(jax.jit(step).lower(*args).compile()).total_bytes
    traced = TracedStep.trace(step, {}, args, {})

    def search_of():
        return loop_search_of(traced, "search", needed, lambda line: None)

    before, search = search_of(), search_of()
    menu = search._stretches[0].menu
    corner, after = (
        before._measure(0, place).total_bytes for place in menu.corner_places[1:3]
    )

    def seconds_of(compiled):
        """Two loops of neighbours are slow."""
        every = search._compiled.of_stretch(0)
        ((pair,),) = (m.loops.planned for m in every if m.compiled is compiled)
        is_slow = len(pair.parts) == 2 and apart(menu, [pair]) == 1
        return 1 + pair.seconds / DEVICES + is_slow

    search._compiled._seconds_of = seconds_of
    budget = (3 * corner + after) // 4
    found = search.best(budget)
    assert found.keeps(budget)
    assert len(found.loops.planned[0].parts) == 2
    assert apart(menu, found.loops.planned) > 1
