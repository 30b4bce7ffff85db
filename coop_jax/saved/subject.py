"""Subject: the step that a plan is of, and the first difference from that of a file."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from coop_jax.backends.backend import Backend
from coop_jax.base import _compat, _compat_jit
from coop_jax.compile.traced_step import TracedStep
from coop_jax.plan.planner import PlanOptions
from coop_jax.saved.document import Node, PlanFault
from coop_jax.saved.fingerprint import described, digest, sharding_text, texts_of
from coop_jax.search.placements import Placing
from coop_jax.targets import known_target
from coop_jax.trace.program import Program

# Hexadecimal digits of the digest of one equation.
_DIGITS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A step that a plan is of; it holds none of the step's arguments.

    Attributes:
        program: the flat program.
        backend, device, num_devices: as of `TracedStep`.
        placing: the placement of planned tensors.
        planner: as of `remat_train_step`.
        arguments, results: a line for each: type, donation, sharding.
        jit_options: the options of `jax.jit` that change what is compiled.
    """

    program: Program
    backend: Backend
    device: Any
    num_devices: int
    placing: Placing
    planner: str | PlanOptions
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    jit_options: dict[str, Any]

    @staticmethod
    def of(traced: TracedStep, planner: str | PlanOptions, placing: Placing) -> Subject:
        asked, asked_out = _compat_jit.leaf_shardings(traced.traced)
        leaves = traced.leaves(traced.args, traced.kwargs)
        infos = jax.tree.leaves(
            traced.traced.args_info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo)
        )
        arguments = tuple(
            _argument(leaf, info.donated, sharding)
            for leaf, info, sharding in zip(leaves, infos, asked, strict=True)
        )
        outvars = _compat.open_jaxpr(traced.traced.jaxpr)[0].outvars
        results = tuple(
            f"{v.aval}, {_placed(sharding)}"
            for v, sharding in zip(outvars, asked_out, strict=True)
        )
        options = traced.jit_options
        compiler = options.get("compiler_options") or {}
        jit_options = {
            "keep_unused": bool(options.get("keep_unused")),
            "compiler_options": {k: str(v) for k, v in sorted(compiler.items())},
        }
        return Subject(
            traced.program,
            traced.backend,
            traced.device(),
            traced.num_devices(),
            placing,
            planner,
            arguments,
            results,
            jit_options,
        )

    @property
    def target(self) -> str:
        """The device's name in the table of targets, or else its own `device_kind`."""
        known = known_target(self.device)
        if known is not None:
            return known.name
        kind = self.device.device_kind
        return kind if kind == self.device.platform else f"{self.device.platform} {kind}"

    @functools.cached_property
    def equations(self) -> list[list[str]]:
        """By equation a digest, what it is, and its line; and a digest of the signature."""
        texts = texts_of(self.program)
        shown = [[described(eqn), _compat.source_line(eqn)] for eqn in self.program.eqns]
        shown.append(["the step's inputs and results", ""])
        return [
            [digest([text])[:_DIGITS], *names]
            for text, names in zip(texts, shown, strict=True)
        ]

    @functools.cached_property
    def contents(self) -> dict[str, Any]:
        """The step as a part of a document."""
        return {
            "target": self.target,
            "devices": self.num_devices,
            "planner": str(self.planner),
            "placement": self.placing.name,
            **self.jit_options,
            "arguments": list(self.arguments),
            "results": list(self.results),
            "equations": self.equations,
        }

    def check(self, node: Node) -> None:
        """Compare with the step of a file.

        Raises:
            PlanFault: names the first difference.
        """
        target, devices, planner, placement, keep, compiler, *rest = node.fields(
            *self.contents
        )
        if target.text() != self.target:
            raise PlanFault(
                f"It was made for the target {target.value!r}, and the step is for "
                f"{self.target!r}"
            )
        _same("number of devices", devices.number(1), self.num_devices)
        _same("`planner`", planner.text(), str(self.planner))
        _same("`placement`", placement.text(), self.placing.name)
        _same("`keep_unused`", keep.flag(), self.jit_options["keep_unused"])
        _same("`compiler_options`", compiler.value, self.jit_options["compiler_options"])
        arguments, results, equations = rest
        _same_lines("argument", arguments, self.arguments)
        self._check_equations(equations)
        _same_lines("result", results, self.results)

    def _check_equations(self, node: Node) -> None:
        rows = [[item.text() for item in row.row(3)] for row in node.items()]
        if not rows:
            raise node.fault("a list of the step's equations")
        ours = self.equations
        for index, (theirs, own) in enumerate(zip(rows, ours, strict=False)):
            if theirs[0] == own[0]:
                continue
            if index >= min(len(rows), len(ours)) - 1 and len(rows) != len(ours):
                break
            raise PlanFault(
                f"Equation {index} of the step differs: the file has {_shown(theirs)}, the "
                f"step {_shown(own)}{_of_same_text(theirs, own)}"
            )
        _same("number of equations", len(rows) - 1, len(ours) - 1)


def _argument(leaf: Any, is_donated: bool, asked: Any) -> str:
    aval = _compat_jit.abstract_value(leaf)
    given = None if _compat.is_traced([leaf]) else getattr(leaf, "sharding", None)
    donated = ", donated" if is_donated else ""
    return f"{aval}, {_placed(given if asked is None else asked)}{donated}"


def _placed(sharding: Any) -> str:
    if not isinstance(sharding, jax.sharding.Sharding):
        return "one device" if sharding is None else str(sharding)
    return sharding_text(sharding)


def _same(what: str, theirs: Any, own: Any) -> None:
    if type(theirs) is not type(own) or theirs != own:
        raise PlanFault(f"The {what} differs: the file has {theirs!r}, the step {own!r}")


def _same_lines(what: str, node: Node, own: tuple[str, ...]) -> None:
    for index, (line, expected) in enumerate(zip(node.items(), own, strict=False)):
        if line.text() != expected:
            raise PlanFault(
                f"The {what} {index} differs: the file has `{line.value}`, the step "
                f"`{expected}`"
            )
    _same(f"number of {what}s", len(node.items()), len(own))


def _shown(row: list[str]) -> str:
    return f"`{row[1]}`" + (f" at {row[2]}" if row[2] else "")


def _of_same_text(theirs: list[str], own: list[str]) -> str:
    if theirs[1] != own[1]:
        return ""
    return ", with other parameters or of other operands"
