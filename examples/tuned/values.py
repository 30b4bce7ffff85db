"""The tuned values of the Python package: purpose, origin, and where an effect is seen.

A tuned value is a number that could be another one with the package still correct: plans
would be a little better or worse, or made faster or slower. `OTHER_NUMBERS` are those that
could not, or that no plan depends on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

# How a value was chosen.
ARGUMENT = "by argument"
COMPILED = "compiled plans, no script kept"
EFFORT = "a bound on effort"
# None of the steps on the page is on a mesh.
_ON_HOST_DEVICES = "plans on several host devices: `examples/scale/host_devices.py`"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A tuned value.

    Attributes:
        module: its module below `coop_jax`.
        name: its name there.
        purpose: the decision that depends on it.
        chosen: `ARGUMENT`, `COMPILED`, `EFFORT`, or a committed script.
        seen_on: the inputs that show its effect, a key of `networks.STEPS`; "" for one
            that changes a message or a measurement and no plan.
        neutral: the value without effect: half and twice are those of the distance from it.
        effect: for a value that no plan depends on, what half and twice of it change.
    """

    module: str
    name: str
    purpose: str
    chosen: str
    seen_on: str = "cpu"
    neutral: float = 0
    effect: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(f"coop_jax.{self.module}"), self.name)

    def times(self, factor: float) -> Any:
        """The value, its distance from the neutral one multiplied."""
        return _scaled(self.value, factor, self.neutral)


def _scaled(value: Any, factor: float, neutral: float) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_scaled(v, factor, neutral) for v in value)
    if dataclasses.is_dataclass(value):  # A guess at the use of VMEM.
        return dataclasses.replace(value, most_copies=factor * value.most_copies)
    scaled = neutral + factor * (value - neutral)
    return max(1, round(scaled)) if isinstance(value, int) else scaled


@contextlib.contextmanager
def changed(tuned: Tuned, value: Any) -> Iterator[None]:
    """The package with another value: in the module, where others import it by its name,
    and as the default of arguments."""
    before = tuned.value
    modules = [m for m in sys.modules.values() if m.__name__.startswith("coop_jax")]
    own = f"coop_jax.{tuned.module}"
    importing = f"from {own} import"
    users = [
        m
        for m in modules
        if m.__name__ == own
        or (hasattr(m, tuned.name) and importing in inspect.getsource(m))
    ]
    with contextlib.ExitStack() as stack:
        for module in users:
            stack.callback(setattr, module, tuned.name, before)
            setattr(module, tuned.name, value)
            for function in _functions(module):
                if f"= {tuned.name}" in str(inspect.getsource(function)).split(":\n")[0]:
                    stack.callback(setattr, function, "__defaults__", function.__defaults__)
                    function.__defaults__ = (*function.__defaults__[:-1], value)
        yield


def _functions(module: Any) -> Iterator[Any]:
    """The functions and methods that a module defines."""
    for scope in (module, *(c for c in vars(module).values() if inspect.isclass(c))):
        for function in list(vars(scope).values()):
            if inspect.isfunction(function) and function.__defaults__:
                if (
                    function.__module__ == module.__name__
                    and function.__name__ != "__init__"
                ):
                    yield function


_SEARCH = "search.candidates"
_DESCENT = "search.descent"
_SWEEP = "search.sweep_search"
_POOLS = "backends.tpu.pool_sweep"
_LAYERS = "backends.tpu.chen_schedules"
_CUTS = "backends.tpu.forward_cuts"
_ARENA = "arena.selection"

VALUES = (
    Tuned(_SEARCH, "MAX_COMPILATIONS", "plans compiled for one budget", EFFORT),
    Tuned(
        _SEARCH,
        "MAX_TIGHTEST",
        "tightest plans compiled before a budget is refused",
        EFFORT,
    ),
    Tuned(
        _SEARCH,
        "MAX_TIGHTEST_IN_DOUBT",
        "of which XLA needs clearly more than planned",
        EFFORT,
    ),
    Tuned(
        _SEARCH,
        "MAX_BESIDE_TIGHTEST",
        "plans compiled once one of the tightest keeps the budget",
        EFFORT,
    ),
    Tuned(
        _SEARCH,
        "MAX_CLOSING_IN",
        "plans compiled between the best plan and the budget",
        EFFORT,
    ),
    Tuned(
        "search.loop_search",
        "MAX_COMPILATIONS_OF_LOOPS",
        "plans of loops compiled for one budget, without groups and with them",
        EFFORT,
        "loops",
    ),
    Tuned(
        "search.loop_search",
        "_TRIES_OF_WORTHWHILE",
        "plans of loops compiled for the bytes that are worth their time",
        EFFORT,
        "loops",
    ),
    Tuned(
        "search.loop_search",
        "_BEFORE_THE_END",
        "part of what bodies can save where the smallest plan is looked for, too",
        COMPILED,
        "loops",
        neutral=1,
    ),
    Tuned(
        "search.loop_search",
        "_LEAST_OF_A_MISS",
        "part of what bodies missed a budget by that a further plan of them has to save",
        EFFORT,
        "loops",
        neutral=0,
    ),
    Tuned(
        "search.loop_search",
        "HARDLY",
        "part of the step by which loops that keep least may be slower, to be tried, and "
        "those with a plan of the line around them have to be faster",
        COMPILED,
        "loops",
    ),
    Tuned(
        "search.loops_and_line",
        "_MOST_PLACES",
        "places of the path of loops that are compared with the line around them",
        EFFORT,
        "loops",
    ),
    Tuned(
        "search.around_copies",
        "_MOST_PLANS",
        "plans made for one with room for what is gathered",
        EFFORT,
        "",
        effect=_ON_HOST_DEVICES,
    ),
    Tuned(
        "search.around_copies",
        "_LARGEST_STEP",
        "largest step between two of them, as a part of the room, one over this",
        COMPILED,
        "",
        effect=_ON_HOST_DEVICES,
    ),
    Tuned(
        "search.closing_in",
        "_MOST_PLANS",
        "plans made between the best plan and the budget",
        EFFORT,
    ),
    Tuned(
        "search.closing_in",
        "_LEAST_PART",
        "least step between the two ends, as a part of the way",
        ARGUMENT,
    ),
    Tuned(
        _SEARCH,
        "LEAST_STEP",
        "least reduction of the room after a miss, one over this",
        COMPILED,
    ),
    Tuned(
        _SEARCH,
        "SLACK_WORTH_USING",
        "unused part of the room that is worth another compilation",
        ARGUMENT,
    ),
    Tuned(
        _SEARCH,
        "SLACK_ON_MESHES",
        "the same for a step on several host devices",
        COMPILED,
        "",
        effect=_ON_HOST_DEVICES,
    ),
    Tuned(
        _SEARCH,
        "GAIN_WORTH_TRYING",
        "recomputation, as a part of the step, that is worth another compilation",
        ARGUMENT,
    ),
    Tuned(
        "search.driver",
        "_AMPLE",
        "room, in lower bounds, below which the tightest plans come first",
        COMPILED,
        neutral=1,
    ),
    Tuned(
        "search.driver",
        "_FAR_MORE",
        "excess of the tightest plans from which other plans are tried",
        COMPILED,
        neutral=1,
    ),
    Tuned(_DESCENT, "_MARGIN", "part of the room that a first plan leaves", COMPILED),
    Tuned(
        _DESCENT,
        "_LEFT_ON_MESHES",
        "room that a first plan leaves on several host devices, one over this",
        COMPILED,
        "",
        effect=_ON_HOST_DEVICES,
    ),
    Tuned(
        _DESCENT,
        "_AFTER_A_MISS",
        "unused room, in `SLACK_WORTH_USING`, that is worth a compilation after a miss",
        ARGUMENT,
    ),
    Tuned(
        "search.feedback_search",
        "_CLEARLY",
        "bytes beyond the tightest plans, one over this, for which more are compiled, and "
        "beyond the budget, for which a second one is not while sizes are tried",
        ARGUMENT,
    ),
    Tuned(
        "search.feedback_search",
        "_FLOOR_PREFERENCES",
        "parts of the smallest pool that the tightest plans prefer",
        COMPILED,
        neutral=1,
    ),
    Tuned(_DESCENT, "_MOST_SKIPPED", "plans made again between compilations", EFFORT),
    Tuned(
        _DESCENT,
        "_MARGIN_OF_ERROR",
        "growth of an error from one plan to the next, one over this",
        COMPILED,
    ),
    Tuned(
        _DESCENT,
        "_STEP_AFTER_THE_SAME",
        "reduction of the room where a plan comes a second time, one over this",
        EFFORT,
    ),
    Tuned(
        _DESCENT,
        "_PART_USED_NEXT",
        "free room that the next plan may use, one over this",
        ARGUMENT,
    ),
    Tuned(
        "plan.planner",
        "_OVERHEAD_LIMIT",
        "modelled time of a plan, relative to no recomputation",
        EFFORT,
        "random",
    ),
    Tuned(
        "plan.planner",
        "_LITTLE_EFFORT",
        "effort to show that bodies of loops can take less",
        EFFORT,
        "",
        effect="how often the least that they can take is looked for, which takes longer",
    ),
    Tuned(
        "plan.planner",
        "_PACKING_EFFORT",
        "work on offsets, which XLA chooses again",
        EFFORT,
        "random",
    ),
    Tuned(
        "compile.as_written",
        "_MOST_UNLISTED",
        "temporaries that XLA lists nowhere and count as fixed, one over this",
        COMPILED,
        "graph",
    ),
    Tuned(
        "graph.attribution",
        "_LASTING",
        "lifetime, one over this of the schedule, of a buffer that counts all the time",
        COMPILED,
        "graph",
    ),
    Tuned(
        "graph.fusion_regions",
        "_LONGEST_SHARED_REGION",
        "equations that are taken to be fused into several readers",
        ARGUMENT,
        "graph",
    ),
    Tuned(
        "graph.take_overs",
        "SMALL_OVERWRITE_BYTES",
        "size below which a donated input is not taken to be overwritten",
        ARGUMENT,
        "graph",
    ),
    Tuned(
        "trace.operations",
        "TRANSCENDENTAL_OPERATIONS",
        "operations for an element of `exp`, `tanh` and the like",
        ARGUMENT,
        "graph",
    ),
    Tuned(
        "trace.operations",
        "LONG_OPERATIONS",
        "operations for an element of `sin`, `pow` and the like",
        "examples/cpu_rates.py",
        "graph",
    ),
    Tuned(
        "trace.operations",
        "FOURIER_OPERATIONS",
        "operations for a point of a Fourier transform and each halving of its length",
        ARGUMENT,
        "graph",
    ),
    Tuned(
        "trace.operations",
        "_ARGUMENT_OPERATIONS",
        "operations for an element of `argmax`: those of XLA's reduction",
        ARGUMENT,
        "graph",
    ),
    Tuned(
        "trace.operations",
        "RANDOM_BITS_OPERATIONS",
        "operations for a word of random bits: those of threefry2x32",
        ARGUMENT,
        "graph",
    ),
    Tuned(
        "trace.operations",
        "SORT_OPERATIONS",
        "operations to compare and exchange two elements of a sort",
        "examples/compare/sort_rates.py",
        "h200",
    ),
    Tuned(
        "emit.layers_again",
        "_AS_LITTLE",
        "bytes from block to block, relative to the fewest of all shifts",
        ARGUMENT,
        "h200",
    ),
    Tuned(
        "search.layer_search",
        "_HALVINGS",
        "prices of bytes at which layers are cut",
        EFFORT,
        "h200",
    ),
    Tuned(
        "emit.segments",
        "NOTICEABLE",
        "freed part of the live bytes that is worth a memory fence",
        COMPILED,
        "h200",
    ),
    Tuned(
        "graph.fusion_regions",
        "_COPY_FROM",
        "size of a view, relative to its source, from which it is a copy",
        COMPILED,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(
        _SWEEP,
        "_MOST_EXCESS",
        "excess, one over this of the pool, from which memory fences are tried",
        COMPILED,
        "tpu v5e",
    ),
    Tuned(
        _SWEEP,
        "_CLEARLY_LESS",
        "recomputation of the second of the tightest plans, relative to the first",
        COMPILED,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(
        _SWEEP,
        "_OVERESTIMATE",
        "bytes, one over this of the room, that plans may need less than expected",
        COMPILED,
        "tpu v5e",
    ),
    Tuned(
        _SWEEP,
        "_OVERESTIMATE_OF_LAYERED",
        "the same for layered plans, one over this of the budget",
        COMPILED,
        "tpu v5e",
    ),
    Tuned(_POOLS, "_FIRST", "first pool, in rooms", ARGUMENT, "tpu v5e", neutral=1),
    Tuned(_POOLS, "_FACTOR", "from one pool to the next", EFFORT, "tpu v5e", neutral=1),
    Tuned(_POOLS, "_ENOUGH", "pools within the room that end the sweep", EFFORT, "tpu v5e"),
    Tuned(
        _POOLS,
        "_WELL_WITHIN",
        "part of the room that such a pool needs at most",
        COMPILED,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(_POOLS, "_TIGHTEST", "pools of the tightest plans", EFFORT, "tpu v5e"),
    Tuned(
        _POOLS,
        "_PREFERENCES",
        "parts of a pool that its plans prefer",
        EFFORT,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(
        _POOLS,
        "_TIGHTEST_PREFERENCES",
        "the same for the tightest plans",
        EFFORT,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(_LAYERS, "_MOST_LAYERS", "layers of the first layered plan", EFFORT, "tpu v5e"),
    Tuned(
        _LAYERS,
        "_FACTOR",
        "from the layers of one plan to those of the next",
        EFFORT,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(
        _CUTS,
        "_LEAST",
        "least part of a layer's share",
        ARGUMENT,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(
        _CUTS, "_MOST", "greatest part of a layer's share", ARGUMENT, "tpu v5e", neutral=1
    ),
    Tuned(
        _CUTS,
        "_NEGLIGIBLE",
        "part of the idle bytes that a value has at least to be recomputed",
        ARGUMENT,
        "tpu v5e",
    ),
    Tuned(
        _CUTS,
        "_AS_LITTLE",
        "bytes across a boundary, relative to the fewest in reach",
        ARGUMENT,
        "tpu v5e",
        neutral=1,
    ),
    Tuned(
        "backends.tpu.heap",
        "_GUESSES",
        "how long values wait in VMEM, in times of their copy",
        COMPILED,
        "tpu v5e",
    ),
    Tuned(
        _ARENA,
        "_WORTH",
        "length of an idle interval, in times of its two copies",
        ARGUMENT,
        "arena",
    ),
    Tuned(
        _ARENA,
        "_MOST_COPYING",
        "all copies, as a part of the step's modelled time",
        "`examples/arena_table.py`",
        "arena",
    ),
    Tuned(
        _ARENA, "_SLACK", "part by which an arena may add to the bytes", ARGUMENT, "arena"
    ),
    Tuned(_ARENA, "_LEAST_BYTES", "size of a value in the arena", ARGUMENT, "arena"),
    Tuned(_ARENA, "_NUM_SIZES", "sizes of the arena that are tried", EFFORT, "arena"),
    Tuned(
        "arena.layout",
        "_TOLERANCE",
        "bytes outside of the arena for want of a boundary, as a part of the live ones",
        ARGUMENT,
        "arena",
    ),
    Tuned(
        "arena.layout", "_PACKING_EFFORT", "work on the arena's offsets", EFFORT, "arena"
    ),
    Tuned(
        "plan.least_possible",
        "_TO_BLAME",
        "part of the bytes needed from which a loop is named as the cause",
        ARGUMENT,
        "",
        effect="which of two operations an error names",
    ),
    Tuned(
        "base.budget",
        "_DEVICE_MARGIN",
        'part of a device\'s memory that `budget="device"` leaves to others',
        ARGUMENT,
        "",
        effect='the budget of `budget="device"`, by 2.5 % or 5 % of the memory',
    ),
    Tuned(
        "comparison.compare",
        "_SAME_BYTES",
        "difference in bytes at which two steps are compared by time",
        ARGUMENT,
        "",
        effect="which rows a table compares",
    ),
    Tuned(
        "comparison.variants",
        "_TIMED_PAIRS",
        "timed pairs of steps",
        EFFORT,
        "",
        effect="the noise of measured times",
    ),
    Tuned(
        "base._compat_jit",
        "_KINDS_OF_ARGUMENTS",
        "types of arguments whose parsing is remembered",
        EFFORT,
        "",
        effect="memory and the first calls of functions with more types of arguments",
    ),
    Tuned(
        "backends.cpu.shared_constants",
        "_NOTICEABLE_BYTES",
        "result of an equation whose constants pass the fence of their segment",
        ARGUMENT,
        neutral=1,
    ),
    Tuned(
        "backends.cpu.early_stacks",
        "_MUCH",
        "one over the part of the stacks that all loops but one have, from which on plans "
        "are compiled in XLA's order for memory",
        ARGUMENT,
        "loops",
        neutral=1,
    ),
    Tuned(
        "backends.cpu.fresh_pages",
        "_BYTES_PER_SECOND",
        "rate at which the system gives zeroed pages to a run",
        "examples/fresh_pages.py",
        "",
        effect="how much of the budget plans on a CPU use, from 32 MiB on",
    ),
    Tuned(
        "search.worthwhile_bytes",
        "_RUNG",
        "part of the bytes from one pool to the next that is tried",
        ARGUMENT,
        "",
        effect="how close to the best pool such plans are",
        neutral=1,
    ),
    Tuned(
        "search.worthwhile_bytes",
        "_NUM_RUNGS",
        "pools that are tried",
        EFFORT,
        "",
        effect="the smallest pool that is tried, of steps that need a fifth of their bytes",
    ),
    Tuned(
        "search.worthwhile_bytes",
        "_SEARCH_EFFORT",
        "effort for the plan of each",
        EFFORT,
        "",
        effect="how close to the best pool such plans are, and hundredths of a second",
    ),
    Tuned(
        "search.worthwhile_bytes",
        "MARGIN",
        "part of the bytes that take no time which is left free for what XLA adds",
        ARGUMENT,
        "",
        effect="how often such a plan is compiled a second time",
    ),
    Tuned(
        "backends.tpu.compile_to_buffers",
        "_SECONDS_BETWEEN_LOOKS",
        "pause between two looks for a file of the compiler",
        EFFORT,
        "",
        effect="up to that many seconds for a compilation",
    ),
)

# Numbers that are no tuned values: of formats and of XLA, limits of types, empty values,
# rates from data sheets, and lengths of what is printed.
OTHER_NUMBERS = {
    "api.processes": {
        "_ARRIVAL_SECONDS",
        "_BEAT_SECONDS",
        "_POLL_SECONDS",
        "_SILENT_SECONDS",
    },
    "api.results_check": {"_LINES_IN_REPORT"},
    # Which sizes are tried; the scatter is that of one scanned decoder.
    "api.size_search": {"MAX_OF_OTHER_SIZES", "_PART_OF_ESTIMATE", "_SCATTER"},
    "arena.layout": {"NO_ARENA"},
    "backends.cpu.backend": {"_WITHOUT_OPTIMIZED_CODE"},
    "backends.cpu.fresh_pages": {"_LEAST_MAPPED_BYTES"},
    "backends.tpu.async_copies": {"_COPY_TABLES"},
    "backends.tpu.compiler_options": {"NO_REMATERIALIZATION"},
    "backends.tpu.compile_to_buffers": {"_LAST_WORDS", "_MAIN_MEMORY"},
    "backends.tpu.heap": {"_NONE_NEAR"},
    "base._compat_distributed": {"_EXIT_SECONDS"},
    "base.absent_topologies": {"GPUS_OF_A_HOST", "_CHIPS_OF_A_HOST"},
    "base.budget": {"_UNITS"},
    "base.strict_values": {"LARGEST_INT64", "_LONGEST"},
    "emit.retention_cut": {"_UNBOUNDED"},
    "fitted_line": {"OF_UNMODIFIED"},
    # More than any array has.
    "loops.frontier": {"_NOT_KEPT"},
    "loops.loop_plan": {"_LINES_IN_REPORT"},
    "plan.named_graph": {"MOST_BYTES", "MOST_BYTES_OF_ONE", "MOST_SECONDS"},
    "plan.packed_blocks": {"_UNBOUNDED_EFFORT"},
    "saved.document": {"VERSION", "_LONGEST_ROW", "_WIDTH"},
    "saved.loops": {"_MOST"},
    "saved.schedule": {"_MOST", "_MOST_ALIGNMENT"},
    "saved.subject": {"_DIGITS"},
    # Launches and rates of the executables' seconds choose among compiled plans alone.
    # Links are those of data sheets.
    "targets": {
        "HEAP_ALIGNMENT",
        "TPU_ALIGNMENT",
        "_CPU",
        "_LAUNCH_SECONDS",
        "_MATRIX_TO_VECTOR",
        "_MEMORY_TO_LINKS",
        "_ROWS",
    },
    "trace.factorizations": {"_PER_CUBE"},
    "trace.operations": {"_CUMULATIVE", "_CUMULATIVE_WINDOW", "_SHORT_POWERS"},
    "trace.program": {"CALLER"},
    "xla.buffers_from_schedule": {"_RESULT_PART"},
    "xla.hlo_module": {
        "_INSTRUCTION_TUPLE_INDEX",
        "_METADATA_OP_NAME",
        "_SMALL_LITERAL",
    },
    "xla.loop_trips": {"_LITERAL_INTEGERS"},
    "xla.memory_figures": {"_SUFFIXES"},
    "xla.product_flops": {
        "_LIBRARY_CONVOLUTIONS",
        "_PRODUCT_CONTRACTED",
        "_WINDOW_DIMENSIONS",
        "_WINDOW_SIZE",
    },
    "xla.shapes": {"_BITS", "_FLOATS", "_MAIN_MEMORY"},
    "xla.touched_bytes": {"_UPDATES"},
}
