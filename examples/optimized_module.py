"""Optimized module: XLA's program of a compiled step, as text to be compared."""

from __future__ import annotations

import re
from typing import Any

import jax

_FIRST_COMPUTATION = re.compile(r"^(%|ENTRY)", re.MULTILINE)
_METADATA = re.compile(r",? metadata=\{[^}]*\}")


def module_text(compiled: Any) -> str:
    """The optimized module, without its name and tables, and without what its instructions
    say of source lines and name scopes.

    Arguments:
        compiled: a `jax.stages.Compiled`, or what coop_jax compiles for an absent TPU.
    """
    module = compiled.runtime_executable().hlo_modules()[0]
    if not hasattr(module, "to_string"):
        one = jax.jit(lambda: 0).lower().compile().runtime_executable().hlo_modules()[0]
        proto = module.as_serialized_hlo_module_proto()
        module = type(one).from_serialized_hlo_module_proto(proto)
    text = module.to_string()
    first = _FIRST_COMPUTATION.search(text)
    assert first is not None, "a module has computations"
    return _METADATA.sub("", text[first.start() :])
