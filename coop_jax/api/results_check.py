"""Results check: results of a planned step compared with those of the step as written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_LINES_IN_REPORT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one result from that of the step as written.

    Attributes:
        path: the result's path in the results, such as `[0]['params']['kernel']`; of a step
            with objects of Flax NNX such as `args[0].layer.kernel` or `result['loss']`.
        dtype: its type.
        shape: its shape, a number of elements per dimension.
        largest: the largest absolute difference of two elements; infinite where only one
            of the two is a number.
        relative: `largest` over the largest absolute value of the step as written.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    largest: float
    relative: float


@dataclasses.dataclass(frozen=True)
class Check:
    """The results of a planned step compared with those of the step as written; prints as
    a short report.

    Attributes:
        differences: one for every leaf of the results, the largest relative one first.
        is_unmodified: whether the step fits as written, so that nothing was compared but
            two runs of it.
    """

    differences: tuple[Difference, ...]
    is_unmodified: bool = False

    @property
    def largest_relative(self) -> float:
        """The largest relative difference of any result; 0.0 if all bits agree."""
        return max((d.relative for d in self.differences), default=0.0)

    def __str__(self) -> str:
        equal = sum(d.largest == 0 for d in self.differences)
        lines = [
            f"coop_jax check: {equal} of {len(self.differences)} results are equal, "
            f"largest relative difference {self.largest_relative:.2g}"
            + (" (the step fits as written)" if self.is_unmodified else "")
        ]
        unequal = [d for d in self.differences if d.largest > 0]
        lines += [
            f"  {d.relative:8.2g} relative, {d.largest:8.2g} absolute: "
            f"{d.path or 'the result'} {d.dtype}{list(d.shape)}"
            for d in unequal[:_LINES_IN_REPORT]
        ]
        hidden = len(unequal) - _LINES_IN_REPORT
        if hidden > 0:
            lines.append(f"  and {hidden} more")
        return "\n".join(lines)

    __repr__ = __str__


def check_results(
    as_written: Callable[[], Any], planned: Callable[[], Any], *, is_unmodified: bool
) -> Check:
    """The differences of all results, after running both steps.

    One after the other: the first one's results are on the host when the second runs.

    Arguments:
        as_written, planned: run the steps and return their results, pytrees of arrays.
        is_unmodified: whether the planned step is the step as written.
    """
    expected = [(path, _on_host(leaf)) for path, leaf in _leaves(as_written())]
    found = [_on_host(leaf) for _, leaf in _leaves(planned())]
    differences = [
        _difference(jax.tree_util.keystr(path), a, b)
        for (path, a), b in zip(expected, found, strict=True)
    ]
    differences.sort(key=lambda d: -d.relative)
    return Check(tuple(differences), is_unmodified)


def named(check: Check, name_of: Callable[[str], str | None]) -> Check:
    """A check whose results have other names.

    Arguments:
        check: the check.
        name_of: the name for a path; None to leave the result out.
    """
    differences = tuple(
        dataclasses.replace(each, path=name)
        for each in check.differences
        if (name := name_of(each.path)) is not None
    )
    return dataclasses.replace(check, differences=differences)


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree)


def _on_host(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _difference(path: str, expected: np.ndarray, found: np.ndarray) -> Difference:
    """The largest difference of two leaves, also relative to the largest finite number."""
    if expected.dtype == jax.dtypes.float0 or not expected.size:
        return Difference(path, str(expected.dtype), expected.shape, 0.0, 0.0)
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = expected.astype(wide), found.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    apart = np.where(np.isnan(apart), np.inf, apart)
    largest = float(apart.max())
    finite = np.abs(a[np.isfinite(a)])
    scale = float(finite.max(initial=0.0))
    relative = largest / scale if scale else largest
    return Difference(path, str(expected.dtype), expected.shape, largest, relative)
