"""`coop_jax.compare`: rows, bytes, counted operations, budgets, errors, tables."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from steps import QUICK

import coop_jax
from coop_jax.comparison.checkpoint_policies import default_policies, unwrapped, wrap_with
from coop_jax.comparison.plot import frontier
from coop_jax.comparison.recompute_counts import executed, saved_names
from coop_jax.comparison.table import Row, at, optimal

LAYERS, WIDTH, BATCH = 3, 32, 1024
# Operations of one product of a layer, and of its tanh.
DOT = 2 * BATCH * WIDTH * 4 * WIDTH
TANH = 10 * BATCH * 4 * WIDTH
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
FAST = "lookahead"  # where any planner will do
NOTHING = jax.checkpoint_policies.nothing_saveable
DOTS = jax.checkpoint_policies.dots_saveable


def make_step(wrap):
    """SGD of an MLP with residual blocks, wrapped one by one."""

    def block(weights, x):
        into, out = weights
        hidden = checkpoint_name(x @ into, "mlpwi")
        return x + checkpoint_name(jnp.tanh(hidden) @ out, "mlpwo")

    block = wrap(block)

    def step(layers, x):
        def loss(layers):
            y = x
            for weights in layers:
                y = block(weights, y)
            return jnp.mean(y**2)

        value, grads = jax.value_and_grad(loss)(layers)
        return jax.tree.map(lambda w, g: w - 0.1 * g, layers, grads), value

    return step


def arguments():
    keys = jax.random.split(jax.random.key(0), 2 * LAYERS)
    layers = [
        (
            jax.random.normal(keys[2 * i], (WIDTH, 4 * WIDTH)) * 0.1,
            jax.random.normal(keys[2 * i + 1], (4 * WIDTH, WIDTH)) * 0.1,
        )
        for i in range(LAYERS)
    ]
    return layers, jnp.ones((BATCH, WIDTH))


def count(wrap):
    layers, x = arguments()
    traced = jax.jit(make_step(wrap), donate_argnums=0).trace(layers, x)
    return executed(traced.jaxpr, (True,) * 2 * LAYERS + (False,))


@pytest.fixture(scope="module")
def comparison():
    return coop_jax.compare(
        make_step,
        *arguments(),
        policies={"nothing_saveable": NOTHING, "dots_saveable": DOTS},
        donate_argnums=0,
        planner=QUICK,
    )


def test_what_a_policy_recomputes_is_counted_as_by_hand():
    unmodified, nothing = count(unwrapped), count(wrap_with(NOTHING))
    # The second product of a block is not needed again: nothing reads its result.
    assert nothing.flops - unmodified.flops == LAYERS * (DOT + TANH)
    assert count(wrap_with(DOTS)).flops - unmodified.flops == LAYERS * TANH
    everything = count(wrap_with(jax.checkpoint_policies.everything_saveable))
    assert everything.flops == unmodified.flops


def test_without_recomputation_all_versions_are_the_same_program():
    unmodified, nothing = count(unwrapped), count(wrap_with(NOTHING))
    assert set(unmodified.times) == {1}
    assert len(nothing.program.eqns) == len(unmodified.program.eqns)
    again = [
        eqn.primitive.name
        for eqn, times in zip(nothing.program.eqns, nothing.times, strict=True)
        if times > 1
    ]
    assert sorted(again) == ["dot_general"] * LAYERS + ["tanh"] * LAYERS
    assert max(nothing.times) == 2


def test_a_checkpoint_that_may_be_merged_recomputes_nothing():
    merged = count(lambda block: jax.checkpoint(block, policy=NOTHING, prevent_cse=False))
    assert merged.flops == count(unwrapped).flops


def test_rows(comparison):
    assert comparison.target == "cpu"
    names = [row.name for row in comparison.rows]
    assert names[:4] == [
        "unmodified",
        "nothing_saveable",
        "dots_saveable",
        "nothing_saveable, XLA's defaults",
    ]
    assert {at("nothing_saveable"), "coop_jax, smallest"} <= {*names}
    assert len({*names}) == len(names)
    kinds = [row.kind for row in comparison.rows]
    assert kinds[:4] == ["unmodified", *["checkpoint"] * 3]
    assert set(kinds[4:]) == {"coop_jax"}
    policies = [policy.name for policy, _ in comparison.matched()]
    assert policies == ["nothing_saveable", "dots_saveable"]


def test_bytes_are_those_of_xla(comparison):
    def total(wrap, options):
        jitted = jax.jit(make_step(wrap), donate_argnums=0)
        figures = jitted.lower(*arguments()).compile(options).memory_analysis()
        return (
            figures.argument_size_in_bytes
            + figures.output_size_in_bytes
            - figures.alias_size_in_bytes
            + figures.temp_size_in_bytes
        )

    assert comparison.unmodified.measured_bytes == total(unwrapped, None)
    nothing = comparison.row("nothing_saveable").measured_bytes
    assert nothing == total(wrap_with(NOTHING), KEEP_BARRIERS)
    by_default = comparison.row("nothing_saveable, XLA's defaults")
    assert by_default.measured_bytes == total(wrap_with(NOTHING), None)
    assert by_default.modelled_seconds is None


def test_ours_never_needs_more_than_the_policy(comparison):
    for policy, ours in comparison.matched():
        assert ours.measured_bytes <= policy.measured_bytes
    for row in comparison.rows:
        if row.kind == "coop_jax":
            assert row.measured_bytes <= row.budget_bytes
    smallest = comparison.row("coop_jax, smallest")
    assert smallest.measured_bytes < comparison.row("nothing_saveable").measured_bytes


def test_policies_that_are_the_same_program_are_compiled_once():
    nothing = dict.fromkeys(("first", "second"), NOTHING)
    nothing["named"] = jax.checkpoint_policies.save_only_these_names("absent")
    compared = coop_jax.compare(
        make_step,
        *arguments(),
        policies=nothing,
        budgets=(),
        donate_argnums=0,
        planner=QUICK,
    )
    first, second, named = (compared.row(name) for name in nothing)
    assert first == dataclasses.replace(second, name="first")
    assert first == dataclasses.replace(named, name="first")


def test_modelled_seconds_grow_with_what_is_recomputed(comparison):
    base = comparison.unmodified
    nothing = comparison.row("nothing_saveable")
    smallest = comparison.row("coop_jax, smallest")
    for row in (nothing, smallest):
        assert row.flops > base.flops
        assert row.modelled_seconds > base.modelled_seconds
    for row in comparison.rows:
        if row.flops == base.flops:
            assert row.modelled_seconds == base.modelled_seconds


def test_executables_say_what_they_execute(comparison):
    base = comparison.unmodified
    assert base.product_flops == 3 * LAYERS * 2 * DOT - DOT  # x has no gradient.
    for row in comparison.rows:
        if row.kind == "coop_jax" or row.name in ("nothing_saveable", "dots_saveable"):
            # What is recomputed in the jaxpr is in the executable.
            recomputed = row.product_flops - base.product_flops
            assert recomputed % DOT == 0
            assert recomputed <= row.flops - base.flops
            assert recomputed > 0 or row.name != "nothing_saveable"
        assert row.executable_seconds > 0


def test_ours_is_priced_as_the_plan_says():
    layers, x = arguments()
    options = {"planner": FAST, "donate_argnums": 0}
    step = coop_jax.remat_train_step(make_step(unwrapped), budget="70%", **options)
    plan = step.plan(layers, x)
    row = coop_jax.compare(make_step, layers, x, policies={}, budgets=["70%"], **options)
    ours, base = row.row(at("70%")), row.unmodified
    overhead = ours.modelled_seconds / base.modelled_seconds
    assert plan.compute_overhead > 1
    assert overhead == pytest.approx(plan.compute_overhead, rel=0.02)
    assert ours.measured_bytes == plan.measured_bytes


def test_known_rows_are_not_made_again(comparison):
    made = []
    again = coop_jax.compare(
        make_step,
        *arguments(),
        policies={"nothing_saveable": NOTHING, "dots_saveable": DOTS},
        donate_argnums=0,
        known_rows=comparison.rows,
        on_row=made.append,
    )
    assert made == []
    assert again.rows == comparison.rows


def test_steps_are_run_in_turns():
    rows = coop_jax.compare(
        make_step,
        *arguments(),
        policies={"nothing_saveable": NOTHING},
        planner=FAST,
        donate_argnums=0,
        budgets=(),
        measure_seconds=True,
    ).rows
    assert rows[0].measured_ratio == 1
    assert all(0.05 < row.measured_ratio < 20 for row in rows[1:])


def test_an_infeasible_budget_is_a_row_that_names_the_smallest():
    compared = coop_jax.compare(
        make_step,
        *arguments(),
        policies={},
        budgets=[1000],
        planner=FAST,
        donate_argnums=0,
    )
    row = compared.rows[-1]
    assert row.measured_bytes is None
    assert row.budget_bytes == 1000
    assert row.note.startswith("infeasible, at least ")
    assert row.note in str(compared)


def test_a_policy_is_not_left_out_for_one_that_nothing_beats():
    known = [
        Row("tight", "checkpoint", None, None, 1000, 1, 1e-9, None, 1),
        Row("loose", "checkpoint", None, None, 10**9, 1, 1e-9, None, 1),
    ]
    rows = coop_jax.compare(
        make_step,
        *arguments(),
        policies={"tight": NOTHING, "loose": NOTHING},
        budgets=(),
        planner=FAST,
        donate_argnums=0,
        known_rows=known,
    ).rows
    assert [row.name for row in rows[-2:]] == ["coop_jax at tight", "coop_jax at loose"]
    assert rows[-2].measured_bytes is None
    assert rows[-1].measured_bytes is not None


def test_names_choose_the_policies():
    traced = jax.jit(make_step(unwrapped)).trace(*arguments())
    assert saved_names(traced.jaxpr) == {"mlpwi", "mlpwo"}
    general = ["nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"]
    assert list(default_policies(frozenset())) == general
    found = default_policies(frozenset({"mlpwi", "mlpwo"}))
    assert list(found) == [*general, "save_dot_except_mlpwi", "minimal"]
    assert list(default_policies(frozenset({"mine"}))) == [*general, "all_names"]


def test_names_and_roundings_to_the_same_precision_are_no_operations():
    layers, x = arguments()
    traced = jax.jit(make_step(wrap_with(DOTS))).trace(layers, x)
    program = executed(traced.jaxpr, (False,) * (2 * LAYERS + 1)).program
    names = {eqn.primitive.name for eqn in program.eqns}
    assert not names & {"name", "reduce_precision", "coop_fence"}


def test_markdown_and_text(comparison):
    lines = comparison.markdown().splitlines()
    assert lines[0].startswith("| step | kind | budget | predicted | XLA's bytes |")
    assert len(lines) == 2 + len(comparison.rows)
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    text = str(comparison)
    assert text.startswith("coop_jax comparison on cpu\n")
    assert all(row.name in text for row in comparison.rows)


def test_plot(comparison, tmp_path):
    pytest.importorskip("matplotlib")
    comparison.plot(tmp_path / "pareto.png", "title")
    assert (tmp_path / "pareto.png").stat().st_size > 1000


def made_up(name, size, seconds):
    return coop_jax.Row(name, "checkpoint", measured_bytes=size, modelled_seconds=seconds)


def test_rows_are_compared_by_their_executables():
    """A step that the model takes for slow, and whose executable is fast."""
    policy = dataclasses.replace(made_up("policy", 3, 2.0), executable_seconds=1.0)
    ours = dataclasses.replace(made_up("ours", 3, 1.0), executable_seconds=1.5)
    assert (policy.seconds, ours.seconds) == (1.0, 1.5)
    assert policy.beats(ours)
    assert not ours.beats(policy)
    assert [row.name for row in optimal([ours, policy])] == ["policy"]
    assert dataclasses.replace(ours, executable_seconds=None).seconds == 1.0


def test_optimal_rows():
    rows = [
        made_up("a", 3, 1.0),
        made_up("same", 3, 1.0),
        made_up("worse", 3, 2.0),
        made_up("b", 1, 2.0),
        made_up("unknown", 1, None),
    ]
    assert [row.name for row in optimal(rows)] == ["a", "b", "unknown"]


def test_frontier():
    points = [(3.0, 1.0), (1.0, 2.0), (2.0, 2.5), (2.5, 1.5)]
    assert frontier(points) == [(1.0, 2.0), (2.5, 1.5), (3.0, 1.0)]


def test_rows_are_frozen_and_found_by_name(comparison):
    with pytest.raises(dataclasses.FrozenInstanceError):
        comparison.rows[0].flops = 0
    with pytest.raises(ValueError, match=r"must be one of 'unmodified'.*Got 'none'"):
        comparison.row("none")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"make_step": 3}, TypeError, r"callable that takes `wrap`.*Got 3 of type int"),
        ({"make_step": lambda wrap: 3}, TypeError, "must return the training step.*Got 3"),
        (
            {"make_step": lambda wrap: make_step(unwrapped)},
            ValueError,
            "must call blocks that `wrap` was applied to. With policy 'nothing'",
        ),
        ({"policies": ["dots"]}, TypeError, r"`compare\(policies=...\)` must be a dict"),
        ({"policies": {"dots": 1}}, TypeError, "callables such as.*Got 1 for 'dots'"),
        (
            {"policies": {"unmodified": DOTS}},
            ValueError,
            "must not name a policy like another row. Got 'unmodified'",
        ),
        ({"budgets": ["a lot"]}, ValueError, "budget"),
        (
            {"measure_seconds": True, "args": jax.eval_shape(arguments)},
            ValueError,
            "needs arrays on a device that is there. Got ShapeDtypeStruct",
        ),
        (
            {"measure_seconds": True, "target": "h200"},
            ValueError,
            "Got target='h200'. Give arrays and no `target`",
        ),
    ],
)
def test_errors(changed, error, message):
    options = {"policies": {"nothing": NOTHING}, "donate_argnums": 0, **changed}
    args = options.pop("args", None) or arguments()
    with pytest.raises(error, match=message):
        coop_jax.compare(options.pop("make_step", make_step), *args, **options)
