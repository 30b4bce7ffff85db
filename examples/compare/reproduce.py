"""Better than hand-placed `jax.checkpoint`? Ten networks, every policy, our budgets.

    python examples/compare/reproduce.py --target cpu [--networks gpt2 resnet50 ...]

For `--target cpu` the steps run and are timed; for `h200`, `"tpu v5e"` and the other
targets XLA compiles them without the device. Into `results/<target>/` go, per network,
the rows (CSV), the table (Markdown) and the Pareto picture. Rows are saved as they are
made, and an interrupted run goes on where it stopped (`--fresh` starts over).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # everything else is only compiled for
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from compare import records
from compare.networks import NETWORKS
from paper.networks.training_step import DONATED

import coop_jax

RESULTS = pathlib.Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu", help='"cpu", "h200", "tpu v5e", ...')
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--planner", help="as in remat_train_step; default: its own")
    parser.add_argument("--no-seconds", action="store_true", help="do not run the steps")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    parser.add_argument("--verbose", action="store_true", help="every compilation")
    parser.add_argument(
        "--pictures-only", action="store_true", help="of the rows that are there already"
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    folder = arguments.results / arguments.target.replace(" ", "_")
    for name in arguments.networks:
        if arguments.fresh:
            records.path(folder, name).unlink(missing_ok=True)
        start = time.perf_counter()
        if arguments.pictures_only:
            rows = records.read(folder, name)
            if not rows:
                continue
            comparison = coop_jax.Comparison(arguments.target, tuple(rows))
        else:
            comparison = compare_network(name, folder, arguments)
            records.write_table(folder, name, comparison)
        try:
            comparison.plot(folder / f"{name}.png", f"{name}, {arguments.target}")
        except ImportError as error:
            print(f"{error}\nThen: --pictures-only", file=sys.stderr)
        print(f"{name}: {time.perf_counter() - start:.0f} s\n{comparison}\n", flush=True)
    if not arguments.pictures_only:
        records.write_summary(folder, list(NETWORKS))


def compare_network(
    name: str, folder: pathlib.Path, arguments: argparse.Namespace
) -> coop_jax.Comparison:
    """The comparison of one network; goes on from the rows in `folder`."""
    target = arguments.target
    network = NETWORKS[name]
    step = network.step(target)
    runs = target == "cpu" and not arguments.no_seconds
    return coop_jax.compare(
        network.make_step(target),
        *(step.concrete(seed=0) if runs else step.args),
        target=None if runs else target,
        donate_argnums=DONATED,
        planner=arguments.planner,
        measure_seconds=runs,
        known_rows=records.read(folder, name),
        on_row=lambda row: records.append(folder, name, row),
        verbose=arguments.verbose,
    )


if __name__ == "__main__":
    main()
