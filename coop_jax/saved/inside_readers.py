"""Inside readers: what a saved plan keeps for values made again inside of their readers."""

from __future__ import annotations

import dataclasses
from typing import Any

from coop_jax.emit.inside_readers import InsideReaders, made_again
from coop_jax.saved.document import Node
from coop_jax.saved.fingerprint import Names
from coop_jax.trace.program import Program


def inside_contents(program: Program, inside: InsideReaders | None) -> Any:
    """A part of a document: the last equation before the point, what is kept, the last
    equations of layers."""
    if inside is None:
        return None
    names = Names.of(program)
    return {
        "after": inside.after,
        "kept": [names.of_value(v) for v in inside.kept],
        "layers": list(inside.layers),
    }


def inside_of(node: Node, program: Program) -> InsideReaders | None:
    """That of a document, for a program that is that of the file.

    Raises:
        PlanFault: the values are none of the program's, or not made by then, or nothing is
            made again of them.
    """
    if node.value is None:
        return None
    after_node, kept_node, layers_node = node.fields("after", "kept", "layers")
    after = after_node.number(most=len(program.eqns) - 1)
    layers = tuple(item.number(most=after) for item in layers_node.items())
    inside = InsideReaders(after, (), layers)
    made = {v for eqn in program.eqns[: inside.end + 1] for v in eqn.outvars}
    values = {name: v for name, v in Names.of(program).values().items() if v in made}
    kept = tuple(values[item.one_of(tuple(values))] for item in kept_node.items())
    inside = dataclasses.replace(inside, kept=kept)
    if not made_again(program, inside):
        raise kept_node.fault("values that others are made of")
    return inside
