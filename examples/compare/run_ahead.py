"""Measured times of executables that were compiled where their device is not.

    python examples/compare/run_ahead.py FOLDER [--networks moe ...] --results FILE.csv

`FOLDER` is of `compile_ahead.py`. Per network, on the first device that JAX finds: every
executable is called once, from the fewest bytes to the most, and the allocator's own peak
is read after it (of one network to a process: the peak is the process's); all start from
one state, and their losses are compared with that of the step as written; then they are
timed in turns, each call waited for. Rows of a network that does not run are without what
would be measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from compare.executables import ARGUMENTS, load, read_rows
from compare.instruction_times import instruction_times

from coop_jax.base.custom_calls import register_targets

_SAMPLE_SECONDS = 0.05
_AS_WRITTEN = "unmodified"
_MEASURED = ("peak_bytes", "loss", "seconds", "spread", "loss_differs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--networks", nargs="+", help="default: all of the folder")
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--profiles", type=pathlib.Path, help="a folder, for seconds by instruction"
    )
    arguments = parser.parse_args()
    register_targets()
    names = arguments.networks or sorted(p.name for p in arguments.folder.iterdir())
    for name in names:
        try:
            rows = timed(arguments.folder / name, arguments.rounds, arguments.profiles)
        except Exception as error:
            # Time with the device may be short: one network that fails ends no others.
            print(f"{name}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
            compiled = read_rows(arguments.folder / name)
            rows = [row | dict.fromkeys(_MEASURED, "") for row in compiled]
        here = {
            "device": jax.devices()[0].device_kind,
            "driver": driver(),
            "jax": jax.__version__,
        }
        append(arguments.results, [{"network": name, **row, **here} for row in rows])


def timed(
    folder: pathlib.Path, rounds: int, profiles: pathlib.Path | None = None
) -> list[dict[str, Any]]:
    """The rows of one network's folder, with what was measured."""
    rows = read_rows(folder)
    start = time.perf_counter()
    steps = {row["name"]: load(folder, row["name"]) for row in rows}
    state, *others = load(folder, ARGUMENTS)(np.int32(0))
    jax.block_until_ready(state)
    print(f"{folder.name}: loaded in {time.perf_counter() - start:.1f} s", flush=True)
    for row in sorted(rows, key=lambda row: row["bytes"]):
        held = in_use("bytes_in_use") - num_bytes((state, *others))
        state, _ = jax.block_until_ready(steps[row["name"]](state, *others))
        row["peak_bytes"] = in_use("peak_bytes_in_use") - held
    losses = {name: step(copied(state), *others)[1] for name, step in steps.items()}
    state, samples = in_turns(steps, state, others, rounds)
    if profiles is not None:
        write_profiles(profiles / f"{folder.name}.json.xz", steps, state, others)
    for row in rows:
        times = samples[row["name"]]
        row["loss"] = float(losses[row["name"]])
        row["seconds"] = statistics.median(times)
        row["spread"] = (max(times) - min(times)) / row["seconds"]
        row["loss_differs"] = abs(row["loss"] / float(losses[_AS_WRITTEN]) - 1)
        shown = {key: row[key] for key in ("bytes", "peak_bytes", "loss", "spread")}
        print(f"  {row['name']}: {1e3 * row['seconds']:.2f} ms, {shown}", flush=True)
    return rows


def in_turns(
    steps: dict[str, Any], state: Any, others: list[Any], rounds: int
) -> tuple[Any, dict[str, list[float]]]:
    """Seconds of a call of every step, in each round; and the state that they train on, all
    of them in turns, as each replaces it."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    calls = 1
    for turn in range(1 + rounds):
        for name in samples if turn % 2 else reversed(samples):
            begin = time.perf_counter()
            for _ in range(calls):
                state, loss = steps[name](state, *others)
            jax.block_until_ready((state, loss))
            samples[name].append((time.perf_counter() - begin) / calls)
        if not turn:  # It says how many calls make a sample.
            shortest = min(times[0] for times in samples.values())
            calls = math.ceil(_SAMPLE_SECONDS / shortest)
            samples = {name: [] for name in samples}
    return state, samples


def copied(tree: Any) -> Any:
    """The same arrays for a step to replace."""
    return jax.tree.map(lambda leaf: leaf.copy(), tree)


def write_profiles(file: pathlib.Path, steps: dict, state: Any, others: list) -> None:
    """Per row its optimized module, and the seconds of its instructions."""
    written = {}
    for name, step in steps.items():
        fresh = jax.block_until_ready(copied(state))
        times = instruction_times(lambda step=step, fresh=fresh: step(fresh, *others))
        written[name] = {"module": step.as_text(), "times": times}
    file.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(file, "wt", preset=1) as out:
        json.dump(written, out)


def driver() -> str:
    """The version of NVIDIA's driver; empty without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def in_use(figure: str) -> int:
    """A figure of the allocator of the first device; 0 where it gives none."""
    return (jax.devices()[0].memory_stats() or {}).get(figure, 0)


def num_bytes(tree: Any) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(tree))


def append(file: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    is_new = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
