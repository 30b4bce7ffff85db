"""Compare: a step as written, with `jax.checkpoint` by policy, and with coop_jax."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from coop_jax.api.frontends import equinox, flax_nnx
from coop_jax.base.budget import check_budget, format_bytes
from coop_jax.comparison.checkpoint_policies import Policy, Wrap, default_policies
from coop_jax.comparison.table import Comparison, Row, at, optimal
from coop_jax.comparison.variants import REFUSED, Versions
from coop_jax.targets import target_of
from coop_jax.xla.absent_devices import named_device, placed

SMALLEST = "coop_jax, smallest"
_BY_DEFAULT = "{}, XLA's defaults"
# A row of coop_jax that undercuts a policy in bytes by less than this part, and in time,
# replaces a row at exactly the policy's bytes: every row takes compilations.
_SAME_BYTES = 0.1


def compare(
    make_step: Callable[[Wrap], Callable],
    *args: Any,
    policies: Mapping[str, Policy] | None = None,
    target: str | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    budgets: Sequence[int | str] | None = None,
    planner: Any = None,
    measure_seconds: bool = False,
    known_rows: Iterable[Row] = (),
    on_row: Callable[[Row], None] | None = None,
    verbose: bool = False,
) -> Comparison:
    """Compare a training step under `jax.checkpoint` policies and under coop_jax.

    The step is made once per policy, its blocks wrapped as one would by hand::

        def make_step(wrap):
            block = wrap(apply_block)  # a function
            Layer = wrap(TransformerLayer, remat=nn.remat, static_argnums=(2,))  # Flax
            def train_step(state, batch): ...
            return train_step

        print(coop_jax.compare(make_step, state, batch, donate_argnums=0))

    `wrap(block, remat=jax.checkpoint, **options)` is the block itself for the unmodified
    step and for coop_jax, and `remat(block, policy=policy, **options)` for a policy.

    Rows: the step as written; each policy; coop_jax at the smallest budget that works,
    with the bytes of policies as its budget, and half way in between (on a logarithmic
    scale). Policies that others beat in bytes and time get no row of coop_jax at their
    bytes; neither does one that is beaten in both by a row of coop_jax that needs nearly
    as many bytes. Bytes are XLA's figures for compiled steps. Operations are counted in
    the jaxprs, recomputation included. Versions are compared by what each executable
    consists of: the seconds of its own instructions at the target's rates, beside the
    FLOPs of its products. A second figure prices the operations of the unmodified step,
    each at the target's roofline, times the number of its executions in a version: what
    the planner believes. On CPU, XLA may undo
    `jax.checkpoint`; its rows are compiled with
    `xla_disable_hlo_passes=cse_barrier_expander`, and one row without.

    Arguments:
        make_step: `make_step(wrap)` returns the step: a pure function of pytrees of
            arrays, its gradients and optimizer update included.
        *args: the step's arguments: pytrees of arrays, or of `jax.ShapeDtypeStruct`s if
            nothing is run.
        policies: `jax.checkpoint` policies by name. None: nothing_saveable,
            dots_saveable, dots_with_no_batch_dims_saveable and, if values of the step
            have names (`jax.ad_checkpoint.checkpoint_name`), those that save by name.
        target: name of a device to compile for, which may be absent, such as `"h200"`;
            None for the one that the arguments are on.
        donate_argnums: as in `jax.jit`: the arguments that the step replaces.
        budgets: further budgets for coop_jax, as `remat_train_step` takes them, in place
            of the smallest and of the one in between. `()`: none.
        planner: as in `remat_train_step`; None for its default.
        measure_seconds: run every version in turns with the unmodified step.
        known_rows: rows of an earlier, interrupted comparison; not made again.
        on_row: called with every new row as soon as it is made.
        verbose: print a line to stderr for every compilation.

    Returns:
        A `Comparison`: prints as a table, `.markdown()`, `.plot(path)`, `.rows`.

    Raises:
        TypeError, ValueError: if an argument is malformed, or `make_step` ignores `wrap`.
    """
    _check(make_step, policies, args, target, measure_seconds)
    extra = (
        None if budgets is None else [check_budget(budget, "compare") for budget in budgets]
    )
    nums = (donate_argnums,) if isinstance(donate_argnums, int) else donate_argnums
    args = _placed(args, target)
    versions = Versions(
        make_step, args, tuple(nums or ()), planner, measure_seconds, verbose
    )
    if policies is None:
        policies = default_policies(versions.names)
    known = {row.name: row for row in known_rows}
    rows: list[Row] = []

    def add(name: str, make: Callable[[], Row]) -> Row:
        row = known.get(name)
        if row is None:
            row = make()
            if on_row is not None:
                on_row(row)
        rows.append(row)
        return row

    def add_planned(name: str, budget: int | str) -> Row:
        return add(name, lambda: versions.planned(name, budget))

    unmodified = add("unmodified", versions.unmodified)
    for name, policy in policies.items():
        add(name, lambda name=name, policy=policy: versions.checkpoint(name, policy))
    by_policy = [row for row in rows if row.name in policies and row.note != REFUSED]
    if versions.backend.checkpoint_options and by_policy:
        tightest = min(by_policy, key=_bytes).name
        name = _BY_DEFAULT.format(tightest)
        add(name, lambda: versions.checkpoint_by_default(name, policies[tightest]))
    if extra is None:
        smallest = add(SMALLEST, lambda: versions.smallest(SMALLEST))
        start = min(map(_bytes, by_policy), default=_bytes(unmodified))
        budget = round((_bytes(smallest) * start) ** 0.5)
        if _bytes(smallest) < (1 - _SAME_BYTES) * budget:
            add_planned(at(f"{budget / _bytes(unmodified):.1%}"), budget)
    else:
        for budget in extra:
            shown = budget if isinstance(budget, str) else format_bytes(budget)
            add_planned(at(shown), budget)
    todo, done = optimal(by_policy), set()
    while todo:
        for row in sorted(todo, key=_bytes):
            done.add(row.name)
            if not any(_stands_for(ours, row) for ours in rows):
                add_planned(at(row.name), _bytes(row))
        # A policy that is undercut by another need not be beaten by a row that beats that
        # one: no row may beat that one.
        todo = optimal(
            row
            for row in by_policy
            if row.name not in done and not any(_beats(ours, row) for ours in rows)
        )
    return Comparison(target_of(versions.device).name, tuple(rows))


def _beats(ours: Row, policy: Row) -> bool:
    return ours.kind == "coop_jax" and ours.beats(policy)


def _stands_for(ours: Row, policy: Row) -> bool:
    """Whether it is a row of coop_jax that beats the policy, with nearly all its bytes."""
    return _beats(ours, policy) and _bytes(ours) >= (1 - _SAME_BYTES) * _bytes(policy)


def _bytes(row: Row) -> int:
    """The bytes that a row's step needs, or its budget where that is infeasible."""
    known = row.budget_bytes if row.measured_bytes is None else row.measured_bytes
    assert known is not None
    return known


def _placed(args: tuple, target: str | None) -> tuple:
    return args if target is None else placed(args, named_device(target))


def _check(make_step, policies, args, target, measure_seconds) -> None:
    """Refuse arguments of `compare` that cannot be compared, before any compilation."""
    if not callable(make_step):
        raise TypeError(
            "`compare(make_step, ...)` must be given a callable that takes `wrap` and "
            f"returns the step. Got {make_step!r} of type {type(make_step).__name__}."
        )
    if flax_nnx.has_nodes(args) or equinox.has_modules(args):
        raise TypeError(
            "`compare(make_step, *args)` must be given steps that are pure functions of "
            "pytrees of arrays. Got objects of Flax NNX or Equinox among the arguments. "
            "Pass their arrays, from `nnx.split` or `equinox.partition`, and put the "
            "objects together again inside of the step."
        )
    if policies is not None:
        if not isinstance(policies, Mapping):
            raise TypeError(
                "`compare(policies=...)` must be a dict from names to policies of "
                "`jax.checkpoint_policies`, or None. Got "
                f"{policies!r} of type {type(policies).__name__}."
            )
        for name, policy in policies.items():
            if not callable(policy):
                raise TypeError(
                    "`compare(policies=...)` must map names to policies, which are "
                    "callables such as `jax.checkpoint_policies.nothing_saveable`. Got "
                    f"{policy!r} for {name!r}."
                )
            if name == "unmodified" or name.startswith("coop_jax"):
                raise ValueError(
                    "`compare(policies=...)` must not name a policy like another row. "
                    f"Got {name!r}. Choose another name."
                )
    if measure_seconds:
        shapes = [x for x in jax.tree.leaves(args) if isinstance(x, jax.ShapeDtypeStruct)]
        if shapes or target not in (None, "cpu"):
            got = f"target={target!r}" if not shapes else f"{shapes[0]}"
            raise ValueError(
                "`compare(measure_seconds=True)` runs the steps, so it needs arrays on a "
                f"device that is there. Got {got}. Give arrays and no `target`, or leave "
                "`measure_seconds` out: seconds are modelled either way."
            )
