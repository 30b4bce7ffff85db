"""The paper's experiment: eight networks, six methods, budgets down to the smallest.

    python examples/paper/reproduce.py [--networks unet ...] [--methods coop dtr ...]

Results go to `results/rows.csv` and `results/cases.csv`; what is there already is not
planned again, so an interrupted run goes on where it stopped (`--fresh` starts over).
Then come the table, the figures and the pool maps.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

# Nothing is run on a device: steps are traced from shapes.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from paper import experiment, figures, pool_map, records, table
from paper.experiment import METHODS, Model
from paper.networks import NETWORKS, Scale
from tqdm import tqdm

GRID_STEP = 0.01


def main() -> None:
    arguments = _arguments()
    folder = arguments.results
    if arguments.fresh:
        for name in ("rows.csv", "cases.csv"):
            (folder / name).unlink(missing_ok=True)
    if not arguments.figures_only:
        start = time.perf_counter()
        run(
            folder,
            arguments.networks,
            arguments.methods,
            [Model(name) for name in arguments.models],
            Scale(arguments.scale),
            arguments.step,
        )
        print(f"planned in {time.perf_counter() - start:.0f} s")
    written = [table.write(folder), *figures.draw_all(folder)]
    if not arguments.no_pool_map:
        written.append(pool_map.draw_compared(folder))
    for path in written:
        print(f"wrote {path.relative_to(folder.parent)}")


def run(
    folder: pathlib.Path,
    networks: list[str],
    methods: list[str],
    models: list[Model],
    scale: Scale = Scale.PAPER,
    step: float = GRID_STEP,
) -> None:
    """Plans what is missing in `folder`."""
    cases, rows = records.cases(folder), records.rows(folder)
    minima = {(row.network, row.model, row.method) for row in rows if row.kind == "minimum"}
    whole = len(networks) * len(models)
    for network in tqdm(networks, "networks", disable=whole < 2, leave=False):
        for model in models:
            key = (network, model.value)
            graph, case = None, cases.get(*key)
            if case is None or not _is_complete(case, rows, minima, methods, step):
                graph, built = experiment.build_case(network, model, scale)
                if case is not None and not _same_graph(case, built):
                    rows.drop(network=network, model=model.value)
                    cases.drop(network=network, model=model.value)
                    minima = {known for known in minima if known[:2] != key}
                    case = None
                if case is None:
                    cases.append([built])
                    case = built
            if graph is None:
                continue
            ratios = experiment.grid(case, step)
            bar = tqdm(total=len(methods) * (len(ratios) + 1), leave=False)
            for method in methods:
                bar.set_description(f"{network} ({model.value}) {method}")
                done = []
                if (*key, method) not in minima:
                    done.append(experiment.plan_minimum(graph, case, method))
                bar.update()
                for ratio in ratios:
                    if rows.get(*key, method, "grid", ratio) is None:
                        done.append(experiment.plan_at(graph, case, method, ratio))
                    bar.update()
                rows.append(done)
            bar.close()


def _is_complete(case, rows, minima, methods, step) -> bool:
    key = (case.network, case.model)
    return all(
        (*key, method) in minima
        and all(
            rows.get(*key, method, "grid", ratio) is not None
            for ratio in experiment.grid(case, step)
        )
        for method in methods
    )


def _same_graph(a: experiment.Case, b: experiment.Case) -> bool:
    fields = (
        "scale",
        "num_operations",
        "num_tensors",
        "reference_bytes",
        "lower_bound_bytes",
    )
    return all(getattr(a, field) == getattr(b, field) for field in fields)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    models = [model.value for model in Model]
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    scales = [scale.value for scale in Scale]
    parser.add_argument("--scale", choices=scales, default=Scale.PAPER.value)
    parser.add_argument(
        "--step", type=float, default=GRID_STEP, help="between memory ratios"
    )
    parser.add_argument("--results", type=pathlib.Path, default=records.RESULTS)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument(
        "--figures-only", action="store_true", help="draw what has been planned"
    )
    parser.add_argument("--no-pool-map", action="store_true", help="needs a graph")
    return parser.parse_args()


if __name__ == "__main__":
    main()
