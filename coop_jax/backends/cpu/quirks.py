"""The quirks of XLA:CPU."""

from __future__ import annotations

from coop_jax.backends.quirk import Quirk

_VERSIONS = "JAX 0.10.2 and 0.12.0, XLA:CPU"

POOL_GRADIENT = Quirk(
    "pool_gradient",
    "The gradient of a max-pooling becomes an array of indices per dimension. They need"
    " no argument, so XLA makes them at the beginning of the step, and no fence keeps "
    "them from it. Another gradient of the same bits has one array, which waits for the"
    " elements.",
    _VERSIONS,
    "coop_jax.backends.cpu.pool_gradient",
    ("prepare",),
    "backends/cpu/test_pool_gradient.py",
)
RANDOM_BITS = Quirk(
    "random_bits",
    "The cipher is a loop with two results. Their exclusive or is merged into every "
    "reader of the bits, so XLA keeps both from the forward to the backward pass. Bits "
    "pass a fence as soon as they are made, and are one value behind it. The step as "
    "written is expected to keep two.",
    _VERSIONS,
    "coop_jax.backends.cpu.random_bits",
    ("fence_hints", "expected_bytes_as_written"),
    "backends/cpu/test_random_bits.py",
)
KEPT_CONSTANTS = Quirk(
    "kept_constants",
    "Arrays that depend on no argument, as the indices and zeros of a pooling's "
    "gradient, are made at the beginning of the step and kept until they are read, "
    "fences or not. They count as fixed bytes.",
    _VERSIONS,
    "coop_jax.graph.unattributed_buffers",
    ("_attribution",),
    "graph/test_unattributed_buffers.py",
)
COPIED_INPUTS = Quirk(
    "copied_inputs",
    "The fence is a call whose results alias its operands. XLA copies an argument that "
    "is not donated before it passes one, so such arguments pass none.",
    _VERSIONS,
    "coop_jax.emit.segments",
    ("inputs_pass_fences_free",),
    "emit/test_segments.py",
)
NO_GUARDS = Quirk(
    "no_guards",
    "The fence is a call, which XLA fuses nothing across. Fences for memory's sake alone "
    "leave the bytes of most plans as they are; some plans need less with them, some "
    "more, and last bits change. None stand.",
    _VERSIONS,
    "coop_jax.emit.segments",
    ("has_guards",),
    "emit/test_segments.py",
)
COPIED_UPDATES = Quirk(
    "copied_updates",
    "A weight that is updated in place is copied at the first operation, and the copy "
    "lives until the update, unless the data dependences say that all readers are done "
    "by then. A plan's do; the step as written is expected to need the copies.",
    _VERSIONS,
    "coop_jax.xla.liveness",
    ("expected_bytes_as_written",),
    "search/test_live_bytes_feedback.py",
)
EARLY_COPIES = Quirk(
    "early_copies",
    "What a mesh divides and an operation needs whole is gathered as soon as it can be: "
    "weights at the beginning of the step or behind the fence that they pass, values as "
    "soon as they are made. The copy is kept for all that read it before the next fence. "
    "It counts from there to the last of them, not as scratch of each. In JAX 0.10.2 the "
    "copy has the name of its first reader, and counts as scratch of that one alone.",
    "JAX 0.12.0, XLA:CPU",
    "coop_jax.search.copies_alive",
    ("gathers_early",),
    "search/test_copies_alive.py",
)
COMBINED_SUMS = Quirk(
    "combined_sums",
    "Sums over devices that do not depend on each other become one collective, at the last "
    "of them, however many bytes they have: what all of them read and make is alive at "
    "once. Fences keep them apart where a plan has no room for that.",
    _VERSIONS,
    "coop_jax.emit.combined_sums",
    ("combines_sums",),
    "emit/test_combined_sums.py",
)
FRESH_PAGES = Quirk(
    "fresh_pages",
    "Temporaries are allocated in every run. glibc maps a block of 32 MiB or more anew, "
    "and the system zeroes its pages as they are written, which takes several times as "
    "long as to read and write them. It counts in the seconds of executables; a plan "
    "leaves room of the budget unused where that would take more time than it saves.",
    "JAX 0.12.0, XLA:CPU, glibc",
    "coop_jax.backends.cpu.fresh_pages",
    ("seconds_for_temporaries", "free_temporary_bytes"),
    "search/test_worthwhile_bytes.py",
)
REMOVED_BARRIERS = Quirk(
    "removed_barriers",
    "XLA removes `optimization_barrier` before its last common subexpression "
    "elimination, and merges what `jax.checkpoint` recomputes back into the forward "
    "pass. Policies that plans are compared with are compiled without that pass. Where a "
    "barrier stands in a loop, they are also compiled without the pass that makes one "
    "kernel of a loop with little work: XLA:CPU aborts on a barrier in such a kernel.",
    _VERSIONS,
    "coop_jax.backends.cpu.backend",
    ("checkpoint_options", "checkpoint_in_loops_options"),
    "comparison/test_compare.py",
)
SHARED_CONSTANTS = Quirk(
    "shared_constants",
    "Kernels of products and reductions read what a constant is broadcast to as an array."
    " All readers share one, from the first to the last of the step, fences or not. "
    "Constants pass the fence of their segment where that changes no bits.",
    _VERSIONS,
    "coop_jax.backends.cpu.shared_constants",
    ("fence_hints",),
    "backends/cpu/test_shared_constants.py",
)
EARLY_STACKS = Quirk(
    "early_stacks",
    "The zeros that the stacks of a `scan` begin with need no argument, so XLA makes those "
    "of all loops at the beginning of the step, where each takes the memory of its stack. "
    "Plans of a step with several loops that stack much are compiled with XLA's order for "
    "memory.",
    _VERSIONS,
    "coop_jax.backends.cpu.early_stacks",
    ("options_of_plans",),
    "backends/cpu/test_early_stacks.py",
)
CONCURRENT_ORDER = Quirk(
    "concurrent_order",
    "XLA orders a program so that much can run at the same time: what has all its "
    "operands comes next, whatever it makes. A plan that misses its budget by what runs "
    "too early is compiled once more with XLA's order for memory, before fences keep it "
    "to its own.",
    _VERSIONS,
    "coop_jax.backends.cpu.order_for_memory",
    ("options_for_memory",),
    "search/test_other_orders.py",
)

CPU_QUIRKS = (
    POOL_GRADIENT,
    RANDOM_BITS,
    KEPT_CONSTANTS,
    COPIED_INPUTS,
    NO_GUARDS,
    COPIED_UPDATES,
    EARLY_COPIES,
    COMBINED_SUMS,
    FRESH_PAGES,
    REMOVED_BARRIERS,
    SHARED_CONSTANTS,
    EARLY_STACKS,
    CONCURRENT_ORDER,
)
