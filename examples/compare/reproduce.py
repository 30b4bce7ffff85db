"""Better than hand-placed `jax.checkpoint`? Ten networks, every policy, our budgets.

    python examples/compare/reproduce.py --target cpu [--networks gpt2 resnet50 ...]
    python examples/compare/reproduce.py --target cpu --set second

The first set is for development. Nothing was tuned on the second one, whose results go
into `results/second`.

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
from compare import networks, records
from compare.network import Network
from compare.second import networks as second
from compare.summary import write_summary
from paper.networks.training_step import DONATED

import coop_jax

RESULTS = pathlib.Path(__file__).parent / "results"
HERE = "here"
SETS = {"first": networks.NETWORKS, "second": second.NETWORKS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu", help='"cpu", "here", "h200", ...')
    parser.add_argument("--set", choices=SETS, default="first", help="of networks")
    parser.add_argument("--networks", nargs="+", help="of the set; default: all of them")
    parser.add_argument("--planner", help="as in remat_train_step; default: its own")
    parser.add_argument("--no-seconds", action="store_true", help="do not run the steps")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    parser.add_argument("--verbose", action="store_true", help="every compilation")
    parser.add_argument(
        "--pictures-only", action="store_true", help="of the rows that are there already"
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    known = SETS[arguments.set]
    names = arguments.networks or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"--networks: choose from {', '.join(known)}. Got {unknown}.")
    folder = results_folder(arguments)
    for name in names:
        if arguments.fresh:
            records.path(folder, name).unlink(missing_ok=True)
        start = time.perf_counter()
        if arguments.pictures_only:
            rows = records.read(folder, name)
            if not rows:
                continue
            comparison = coop_jax.Comparison(arguments.target, tuple(rows))
        else:
            comparison = compare_network(known[name], folder, arguments)
            records.write_table(folder, name, comparison)
        try:
            comparison.plot(folder / f"{name}.png", f"{name}, {arguments.target}")
        except ImportError as error:
            print(f"{error}\nThen: --pictures-only", file=sys.stderr)
        print(f"{name}: {time.perf_counter() - start:.0f} s\n{comparison}\n", flush=True)
    if not arguments.pictures_only:
        write_summary(folder, list(known))


def results_folder(arguments: argparse.Namespace) -> pathlib.Path:
    """`results/<target>`; that of the second set, `results/second/<target>`."""
    is_first = arguments.set == "first"
    results = arguments.results if is_first else arguments.results / arguments.set
    return results / folder_name(arguments.target)


def folder_name(target: str) -> str:
    """Of the results; those of a device that is there: `here_<kind of device>`."""
    name = f"here {jax.devices()[0].device_kind}" if target == HERE else target
    return name.lower().replace(" ", "_")


def compare_network(
    network: Network, folder: pathlib.Path, arguments: argparse.Namespace
) -> coop_jax.Comparison:
    """The comparison of one network; goes on from the rows in `folder`."""
    target = arguments.target
    if target == HERE and jax.default_backend() == "cpu":
        target = "cpu"  # At the size that it can run.
    step = network.step(target)
    runs = target in ("cpu", HERE) and not arguments.no_seconds
    known_rows = records.read(folder, network.name)
    if any(row.modelled_seconds and not row.executable_seconds for row in known_rows):
        sys.exit(
            f"{network.name}: its rows in {folder} are of a version that did not price "
            "executables, and cannot be compared with others. Add --fresh."
        )
    return coop_jax.compare(
        network.make_step(target),
        *(step.concrete(seed=0) if runs else step.args),
        target=None if runs or target == HERE else target,
        donate_argnums=DONATED,
        planner=arguments.planner,
        measure_seconds=runs,
        known_rows=known_rows,
        on_row=lambda row: records.append(folder, network.name, row),
        verbose=arguments.verbose,
    )


if __name__ == "__main__":
    main()
