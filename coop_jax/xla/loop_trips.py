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
    """Iterations of a loop that counts upwards to a constant, as JAX writes them and as
    XLA:TPU multiplies what it gathers meanwhile; XLA:TPU takes no note of them."""
    for computation in loop.called:
        root = module.instructions[module.roots[computation]]
        if root.opcode != "compare":
            continue
        counter, limit = (module.instructions[i] for i in root.operands)
        if counter.opcode == "get-tuple-element" and limit.opcode == "constant":
            start = _start(module, loop, counter.tuple_index)
            end = _integer(limit)
            if start is None or end is None:
                return None
            return max(0, -(-(end - start) // _step(module, loop, counter.tuple_index)))
    return None


def _start(module: HloModule, loop: Instruction, index: int) -> int | None:
    """What a loop's state has at an index before the first iteration."""
    value = _element(module, loop.operands[0], index)
    return None if value is None else _integer(value)


def _step(module: HloModule, loop: Instruction, index: int) -> int:
    """What an iteration adds to the counter at an index of a loop's state: more than one
    where XLA has unrolled the loop; one where it is not known."""
    for computation in loop.called:
        total, value = 0, _element(module, module.roots[computation], index)
        while value is not None and value.opcode == "add":
            operands = [_behind_copies(module, number) for number in value.operands]
            added = [n for n in map(_integer, operands) if n is not None]
            others = [one for one in operands if _integer(one) is None]
            total += sum(added)
            value = others[0] if len(others) == 1 else None
        is_counter = value is not None and value.opcode == "get-tuple-element"
        if value is not None and is_counter and value.tuple_index == index and total > 0:
            return total
    return 1


def _element(module: HloModule, number: int, index: int) -> Instruction | None:
    """The value at an index of a tuple; None if it is made otherwise."""
    state = module.instructions[number]
    if state.opcode != "tuple":
        return None
    return _behind_copies(module, state.operands[index])


def _behind_copies(module: HloModule, number: int) -> Instruction:
    value = module.instructions[number]
    while value.opcode in ("copy", "bitcast"):
        value = module.instructions[value.operands[0]]
    return value


def _integer(constant: Instruction) -> int | None:
    if constant.opcode != "constant":
        return None
    found = [n for kind in _LITERAL_INTEGERS for n in repeated(constant.literal, kind)]
    return found[0] if found else None
