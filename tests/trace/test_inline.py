"""Tracing: one flat program that computes the same, with the user's names on it."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from steps import assert_trees_equal, mlp_arguments, mlp_step, traced

from coop_jax.base import _compat

_CALLS = {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}


@jax.custom_vjp
def clipped(x):
    return x * 2


clipped.defvjp(lambda x: (x * 2, None), lambda _, g: (jnp.clip(g, -1, 1),))


def names(program):
    return [eqn.primitive.name for eqn in program.eqns]


def run(program, *arguments):
    return _compat.jaxpr_as_fun(program.to_jaxpr())(*jax.tree.leaves(arguments))


def test_calls_are_inlined_and_loops_are_kept():
    def function(x):
        x = jax.jit(jax.nn.relu)(clipped(x)) + jax.nn.gelu(x)
        x = jax.checkpoint(jnp.sin)(x)
        x, _ = lax.scan(lambda c, _: (jnp.cos(c), None), x, length=3)
        return lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)

    x = jnp.linspace(-1, 1, 5)
    program = traced(function, x).program
    assert _CALLS.isdisjoint(names(program))
    assert {"scan", "cond"} <= set(names(program))
    np.testing.assert_allclose(run(program, x)[0], function(x), rtol=1e-6)


def test_equal_work_is_merged_and_dead_work_is_gone():
    def function(x, y):
        jnp.tanh(y)  # dead
        return jnp.sin(x) * 2 + jax.checkpoint(lambda x: jnp.sin(x) * 3)(x)

    program = traced(function, jnp.ones(3), jnp.ones(3)).program
    assert names(program).count("sin") == 1
    assert "tanh" not in names(program)


def test_a_checkpointed_gradient_holds_its_forward_pass_once():
    def loss(x):
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()

    program = traced(jax.value_and_grad(loss), jnp.ones(3)).program
    assert names(program).count("sin") == 2


def test_zeros_of_either_sign_and_nans_are_kept_apart():
    def function(x):
        return x * 0.0, x * -0.0, x + jnp.nan, x + jnp.nan

    program = traced(function, jnp.ones(2)).program
    assert names(program).count("mul") == 2
    assert names(program).count("add") == 1


def test_effects_are_neither_merged_nor_dropped():
    def function(x):
        jax.debug.print("x")
        jax.debug.print("x")
        return x

    program = traced(function, jnp.ones(2)).program
    assert sum(bool(eqn.effects) for eqn in program.eqns) == 2


def test_implied_broadcasts_are_values_of_the_program():
    program = traced(lambda x, s: x * s, jnp.ones((4, 3)), jnp.ones((1, 3))).program
    assert names(program) == ["broadcast_in_dim", "mul"]
    assert all(v.aval.shape == (4, 3) for v in program.eqns[1].invars)


def test_source_lines_and_name_stacks_stay():
    def function(x):
        with jax.named_scope("inner"):
            return jax.jit(lambda y: jnp.tanh(y))(x)

    [eqn] = traced(function, jnp.ones(3)).program.eqns
    assert "test_inline.py" in _compat.source_line(eqn)
    assert _compat.name_stack(eqn).startswith("inner/jit(")


def test_hidden_library_code_is_named_by_its_caller():
    program = traced(lambda x: jax.nn.relu(x), jnp.ones(3)).program
    assert "test_inline.py" in _compat.source_line(program.eqns[-1])


@pytest.mark.parametrize("body", ["jnp.sin(x)", "lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)"])
def test_what_a_library_jits_is_named_by_its_caller(body, tmp_path, monkeypatch):
    """JAX traces it where only lines of the library are in sight."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "library_for_lines.py").write_text(
        "import jax, jax.numpy as jnp\nfrom jax import lax\n"
        f"@jax.jit\ndef helped(x):\n    return {body}\n"
    )
    monkeypatch.syspath_prepend(library)
    monkeypatch.delitem(sys.modules, "library_for_lines", raising=False)
    helped = importlib.import_module("library_for_lines").helped
    program = traced(lambda x: helped(x), jnp.ones(3)).program
    assert {_compat.source_line(eqn).split(":")[0] for eqn in program.eqns} == {
        "test_inline.py"
    }


def test_sharding_said_by_an_inner_jit_is_kept():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    inner = jax.jit(jnp.sin, out_shardings=rows)
    program = traced(lambda x: inner(x) * 2, jnp.ones(8)).program
    assert "sharding_constraint" in names(program)


def test_captured_constants_and_pass_through_results():
    table = np.arange(6.0, dtype="f4")

    def function(x, y):
        return x * table, y, y, 3.0

    x, y = jnp.ones(6), jnp.arange(2)
    program = traced(function, x, y).program
    assert len(program.outvars) == 4
    assert_trees_equal(run(program, x, y), [x * table, y, y, 3.0])


def test_flat_program_computes_the_step():
    arguments = mlp_arguments(layers=3)
    program = traced(mlp_step, *arguments, donate_argnums=0).program
    assert program.donated == (True, True, True, False)
    actual = jax.jit(lambda *a: run(program, *a))(*arguments)
    expected = jax.jit(mlp_step)(*arguments)
    assert_trees_equal(actual, jax.tree.leaves(expected))
    assert "3 donated" in repr(program)


@pytest.mark.parametrize("depth", [1, 3])
def test_tracing_twice_gives_the_same_program(depth):
    arguments = mlp_arguments(layers=depth)
    first, second = (traced(mlp_step, *arguments).program for _ in range(2))
    assert str(first.to_jaxpr()) == str(second.to_jaxpr())
