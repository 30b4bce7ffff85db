"""Plan files that are not of the step, or no plan files, are refused by name."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import mlp_arguments, mlp_step

import coop_jax
from coop_jax.report import Plan
from coop_jax.saved.document import VERSION, contents_of, text_of

DONATED = {"donate_argnums": 0}
arguments = functools.partial(mlp_arguments, layers=3, batch=64, width=16)
PLAN_AGAIN = "Plan again without `plan=`, and save that plan with `plan.save(...)`."


def step_with_rate(rate):
    """The step of `mlp_step` with another factor of its gradients."""

    def step(weights, x):
        new, value = mlp_step(weights, x)
        return [w + rate * (w - n) for w, n in zip(weights, new, strict=True)], value

    return step


@pytest.fixture(scope="module")
def text():
    """Of the plan file of a step that fits as written."""
    plan = coop_jax.remat_train_step(mlp_step, budget="100%", **DONATED).plan(*arguments())
    return plan.recipe.text(str(plan), vars(plan))


@pytest.fixture
def path(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    return path


def refusal(path, fn=mlp_step, args=None, **options):
    """The message of the error for a plan file, at once or on the first call."""
    options = {"budget": "100%", **DONATED, **options}
    with pytest.raises(coop_jax.PlanFileError) as caught:
        coop_jax.remat_train_step(fn, plan=path, **options).plan(*(args or arguments()))
    message = str(caught.value)
    assert message.startswith(
        f"`remat_train_step(plan={str(path)!r})` cannot use this plan"
    )
    assert message.endswith(PLAN_AGAIN)
    return message


def changed(path, **parts):
    """The plan file with other parts, and their digest."""
    contents = contents_of(path.read_text())
    path.write_text(text_of({**contents, **parts}))
    return path


def of_step(path, **parts):
    return changed(path, step={**contents_of(path.read_text())["step"], **parts})


def test_the_file_is_taken_where_nothing_differs(path):
    step = coop_jax.remat_train_step(mlp_step, budget="100%", plan=path, **DONATED)
    plan = step.plan(*arguments())
    assert plan.is_unmodified
    assert plan.num_compilations == 1


@pytest.mark.parametrize(
    ("args", "options", "named"),
    [
        (
            arguments(batch=32),
            {},
            "The argument 3 differs: the file has `float32[64,16], one device`, the step "
            "`float32[32,16], one device`",
        ),
        (arguments(dtype="bfloat16"), {}, "step `bfloat16[16,16], one device, donated`"),
        (arguments(layers=4), {}, "The argument 3 differs"),
        (None, {"donate_argnums": ()}, "The argument 0 differs"),
        (None, {"planner": "dtr"}, "The `planner` differs: the file has 'search', the st"),
        (None, {"placement": "arena"}, "The `placement` differs: the file has 'xla', the"),
        (None, {"keep_unused": True}, "The `keep_unused` differs: the file has False, the"),
        (
            None,
            {"compiler_options": {"xla_cpu_enable_fast_math": True}},
            "The `compiler_options` differs: the file has {}, the step "
            "{'xla_cpu_enable_fast_math': 'True'}",
        ),
    ],
)
def test_other_arguments_and_options(path, args, options, named):
    assert named in refusal(path, args=args, **options)


def test_another_step_is_refused_by_its_first_equation(path, tmp_path):
    def other(weights, x):
        return mlp_step(weights, jnp.sin(x))

    message = refusal(path, other)
    assert (
        "Equation 0 of the step differs: the file has `dot_general float32[64,16] "
        in message
    )
    assert "the step `sin float32[64,16] -> float32[64,16]` at test_refusals.py:" in message

    plan = coop_jax.remat_train_step(step_with_rate(0.1), budget="100%", **DONATED)
    plan.plan(*arguments()).save(tmp_path / "rate.json")
    message = refusal(tmp_path / "rate.json", step_with_rate(0.2))
    assert "), with other parameters or of other operands. Plan again" in message

    def longer(weights, x):
        new, value = mlp_step(weights, x)
        return new, -value

    assert "The number of equations differs: the file has" in refusal(path, longer)


def test_names_and_lines_are_no_part_of_a_step(path):
    def moved(weights, x):
        with jax.named_scope("elsewhere"):
            return mlp_step(weights, x)

    step = coop_jax.remat_train_step(moved, budget="100%", plan=path, **DONATED)
    assert step.plan(*arguments()).num_compilations == 1


def test_values_of_captured_arrays_are_no_part_of_a_step(tmp_path):
    def closing_over(offset):
        return lambda weights, x: mlp_step(weights, x + offset)

    offsets = [np.full((64, 16), value, np.float32) for value in (1, 2)]
    path = tmp_path / "plan.json"
    coop_jax.fit(closing_over(offsets[0]), *arguments(), budget="100%").save(path)
    step = coop_jax.remat_train_step(closing_over(offsets[1]), budget="100%", plan=path)
    _, value = step(*arguments())
    expected = jax.jit(closing_over(offsets[1]))(*arguments())[1]
    np.testing.assert_array_equal(value, expected)


def test_another_target_names_both(path):
    message = refusal(of_step(path, target="h200"))
    assert "It was made for the target 'h200', and the step is for 'cpu'. Plan" in message


def test_more_devices_are_another_step(path):
    assert "The number of devices differs: the file has 8, the step 1" in refusal(
        of_step(path, devices=8)
    )


def test_a_newer_format(path):
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": VERSION + 1}))
    named = (
        f"Its format is version {VERSION + 1}, and this coop_jax reads version {VERSION}."
    )
    assert named in refusal(path)


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        (b"{", "It is not the JSON of a plan file: "),
        (b"[" * 10**5, "It is not the JSON of a plan file: "),
        (b'{"format": NaN}', "NaN is no number of a plan"),
        (b'{"format": "a", "format": "b"}', "a key occurs twice in one object"),
        (b"\xff\xfe", "It cannot be read: 'utf-8' codec can't decode"),
        (b"[1]", 'It is no plan file: it has no `"format": "coop_jax plan"`'),
        (b"9" * 5000, "It is not the JSON of a plan file: "),
    ],
)
def test_what_is_no_plan_file(tmp_path, contents, named):
    path = tmp_path / "plan.json"
    path.write_bytes(contents)
    assert named in refusal(path)


def test_paths_that_cannot_be_read(tmp_path):
    assert "It cannot be read: [Errno 2] No such file" in refusal(tmp_path / "none.json")
    assert "It cannot be read: [Errno 21] Is a directory" in refusal(tmp_path)
    with pytest.raises(TypeError, match=r"`fit\(plan=...\)` must be the path of a file"):
        coop_jax.fit(mlp_step, *arguments(), budget="100%", plan=3)


def test_a_changed_file(path):
    path.write_text(path.read_text().replace('"devices": 1', '"devices": 2'))
    assert "It was changed after it was written: its digest is another" in refusal(path)


def test_parts_that_are_none(path):
    figures = contents_of(path.read_text())["figures"]
    for value, named in [
        (
            "a",
            "`figures.budget_bytes` must be a whole number from -9223372036854775807 to ",
        ),
        (True, "Got True"),
        (2**63, "Got 9223372036854775808"),
    ]:
        assert named in refusal(changed(path, figures={**figures, "budget_bytes": value}))
    assert "`figures` must be an object with the keys budget_bytes, unmod" in refusal(
        changed(path, figures={})
    )


def test_more_bytes_than_the_budget(path):
    message = refusal(path, budget=1000)
    assert "XLA needs " in message
    assert (
        f"for its step with jax {jax.__version__}, of a budget of 1000 bytes; it was made "
    )
    assert "of a budget of 1000 bytes; it was made with jax" in message


def test_under_a_transformation(path):
    step = coop_jax.remat_train_step(mlp_step, budget="100%", plan=path, **DONATED)
    with pytest.raises(coop_jax.PlanFileError) as caught:
        jax.jit(step)(*arguments())
    assert (
        "`remat_train_step(plan=...)` makes a step that is compiled by itself. Got "
        in str(caught.value)
    )


def test_plans_of_nothing_compiled_are_not_saved(tmp_path):
    plan = Plan("cpu", None, 1, 1, 1, None, 1.0, 0, 0, 0, 0, (), None)
    with pytest.raises(
        coop_jax.PlanFileError, match="Got one that no step was compiled for"
    ):
        plan.save(tmp_path / "plan.json")
    assert not list(pathlib.Path(tmp_path).iterdir())
