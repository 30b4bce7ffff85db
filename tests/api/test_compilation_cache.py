"""Plans do not depend on what is in JAX's persistent compilation cache."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from steps import mlp_arguments, mlp_step, traced

from coop_jax.base import _compat
from coop_jax.graph import stored_values
from coop_jax.trace.program import Program
from coop_jax.xla.buffer_assignment import published_module

# A budget for which more than one plan is compiled; which version of JAX keeps it in the
# end does not matter.
_STEP = """
import json, logging, sys
import jax, jax.numpy as jnp

def loss(weights, x):
    for w in weights:
        x = x + jax.nn.gelu(x @ w, approximate=False)
    return (x**2).mean()

def step(weights, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, grads)], value

weights, x = [0.1 * jnp.eye(64)] * 3, jnp.ones((512, 64))

class Hits(logging.Handler):
    found = []
    def emit(self, record):
        if "cache hit" in record.getMessage():
            self.found.append(record.getMessage())

def plan():
    import coop_jax
    logger = logging.getLogger("jax._src.compiler")
    logger.addHandler(Hits())
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    lines = []
    quick = coop_jax.PlanOptions(search_effort=100_000)
    made = coop_jax.remat_train_step(step, budget="70%", planner=quick)
    made._direct._log = lines.append
    try:
        found = made.plan(weights, x)
        kept = [found.measured_bytes, found.predicted_bytes, found.recomputed_flops]
    except coop_jax.InfeasibleBudgetError as error:
        kept = [error.smallest_bytes, str(error)]
    lines = [line for line in lines if line.startswith("compilation")]
    print(json.dumps([[*kept, lines], len(Hits.found)]))
"""
_PLAN = "plan()"
_JIT_AND_PLAN = "jax.jit(step)(weights, x)\nplan()"
_CONFIGURED = (
    "jax.config.update('jax_compilation_cache_dir', sys.argv[1])\n"
    "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
    "jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)\n"
)
_TAGGED_LIKE_AS_WRITTEN = (
    "flat = jax.make_jaxpr(step)(weights, x)\n"
    "jax.jit(jax.extend.core.jaxpr_as_fun(flat)).lower(*weights, x).compile()\n"
)


def run_in_a_process(code, directory, *, by_environment=True):
    """The plan in a fresh process, and how much of it came from the cache."""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(directory),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _STEP + code, str(directory)],
        env={**os.environ, **(settings if by_environment else {})},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_processes_that_share_a_cache_plan_the_same(tmp_path):
    """Cold and warm, planned before or after the step was jitted, the cache given by the
    environment or in the process, after it was decided whether it is used."""
    without, _ = run_in_a_process(_PLAN, tmp_path, by_environment=False)
    assert len(without[-1]) > 1, "one plan alone says little"
    cold, warm = tmp_path / "cold", tmp_path / "warm"
    first, hits = run_in_a_process(_PLAN, cold)
    assert (first, hits) == (without, 0)
    again, hits = run_in_a_process(_JIT_AND_PLAN, cold)
    assert again == without
    assert hits >= len(without[-1]), "the plans themselves may come from the cache"
    jitted = _CONFIGURED + "import jax.extend\n" + _TAGGED_LIKE_AS_WRITTEN + _JIT_AND_PLAN
    assert run_in_a_process(jitted, warm, by_environment=False)[0] == without
    late = "jax.jit(lambda x: x + 1)(x)\n" + _CONFIGURED + _PLAN
    assert run_in_a_process(late, warm, by_environment=False)[0] == without


@pytest.fixture
def cache_files(compilation_cache):
    """Says which programs named like the step the cache holds."""
    return lambda: {path.name for path in compilation_cache.glob("jit_mlp_step*-cache")}


def names_read(compiled) -> set[str]:
    return {i.op_name for i in published_module(compiled).instructions.values()}


def renamed(program: Program, scope: str) -> Program:
    eqns = tuple(_compat.with_name_scope(eqn, scope) for eqn in program.eqns)
    return Program(**{**vars(program), "eqns": eqns})


def test_programs_of_other_names_have_other_keys(cache_files):
    """An executable has the names of the program that it was asked for."""
    step = traced(mlp_step, *mlp_arguments(layers=2), donate_argnums=0)
    for scope in ("one", "other", "one"):
        names = names_read(step.compile(renamed(step.program, scope)))
        assert any(scope in name for name in names)
        assert not any({"one": "other", "other": "one"}[scope] in name for name in names)
    assert len(cache_files()) == 2


def test_what_is_read_neither_comes_from_the_cache_nor_goes_there(cache_files):
    step = traced(mlp_step, *mlp_arguments(layers=2), donate_argnums=0)
    for _ in range(2):
        compiled = step.compile_afresh(step.lower(stored_values.tag(step.program)))
        assert any("eqn0" in name for name in names_read(compiled))
        assert not cache_files()
    # And the cache is still there for everything else.
    jax.jit(mlp_step)(*mlp_arguments(layers=2))
    assert cache_files()


def test_keys_leave_other_attributes_alone():
    lowered = jax.jit(jnp.sin).lower(1.0)
    _compat.add_to_cache_key(lowered, "one")
    module = lowered.compiler_ir("stablehlo")
    attributes = module.operation.attributes
    with module.context:
        attributes["mhlo.frontend_attributes"] = _compat.ir.DictAttr.get(
            {"theirs": _compat.ir.StringAttr.get("kept")}
        )
    for text in ("two", "three"):
        _compat.add_to_cache_key(lowered, text)
    text = str(attributes["mhlo.frontend_attributes"])
    assert 'theirs = "kept"' in text
    assert '"three"' in text
    assert '"two"' not in text
    assert lowered.compile()(1.0) == jnp.sin(1.0)


class Unassigned:
    """As an executable of a platform whose cache keeps no buffer assignment."""

    def memory_analysis(self):
        return None


def test_what_cannot_be_read_is_compiled_again(cache_files):
    step = traced(mlp_step, *mlp_arguments(layers=2), donate_argnums=0)
    compiled = step.compile(step.program)
    assert step.readable(step.program, compiled) is compiled
    files = cache_files()
    again = step.readable(step.program, Unassigned())
    assert published_module(again).instructions
    assert cache_files() == files


def test_without_a_cache_nothing_is_compiled_again():
    step = traced(mlp_step, *mlp_arguments(layers=2), donate_argnums=0)
    unassigned = Unassigned()
    assert step.readable(step.program, unassigned) is unassigned
