"""Marks: name scopes that tell the loops of a plan from those of the user.

They are read in programs alone: XLA gets them as the names of instructions.
"""

from __future__ import annotations

from typing import Any

import jax

from coop_jax.base import _compat

_PLANNED = "coop_jax_planned"
_OF_GROUP = "coop_jax_group"


def planned_loops() -> Any:
    """The scope of the loops of a planned pair."""
    return jax.named_scope(_PLANNED)


def loops_of_group() -> Any:
    """The scope of the loops over one group of iterations, inside of a planned loop."""
    return jax.named_scope(_OF_GROUP)


def is_planned(eqn: Any) -> bool:
    """Whether an equation is a loop of a planned pair, or over a group of it."""
    return _PLANNED in _compat.name_stack(eqn) or is_of_group(eqn)


def is_of_group(eqn: Any) -> bool:
    """Whether an equation is a loop over one group of iterations."""
    return _OF_GROUP in _compat.name_stack(eqn)
