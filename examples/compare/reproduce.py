"""Better than hand-placed `jax.checkpoint`? Ten networks, every policy, our budgets.

    python examples/compare/reproduce.py --target cpu [--networks gpt2 resnet50 ...]

For `--target cpu` the steps run and are timed, for `--target here` as well, on the
device that JAX finds; for `h200`, `"tpu v5e"` and the other targets XLA compiles them
without the device. Into `results/<target>/`, or one named after the device, go, per
network, the rows (CSV), the table (Markdown) and the Pareto picture. Rows are saved as
they are made, and an interrupted run goes on where it stopped (`--fresh` starts over).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

if "here" not in sys.argv:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # everything else is only compiled for
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import jax
from compare import records
from compare.networks import NETWORKS
from paper.networks.training_step import DONATED

import coop_jax

RESULTS = pathlib.Path(__file__).parent / "results"
HERE = "here"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu", help='"cpu", "here", "h200", ...')
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
    folder = arguments.results / folder_name(arguments.target)
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


def folder_name(target: str) -> str:
    """Of the results; those of a device that is there: `here_<kind of device>`."""
    name = f"here {jax.devices()[0].device_kind}" if target == HERE else target
    return name.lower().replace(" ", "_")


def compare_network(
    name: str, folder: pathlib.Path, arguments: argparse.Namespace
) -> coop_jax.Comparison:
    """The comparison of one network; goes on from the rows in `folder`."""
    target = arguments.target
    if target == HERE and jax.default_backend() == "cpu":
        target = "cpu"  # At the size that it can run.
    network = NETWORKS[name]
    step = network.step(target)
    runs = target in ("cpu", HERE) and not arguments.no_seconds
    return coop_jax.compare(
        network.make_step(target),
        *(step.concrete(seed=0) if runs else step.args),
        target=None if runs or target == HERE else target,
        donate_argnums=DONATED,
        planner=arguments.planner,
        measure_seconds=runs,
        known_rows=records.read(folder, name),
        on_row=lambda row: records.append(folder, name, row),
        verbose=arguments.verbose,
    )


if __name__ == "__main__":
    main()
