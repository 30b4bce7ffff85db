"""Options: fields of a planner that a caller sets, and those left to the entry point."""

from __future__ import annotations

from typing import Any

from coop_jax import _ext

DEFAULT_PLANNER = "search"


class _Unset:
    def __repr__(self) -> str:
        return "unset"


_UNSET: Any = _Unset()


class PlanOptions(_ext.PlanOptions):
    """A planner with its switches. Immutable; equal if the same fields are given.

    `PlanOptions()` is the default planner and `PlanOptions(policy=name)` the planner of
    that name, wherever a planner is an argument. A field that is left out has the value
    that the entry point has for a planner given by name:

    * `remat_train_step`, `fit` and `compare`, where XLA places the tensors:
      `limits_live_bytes` is True, `alignment` the target's, `overhead_limit` 10, and
      `packing_effort` 2 million, as the offsets of a plan are not used.
    * `coop_jax.planning`, where the plan places them in one pool: the defaults below.

    The attributes read those defaults where a field is left out.

    Arguments:
        policy: `"search"` (complete plans compared, never worse than the others),
            `"lookahead"` (Coop with exact next uses in place of staleness), `"coop"` (the
            paper), or its baselines `"dtr"` and `"dte"`.
        alignment: every block starts at a multiple of it: a power of two, in bytes, at
            most 2**30. 64.
        sliding_window: (coop) False: one tensor at a time, as in DTE.
        partition: (coop, lookahead) cheap operations' outputs at the high end of the
            pool, the others at the low end. True.
        recomputable_in_place: (coop, lookahead) an output may overwrite an input that is
            needed later but can be recomputed. False: copy on write, unless
            `copy_on_write` says otherwise.
        density_threshold: (coop, lookahead) seconds per byte below which an operation is
            cheap. None: Otsu's split of the graph's operations.
        copy_on_write: every output gets a fresh block, even where it may overwrite an
            input that nothing needs any more, and an overwritten pinned tensor moves.
            None: True for the baselines.
        dtr_neighbourhood: (dtr) `"estar"`, `"eq"` or `"local"`. `"eq"`.
        ignore_small: (dtr) skip tensors below 1 % of the average size. False.
        sampling: (dtr) look at about 2 sqrt(n) of n candidates, drawn with `seed`. False.
        search_effort: (search) operations that may be simulated to find a plan;
            about 20 million a second. A count: the plan is the same everywhere. More
            than 10 million goes on from what these find. 10 million.
        packing_effort: (search) steps of about a nanosecond to find offsets. 200 million.
        limits_live_bytes: (search) the pool's size limits the live bytes; the
            offsets may exceed it: for a compiler that places tensors itself. False.
        seconds: (search) go on until so much time has passed, or the plan is proven to be
            the best, and end then even if `search_effort` is not spent; the plan then
            depends on the machine. Of one plan: `remat_train_step` makes several. None:
            `search_effort` alone ends the search.
        seed: the seed of `sampling` and of the search, in [0, 2**64). 0.
        overhead_limit: a plan that runs more than this many times the program's seconds
            counts as none; at least 1. None: any plan does. The search's plan does not
            depend on it.

    The search passes the switches of the planners that it is compared with on to them.

    Raises:
        TypeError: a field is of another type. NumPy's integers are ints; bools are not.
        ValueError: a field is out of range.
    """

    __slots__ = ("_given",)

    def __init__(
        self,
        *,
        policy: str = _UNSET,
        alignment: int = _UNSET,
        sliding_window: bool = _UNSET,
        partition: bool = _UNSET,
        recomputable_in_place: bool = _UNSET,
        density_threshold: float | None = _UNSET,
        copy_on_write: bool | None = _UNSET,
        dtr_neighbourhood: str = _UNSET,
        ignore_small: bool = _UNSET,
        sampling: bool = _UNSET,
        search_effort: int = _UNSET,
        packing_effort: int = _UNSET,
        limits_live_bytes: bool = _UNSET,
        seconds: float | None = _UNSET,
        seed: int = _UNSET,
        overhead_limit: float | None = _UNSET,
    ) -> None:
        fields = {
            "policy": DEFAULT_PLANNER if policy is _UNSET else policy,
            "alignment": alignment,
            "sliding_window": sliding_window,
            "partition": partition,
            "recomputable_in_place": recomputable_in_place,
            "density_threshold": density_threshold,
            "copy_on_write": copy_on_write,
            "dtr_neighbourhood": dtr_neighbourhood,
            "ignore_small": ignore_small,
            "sampling": sampling,
            "search_effort": search_effort,
            "packing_effort": packing_effort,
            "limits_live_bytes": limits_live_bytes,
            "seconds": seconds,
            "seed": seed,
            "overhead_limit": overhead_limit,
        }
        given = {name: value for name, value in fields.items() if value is not _UNSET}
        super().__init__(**given)
        # As plain Python values: NumPy's types, and 1 in place of 1.0, are converted.
        self._given = {
            name: None if value is None else getattr(self, name)
            for name, value in given.items()
        }

    def filled(self, **defaults: Any) -> PlanOptions:
        """The same options, with an entry point's defaults for fields that were left out.

        Arguments:
            defaults: these fields and their values.
        """
        return PlanOptions(**{**defaults, **self._given})

    def with_fields(self, **fields: Any) -> PlanOptions:
        """The same options, with other values for some fields.

        Arguments:
            fields: these fields and their values.
        """
        return PlanOptions(**{**self._given, **fields})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlanOptions):
            return NotImplemented
        return self._given == other._given

    def __hash__(self) -> int:
        return hash(frozenset(self._given.items()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"PlanOptions({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_fields, (self._given,)


def _with_fields(given: dict[str, Any]) -> PlanOptions:
    return PlanOptions(**given)
