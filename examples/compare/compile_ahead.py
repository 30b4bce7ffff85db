"""Executables of compared steps, made where their device is not, to be run where it is.

    python examples/compare/compile_ahead.py FOLDER --set second --networks moe \\
        [--target h200] [--policies nothing_saveable minimal] [--at minimal]

Per network: the step as written, under policies (default: all), and planned for the bytes
of the policies of `--at`, compiled for the absent target and serialized, beside an
executable that makes the step's arguments. `run_ahead.py FOLDER` runs them on a machine
that has the device and the same version of JAX; the networks themselves are not needed
there.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Without a GPU to time them on, Triton's products are in the first tiles that compile.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_triton_gemm=false"
)
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import jax
from compare.executables import ARGUMENTS, append_row, save
from compare.reproduce import SETS
from paper.networks.training_step import DONATED

from coop_jax.comparison.checkpoint_policies import default_policies
from coop_jax.comparison.table import Row, at
from coop_jax.comparison.variants import Versions
from coop_jax.xla.absent_devices import named_device, placed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--set", choices=SETS, default="second")
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--policies", nargs="+", help="default: all of the network")
    parser.add_argument("--at", nargs="+", default=["nothing_saveable"])
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.networks:
        start = time.perf_counter()
        compile_network(name, arguments)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def compile_network(name: str, arguments: argparse.Namespace) -> None:
    """The executables of one network, and a line of `rows.jsonl` for each."""
    folder = arguments.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    network = SETS[arguments.set][name]
    device = named_device(arguments.target)
    step = network.step(arguments.target)
    save(folder, ARGUMENTS, compiled_arguments(step.make_args, device))
    versions = Versions(
        network.make_step(arguments.target),
        placed(step.args, device),
        (DONATED,),
        planner=None,
        measures_seconds=False,
        verbose=arguments.verbose,
        on_executable=lambda row, compiled: save(folder, row, compiled),
    )
    policies = default_policies(versions.names)
    rows = [record(folder, versions.unmodified())]
    for policy in arguments.policies or policies:
        rows.append(record(folder, versions.checkpoint(policy, policies[policy])))
    by_name = {row.name: row for row in rows}
    for policy in arguments.at:
        if row := by_name.get(policy):
            record(folder, versions.planned(at(policy), row.measured_bytes))


def compiled_arguments(make_args: Any, device: Any) -> Any:
    """The executable that makes the step's arguments from a seed."""
    seed = placed(jax.ShapeDtypeStruct((), "int32"), device)
    return jax.jit(lambda seed: make_args(jax.random.key(seed))).lower(seed).compile()


def record(folder: pathlib.Path, row: Row) -> Row:
    """A line in `rows.jsonl`: figures of XLA and prices, before anything has run."""
    figures = {
        "name": row.name,
        "kind": row.kind,
        "bytes": row.measured_bytes,
        "budget": row.budget_bytes,
        "price_seconds": row.executable_seconds,
        "product_flops": row.product_flops,
        "note": row.note,
    }
    append_row(folder, figures)
    print(figures, flush=True)
    return row


if __name__ == "__main__":
    main()
