"""The script that measures the planners against the optimum."""

import optimality_gap

from coop_jax import planning


def test_rows_of_a_small_graph():
    graph = optimality_gap.random_graph(10, 0)
    rows = list(optimality_gap.rows(graph, time_limit=20))
    assert len(rows) >= 2
    for (num_ops, _, _, least, optimum, _, *planners), gap in rows:
        assert gap is None or gap >= 0
        assert num_ops == "10"
        assert float(least) <= float(optimum)
        assert len(planners) == len(planning.POLICIES)
        for seconds in planners:
            assert (
                seconds == "–"
                or seconds.endswith("+")
                or (float(seconds) >= float(optimum))
            )
