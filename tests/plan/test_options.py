"""One meaning per planner's name, given as a string or by `PlanOptions`."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import mlp_arguments, mlp_step

import coop_jax
from coop_jax import PlanOptions, planning, remat_train_step
from coop_jax.plan.planner import PLANNERS, planner_options
from coop_jax.planning import named_graph

# Of every field a value that is no planner's default.
FIELDS = {
    "alignment": 512,
    "sliding_window": False,
    "partition": False,
    "recomputable_in_place": False,
    "density_threshold": 1e-9,
    "copy_on_write": False,
    "dtr_neighbourhood": "local",
    "ignore_small": True,
    "sampling": True,
    "search_effort": 1234,
    "packing_effort": 4321,
    "limits_live_bytes": False,
    "seed": 7,
    "overhead_limit": 3.0,
}


@pytest.fixture(scope="module")
def arguments():
    return mlp_arguments()


def values(options):
    return {name: getattr(options, name) for name in ("policy", *FIELDS)}


def assert_same_plan(one, other):
    np.testing.assert_array_equal(one.schedule.steps, other.schedule.steps)
    assert one.predicted_bytes == other.predicted_bytes
    assert one.recomputed_flops == other.recomputed_flops


@pytest.mark.parametrize("alignment", [16, 64, 256, 512])
@pytest.mark.parametrize("planner", PLANNERS)
def test_a_name_means_the_same_as_options_of_that_policy(planner, alignment):
    by_name = planner_options(planner, alignment)
    by_options = planner_options(PlanOptions(policy=planner), alignment)
    assert by_name == by_options
    assert values(by_name) == values(by_options)
    assert by_options.alignment == alignment
    assert by_options.limits_live_bytes
    assert by_options.overhead_limit == 10.0


def test_no_options_are_the_default_planner():
    assert PlanOptions() == PlanOptions(policy="search")
    assert planner_options(PlanOptions(), 64) == planner_options("search", 64)


@pytest.mark.parametrize("policy", PLANNERS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_given_holds_and_changes_no_other(policy, field):
    given = PlanOptions(policy=policy, **{field: FIELDS[field]})
    resolved = values(planner_options(given, 128))
    others = values(planner_options(policy, 128))
    assert resolved[field] == FIELDS[field]
    derived = {"copy_on_write"} if field == "recomputable_in_place" else set()
    assert {n for n in resolved if resolved[n] != others[n]} - derived <= {field}


@pytest.mark.parametrize("field", ["overhead_limit", "density_threshold", "copy_on_write"])
def test_none_is_a_value_that_is_given(field):
    given = PlanOptions(**{field: None})
    assert given != PlanOptions()
    default = getattr(PlanOptions(), field)
    assert getattr(planner_options(given, 64), field) == default


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_plans_the_same_by_name_and_by_options(arguments, planner):
    by_name, by_options = (
        remat_train_step(mlp_step, budget="70%", planner=given).plan(*arguments)
        for given in (planner, PlanOptions(policy=planner))
    )
    assert_same_plan(by_options, by_name)


def test_fit_takes_options(arguments):
    by_name, by_options = (
        coop_jax.fit(mlp_step, *arguments, budget="70%", planner=given)
        for given in ("coop", PlanOptions(policy="coop"))
    )
    assert_same_plan(by_options, by_name)


@pytest.mark.parametrize(
    "outer", [jax.jit, lambda f: jax.vmap(f, in_axes=None, axis_size=2)]
)
@pytest.mark.parametrize("planner", ["search", "coop"])
def test_under_an_outer_transformation_as_well(arguments, outer, planner):
    programs = [
        str(
            jax.make_jaxpr(outer(remat_train_step(mlp_step, budget="80%", planner=given)))(
                *arguments
            )
        )
        for given in (planner, PlanOptions(policy=planner))
    ]
    assert programs[0] == programs[1]
    assert "optimization_barrier" in programs[0] or "coop" in programs[0]


def test_compare_takes_options():
    x = jnp.ones((256, 32))
    weights = [jnp.eye(32)] * 4

    def make_step(wrap):
        block = wrap(lambda w, x: jnp.tanh(x @ w))

        def step(weights, x):
            def loss(weights):
                hidden = x
                for w in weights:
                    hidden = block(w, hidden)
                return (hidden**2).mean()

            return jax.grad(loss)(weights)

        return step

    rows = [
        coop_jax.compare(
            make_step, weights, x, policies={}, budgets=["90%"], planner=planner
        ).rows[-1]
        for planner in ("lookahead", PlanOptions(policy="lookahead"))
    ]
    assert rows[0] == rows[1]


def test_the_plan_of_a_graph_by_name_and_by_options():
    graph, _ = named_graph(
        {"x": {"bytes": 640}, "y": {"bytes": 640, "output": True}},
        [
            {"seconds": 1.0, "outputs": ["x"]},
            {"seconds": 1.0, "inputs": ["x"], "outputs": ["y"]},
        ],
    )
    for planner in PLANNERS:
        by_name = planning.plan_graph(graph, 4096, planner)
        by_options = planning.plan_graph(graph, 4096, PlanOptions(policy=planner))
        np.testing.assert_array_equal(by_name.placements, by_options.placements)
        assert by_name.alignment == by_options.alignment == 64
    default = planning.plan_graph(graph, 4096)
    by_options = planning.plan_graph(graph, 4096, PlanOptions())
    np.testing.assert_array_equal(default.placements, by_options.placements)


@pytest.mark.parametrize("field", FIELDS)
def test_equality_hash_repr_copies_and_pickles(field):
    options = PlanOptions(**{field: FIELDS[field]})
    same = PlanOptions(**{field: FIELDS[field]})
    assert options == same
    assert hash(options) == hash(same)
    assert options != PlanOptions()
    assert options != field
    for copied in (
        copy.copy(options),
        copy.deepcopy(options),
        pickle.loads(pickle.dumps(options)),
        eval(repr(options)),
    ):
        assert copied == options
        assert values(copied) == values(options)
        # Also what was not given: it is not given in the copy either.
        assert planner_options(copied, 32) == planner_options(options, 32)
    assert f"{field}={FIELDS[field]!r}" in repr(options)


def test_numbers_of_numpy_are_python_s():
    options = PlanOptions(alignment=np.int32(128), seed=np.uint64(3), overhead_limit=2)
    assert options == PlanOptions(alignment=128, seed=3, overhead_limit=np.float32(2))
    assert PlanOptions(partition=np.False_) == PlanOptions(partition=False)
    assert "np." not in repr(options)


def test_options_cannot_be_changed():
    options = PlanOptions()
    for name in ("policy", "alignment", "alignmnet"):
        with pytest.raises(AttributeError):
            setattr(options, name, 64)


BY_TYPE = {
    "policy": (3, None, b"coop"),
    "dtr_neighbourhood": (3, None),
    "alignment": ("64", 64.0, np.float64(64.9), True, np.True_, None, [64]),
    "search_effort": ("1", 1.5, False),
    "packing_effort": ("1", 1.5, np.bool_(False)),
    "seed": ("1", 1.0, True),
    "sliding_window": (0, "False", 1.0, None),
    "partition": (1, "True"),
    "recomputable_in_place": (0, np.int64(0)),
    "copy_on_write": (0, "no"),
    "ignore_small": (1, "yes"),
    "sampling": (1, None),
    "limits_live_bytes": (1, "True"),
    "density_threshold": ("1", True, 1j, np.complex64(1)),
    "overhead_limit": ("10", True, np.True_, [10.0]),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BY_TYPE.items() for value in values],
)
def test_fields_are_of_their_type(field, value):
    with pytest.raises(TypeError, match=f"PlanOptions: `{field}` must be .*, got "):
        PlanOptions(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "best"),
        ("dtr_neighbourhood", "all"),
        ("alignment", 0),
        ("alignment", 48),
        ("alignment", -64),
        ("alignment", 2**31),
        ("alignment", 2**70),
        ("search_effort", -1),
        ("search_effort", 2**63),
        ("packing_effort", -1),
        ("seed", -1),
        ("seed", 2**64),
        ("density_threshold", float("nan")),
        ("density_threshold", -1.0),
        ("overhead_limit", float("nan")),
        ("overhead_limit", 0.5),
        ("overhead_limit", -np.inf),
    ],
)
def test_fields_are_in_range(field, value):
    with pytest.raises(ValueError, match=f"PlanOptions: `{field}` must .*, got "):
        PlanOptions(**{field: value})


@pytest.mark.parametrize("planner", [3, None, "Search", ("search",), b"search"])
def test_what_is_no_planner(planner):
    with pytest.raises(ValueError, match=r"`coop_jax.PlanOptions`. Got "):
        remat_train_step(mlp_step, budget="70%", planner=planner)
