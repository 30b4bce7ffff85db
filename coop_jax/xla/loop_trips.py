"""Loop trips: how often a loop of an optimized module iterates."""

from __future__ import annotations

import json

from coop_jax.xla.hlo_module import HloModule, Instruction
from coop_jax.xla.protobuf_wire import repeated

# Field numbers of xla.LiteralProto: integers, signed or not, of 32 or 64 bits.
_LITERAL_INTEGERS = (4, 5, 6, 7)


def loop_trips(module: HloModule, loop: Instruction) -> int | None:
    """Iterations of a `while`; None where they are not known before it runs.

    Arguments:
        module: the module that contains it.
        loop: the instruction.
    """
    try:
        notes = json.loads(loop.backend_config)
        return int(notes["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return _counted(module, loop)


def _counted(module: HloModule, loop: Instruction) -> int | None:
    """Iterations of a loop that counts upwards by one to a constant, as JAX writes them;
    XLA:TPU takes no note of them."""
    for computation in loop.called:
        root = module.instructions[module.roots[computation]]
        if root.opcode != "compare":
            continue
        counter, limit = (module.instructions[i] for i in root.operands)
        if counter.opcode == "get-tuple-element" and limit.opcode == "constant":
            start = _start(module, loop, counter.tuple_index)
            end = _integer(limit)
            return None if start is None or end is None else max(0, end - start)
    return None


def _start(module: HloModule, loop: Instruction, index: int) -> int | None:
    """What a loop's state has at an index before the first iteration."""
    state = module.instructions[loop.operands[0]]
    if state.opcode != "tuple":
        return None
    value = module.instructions[state.operands[index]]
    while value.opcode in ("copy", "bitcast"):
        value = module.instructions[value.operands[0]]
    return _integer(value)


def _integer(constant: Instruction) -> int | None:
    if constant.opcode != "constant":
        return None
    found = [n for kind in _LITERAL_INTEGERS for n in repeated(constant.literal, kind)]
    return found[0] if found else None
