"""Recipe: a step's plan, from which its program can be made again without a compilation.

A step is left as it is, or its loops are planned, or a straight line, or a straight line
around planned loops. A file has the step, to be compared, and what was decided of it; the
program is made anew of the step as it is traced now.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jaxlib

from coop_jax.base.errors import PlanFileError
from coop_jax.base.strict_values import LARGEST_INT64
from coop_jax.emit.hints import NO_HINTS
from coop_jax.emit.inside_readers import InsideReaders, with_inside_readers
from coop_jax.graph.stored_values import StoredValues
from coop_jax.loops.branches_again import with_residuals_inside
from coop_jax.saved.document import Node, PlanFault, contents_of, text_of
from coop_jax.saved.fingerprint import digest, texts_of
from coop_jax.saved.inside_readers import inside_contents, inside_of
from coop_jax.saved.loops import loops_contents, loops_of
from coop_jax.saved.straight_line import StraightLine, check_halved, line_contents, line_of
from coop_jax.saved.subject import Subject
from coop_jax.search.candidates import Candidate
from coop_jax.search.placements import XlaPlacement, unless_unchanged, with_options
from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.targets import target_of
from coop_jax.trace.program import Program

_KEYS = (
    "made_with",
    "summary",
    "figures",
    "step",
    "branches_again",
    "loops",
    "inside_readers",
    "plan",
)
FIGURES: tuple[str, ...] = (
    "budget_bytes",
    "unmodified_bytes",
    "predicted_bytes",
    "measured_bytes",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """What was decided for a step.

    Attributes:
        subject: the step.
        loops: its planned loops; None if they are as written.
        candidate: the plan of the straight line; None if that is as written.
        inside: what the program of that plan makes again inside of readers, if it does.
        branches_again: the program of the step whose gradients run branches again, if the
            plan is of that.
    """

    subject: Subject
    loops: LoopsOfProgram | None = None
    candidate: Candidate | None = None
    inside: InsideReaders | None = None
    branches_again: Program | None = None

    def text(self, summary: str, figures: Mapping[str, int | None]) -> str:
        """The text of the plan's file.

        Arguments:
            summary: the plan as people read it.
            figures: the bytes of `FIGURES`.

        Raises:
            PlanFileError: the plan is of a kind that cannot be saved yet.
        """
        try:
            contents = {
                "made_with": {"jax": jax.__version__, "jaxlib": jaxlib.__version__},
                "summary": summary.splitlines(),
                "figures": {name: figures[name] for name in FIGURES},
                "step": self.subject.contents,
                "branches_again": self.branches_again is not None,
                "loops": self._loops_contents(),
                "inside_readers": inside_contents(self._planned_step(), self.inside),
                "plan": self._line_contents(),
            }
            made = rebuilt(contents, self.subject)
        except PlanFault as fault:
            raise PlanFileError(
                f"`Plan.save(...)` cannot save this plan. {fault}."
            ) from None
        if _digest(made.program) != _digest(self._program()):
            raise PlanFileError(
                "`Plan.save(...)` cannot save this plan: the program made of the file is "
                "not the one that was compiled. This is a bug in coop_jax, please report "
                "it."
            )
        return text_of(contents)

    def _planned_step(self) -> Program:
        """The step that the plan is of."""
        again = self.branches_again
        return self.subject.program if again is None else again

    def _loops_contents(self) -> dict[str, Any] | None:
        return None if self.loops is None else loops_contents(self.loops)

    def _line_contents(self) -> dict[str, Any] | None:
        chosen = self.candidate
        if chosen is None:
            return None
        how = chosen.is_guarded, chosen.ordered_before, chosen.is_for_memory
        return line_contents(StraightLine(chosen.graph, chosen.schedule, *how))

    def _program(self) -> Program | None:
        if self.candidate is not None:
            return self.candidate.realized.program
        return self.branches_again if self.loops is None else self.loops.program


@dataclasses.dataclass(frozen=True, eq=False)
class SavedRecipe:
    """The recipe of a plan that came from a file: its text."""

    saved: str

    def text(self, summary: str, figures: Mapping[str, int | None]) -> str:
        """The text of the file that it came from; arguments as of `Recipe.text`."""
        del summary, figures
        return self.saved


@dataclasses.dataclass(frozen=True, eq=False)
class Rebuilt:
    """A plan of a file.

    Attributes:
        figures: bytes by the names of `FIGURES`.
        loops: the planned loops; None if they are as written.
        candidate: the plan of the straight line; None if that is as written.
        inside: what the program of that plan makes again inside of readers, if it does.
        branches_again: the step whose gradients run branches again, and the `cond`s that
            do, as of `with_residuals_inside`; None if the plan is of the step as written.
    """

    figures: dict[str, int]
    loops: LoopsOfProgram | None
    candidate: Candidate | None
    inside: InsideReaders | None = None
    branches_again: tuple[Program, list[Any]] | None = None

    @property
    def program(self) -> Program | None:
        """What is compiled; None: the step as written."""
        if self.candidate is not None:
            return self.candidate.realized.program
        if self.loops is not None:
            return self.loops.program
        return None if self.branches_again is None else self.branches_again[0]


def rebuilt(contents: dict[str, Any], subject: Subject) -> Rebuilt:
    """The plan of a document, for a step.

    Raises:
        PlanFault: the document is of another step, or no plan.
    """
    nodes = Node(contents, "").fields(*_KEYS)
    made_with, summary, figures_node, step, again_node, *planned = nodes
    loops_node, inside_node, line_node = planned
    for version in made_with.fields("jax", "jaxlib"):
        version.text()
    summary.each(Node.text)
    # What loops are expected to save is no bound: a prediction may be below nothing.
    counts = (count.number(-LARGEST_INT64) for count in figures_node.fields(*FIGURES))
    figures = dict(zip(FIGURES, counts, strict=True))
    subject.check(step)
    target = target_of(subject.device)
    program, loops, candidate, again = subject.program, None, None, None
    if again_node.flag():
        again = with_residuals_inside(program)
        if not again[1]:
            raise again_node.fault("false: the step has no branches to run again")
        program = again[0]
    if loops_node.value is not None:
        realizing = XlaPlacement(subject.backend, NO_HINTS)
        loops = loops_of(loops_node, program, target, realizing)
        program = loops.program
    inside = inside_of(inside_node, program)
    if inside is not None:
        program = with_inside_readers(program, inside)
    if line_node.value is not None:
        line = line_of(line_node, program, target)
        place = subject.backend, subject.device, subject.num_devices
        placement = subject.placing.of_program(program, *place, line.graph.stored)
        made = placement.realize(
            line.graph,
            line.schedule,
            is_guarded=line.is_guarded,
            ordered_before=line.ordered_before,
        )
        if inside is not None:
            made = unless_unchanged(made, line.graph)
        if line.is_for_memory:
            made = with_options(made, subject.backend.options_for_memory)
        candidate = Candidate(
            line.graph,
            line.schedule,
            made,
            figures["predicted_bytes"],
            figures["predicted_bytes"],
            line.is_guarded,
            line.ordered_before,
            line.is_for_memory,
        )
    return Rebuilt(figures, loops, candidate, inside, again)


@dataclasses.dataclass(frozen=True)
class PlanFile:
    """A plan file that was read; what it says of a step is not checked yet.

    Attributes:
        path: its path, for errors.
        text: its text, whose format, version and digest are right.
    """

    path: str
    text: str

    @staticmethod
    def read(path: str | os.PathLike[str], caller: str) -> PlanFile:
        """The file of a path.

        Raises:
            TypeError: the path is none.
            PlanFileError: it cannot be read, or is no plan file of this version.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(
                f"`{caller}(plan=...)` must be the path of a file that `plan.save(path)` "
                f"wrote. Got {path!r} of type {type(path).__name__}."
            )
        name = os.fspath(path)
        try:
            text = pathlib.Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _refused(name, caller, f"It cannot be read: {error}") from None
        return PlanFile.of_text(name, text, caller)

    @staticmethod
    def of_text(path: str, text: str, caller: str) -> PlanFile:
        """A file that was read; as `read`."""
        try:
            contents_of(text)
        except PlanFault as fault:
            raise _refused(path, caller, str(fault)) from None
        return PlanFile(path, text)

    @property
    def made_with(self) -> str:
        """The version of JAX that it was made with."""
        made_with = contents_of(self.text).get("made_with")
        return str(made_with.get("jax")) if isinstance(made_with, dict) else "unknown"

    def plan_of(self, subject: Subject, caller: str) -> Rebuilt:
        """Its plan, for a step.

        Raises:
            PlanFileError: it is of another step, or no plan.
        """
        try:
            return rebuilt(contents_of(self.text), subject)
        except PlanFault as fault:
            raise _refused(self.path, caller, str(fault)) from None

    def check_halved(
        self, made: Rebuilt, stored: Callable[[Program], StoredValues], caller: str
    ) -> None:
        """Check the values that a plan keeps in half precision, as `check_halved` does.

        Raises:
            PlanFileError: XLA keeps one of them whole.
        """
        try:
            if made.candidate is not None:
                check_halved(made.candidate.graph, stored)
        except PlanFault as fault:
            raise _refused(self.path, caller, str(fault)) from None

    def over_budget(
        self, needed_bytes: str, budget_bytes: str, caller: str
    ) -> PlanFileError:
        """The error that XLA needs more for the plan than the budget.

        Arguments:
            needed_bytes, budget_bytes: the bytes, as text.
        """
        return _refused(
            self.path,
            caller,
            f"XLA needs {needed_bytes} for its step with jax {jax.__version__}, of a "
            f"budget of {budget_bytes}; it was made with jax {self.made_with}",
        )


def _refused(path: str, caller: str, fault: str) -> PlanFileError:
    return PlanFileError(
        f"`{caller}(plan={path!r})` cannot use this plan file. {fault}. Plan again without "
        "`plan=`, and save that plan with `plan.save(...)`."
    )


def _digest(program: Program | None) -> str | None:
    return None if program is None else digest(texts_of(program))
