"""The lower bound on recomputation that comes with a plan."""

import itertools

import numpy as np
import pytest
from oracles import exhaustive, random_graphs
from oracles.test_oracles import budgets
from oracles.test_search_is_optimal import recomputable_program
from scipy import optimize, sparse

from coop_jax import _ext, planning

LIVE = _ext.PlanOptions(policy="search", limits_live_bytes=True, search_effort=500_000)


def bound_of(graph, room) -> tuple[float, float] | None:
    """Seconds that the plan recomputes, and that no plan can do without."""
    plan = _ext.plan(graph, room, LIVE)
    if not isinstance(plan, _ext.Schedule):
        return None
    return plan.statistics.recompute_seconds, plan.statistics.recompute_bound_seconds


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_is_below_it(seed):
    graph = recomputable_program(seed).graph()
    for budget in budgets(graph, (0, 0.1, 0.3)):
        found = bound_of(graph, budget)
        optimum = exhaustive.least_recomputation(graph.arrays(), budget)
        if found is not None and optimum is not None:
            assert 0 <= found[1] <= optimum * (1 + 1e-9) <= found[0] * (1 + 1e-6)


def test_what_has_to_go_is_what_is_paid():
    """Two values wait while a third operation needs the room of one of them."""
    tensors = {
        "x": {"bytes": 0, "external": True},
        **{name: {"bytes": 1 << 20} for name in ("a", "b", "c", "d")},
        "e": {"bytes": 1 << 20, "output": True},
    }
    operations = [
        {"seconds": seconds, "inputs": inputs, "outputs": [output]}
        for seconds, inputs, output in (
            (3.0, ["x"], "a"),
            (2.0, ["x"], "b"),
            (1.0, ["x"], "c"),
            (1.0, ["c"], "d"),
            (1.0, ["a", "b", "d"], "e"),
        )
    ]
    graph, _ = planning.named_graph(tensors, operations)
    assert bound_of(graph, 4 << 20) == (0, 0)
    tight = planning.named_graph(
        {**tensors, "e": {"bytes": 64, "output": True}}, operations
    )[0]
    # `c` and `d` leave room for one of the two; the cheaper one is made again.
    room = (3 << 20) + 64
    recomputed, bound = bound_of(tight, room)
    assert recomputed == 2
    assert bound == pytest.approx(2, rel=0.02)


def relaxation(graph, room) -> float:
    """The linear program that the bound approaches, by HiGHS."""
    a = graph.arrays()
    num_ops = graph.num_ops
    reads = [
        a["op_inputs"][a["op_inputs_ptr"][i] : a["op_inputs_ptr"][i + 1]]
        for i in range(num_ops)
    ]
    uses: dict[int, list[int]] = {t: [t] for t in range(num_ops)}  # Made by operation t.
    for op, inputs in enumerate(reads):
        for t in inputs:
            uses[int(t)].append(op)
    for t in np.flatnonzero(a["tensor_output"]):
        uses[int(t)].append(num_ops)
    gaps = [
        (t, begin, end)
        for t, at in uses.items()
        for begin, end in itertools.pairwise(at)
        if end - begin >= 2
    ]
    idle = sparse.lil_matrix((num_ops, len(gaps)))
    for column, (t, begin, end) in enumerate(gaps):
        idle[begin + 1 : end, column] = a["tensor_bytes"][t]
    own = np.array([a["tensor_bytes"][[*reads[op], op]].sum() for op in range(num_ops)])
    kept = np.asarray(idle.sum(axis=1)).ravel() + own - room
    found = optimize.linprog(
        [graph.op_seconds[t] for t, _, _ in gaps],
        A_ub=-idle.tocsr(),
        b_ub=-kept,
        bounds=(0, 1),
    )
    return found.fun if found.status == 0 else np.inf


@pytest.mark.parametrize("family", ["layered", "u_shaped", "step"])
@pytest.mark.parametrize("share", [0.95, 0.9, 0.7])
def test_it_is_nearly_that_of_the_linear_program(family, share):
    graph = random_graphs.FAMILIES[family](60, 1)
    room = int(share * _ext.unconstrained(graph, LIVE).statistics.max_live_bytes)
    found = bound_of(graph, room)
    if found is None:
        pytest.skip("no plan for so little")
    recomputed, bound = found
    exact = relaxation(graph, room)
    assert bound <= exact * (1 + 1e-6)
    assert bound >= 0.9 * min(exact, recomputed)
