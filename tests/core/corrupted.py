"""Corrupted graphs and schedules, against every function of `_ext` that takes one.

Run as a program, as a crash would take the tests with it: `corrupted.py FIRST LAST` tries
these seeds and prints how often each function took what it was given, and how often not.
"""

import collections
import sys

import numpy as np
from core.bodies import Body
from core.programs import Op, Program, chain, run_schedule, run_straight

from coop_jax import _ext

EXTREMES = [
    -(2**63),
    -(2**62),
    -64,
    -2,
    -1,
    0,
    1,
    2,
    3,
    64,
    2**31,
    2**48 - 1,
    2**48,
    2**61,
    2**62,
    2**63 - 65,
    2**63 - 1,
]
SECONDS = [-1.0, 0.0, 5e-324, 1e-3, 1e17, 1e18, 1e308, np.inf, -np.inf, np.nan]
POLICIES = ["coop", "dtr", "dte", "lookahead", "search"]
PROGRAMS = [
    chain(5),
    Program(
        [
            Op([0], [2], recomputable=False),
            Op([2, 1], [3, 6], workspace_bytes=64),
            Op([3], [4]),
            Op([4, 1, 6], [5]),
            Op([2, 4], [7], seconds=3.0),
        ],
        [64, 64, 64, 100, 100, 64, 0, 640],
        external={0},
        pinned={1, 5},
        output={4, 7},
        in_place=[(2, 3, 4)],
        overwrites=[(3, 1, 5)],
        releases=[(2, 3), (4, 2)],
    ),
]
BODY = Body(
    value_bytes=[8, 8, 4, 0, 64],
    maker=[-1, 0, 1, 1, 2],
    seconds=[1.0, 2.0, 0.0],
    may_run_again=[True, True, False],
    operands=[[0], [0, 1], []],
    needed=[1, 3, 4],
    seconds_per_byte=0.5,
)

outcomes = collections.Counter()


def tried(function, *args, **options):
    """The result; None if it is refused in the way that is promised."""
    try:
        result = function(*args, **options)
    except (ValueError, TypeError):
        outcomes[f"{function.__name__} refuses"] += 1
        return None
    outcomes[f"{function.__name__} takes"] += 1
    return result


def corrupted(random, array):
    """One entry, row, shape or type of an array changed."""
    array = np.array(array)
    how = random.integers(8)
    if how == 0 and len(array):
        array = np.delete(array, random.integers(len(array)), 0)
    elif how == 1 and len(array):
        array = np.insert(array, random.integers(len(array)), array[-1], 0)
    elif how == 2 and len(array) > 1:
        i, j = random.integers(len(array), size=2)
        array[[i, j]] = array[[j, i]]
    elif how == 3:
        wrong = [array.astype(np.int32), array.reshape(1, *array.shape), array[..., None]]
        array = wrong[random.integers(3)]
    elif array.size:
        at = np.unravel_index(random.integers(array.size), array.shape)
        if array.dtype == bool:
            array[at] = not array[at]
        elif array.dtype == np.float64:
            array[at] = random.choice(SECONDS)
        elif random.integers(2):
            array[at] = np.int64(EXTREMES[random.integers(len(EXTREMES))])
        else:
            array[at] += random.integers(-2, 3)
    return array


def options(random):
    return _ext.PlanOptions(
        policy=POLICIES[random.integers(5)],
        alignment=int(2 ** random.choice([0, 3, 6, 20, 30])),
        search_effort=int(random.choice([0, 500])),
        packing_effort=int(random.choice([0, 5000])),
        limits_live_bytes=bool(random.integers(2)),
        overhead_limit=3.0,
    )


def plan_everywhere(random, graph):
    """A graph that was accepted can be planned, and every plan is right."""
    chosen = options(random)
    bound, _ = _ext.lower_bound(graph, chosen.alignment)
    sizes = [bound, bound - 1, 2 * bound, *EXTREMES]
    schedules = [_ext.unconstrained(graph, chosen)]
    for capacity in random.choice(np.array(sizes, object), 4):
        preferred = EXTREMES[random.integers(len(EXTREMES))]
        for part in (None, preferred):
            plan = tried(_ext.plan, graph, int(capacity), chosen, part)
            if isinstance(plan, _ext.Schedule):
                assert _ext.validate(graph, plan, live_bytes=int(capacity)) == []
                schedules.append(plan)
    tolerance = EXTREMES[random.integers(len(EXTREMES))]
    found = tried(_ext.minimum_pool, graph, chosen, tolerance)
    if found is not None:
        schedules.append(found.schedule)
    for schedule in schedules:
        assert _ext.validate(graph, schedule) == []
        tried(_ext.xla_heap_bytes, graph, schedule)


def tables(schedule):
    return {
        "steps": schedule.steps,
        "placements": schedule.placements,
        "initial_placements": schedule.initial_placements,
        "workspaces": schedule.workspaces,
        "capacity": schedule.capacity,
        "peak_bytes": schedule.statistics.peak_bytes,
        "alignment": schedule.alignment,
        "copy_on_write": schedule.copy_on_write,
        "max_live_bytes": schedule.statistics.max_live_bytes,
    }


def spoil_graph(random):
    program = PROGRAMS[random.integers(len(PROGRAMS))]
    arrays = program.graph().arrays()
    for _ in range(random.integers(1, 3)):
        name = random.choice([name for name, a in arrays.items() if a is not None])
        arrays[name] = corrupted(random, arrays[name])
    graph = tried(_ext.Graph, **arrays)
    if graph is not None:
        plan_everywhere(random, graph)


def spoil_schedule(random):
    program = PROGRAMS[random.integers(len(PROGRAMS))]
    graph = program.graph()
    chosen = options(random)
    plan = _ext.minimum_pool(graph, chosen).schedule
    given = tables(plan)
    for _ in range(random.integers(1, 4)):
        name = list(given)[random.integers(len(given))]
        if isinstance(given[name], np.ndarray):
            given[name] = corrupted(random, given[name])
        elif name != "copy_on_write":
            given[name] = EXTREMES[random.integers(len(EXTREMES))]
    schedule = tried(_ext.Schedule, **given)
    if schedule is None:
        return
    repr(schedule)
    # Also one that is right, against the graph of another program.
    others = [other.graph() for other in PROGRAMS]
    limits = {"pool_bytes": EXTREMES[random.integers(5, len(EXTREMES))]}
    for other in others:
        for which in (schedule, plan):
            tried(_ext.xla_heap_bytes, other, which)
            _ext.validate(other, which, **limits)
    violations = _ext.validate(graph, schedule)
    outcomes["valid" if not violations else "not valid"] += 1
    if not violations and schedule.capacity < 2**20:
        assert isinstance(_ext.xla_heap_bytes(graph, schedule), int)
        expected = run_straight(program)
        for tensor, value in run_schedule(program, schedule).items():
            assert value == expected[tensor], "taken for valid, but computes otherwise"


def spoil_blocks(random):
    def column(n):
        if random.integers(2):
            return random.integers(0, 9, n)
        return np.array([EXTREMES[i] for i in random.integers(len(EXTREMES), size=n)])

    n = int(random.integers(0, 6))
    first, last, size = (column(n) for _ in range(3))
    if random.integers(4):
        first, last = np.minimum(first, last), np.maximum(first, last)
    fixed = [None, column(n), np.full(n, -1)][random.integers(3)]
    numbers = random.choice(np.array([*EXTREMES, 64, 64, 64], object), 3)
    packing = tried(
        _ext.pack,
        *(first, last, size),
        fixed_offsets=fixed,
        alignment=numbers[0],
        effort=min(int(numbers[1]), 2**31),
        target_peak_bytes=numbers[2],
    )
    if packing is not None:
        assert packing.peak_bytes >= packing.lower_bound_bytes
    tried(_ext.xla_heap_bytes, first, last, size, alignment=numbers[0])
    tried(_ext.find_window, size, column(n).astype(float), first, numbers[1])


def spoil_body(random):
    arrays = BODY.arrays()
    for _ in range(random.integers(1, 3)):
        name = list(arrays)[random.integers(len(arrays))]
        if name == "seconds_per_byte":
            arrays[name] = random.choice([*SECONDS, 1e-30, 0.5])
        else:
            arrays[name] = corrupted(random, arrays[name])
    found = tried(_ext.retention_frontier, **arrays)
    if found is None:
        return
    sizes = [corner.kept_bytes for corner in found]
    assert sizes == sorted(set(sizes), reverse=True)
    for corner in found:
        assert corner.kept_bytes == arrays["value_bytes"][corner.kept].sum()
        assert arrays["equation_may_run_again"][corner.recomputed].all()


def spoil_handles(random):
    pool, arena = _ext.Pool(4096), _ext.OnlineArena(4096)
    handles = [arena.allocate(512, recompute=lambda value, *inputs: None)]
    for _ in range(30):
        number = EXTREMES[random.integers(len(EXTREMES))]
        handle = handles[-1] if random.integers(2) else number
        method = [arena.touch, arena.pin, arena.unpin, arena.evict, arena.release][
            random.integers(5)
        ]
        tried(method, handle)
        tried(arena.offset, handle)
        tried(arena.is_resident, number)
        try:
            made = tried(
                arena.allocate,
                number if random.integers(2) else 512,
                inputs=[handle],
                take_over=[None, handle][random.integers(2)],
            )
        except _ext.ArenaExhausted:
            made = None
        handles += [] if made is None else [made]
        arena.check_invariants()
        offset = tried(pool.allocate, number)
        tried(pool.release, number if offset is None else offset)
        pool.check_invariants()


SPOILERS = (spoil_graph, spoil_schedule, spoil_blocks, spoil_body, spoil_handles)


def main(first, last):
    for seed in range(first, last):
        for spoil in SPOILERS:
            random = np.random.default_rng(seed)
            try:
                spoil(random)
            except BaseException:
                print(f"{spoil.__name__}, seed {seed}", file=sys.stderr)
                raise
    for name, count in sorted(outcomes.items()):
        print(f"{name}: {count}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
