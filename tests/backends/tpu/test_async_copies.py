"""Tables of copies between a TPU's memories."""

import dataclasses
from collections import Counter

import pytest
from steps import NEEDS_TPU, adam_shapes, adam_step, mlp_arguments, mlp_step, traced

from coop_jax import backends
from coop_jax.backends.tpu.async_copies import unlisted_of_plans
from coop_jax.graph import stored_values
from coop_jax.targets import TPU_ALIGNMENT
from coop_jax.xla import absent_devices
from coop_jax.xla.buffer_assignment import read_stored_module


def test_what_is_not_listed_stays_where_nothing_is_copied():
    step = traced(mlp_step, *mlp_arguments(layers=2))
    module = read_stored_module(step.compile(stored_values.tag(step.program)))
    assert unlisted_of_plans(module) == 0
    module = dataclasses.replace(module, unlisted_bytes=5)
    assert unlisted_of_plans(module) == 5


@NEEDS_TPU
@pytest.mark.parametrize("blocks", [4, 8])
def test_what_is_not_listed_is_a_table_for_each_copy_and_two_for_a_slice(blocks):
    shapes = absent_devices.placed(adam_shapes(blocks), absent_devices.named_device("v5e"))
    step = traced(adam_step, *shapes, donate_argnums=(0, 1))
    tagged = step.compile(stored_values.tag(step.program))
    module = read_stored_module(tagged)
    opcodes = Counter(module.instructions[number].opcode for number in module.schedule)
    copies, slices = opcodes["copy-start"], opcodes["async-start"]
    assert min(copies, slices) > 10
    tables_bytes = (copies + 2 * slices) * TPU_ALIGNMENT
    assert 0 <= module.unlisted_bytes - tables_bytes < 0.06 * module.unlisted_bytes
    # Of plans one for each.
    assert module.unlisted_bytes - unlisted_of_plans(module) == slices * TPU_ALIGNMENT
    found = backends.stored_values(step.program, tagged)
    assert found.more_unlisted_of_plans == -slices * TPU_ALIGNMENT
