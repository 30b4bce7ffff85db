"""Early stacks: XLA:CPU makes the stacks of all loops at the beginning of a step.

A `scan` writes its stacked results into arrays of zeros. These need no argument, and
XLA:CPU runs what it can as early as it can: so the stacks of every loop are alive from the
beginning on, and with them copies of arguments for loops that are yet to come. Where a step
has several loops that stack much, its plans are compiled with XLA's order for memory.
"""

from __future__ import annotations

from coop_jax.loops.bodies import has_bodies
from coop_jax.loops.loop import Loop
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import Program

# All loops but one stack much if it is more than the stacks of all over this number. The
# stacks of one loop and of its gradient are alive one after the other in any order.
_MUCH = 4


def has_early_stacks(program: Program) -> bool:
    """Whether several loops of a step, without those in bodies, stack much."""
    stacked_bytes = [
        sum(aval_bytes(v.aval) for v in Loop.of(eqn).stacks_written)
        for eqn in program.eqns
        if eqn.primitive.name == "scan" and has_bodies(eqn)
    ]
    others_bytes = sum(stacked_bytes) - max(stacked_bytes, default=0)
    return others_bytes > sum(stacked_bytes) // _MUCH
