"""Every difference of a backend is a quirk, and every quirk has a switch with an effect."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from graph.volume_steps import volume_shapes, volume_step
from mapped_steps import mapped_plan
from models import transformer_problem
from steps import (
    NEEDS_CUDA,
    NEEDS_TPU,
    TARGET,
    adam_shapes,
    adam_step,
    mlp_arguments,
    mlp_step,
    pooled_arguments,
    pooled_step,
    traced,
)

from coop_jax import backends
from coop_jax.backends.backend import Backend
from coop_jax.backends.cpu.pool_gradient import pool_gradient_p
from coop_jax.backends.cpu.quirks import CPU_QUIRKS
from coop_jax.backends.gpu.quirks import GPU_QUIRKS
from coop_jax.backends.tpu import heap, pool_sweep
from coop_jax.backends.tpu.chen_schedules import layered_schedules
from coop_jax.backends.tpu.compile_to_buffers import AssignedStep
from coop_jax.backends.tpu.quirks import TPU_QUIRKS
from coop_jax.emit.hints import NO_HINTS
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import (
    PlanOptions,
    plan_pool,
    planner_options,
    smallest_pool,
    unconstrained,
)
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.feedback_search import FeedbackSearch
from coop_jax.search.placements import XlaPlacement
from coop_jax.search.problem import Problem
from coop_jax.search.sweep_search import SweepSearch
from coop_jax.xla import absent_devices

TESTS = Path(__file__).parents[1]
QUIRKS = {"cpu": CPU_QUIRKS, "gpu": GPU_QUIRKS, "tpu": TPU_QUIRKS}
ALL = [(platform, quirk) for platform in QUIRKS for quirk in QUIRKS[platform]]
# The features of a backend, and the list itself: no behaviours of XLA.
CAPABILITIES = {
    *("has_arena", "fuses_into_readers", "reading_options", "quirks", "switched"),
    *("runs_layers_again", "without_rematerialization"),
}
OPTIONS = PlanOptions(policy="lookahead", alignment=64, overhead_limit=10.0)


def name_of(value):
    return getattr(value, "name", value)


def on_and_off(platform, name):
    return backends.named(platform), backends.without(platform, name)


@functools.cache
def compiled(name):
    """A step, and its tagged program compiled by XLA:CPU."""
    step = STEPS[name]()
    return step, step.compile(stored_values.tag(step.program))


def mlp():
    return traced(mlp_step, *mlp_arguments(), donate_argnums=0)


def pooled():
    arguments = jax.tree.map(lambda a: a.astype("bfloat16"), pooled_arguments())
    return traced(pooled_step, *arguments, donate_argnums=0)


def dropout():
    problem = transformer_problem(
        num_layers=2, width=64, num_heads=4, batch_size=4, sequence_length=32
    )
    return traced(problem.train_step, problem.state, problem.batch, problem.key)


STEPS = {f.__name__: f for f in (mlp, pooled, dropout)}


def mlp_graph(near_bytes=0):
    step, tagged = compiled("mlp")
    target = dataclasses.replace(TARGET, near_bytes=near_bytes)
    return build_graph(step.program, backends.stored_values(step.program, tagged), target)


# The list.


@pytest.mark.parametrize("platform", QUIRKS)
def test_every_override_is_for_a_quirk(platform):
    backend = backends.named(platform)
    assert backend.quirks == QUIRKS[platform]
    overridden = {
        name
        for name in dir(Backend)
        if not name.startswith("__")
        and getattr(type(backend), name) is not getattr(Backend, name)
    }
    overridden |= {n for n in vars(backend) if hasattr(Backend, n)}
    hooks = {hook for quirk in backend.quirks for hook in quirk.hooks}
    assert overridden - CAPABILITIES == hooks


@pytest.mark.parametrize(("platform", "quirk"), ALL, ids=name_of)
def test_what_a_quirk_says_of_itself(platform, quirk):
    assert f"XLA:{platform.upper()}" in quirk.versions or "absent" in quirk.versions
    assert len(quirk.behaviour) > 60
    assert quirk.behaviour.endswith(".")
    importlib.import_module(quirk.module)
    source = ast.parse((TESTS / quirk.tests).read_text())
    assert any(isinstance(node, ast.FunctionDef) for node in ast.walk(source))


@pytest.mark.parametrize(("platform", "quirk"), ALL, ids=name_of)
def test_every_switch_is_tested(platform, quirk):
    assert f'"{quirk.name}"' in Path(__file__).read_text()


def test_names_are_unique():
    names = [quirk.name for _, quirk in ALL]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("platform", QUIRKS)
@pytest.mark.parametrize("name", STEPS)
def test_without_all_quirks_a_backend_has_no_peculiarity(platform, name):
    """Whatever a backend does otherwise without being asked would show here."""
    names = [quirk.name for quirk in QUIRKS[platform]]
    plain, off = Backend(), backends.without(platform, *names)
    step, tagged = compiled(name)
    attributes = [n for n, v in vars(Backend).items() if not callable(v) and n[0] != "_"]
    for attribute in set(attributes) - CAPABILITIES:
        assert getattr(off, attribute) == getattr(plain, attribute), attribute
    assert off.prepare(step.program) is step.program
    stored = plain.stored_values(step.program, tagged)
    assert off.stored_values(step.program, tagged) == stored
    hints = off.fence_hints(step.program, stored)
    for field in dataclasses.fields(NO_HINTS):
        assert getattr(hints, field.name) == getattr(NO_HINTS, field.name), field.name
    options = planner_options("search", 64)
    if platform != "tpu":  # All is packed there, see below.
        asked = step.program, stored, TARGET, options, tagged
        assert off.expected_bytes_as_written(*asked) == plain.expected_bytes_as_written(
            *asked
        )


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="takes names of its quirks: shared_zeros, nothi"):
        backends.without("gpu", "vmem")
    with pytest.raises(ValueError, match=r"it has none. Got 'a', 'b'\."):
        backends.without("unknown", "b", "a")


def test_what_a_backend_can_do_is_kept():
    assert backends.without("cuda", "shared_zeros").has_arena
    assert not backends.without("rocm", "shared_zeros").has_arena


@pytest.mark.parametrize("platform", ["cpu", "unknown"])
def test_steps_are_compiled_by_the_backend_that_is_registered(platform):
    before, other = backends.named(platform), Backend()
    with backends.registered(platform, other):
        assert backends.named(platform) is other
    assert type(backends.named(platform)) is type(before)
    assert (backends.named(platform) is before) == (platform == "cpu")


# The switches. XLA:CPU.


def test_pool_gradient():
    def replaced():
        step = traced(pooled_step, *pooled_arguments(), donate_argnums=0)
        return sum(eqn.primitive is pool_gradient_p for eqn in step.program.eqns)

    assert replaced() == 2
    with backends.registered("cpu", backends.without("cpu", "pool_gradient")):
        assert replaced() == 0


def test_random_bits():
    step, tagged = compiled("dropout")
    on, off = on_and_off("cpu", "random_bits")
    assert on.fence_hints(step.program, None).fenced_alone
    assert not off.fence_hints(step.program, None).fenced_alone
    assert as_written(off, step, tagged) < as_written(on, step, tagged)


def test_shared_constants():
    step, _ = compiled("mlp")
    on, off = on_and_off("cpu", "shared_constants")
    assert on.fence_hints(step.program, None).shared_constants
    assert not off.fence_hints(step.program, None).shared_constants


def as_written(backend, step, tagged):
    stored = backend.stored_values(step.program, tagged)
    options = planner_options("search", 64)
    return backend.expected_bytes_as_written(step.program, stored, TARGET, options, tagged)


def test_kept_constants():
    step, tagged = compiled("pooled")
    on, off = on_and_off("cpu", "kept_constants")
    assert on.stored_values(step.program, tagged).kept_constant_bytes > 0
    assert off.stored_values(step.program, tagged).kept_constant_bytes == 0


def test_copied_inputs():
    """The arguments that are not donated pass no fence, or all that are read behind it."""
    arguments = mlp_arguments(layers=4)
    step = traced(mlp_step, *arguments)
    tagged = step.compile(stored_values.tag(step.program))
    found = backends.stored_values(step.program, tagged)
    graph = build_graph(step.program, found, TARGET)
    most = unconstrained(graph, OPTIONS).statistics.max_live_bytes
    schedule = plan_pool(graph, int(0.7 * most), OPTIONS)

    def fenced_arguments(backend):
        segments = XlaPlacement(backend, NO_HINTS).realize(graph, schedule).segments
        return sum(t < graph.num_inputs for s in segments for t in s.fenced)

    on, off = map(fenced_arguments, on_and_off("cpu", "copied_inputs"))
    assert on < off


@pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")
@pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason="there a gathered weight has the name of its first reader",
)
def test_early_copies():
    """What is gathered counts from where it is gathered, or for each reader alone."""
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("a",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    step = traced(mlp_step, *jax.device_put(mlp_arguments(), rows), donate_argnums=0)
    tagged = step.compile(stored_values.tag(step.program))
    on, off = on_and_off("cpu", "early_copies")
    assert on.stored_values(step.program, tagged).resharded
    assert not off.stored_values(step.program, tagged).resharded


@pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")
def test_combined_sums():
    """Fences between sums over devices, of the same plan."""
    _, graph, schedule = mapped_plan()

    def num_segments(backend):
        return len(XlaPlacement(backend, NO_HINTS).realize(graph, schedule).segments)

    on, off = map(num_segments, on_and_off("cpu", "combined_sums"))
    assert on > off


def test_no_guards():
    """Fences that stand for memory's sake alone."""
    graph = mlp_graph()
    schedule = smallest_pool(graph, PlanOptions()).schedule

    def num_segments(backend, **options):
        placement = XlaPlacement(backend, NO_HINTS)
        return len(placement.realize(graph, schedule, **options).segments)

    on, off = on_and_off("cpu", "no_guards")
    assert num_segments(on) == num_segments(off, is_guarded=False) < num_segments(off)


def test_copied_updates():
    step = traced(adam_step, *adam_arrays(), donate_argnums=(0, 1))
    tagged = step.compile(stored_values.tag(step.program))
    on, off = on_and_off("cpu", "copied_updates")
    assert as_written(off, step, tagged) < as_written(on, step, tagged)


def adam_arrays():
    shapes = adam_shapes(blocks=2, batch=64, width=32)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def test_fresh_pages():
    on, off = on_and_off("cpu", "fresh_pages")
    assert on.seconds_for_temporaries(1 << 30) > off.seconds_for_temporaries(1 << 30) == 0
    assert on.free_temporary_bytes > off.free_temporary_bytes == 0


def test_removed_barriers():
    on, off = on_and_off("cpu", "removed_barriers")
    assert on.checkpoint_options
    assert on.checkpoint_in_loops_options
    assert not off.checkpoint_options
    assert not off.checkpoint_in_loops_options


def test_early_stacks():
    def two_loops(x):
        return [jax.lax.scan(lambda c, x: (c, x + c), x[0], x * n)[1] for n in (2, 3)]

    program = traced(two_loops, jnp.ones((4, 8))).program
    on, off = on_and_off("cpu", "early_stacks")
    assert on.options_of_plans(program)
    assert not off.options_of_plans(program)


def test_concurrent_order():
    on, off = on_and_off("cpu", "concurrent_order")
    assert on.options_for_memory
    assert not off.options_for_memory


# XLA:GPU.


def test_shared_zeros():
    step, _ = compiled("pooled")
    on, off = on_and_off("gpu", "shared_zeros")
    assert on.fence_hints(step.program, None).shared_zeros
    assert not off.fence_hints(step.program, None).shared_zeros


def test_nothing_in_place():
    step, tagged = compiled("mlp")
    on, off = on_and_off("gpu", "nothing_in_place")
    assert num_in_place(on, step, tagged) < num_in_place(off, step, tagged)


@NEEDS_CUDA
def test_nothing_in_place_of_an_absent_gpu():
    device = absent_devices.named_device("h200")
    shapes = jax.eval_shape(lambda: mlp_arguments(batch=4096))
    step = traced(mlp_step, *absent_devices.placed(shapes, device), donate_argnums=0)
    tagged = step.compile(stored_values.tag(step.program))
    on, off = on_and_off("gpu", "nothing_in_place")
    assert num_in_place(on, step, tagged) < num_in_place(off, step, tagged)


def num_in_place(backend, step, tagged):
    """Tensors that take the place of another in a plan without recomputation."""
    stored = backend.stored_values(step.program, tagged)
    schedule = unconstrained(build_graph(step.program, stored, TARGET), OPTIONS)
    return sum(old >= 0 for *_, old in schedule.placements.tolist())


# XLA:TPU.


def test_good_packing():
    on, off = on_and_off("tpu", "good_packing")
    assert on.compiler_options
    assert not off.compiler_options


@pytest.mark.parametrize(
    ("name", "field"),
    [("fence_layouts", "layouts"), ("fusions_in_place", "in_place")],
)
def test_what_is_read_of_a_step(name, field):
    step, tagged = compiled("mlp")
    found = [b.stored_values(step.program, tagged) for b in on_and_off("tpu", name)]
    assert getattr(found[0], field) != getattr(found[1], field)
    assert dataclasses.replace(found[0], **{field: getattr(found[1], field)}) == found[1]


@pytest.fixture(scope="module")
def on_a_v5e():
    device = absent_devices.named_device("v5e")
    shapes = absent_devices.placed(adam_shapes(), device)
    step = traced(adam_step, *shapes, donate_argnums=(0, 1))
    return step, step.compile(stored_values.tag(step.program))


@NEEDS_TPU
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("fence_layouts", "layouts"),
        ("bf16_storage", "narrowed"),
        ("copy_tables", "more_unlisted_of_plans"),
        ("fusions_in_place", "in_place"),
    ],
)
def test_what_is_read_of_a_step_on_an_absent_tpu(on_a_v5e, name, field):
    on, off = on_and_off("tpu", name)
    with_it, without_it = (
        b.stored_values(on_a_v5e[0].program, on_a_v5e[1]) for b in (on, off)
    )
    assert getattr(with_it, field)
    assert getattr(with_it, field) != getattr(without_it, field)


@NEEDS_TPU
def test_other_forms():
    """Results of convolutions in the bytes of the parts that they are divided into."""
    shapes = absent_devices.placed(volume_shapes(), absent_devices.named_device("v5e"))
    step = traced(volume_step, *shapes)
    tagged = step.compile(stored_values.tag(step.program))
    on, off = (
        b.stored_values(step.program, tagged) for b in on_and_off("tpu", "other_forms")
    )
    convolved = [
        eqn.outvars[0]
        for eqn in step.program.eqns
        if eqn.primitive.name == "conv_general_dilated"
    ]
    assert (
        max(on.stored_bytes.get(v, 0) - off.stored_bytes.get(v, 0) for v in convolved) > 0
    )
    assert sum(on.workspace_bytes.values()) < sum(off.workspace_bytes.values())


def test_vmem():
    """With room for all of it, nothing that waits for little is in main memory."""
    graph = mlp_graph(near_bytes=1 << 40)
    schedule = unconstrained(graph, OPTIONS)
    on, off = on_and_off("tpu", "vmem")
    far = mlp_graph()
    assert on.expected_bytes(graph, schedule, OPTIONS) < off.expected_bytes(
        graph, schedule, OPTIONS
    )
    assert off.expected_bytes(graph, schedule, OPTIONS) == on.expected_bytes(
        far, unconstrained(far, OPTIONS), OPTIONS
    )
    assert on.has_second_memory
    assert not off.has_second_memory


def test_list_schedule():
    graph = mlp_graph()
    on, off = on_and_off("tpu", "list_schedule")
    expected = [
        [b.expected_bytes(graph, s, OPTIONS) for s in layered_schedules(graph, 64)]
        for b in (on, off)
    ]
    assert all(a <= b for a, b in zip(*expected, strict=True))
    assert expected[0] != expected[1]


def test_order_as_written():
    step, tagged = compiled("mlp")
    on, off = on_and_off("tpu", "order_as_written")
    assert as_written(on, step, tagged) < as_written(off, step, tagged)


def test_pool_sweep():
    def kind_of_search(backend):
        graph = mlp_graph()
        placement = XlaPlacement(backend, NO_HINTS)
        problem = Problem([graph], OPTIONS, 0, placement, lambda p: None, lambda line: None)
        return type(BudgetSearch(problem)._search())

    assert [*map(kind_of_search, on_and_off("tpu", "pool_sweep"))] == [
        SweepSearch,
        FeedbackSearch,
    ]


def test_chen_schedules():
    graph = mlp_graph()
    room = unconstrained(graph, OPTIONS).statistics.max_live_bytes // 2
    for scan in (pool_sweep.scan_down, pool_sweep.scan_tightest):
        on, off = (
            {
                plan.key
                for plan in scan([graph], OPTIONS, room, b.without)
                if plan.is_layered
            }
            for b in on_and_off("tpu", "chen_schedules")
        )
        assert on
        assert not off


@NEEDS_TPU
def test_buffers_first():
    device = absent_devices.named_device("v5e")
    shapes = jax.eval_shape(lambda: mlp_arguments(layers=1, batch=8))
    step = traced(mlp_step, *absent_devices.placed(shapes, device))
    assert isinstance(step.compile(step.program), AssignedStep)
    with backends.registered("tpu", backends.without("tpu", "buffers_first")):
        assert not isinstance(step.compile(step.program), AssignedStep)


def test_without_vmem_all_of_a_plan_is_packed_into_main_memory():
    graph = mlp_graph(near_bytes=1 << 40)
    schedule = unconstrained(graph, OPTIONS)
    without = backends.without("tpu", "vmem").without
    assert heap.bytes_alive(graph, schedule, without) == schedule.statistics.max_live_bytes
