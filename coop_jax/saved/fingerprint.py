"""Fingerprint: an equation as text that is the same in every process.

Two equations with equal texts compute the same of the same operands. Operands are named by
the equations that make them, so that equal lists of texts are equal programs. Source lines
and name scopes are no part of it; values of captured arrays are none either, as a plan does
not depend on them.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.trace.program import Program

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Names:
    """Names of the values of a list of equations: `in3`, `eqn12`, and `eqn12.1` for the
    second result.

    Arguments:
        inputs: variables that the equations are given.
        eqns: the equations.
    """

    def __init__(self, inputs: Iterable[Any], eqns: Iterable[Any]) -> None:
        self._names: dict[Any, str] = {}
        for number, var in enumerate(dict.fromkeys(inputs)):
            self._names[var] = f"in{number}"
        for index, eqn in enumerate(eqns):
            for number, var in enumerate(eqn.outvars):
                if not isinstance(var, DropVar):
                    self._names[var] = f"eqn{index}" + (f".{number}" if number else "")

    @staticmethod
    def of(program: Program) -> Names:
        """The names of a program's values; its constants are the first inputs."""
        return Names([*program.constvars, *program.invars], program.eqns)

    def of_value(self, var: Any) -> str:
        """The name of a variable."""
        return self._names[var]

    def values(self) -> dict[str, Any]:
        """The variables by their names."""
        return {name: var for var, name in self._names.items()}

    def atom(self, atom: Any) -> str:
        """The name of an operand, or its value if it is a literal."""
        if not isinstance(atom, Literal):
            return self._names[atom]
        value = np.asarray(atom.val) if not _compat.is_extended(atom.aval) else atom.val
        is_scalar = isinstance(value, np.ndarray) and value.ndim == 0
        return f"{value.item()!r}:{atom.aval}" if is_scalar else f"literal:{atom.aval}"


def texts_of(program: Program) -> list[str]:
    """The text of every equation of a program, and one of what it takes and returns."""
    names = Names.of(program)
    texts = [_text(eqn, names) for eqn in program.eqns]
    return [*texts, _signature(program.constvars, program.invars, program.outvars, names)]


def digest(texts: Iterable[str]) -> str:
    """A digest of texts, in their order: 64 hexadecimal digits."""
    found = hashlib.sha256()
    for text in texts:
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()


def described(eqn: Any) -> str:
    """An equation for people: `dot_general f32[8,4] f32[4,2] -> f32[8,2]`."""
    reads = " ".join(_short(v) for v in eqn.invars)
    writes = " ".join(_short(v) for v in eqn.outvars)
    return f"{eqn.primitive.name} {reads} -> {writes}"


def stable(value: Any) -> str:
    """A parameter as text without addresses."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if _compat.is_jaxpr(value):
        return _jaxpr_text(value)
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, np.ndarray | jax.Array):
        return f"array {value.dtype}{list(value.shape)}"
    if isinstance(value, np.generic):
        return f"{value.item()!r}:{value.dtype}"
    if isinstance(value, jax.sharding.Sharding):
        return sharding_text(value)
    return _structured(value)


def sharding_text(sharding: Any) -> str:
    """A sharding by the shape of its mesh, and not by its devices."""
    kind = f" {sharding.memory_kind}" if sharding.memory_kind == "pinned_host" else ""
    is_named = isinstance(sharding, jax.sharding.NamedSharding)
    is_abstract = is_named and isinstance(sharding.mesh, jax.sharding.AbstractMesh)
    if not is_abstract and len(sharding.device_set) == 1:
        return f"one device{kind}"
    if is_named:
        axes = " ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
        types = getattr(sharding.mesh, "axis_types", ())
        return f"{sharding.spec} of {axes} {stable(tuple(types or ()))}{kind}"
    return f"{type(sharding).__name__} over {len(sharding.device_set)} devices{kind}"


def _structured(value: Any) -> str:
    """Containers and records by their parts, functions by their names, else `repr`."""
    name = type(value).__name__
    if isinstance(value, Mapping):
        items = sorted((stable(k), stable(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in items) + "}"
    if isinstance(value, set | frozenset):
        return f"{name}({', '.join(sorted(map(stable, value)))})"
    if isinstance(value, tuple | list):
        return f"{name}({', '.join(map(stable, value))})"
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return f"{name}{stable(fields)}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))


def _jaxpr_text(closed: Any) -> str:
    jaxpr, _ = _compat.open_jaxpr(closed)
    names = Names([*jaxpr.constvars, *jaxpr.invars], jaxpr.eqns)
    texts = [_text(eqn, names) for eqn in jaxpr.eqns]
    texts.append(_signature(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, names))
    return f"jaxpr {digest(texts)}"


def _signature(
    constvars: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any], names: Names
) -> str:
    given = " ".join(str(v.aval) for v in [*constvars, *invars])
    return f"{given} -> {' '.join(map(names.atom, outvars))}"


def _text(eqn: Any, names: Names) -> str:
    params = ", ".join(f"{k}={stable(v)}" for k, v in sorted(eqn.params.items()))
    operands = " ".join(f"{names.atom(v)}:{v.aval}" for v in eqn.invars)
    results = " ".join(
        f"_:{v.aval}" if isinstance(v, DropVar) else str(v.aval) for v in eqn.outvars
    )
    effects = sorted(_ADDRESS.sub("", str(effect)) for effect in eqn.effects)
    context = stable(_compat.lowering_context(eqn))
    return f"{eqn.primitive.name}[{params}] {operands} -> {results} {effects} {context}"


def _short(atom: Any) -> str:
    aval = atom.aval
    return aval.str_short() if hasattr(aval, "str_short") else str(aval)
