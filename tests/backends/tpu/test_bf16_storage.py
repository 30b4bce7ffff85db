"""Values that XLA:TPU keeps in half precision, and that they pass fences so."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paper.networks import spos
from paper.networks.training_step import DONATED, Scale
from random_programs import random_schedule
from steps import NEEDS_TPU, TARGET, assert_trees_equal, run, traced

from coop_jax import backends
from coop_jax.backends.tpu import bf16_storage
from coop_jax.base import _compat
from coop_jax.emit.fence import fence_p
from coop_jax.emit.hints import FenceHints
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import plan_pool, planner_options, unconstrained
from coop_jax.search.placements import XlaPlacement
from coop_jax.targets import TPU_ALIGNMENT, named
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import consumers_of, writes
from coop_jax.xla import absent_devices


def products_step(weights, x):
    """Products, clipped: all that small whole numbers make here are such numbers."""

    def loss(weights):
        hidden = x
        for w in weights:
            hidden = jnp.clip(hidden @ w, -3, 3)
        return jnp.sum(hidden)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def small_numbers(*shape, seed=0):
    whole = np.random.default_rng(seed).integers(-2, 3, shape)
    return jnp.asarray(whole, jnp.float32)


def arguments(layers=4, width=6):
    weights = [small_numbers(width, width, seed=i) for i in range(layers)]
    return weights, small_numbers(5, width, seed=9)


def stored_everywhere(program):
    values = [v for eqn in program.eqns for v in writes(eqn)]
    sizes = {v: aval_bytes(v.aval) for v in values}
    return stored_values.StoredValues(sizes, {}, {}, 0, "rules")


@hypothesis.settings(max_examples=15)
@hypothesis.given(seed=st.integers(0, 2**16), rate=st.sampled_from([0.05, 0.3, 1.0]))
@pytest.mark.slow
def test_what_is_rounded_passes_every_fence_rounded(seed, rate):
    """Small whole numbers are the same in half precision: so are the results, to a bit."""
    step = traced(products_step, *arguments())
    graph = build_graph(step.program, stored_everywhere(step.program), TARGET)
    values = {
        v: frozenset()
        for v in graph.tensors[graph.num_inputs :]
        if v.aval.dtype == np.float32 and v not in step.program.outvars
    }
    segments = cut(graph, random_schedule(graph, seed, rate), fence_free_inputs=True)
    rewritten = rewrite(graph, segments, FenceHints(narrowed=values))
    jax.extend.core.check_jaxpr(_compat.open_jaxpr(rewritten.to_jaxpr())[0])
    assert_trees_equal(run(rewritten, arguments()), run(step.program, arguments()))
    fences = [eqn for eqn in rewritten.eqns if eqn.primitive is fence_p]
    fenced = [segment.fenced for segment in segments if segment.fenced]
    for fence, tensors in zip(fences, fenced, strict=True):
        for passed in (fence.invars, fence.outvars):
            kinds = [v.aval.dtype == jnp.bfloat16 for v in passed]
            assert kinds == [graph.tensors[t] in values for t in tensors]


def test_a_segment_reads_its_own_values_whole():
    """Only what has passed a fence was rounded."""
    weights, x = arguments()
    x = x / 3  # Not the same in half precision.
    step = traced(products_step, weights, x)
    graph = build_graph(step.program, stored_everywhere(step.program), TARGET)
    values = set(graph.tensors[graph.num_inputs :]).difference(step.program.outvars)
    whole = {v: frozenset() for v in values if v.aval.dtype == np.float32}
    schedule = random_schedule(graph, 0, 0.0)
    segments = cut(graph, schedule, fence_free_inputs=True)
    assert len(segments) == 1
    rewritten = rewrite(graph, segments, FenceHints(narrowed=whole))
    assert_trees_equal(run(rewritten, (weights, x)), run(step.program, (weights, x)))
    segments = cut(graph, schedule, fence_free_inputs=True, also_before=range(1, 99))
    rewritten = rewrite(graph, segments, FenceHints(narrowed=whole))
    results = run(rewritten, (weights, x))
    assert any(
        np.any(a != b)
        for a, b in zip(results, run(step.program, (weights, x)), strict=True)
    )


@pytest.fixture(scope="module")
def normalized():
    """A product; its mean; the product again, through a view and by itself."""

    def function(x, w):
        made = x @ w
        return made.mean(), made.reshape(2, 8) @ jnp.ones((8, 3)), made @ w

    program = traced(function, small_numbers(4, 4), small_numbers(4, 4)).program
    names = [eqn.primitive.name for eqn in program.eqns]
    return program, program.eqns[names.index("dot_general")].outvars[0]


def found_rounded(program, value, fused):
    consumers = consumers_of(program)
    return bf16_storage.read_rounded(program, [value], consumers, fused)


def test_what_is_read_before_it_is_rounded_is_not(normalized):
    program, value = normalized
    made = next(i for i, eqn in enumerate(program.eqns) if value in eqn.outvars)
    readers = {
        eqn.primitive.name: i for i, eqn in enumerate(program.eqns) if value in eqn.invars
    }
    assert set(readers) == {"reduce_sum", "reshape", "dot_general"}
    nobody, mean = frozenset(), readers["reduce_sum"]
    assert found_rounded(program, value, []) == {value: nobody}
    product = {made, readers["dot_general"]}
    assert found_rounded(program, value, [product]) == {value: nobody}
    # The readers of a view are its own; they are products here.
    assert found_rounded(program, value, [{made, readers["reshape"]}]) == {value: nobody}
    assert found_rounded(program, value, [{mean}]) == {value: nobody}
    assert found_rounded(program, value, [{made, mean}]) == {value: {mean}}


def test_what_is_read_through_a_copy_is_read_as_by_itself():
    """XLA leaves no copy between two equations that it fuses."""

    def function(x, w):
        made = x @ w
        return jnp.copy(made).mean(), made @ w

    program = traced(function, small_numbers(4, 4), small_numbers(4, 4)).program
    names = [eqn.primitive.name for eqn in program.eqns]
    made, copy, mean = (names.index(n) for n in ("dot_general", "copy", "reduce_sum"))
    [value] = program.eqns[made].outvars
    assert found_rounded(program, value, [{made, mean}]) == {value: {copy}}


def test_what_is_read_whole_behind_a_fence_passes_it_whole():
    """And rounded, where its whole readers run before the fence."""

    def function(x, w):
        made = x @ w
        return made.sum(), made @ w

    step = traced(function, small_numbers(4, 4), small_numbers(4, 4))
    graph = build_graph(step.program, stored_everywhere(step.program), TARGET)
    names = [eqn.primitive.name for eqn in step.program.eqns]
    product, total = names.index("dot_general"), names.index("reduce_sum")
    [value] = step.program.eqns[product].outvars
    anchors = [operation.anchor for operation in graph.operations]
    made, summed = anchors.index(product), anchors.index(total)
    assert made < summed < len(anchors) - 1
    schedule = random_schedule(graph, 0, 0.0)
    for boundary, passes_whole in ((summed, True), (summed + 1, False)):
        segments = cut(graph, schedule, fence_free_inputs=True, also_before=[boundary])
        assert len(segments) == 2
        program = rewrite(graph, segments, FenceHints(narrowed={value: frozenset([total])}))
        [fence] = (eqn for eqn in program.eqns if eqn.primitive is fence_p)
        passed = segments[1].fenced.index(graph.index_of[value])
        assert (fence.invars[passed].aval.dtype == np.float32) == passes_whole


@pytest.mark.parametrize(
    ("precision", "rounds"),
    [
        (None, True),
        ("default", True),
        (("default", "default"), True),
        ("highest", False),
        (("default", "high"), False),
        ("F32_F32_F32", False),
    ],
)
def test_a_product_that_is_asked_for_more_reads_it_whole(precision, rounds):
    def function(x, w):
        made = x @ w
        return jnp.dot(made, w, precision=precision)

    program = traced(function, small_numbers(4, 4), small_numbers(4, 4)).program
    products = [i for i, e in enumerate(program.eqns) if e.primitive.name == "dot_general"]
    [value] = program.eqns[products[0]].outvars
    whole = frozenset() if rounds else {products[1]}
    assert found_rounded(program, value, [set(products)]) == {value: whole}


def test_a_view_that_is_a_result_reads_it_whole():
    def function(x, w):
        made = x @ w
        return made.reshape(-1), made @ w

    program = traced(function, small_numbers(4, 4), small_numbers(4, 4)).program
    names = [eqn.primitive.name for eqn in program.eqns]
    made, view = names.index("dot_general"), names.index("reshape")
    [value] = program.eqns[made].outvars
    for fused in ([], [{made}]):
        assert found_rounded(program, value, fused) == {value: {view}}


def test_results_stay_whole(normalized):
    program, _ = normalized
    result = program.outvars[-1]
    assert found_rounded(program, result, []) == {}


def test_half_the_bytes_of_a_whole_value(normalized):
    _, value = normalized
    size = aval_bytes(value.aval)
    assert bf16_storage.is_rounded(value, (size // 2, size))
    assert not bf16_storage.is_rounded(value, (size,))  # Whole.
    assert not bf16_storage.is_rounded(value, (size, 2 * size))  # Padded.
    half = _compat.new_var(value.aval.update(dtype=jnp.bfloat16))
    assert not bf16_storage.is_rounded(half, (size // 2, size))


@NEEDS_TPU
def test_a_tpu_keeps_them_in_half_the_bytes_from_fence_to_fence():
    """The joined halves of a ShuffleNet's units, which only convolutions read."""
    device = absent_devices.named_device("v5e")
    sizes = spos.Sizes(batch=128, channels=(64,) * 4 + (160,) * 4, halving=(4,))
    network = spos.training_step(Scale.PAPER, sizes=sizes)
    step = traced(
        network.step, *absent_devices.placed(network.args, device), donate_argnums=DONATED
    )
    tagged = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, tagged)
    assert stored.narrowed
    graph = build_graph(step.program, stored, named("v5e"))
    options = planner_options("search", TPU_ALIGNMENT)
    room = unconstrained(graph, options).statistics.max_live_bytes
    schedule = plan_pool(graph, room // 2, options)

    def temporaries(values):
        placement = XlaPlacement(backends.named("tpu"), FenceHints(narrowed=values))
        compiled = step.compile(placement.realize(graph, schedule).program)
        return compiled.figures.temp_size_in_bytes

    assert temporaries(stored.narrowed) < 0.95 * temporaries({})
