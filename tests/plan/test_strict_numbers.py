"""Every public function says so when a number or a flag is of another type or range."""

import decimal
import fractions

import numpy as np
import pytest

from coop_jax import OnlineArena, _ext, planning
from coop_jax.planning import named_graph

TENSORS = {"x": {"bytes": 64}, "y": {"bytes": 64}}
OPERATION = {"seconds": 1.0, "inputs": ["x"], "outputs": ["y"]}
# Values that Python or NumPy would take for a whole number, or a flag, all the same.
NO_BYTES = (1.9, 64.0, np.float64(64), "64", b"64", True, np.True_, None, [64], 1j)
NO_FLAGS = (0, 1, "False", "", None, 1.0, np.int64(1), [True])
NO_SECONDS = ("1", b"1", True, np.False_, None, [1.0], 1j, decimal.Decimal(1))
BAD_SECONDS = (float("nan"), float("inf"), -float("inf"), -1.0, -1, 10**400)


def short(value):
    return hex(value)[:20] if isinstance(value, int) else repr(value)


def graph():
    return named_graph(TENSORS, [OPERATION])[0]


def with_tensor(**fields):
    return named_graph({**TENSORS, "x": {"bytes": 64, **fields}}, [OPERATION])


def with_operation(**fields):
    return named_graph(TENSORS, [{**OPERATION, **fields}])


@pytest.mark.parametrize("value", NO_BYTES)
def test_bytes_of_a_named_graph(value):
    with pytest.raises(TypeError, match=r"'bytes' of tensor 'x' must be a whole number"):
        with_tensor(bytes=value)
    message = "'workspace_bytes' of operation 0 must be a whole number of bytes. Got "
    with pytest.raises(TypeError, match=message):
        with_operation(workspace_bytes=value)


@pytest.mark.parametrize("value", [-1, 2**48, 2**63, -(2**70), 10**5000], ids=short)
def test_bytes_out_of_range(value):
    with pytest.raises(
        ValueError, match=r"'bytes' of tensor 'x' must be in \[0, 2\*\*48\)"
    ):
        with_tensor(bytes=value)
    with pytest.raises(ValueError, match=r"of operation 0 must be in \[0, 2\*\*48\). Got"):
        with_operation(workspace_bytes=value)


@pytest.mark.parametrize("key", ["pinned", "external", "output"])
@pytest.mark.parametrize("value", NO_FLAGS)
def test_flags_of_tensors(key, value):
    with pytest.raises(TypeError, match=f"'{key}' of tensor 'x' must be True or False"):
        with_tensor(**{key: value})


@pytest.mark.parametrize("value", NO_FLAGS)
def test_flags_of_operations(value):
    with pytest.raises(TypeError, match="'recomputable' of operation 0 must be True or F"):
        with_operation(recomputable=value)


@pytest.mark.parametrize("value", NO_SECONDS)
def test_seconds_of_another_type(value):
    with pytest.raises(TypeError, match=r"'seconds' of operation 0 must be a number. Got"):
        with_operation(seconds=value)


@pytest.mark.parametrize("value", BAD_SECONDS, ids=short)
def test_seconds_out_of_range(value):
    with pytest.raises(ValueError, match="'seconds' of operation 0 must be finite and not"):
        with_operation(seconds=value)


@pytest.mark.parametrize("key", ["inputs", "outputs", "releases"])
@pytest.mark.parametrize("value", ["x", b"x", {"x"}, {"x": 1}, 3, None, iter(["x"])])
def test_lists_of_names(key, value):
    with pytest.raises(TypeError, match=f"'{key}' of operation 0 must be a list of names"):
        with_operation(**{key: value})


@pytest.mark.parametrize("key", ["in_place", "overwrites"])
@pytest.mark.parametrize("value", ["xy", {("x", "y")}, ["xy"], [{"x": "y"}], [3], 3])
def test_lists_of_pairs(key, value):
    with pytest.raises(
        TypeError, match=f"'{key}' of operation 0 must be a list of .*pairs"
    ):
        with_operation(**{key: value})


@pytest.mark.parametrize("key", ["in_place", "overwrites"])
@pytest.mark.parametrize("pair", [(), ("x",), ("x", "y", "x")])
def test_pairs_are_of_two(key, pair):
    with pytest.raises(ValueError, match=r"must be a list of .old, new. pairs. Got .* two"):
        with_operation(**{key: [pair]})


@pytest.mark.parametrize("name", [3, None, ["x"], True])
def test_names_are_strings(name):
    with pytest.raises(
        ValueError, match=r"must name tensors of `tensors`. Got .* in opera"
    ):
        with_operation(inputs=[name])
    if name != ["x"]:
        with pytest.raises(TypeError, match=r"must have strings as names. Got"):
            named_graph({name: {"bytes": 1}}, [])


@pytest.mark.parametrize(
    ("tensors", "operations", "message"),
    [
        (
            [("x", {"bytes": 1})],
            [],
            r"`planning.named_graph\(tensors=...\)` must be a dict",
        ),
        ({"x": 64}, [], "tensor 'x' must be a dictionary. Got 64"),
        ({}, {"seconds": 1}, "`operations` must be a list of dictionaries"),
        ({}, "ab", "`operations` must be a list of dictionaries"),
        ({}, iter([OPERATION]), "`operations` must be a list of dictionaries"),
        ({}, [("seconds", 1)], "operation 0 must be a dictionary"),
    ],
)
def test_containers(tensors, operations, message):
    with pytest.raises(TypeError, match=message):
        named_graph(tensors, operations)


def test_numbers_of_numpy_are_taken():
    made, _ = named_graph(
        {"x": {"bytes": np.uint8(64), "pinned": np.True_}, "y": {"bytes": np.int64(64)}},
        [
            {
                "seconds": np.float32(0.5),
                "inputs": ("x",),
                "outputs": ["y"],
                "workspace_bytes": np.array(8),
                "recomputable": np.False_,
            },
            {"seconds": fractions.Fraction(1, 2)},
        ],
    )
    assert made.tensor_bytes.tolist() == [64, 64]
    assert made.tensor_pinned.tolist() == [True, False]
    assert made.op_seconds.tolist() == [0.5, 0.5]
    assert made.op_workspace_bytes.tolist() == [8, 0]
    assert not made.arrays()["op_recomputable"][0]


def test_sums_of_bytes_must_not_overflow():
    many = {f"t{i}": {"bytes": 2**48 - 1} for i in range(2**13 + 2)}
    with pytest.raises(
        ValueError, match=r"must add up to less than 2\*\*61, but tensor 8192"
    ):
        named_graph(many, [])
    operations = [{"seconds": 1.0, "workspace_bytes": 2**48 - 1}] * (2**13 + 2)
    with pytest.raises(
        ValueError, match=r"add up to less than 2\*\*61, but operation 8192"
    ):
        named_graph({}, operations)


def test_the_largest_graph_is_planned():
    """As much as is allowed, at the largest alignment: nothing overflows."""
    size, count = 2**48 - 1, 2**13 - 2
    tensors = {f"t{i}": {"bytes": size} for i in range(count)}
    operations = [{"seconds": 1e14, "outputs": [name]} for name in tensors]
    last = {"seconds": 1.0, "inputs": list(tensors), "workspace_bytes": size}
    made, _ = named_graph(tensors, [*operations, last])
    padded = 2**48
    for policy in ("coop", "dtr"):
        found = planning.minimum_pool(made, policy, alignment=2**30, overhead_limit=2.0)
        assert found.capacity == (count + 1) * padded


def test_sums_of_seconds_must_not_overflow():
    with pytest.raises(
        ValueError, match="`op_seconds` must add up to at most 1e18, but op"
    ):
        named_graph({}, [{"seconds": 6e17}, {"seconds": 6e17}])
    with pytest.raises(ValueError, match="must add up to at most 1e18"):
        named_graph({}, [{"seconds": 1e308}])


@pytest.mark.parametrize("value", [*NO_BYTES, float("nan"), float("inf")])
def test_bytes_of_planning_functions(value):
    message = "must be a whole number of bytes. Got"
    with pytest.raises(TypeError, match=f"plan_graph.pool_bytes=....` {message}"):
        planning.plan_graph(graph(), value)
    schedule = planning.unconstrained(graph())
    with pytest.raises(TypeError, match=f"metrics.reference_bytes=....` {message}"):
        planning.metrics(schedule, value)
    if value is not None:
        with pytest.raises(
            TypeError, match=f"minimum_pool.tolerance_bytes=....` {message}"
        ):
            planning.minimum_pool(graph(), tolerance_bytes=value)
    with pytest.raises(TypeError, match="lower_bound: `alignment` must be an int, got"):
        planning.lower_bound(graph(), value)
    for name in ("pool_bytes", "live_bytes"):
        if value is not None:
            with pytest.raises(TypeError, match=f"validate: `{name}` must be an int, got"):
                planning.validate(graph(), schedule, **{name: value})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: planning.plan_graph(g, 2**63), ValueError, r"2\*\*63\). Got 92233720"),
        (lambda g: planning.metrics(3, 1), TypeError, r"metrics\(schedule=...\)` must be"),
        (lambda g: planning.metrics(planning.unconstrained(g), -5), ValueError,
         "must be positive. Got -5"),
        (lambda g: planning.minimum_pool(g, tolerance_bytes=-1), ValueError,
         r"tolerance_bytes=...\)` must be in \[0, 2\*\*63\). Got -1"),
        (lambda g: planning.lower_bound(g, 2**31), ValueError, r"at most 2\*\*30, got"),
        (lambda g: planning.plan_graph(g, 640, ["coop"]), ValueError, "Got .'coop'.. Choo"),
        (lambda g: planning.plan_graph(g, 640, "search", search_effort=-1), ValueError,
         "`search_effort` must not be negative, got -1"),
    ],
)  # fmt: skip
def test_ranges_of_planning_functions(call, error, message):
    with pytest.raises(error, match=message):
        call(graph())


def test_a_schedule_from_arrays_has_no_metrics():
    made = planning.unconstrained(graph())
    copy = _ext.Schedule(
        made.steps, made.placements, made.initial_placements, made.workspaces, 128, 128
    )
    with pytest.raises(ValueError, match=r"must be made by a planner. Got one from arrays"):
        planning.metrics(copy, 128)


COLUMNS = [np.array([0, 1]), np.array([1, 2]), np.array([64, 64])]
NO_INTS = tuple(value for value in NO_BYTES if value is not None)


@pytest.mark.parametrize("name", ["alignment", "effort", "seed", "target_peak_bytes"])
@pytest.mark.parametrize("value", NO_INTS)
def test_numbers_of_pack(name, value):
    with pytest.raises(TypeError, match=rf"pack\(...\): `{name}` must be an int, got"):
        _ext.pack(*COLUMNS, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignment": 0}, "power of two, got 0"),
        ({"effort": -1}, "`effort` must not be negative, got -1"),
        ({"seed": -1}, r"`seed` must be in \[0, 2\*\*64\), got -1"),
        ({"target_peak_bytes": -1}, "`target_peak_bytes` must not be negative"),
        ({"effort": 2**64}, r"must be in \[-2\*\*63, 2\*\*63\)"),
    ],
)
def test_ranges_of_pack(options, message):
    with pytest.raises(ValueError, match=rf"pack\(...\): .*{message}"):
        _ext.pack(*COLUMNS, **options)


@pytest.mark.parametrize("function", [_ext.pack, _ext.xla_heap_bytes])
@pytest.mark.parametrize("steps", [(-(2**63), 0), (0, 2**63 - 1), (-(2**62) - 1, 0)])
def test_steps_whose_differences_overflow(function, steps):
    with pytest.raises(
        ValueError, match=r"`first` and `last` must be in \[-2\*\*62, 2\*\*6"
    ):
        function(*(np.array([n]) for n in (*steps, 64)))


def test_effort_without_end_ends_with_the_optimum():
    assert _ext.pack(*COLUMNS, effort=2**63 - 1).peak_bytes == 128


@pytest.mark.parametrize("value", NO_INTS)
def test_numbers_of_an_arena(value):
    for name in ("capacity", "alignment"):
        arguments = {"capacity": 4096, name: value}
        with pytest.raises(TypeError, match=f"OnlineArena: `{name}` must be an int, got"):
            OnlineArena(**arguments)
    arena = OnlineArena(4096)
    first = arena.allocate(64)
    with pytest.raises(TypeError, match="allocate: `bytes` must be an int, got"):
        arena.allocate(value)
    with pytest.raises(TypeError, match="allocate: `inputs` must be an int, got"):
        arena.allocate(64, inputs=[first, value])
    with pytest.raises(TypeError, match="allocate: `take_over` must be an int, got"):
        arena.allocate(64, inputs=[first], take_over=value)
    for method in ("touch", "pin", "unpin", "evict", "release", "is_resident", "offset"):
        with pytest.raises(TypeError, match=f"{method}: `tensor` must be an int, got"):
            getattr(arena, method)(value)
    arena.check_invariants()


@pytest.mark.parametrize("value", ["1", True, np.True_, None, [1.0], 1j])
def test_floats_of_an_arena(value):
    with pytest.raises(
        TypeError, match="OnlineArena: `cheap_density` must be a float, got"
    ):
        OnlineArena(4096, cheap_density=value)
    with pytest.raises(TypeError, match="allocate: `seconds` must be a float, got"):
        OnlineArena(4096).allocate(64, seconds=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 2e18])
def test_seconds_of_an_arena(value):
    with pytest.raises(
        ValueError, match=r"allocate: `seconds` must be in \[0, 1e18\], got"
    ):
        OnlineArena(4096).allocate(64, seconds=value)


def test_ranges_of_an_arena():
    arena = OnlineArena(4096)
    first = arena.allocate(64)
    with pytest.raises(ValueError, match="`take_over` must not be negative, got -1"):
        arena.allocate(64, inputs=[first], take_over=-1)
    with pytest.raises(
        ValueError, match="`take_over` must be one of the inputs, of the sa"
    ):
        arena.allocate(2**63 - 1, inputs=[first], take_over=first)
    with pytest.raises(
        TypeError, match="allocate: `recompute` must be callable or None, g"
    ):
        arena.allocate(64, recompute=3)
    with pytest.raises(ValueError, match=r"at most 2\*\*30, got"):
        OnlineArena(4096, alignment=2**31)


@pytest.mark.parametrize("field", ["op_seconds", "tensor_bytes", "op_recomputable"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint64, np.uint8, complex])
def test_arrays_of_a_graph_are_of_their_type(field, dtype):
    arrays = graph().arrays()
    arrays[field] = arrays[field].astype(dtype)
    with pytest.raises(TypeError, match=f"Graph: `{field}` must be an array of .*, got "):
        _ext.Graph(**arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
def test_seconds_of_a_graph(value):
    arrays = graph().arrays()
    arrays["op_seconds"] = np.array([value])
    with pytest.raises(ValueError, match="`op_seconds` must be finite and not negative, g"):
        _ext.Graph(**arrays)


def test_flags_are_read_as_numpy_reads_them():
    """A view of other bytes as bool."""
    arrays = graph().arrays()
    arrays["tensor_pinned"] = np.array([2, 0], np.uint8).view(bool)
    assert _ext.Graph(**arrays).tensor_pinned.tolist() == [True, False]
