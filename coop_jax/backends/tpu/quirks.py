"""The quirks of XLA:TPU."""

from __future__ import annotations

from coop_jax.backends.quirk import Quirk

_VERSIONS = "JAX 0.12.0 with libtpu 0.0.50, absent TPU v5e"

GOOD_PACKING = Quirk(
    "good_packing",
    "XLA packs main memory like an allocator at run time, which leaves gaps, and packs "
    "it again, by size and by length of life, only if the result is more than the "
    "device has. An option asks for the second packing at once, in every version of a "
    "step.",
    _VERSIONS,
    "coop_jax.backends.tpu.compiler_options",
    ("compiler_options",),
    "backends/tpu/test_compiler_options.py",
)
FENCE_LAYOUTS = Quirk(
    "fence_layouts",
    "Behind a barrier XLA chooses a layout by the next readers alone, so moments of an "
    "optimizer did not come in the layout of their arguments and waited for the end of "
    "the step to be copied. Fences state the layouts of the step as written.",
    _VERSIONS,
    "coop_jax.backends.tpu.layouts",
    ("_read", "fence_hints"),
    "backends/tpu/test_layouts.py",
)
BF16_STORAGE = Quirk(
    "bf16_storage",
    "A float32 value that only matrix products and convolutions read is stored in "
    "bfloat16, as they round it anyway, but in full behind a barrier. Such values pass "
    "fences rounded.",
    _VERSIONS,
    "coop_jax.backends.tpu.bf16_storage",
    ("_read", "fence_hints"),
    "backends/tpu/test_bf16_storage.py",
)
COPY_TABLES = Quirk(
    "copy_tables",
    "Every asynchronous copy has a table in main memory for the whole step that XLA "
    "does not list, and a copy of a slice has two. Plans have fewer copies of slices "
    "than the step as written: one table is counted for each.",
    _VERSIONS,
    "coop_jax.backends.tpu.async_copies",
    ("_read",),
    "backends/tpu/test_async_copies.py",
)
FUSIONS_IN_PLACE = Quirk(
    "fusions_in_place",
    "Any fusion may write over an operand that it reads element by element. Random bits"
    " and the scatter of a cross-entropy's gradient are fused into their readers.",
    _VERSIONS,
    "coop_jax.graph.fusion_regions",
    ("_read",),
    "backends/tpu/test_heap.py",
)
OTHER_FORMS = Quirk(
    "other_forms",
    "A convolution of few images is one of many parts of them, each with the margin that "
    "its neighbours read: its operands, results and masks are stored so, in several times "
    "their bytes. A buffer of another size is its equation's value if others read it.",
    _VERSIONS,
    "coop_jax.graph.attribution",
    ("_attribution",),
    "graph/test_other_forms.py",
)
VMEM = Quirk(
    "vmem",
    "XLA moves values to a memory on the chip while they wait for less than a number of"
    " times the duration of their copy and there is room. The rest is packed into main "
    "memory. Without this, all values of a plan are expected in main memory.",
    _VERSIONS,
    "coop_jax.backends.tpu.vmem",
    ("expected_bytes", "has_second_memory"),
    "backends/tpu/test_vmem.py",
)
LIST_SCHEDULE = Quirk(
    "list_schedule",
    "Between two fences XLA orders operations so that little is alive. A plan by layers"
    " is expected at the better of its own order and of a list schedule in each "
    "segment.",
    _VERSIONS,
    "coop_jax.backends.tpu.list_schedule",
    ("expected_bytes",),
    "backends/tpu/test_chen_schedules.py",
)
ORDER_AS_WRITTEN = Quirk(
    "order_as_written",
    "XLA orders the step as written so that little is alive, and packs it without gaps:"
    " it is expected to need the bytes alive in the better of two orders.",
    _VERSIONS,
    "coop_jax.backends.tpu.heap",
    ("expected_bytes_as_written",),
    "backends/test_quirks.py",
)
POOL_SWEEP = Quirk(
    "pool_sweep",
    "A plan that keeps less alive may need more main memory, and the error of one plan "
    "says nothing of the next. Plans for many pools are made, and those compiled that "
    "are expected to fit. Without this, plans are corrected as on a CPU or GPU.",
    _VERSIONS,
    "coop_jax.backends.tpu.pool_sweep",
    ("sweeps_pools",),
    "backends/tpu/test_heap.py",
)
CHEN_SCHEDULES = Quirk(
    "chen_schedules",
    "In long stretches without fences XLA's own order can need less than any plan in "
    "ours. Plans that keep what passes from layer to layer, and recompute one layer at "
    "a time, are compared with the others.",
    _VERSIONS,
    "coop_jax.backends.tpu.chen_schedules",
    ("sweeps_pools",),
    "backends/tpu/test_chen_schedules.py",
)
BUFFERS_FIRST = Quirk(
    "buffers_first",
    "XLA assigns buffers in seconds and makes code in minutes. For an absent TPU, on "
    "which nothing runs, a compilation ends with the first.",
    _VERSIONS,
    "coop_jax.backends.tpu.compile_to_buffers",
    ("compile",),
    "backends/tpu/test_compile_to_buffers.py",
)

TPU_QUIRKS = (
    GOOD_PACKING,
    FENCE_LAYOUTS,
    BF16_STORAGE,
    COPY_TABLES,
    FUSIONS_IN_PLACE,
    OTHER_FORMS,
    VMEM,
    LIST_SCHEDULE,
    ORDER_AS_WRITTEN,
    POOL_SWEEP,
    CHEN_SCHEDULES,
    BUFFERS_FIRST,
)
