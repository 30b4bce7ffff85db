"""Size search: the largest of several sizes whose step keeps a budget.

The bytes of the smallest plan are a fixed part, of arguments and results, and a part that
grows with the size. How it grows is known without a compilation, from the step's own shapes
(`sized_step.Estimate`); by which factor XLA's figure exceeds that, a compilation shows. So
a size is predicted, compiled, and predicted again from its figure, between the largest size
that is known to fit and the smallest that is known not to.

Of a step with loops only a whole search shows what its smallest plan needs. So the size
that is predicted to fit is planned, and if it does not fit, the error has that figure: a
miss takes as many compilations as a plan. Such figures scatter from size to size: of the
sizes that may fit for all that, the largest is planned, too.

The search ends: every size that is tried lies between those two and becomes one of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np

from coop_jax.api.sized_step import SizedStep
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.fitted_step import FittedStep
from coop_jax.search.candidates import MAX_TIGHTEST

# Compilations of other sizes than the answer, beyond which no larger size is tried. Of a
# step with loops: the sizes.
MAX_OF_OTHER_SIZES = 4
# The part of the estimate that is assumed after each size of a step with loops that fits,
# as long as none shows XLA's figure of its smallest plan by not fitting.
_PART_OF_ESTIMATE = 0.7
# The part of the figure of another size by which one with loops may need less.
_SCATTER = 0.1


class SizeSearch:
    """The search for the largest size.

    Attributes:
        steps: by index of the size, those that were traced.

    Arguments:
        sizes: increasing.
        make: returns the step of a size.
        budget_bytes: the budget.
    """

    def __init__(
        self, sizes: Sequence[int], make: Callable[[int], SizedStep], budget_bytes: int
    ) -> None:
        self.steps: dict[int, SizedStep] = {}
        self._sizes = sizes
        self._make = make
        self._budget_bytes = budget_bytes
        self._fits = -1  # The largest index that is known to fit.
        self._misses = len(sizes)  # The smallest that is known not to.
        self._known_to_fit: list[int] = []
        self._is_looped = False
        self._scatter = 0.0  # The part by which a figure is taken to be less.
        self._was_scatter_tried = False

    @property
    def num_compilations(self) -> int:
        """Compilations by XLA of the steps of all sizes."""
        return sum(step.num_compilations for step in self.steps.values())

    def run(self) -> tuple[int, FittedStep]:
        """The index of the largest size that was found to fit, and its step.

        Raises:
            InfeasibleBudgetError: of the smallest size, if that does not fit.
        """
        first = self.step(self._predicted())
        first.read()
        self._is_looped = first.is_looped
        while True:
            self._close_in()
            if self._fits < 0:
                return 0, self.step(0).fit(self._budget_bytes)  # Or its error.
            try:
                return self._fits, self.step(self._fits).fit(self._budget_bytes)
            except InfeasibleBudgetError:  # Its plan as a whole is searched otherwise.
                self._misses = self._known_to_fit.pop()
                self._fits = max(self._known_to_fit, default=-1)

    def step(self, index: int) -> SizedStep:
        """The step of a size; made once."""
        if index not in self.steps:
            self.steps[index] = self._make(self._sizes[index])
        return self.steps[index]

    def _close_in(self) -> None:
        """Try sizes until none is left between those that fit and those that do not, or no
        more may be compiled."""
        while self._misses - self._fits > 1:
            index = self._next()
            if self._fits >= 0 and not self._may_try(index):
                further = self._next_by_scatter()
                if further is None:
                    return
                index = further
            # What missed says what this one needs. Beside a size that fits the smallest
            # plan is enough, and a miss would cost one compilation more.
            is_expected = self._fits < 0 and self._misses < len(self._sizes)
            if self.step(index).keeps(self._budget_bytes, is_expected=is_expected):
                self._fits = index
                self._known_to_fit.append(index)
            else:
                self._misses = index

    def _next(self) -> int:
        """The size to be tried next: the largest that is predicted to fit, at least one
        more than the largest that fits."""
        index = max(self._predicted(), self._fits + 1)
        has_missed_all = self._fits < 0 and self._misses < len(self._sizes)
        may_be_less = has_missed_all and index > 0 and not self._is_looped
        return index - 1 if may_be_less and self._is_doubtful(index) else index

    def _next_by_scatter(self) -> int | None:
        """The largest size of a step with loops that fits if figures are as much too large
        as they may be; None: there is none, or one was tried. A second would take as many
        compilations again, and the figure of the first is at hand."""
        if not self._is_looped or self._was_scatter_tried:
            return None
        self._was_scatter_tried, self._scatter = True, _SCATTER
        index = self._next()
        may_try = self._may_try(index)
        self._scatter = 0.0
        return index if may_try else None

    def _is_doubtful(self, index: int) -> bool:
        """Whether a predicted size leaves less than half an item free: after a miss, as a
        second one would cost as much as a plan."""
        predicted_bytes = self._predicted_bytes(index)
        item_bytes = self._predicted_bytes(index + 1) - predicted_bytes
        return predicted_bytes + item_bytes // 2 > self._budget_bytes

    def _may_try(self, index: int) -> bool:
        """Whether the compilations of other sizes than the answer stay few, whether this
        size fits or not."""
        if self._is_looped:
            is_predicted = self._predicted_bytes(index) <= self._budget_bytes
            num_planned = sum(step.num_compilations > 0 for step in self.steps.values())
            return is_predicted and num_planned <= MAX_OF_OTHER_SIZES
        others = self.num_compilations
        of_next = self.steps[index].num_compilations if index in self.steps else 0
        if_it_fits = others - of_next
        if_it_misses = others - self.step(self._fits).num_compilations
        if_it_misses += 1 + MAX_TIGHTEST - of_next
        return max(if_it_fits, if_it_misses) <= MAX_OF_OTHER_SIZES

    def _predicted(self) -> int:
        """The largest index between the two ends that is predicted to fit, or the lower
        end."""
        low, high = self._fits, self._misses
        points: dict[int, int] = {}
        while high - low > 1:
            index = self._between(low, high, points)
            points[index] = self._predicted_bytes(index)
            if points[index] <= self._budget_bytes:
                low = index
            else:
                high = index
        return max(low, 0)

    def _between(self, low: int, high: int, points: dict[int, int]) -> int:
        """The index where the line through the two points next to the budget meets it.

        Every third is the middle instead, or twice the lower end as long as no size is
        predicted not to fit: bytes need not grow in a line.
        """
        index = low + 1
        near = sorted(points, key=lambda i: abs(points[i] - self._budget_bytes))[:2]
        if len(near) == 2:
            index = self._on_line(min(near), max(near), points)
        if len(points) % 3 == 2:
            index = (low + high) // 2 if high in points else max(index, 2 * (low + 1))
        return min(max(index, low + 1), high - 1)

    def _on_line(self, first: int, second: int, points: dict[int, int]) -> int:
        rise = points[second] - points[first]
        if rise <= 0:
            return second
        part = (self._budget_bytes - points[first]) / rise
        size = self._sizes[first] + part * (self._sizes[second] - self._sizes[first])
        return bisect.bisect_right(self._sizes, size) - 1

    def _predicted_bytes(self, index: int) -> int:
        """The bytes of a size's smallest plan, from its estimate and from what XLA needed
        for others."""
        fixed_bytes, pool_bytes = self.step(index).estimate
        return fixed_bytes + round(self._factor(index) * pool_bytes)

    def _factor(self, index: int) -> float:
        """By how much XLA's figure exceeds the estimate: as at the next size that was
        compiled, and on a line between two."""
        compiled = {i: s for i, s in self.steps.items() if s.bytes is not None}
        measured = {i: s for i, s in compiled.items() if s.is_measured}
        factors = {i: _factor_of(s) for i, s in sorted((measured or compiled).items())}
        if not factors:
            return _PART_OF_ESTIMATE ** len(self._known_to_fit)
        at = [self._sizes[i] for i in factors]
        factor = float(np.interp(self._sizes[index], at, list(factors.values())))
        return factor * (1 - self._scatter)


def _factor_of(step: SizedStep) -> float:
    fixed_bytes, pool_bytes = step.estimate
    assert step.bytes is not None, "it was compiled"
    if pool_bytes <= 0 or step.bytes <= fixed_bytes:
        return 1
    return (step.bytes - fixed_bytes) / pool_bytes
