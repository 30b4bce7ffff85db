"""The experiment: its rows against an independent replay, its table, its resuming."""

import dataclasses

import jax
import pytest
from paper import experiment, records, reproduce, summary, table
from paper.experiment import COMPARED, METHODS, Model
from paper.networks import NETWORKS, Scale
from paper.replay import replay

from coop_jax import planning

# Small enough to be traced in a second or two.
SMALL = ("unet", "resnet50", "swin")
LONGEST = ("inception_v3", "spos", "bert_large")  # To plan.


def check(row, graph):
    """`row` against the replay of a plan made anew."""
    options = experiment.options(row.method)
    schedule = planning.plan_graph(graph.core, row.pool_bytes, options)
    replayed = dataclasses.asdict(replay(graph.core, schedule))
    measured = dataclasses.asdict(planning.metrics(schedule, row.pool_bytes))
    for name, value in replayed.items():
        assert measured[name] == pytest.approx(value, rel=1e-9, abs=1e-15), name
        if name != "search_seconds":  # a time: never twice the same
            # The CSV keeps six digits.
            assert getattr(row, name) == pytest.approx(value, rel=1e-5), name
    assert row.search_seconds >= 0
    assert row.pieces_examined == schedule.statistics.pieces_examined


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    reproduce.run(folder, list(SMALL), list(METHODS), list(Model), Scale.REDUCED, step=0.15)
    return folder


@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize(
    "network",
    [pytest.param(n, marks=pytest.mark.slow if n == "unet" else ()) for n in SMALL],
)
def test_rows_agree_with_an_independent_replay(results, network, model):
    graph = experiment.graph_of(network, model, Scale.REDUCED)
    case = records.cases(results).get(network, model.value)
    rows = [
        row
        for row in records.rows(results)
        if (row.network, row.model) == (network, model.value)
    ]
    assert {row.method for row in rows} == set(METHODS)
    assert {row.kind for row in rows} == {"grid", "minimum"}
    feasible = [row for row in rows if row.outcome == "ok"]
    assert any(row.forced_evictions for row in feasible)
    assert any(row.recomputations for row in feasible)
    for row in feasible:
        assert row.ratio == pytest.approx(row.pool_bytes / case.reference_bytes, abs=1e-3)
        assert row.pool_bytes >= case.lower_bound_bytes
        check(row, graph)
    for row in rows:
        if row.outcome != "ok":
            assert row.compute_overhead is None
            options = experiment.options(row.method)
            with pytest.raises(planning.InfeasiblePoolError):
                planning.plan_graph(graph.core, row.pool_bytes, options)


def test_without_eviction_nothing_is_recomputed(results):
    for row in records.rows(results):
        if row.ratio == 1 and row.method in COMPARED:
            assert (row.compute_overhead, row.forced_evictions) == (1, 0)


def test_a_second_run_plans_nothing(results, monkeypatch):
    before = (results / "rows.csv").read_text()
    monkeypatch.setattr(experiment, "build_case", None)
    arguments = (results, list(SMALL), list(METHODS), list(Model), Scale.REDUCED)
    reproduce.run(*arguments, step=0.15)
    assert (results / "rows.csv").read_text() == before


def test_an_interrupted_run_goes_on(results, tmp_path):
    lines = (results / "rows.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.csv").write_text("".join(lines[:40]))
    (tmp_path / "cases.csv").write_text((results / "cases.csv").read_text())
    reproduce.run(tmp_path, ["unet"], ["dtr", "coop"], [Model.PAPER], Scale.REDUCED, 0.15)

    def kept(folder):
        timed = {"plan_seconds": 0, "search_seconds": 0}
        return [
            dataclasses.replace(row, **timed)
            for row in records.rows(folder)
            if (row.network, row.model) == ("unet", "paper")
            and row.method in ("dtr", "coop")
        ]

    assert kept(tmp_path) == kept(results)


def test_another_graph_makes_old_rows_void(results, tmp_path):
    for name in ("rows.csv", "cases.csv"):
        (tmp_path / name).write_text((results / name).read_text())
    # Other budgets, so the case is looked at again, and found to differ.
    reproduce.run(tmp_path, ["unet"], ["coop"], [Model.PAPER], Scale.REDUCED, 0.15)
    cases = records.cases(tmp_path)
    old = cases.get("unet", "paper")
    cases.drop(network="unet", model="paper")
    cases.append([dataclasses.replace(old, reference_bytes=old.reference_bytes + 512)])
    reproduce.run(tmp_path, ["unet"], ["coop"], [Model.PAPER], Scale.REDUCED, 0.2)
    assert records.cases(tmp_path).get("unet", "paper").reference_bytes == (
        old.reference_bytes
    )
    ratios = {
        row.ratio
        for row in records.rows(tmp_path)
        if (row.network, row.model, row.kind) == ("unet", "paper", "grid")
    }
    assert 0.85 not in ratios
    assert 0.8 in ratios


def test_the_table_says_where_coop_does_not_win(results):
    text = table.write(results).read_text()
    assert text.count("## ") == 2
    for network in SMALL:
        assert text.count(f"| {summary.LABELS[network]} |") == 6
    found = summary.load(results, "paper")
    for network in SMALL:
        minima = {m: found[network].minimum_bytes(m) for m in COMPARED}
        line = next(x for x in text.splitlines() if summary.LABELS[network] in x)
        wins = minima["coop"] <= 1.005 * min(minima.values())
        assert wins != ("†" in line) or "**" in line.split("|")[4]


def test_the_tightest_budget_is_one_that_all_can_do(results):
    for network in summary.load(results, "paper").values():
        rows = network.tightest()
        assert {row.outcome for row in rows.values()} == {"ok"}
        assert len({row.pool_bytes for row in rows.values()}) == 1


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="the committed rows were traced by JAX 0.12"
)
@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=pytest.mark.hand if name in LONGEST else ())
        for name in NETWORKS
    ],
)
def test_committed_rows_are_those_of_this_planner(network, model):
    """Every figure in the table; if this fails, run `reproduce.py --fresh`."""
    graph, case = experiment.build_case(network, model)
    found = summary.load(records.RESULTS, model.value)[network]
    assert found.case.reference_bytes == case.reference_bytes
    for row in found.tightest().values():
        check(row, graph)
