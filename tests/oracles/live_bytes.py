"""How many live bytes a sequence of operations needs, by a replay.

Shares nothing with the planners: from the order of the runs alone follows when every
tensor is made and read, and so the shortest time it has to stay.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

NEVER = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Arrays:
    """The arrays of a graph as lists, tensors rounded up to the alignment."""

    seconds: list[float]
    workspace: list[int]
    recomputable: list[bool]
    inputs: list[list[int]]
    outputs: list[list[int]]
    bytes: list[int]
    is_external: list[bool]
    is_pinned: list[bool]
    output: list[int]  # in the pool or not
    in_place: list[list[tuple[int, int]]]
    producer: list[int]  # -1: a graph input
    consumers: list[list[int]]
    last_use: list[int]  # in the program; -1 if nothing reads it
    overwritten_at: list[int]
    overwrites: dict[int, int]  # new to old

    @staticmethod
    def of(arrays: Mapping[str, Any], alignment: int) -> Arrays:
        def rows(name: str) -> list[list[int]]:
            ptr, flat = arrays[f"{name}_ptr"].tolist(), arrays[name].tolist()
            return [list(dict.fromkeys(flat[a:b])) for a, b in itertools.pairwise(ptr)]

        inputs, outputs = rows("op_inputs"), rows("op_outputs")
        num_ops, num_tensors = len(inputs), len(arrays["tensor_bytes"])
        external = arrays["tensor_external"].astype(bool).tolist()
        sizes = [-(-b // alignment) * alignment for b in arrays["tensor_bytes"].tolist()]
        producer = [-1] * num_tensors
        consumers: list[list[int]] = [[] for _ in range(num_tensors)]
        for op in range(num_ops):
            for t in outputs[op]:
                producer[t] = op
            for t in inputs[op]:
                consumers[t].append(op)
        in_place: list[list[tuple[int, int]]] = [[] for _ in range(num_ops)]
        for op, i, o in arrays["in_place"].tolist():
            in_place[op].append((i, o))
        overwritten_at = [NEVER] * num_tensors
        for op, old, _ in arrays["overwrites"].tolist():
            overwritten_at[old] = op
        output = [t for t, flag in enumerate(arrays["tensor_output"].tolist()) if flag]
        last_use = [c[-1] if c else -1 for c in consumers]
        for t in output:
            last_use[t] = num_ops
        return Arrays(
            seconds=arrays["op_seconds"].tolist(),
            workspace=[
                -(-b // alignment) * alignment
                for b in arrays["op_workspace_bytes"].tolist()
            ],
            recomputable=arrays["op_recomputable"].astype(bool).tolist(),
            inputs=inputs,
            outputs=outputs,
            bytes=[0 if e else b for e, b in zip(external, sizes, strict=True)],
            is_external=external,
            is_pinned=arrays["tensor_pinned"].astype(bool).tolist(),
            output=output,
            in_place=in_place,
            producer=producer,
            consumers=consumers,
            last_use=last_use,
            overwritten_at=overwritten_at,
            overwrites={new: old for _, old, new in arrays["overwrites"].tolist()},
        )

    @property
    def num_ops(self) -> int:
        return len(self.seconds)

    @property
    def num_tensors(self) -> int:
        return len(self.bytes)

    def in_pool(self, t: int) -> bool:
        """Takes bytes, and may come and go."""
        return self.bytes[t] > 0 and not self.is_pinned[t]

    def has_one_pool_output(self, op: int) -> bool:
        return sum(map(self.in_pool, self.outputs[op])) == 1

    def pinned_bytes(self, position: int, is_first_run: bool) -> int:
        """Of what is pinned while `position`'s turn lasts.

        The results of the operation itself count in its own run, unless it overwrites: then
        it takes over the block.
        """
        total = 0
        for t in range(self.num_tensors):
            if not self.is_pinned[t] or self.overwritten_at[t] < position:
                continue
            made = self.producer[t]
            is_made_now = made == position and is_first_run and t not in self.overwrites
            total += self.bytes[t] if made < position or is_made_now else 0
            if made == -1 and position == -1:
                total += self.bytes[t]
        return total


def live_bytes(a: Arrays, runs: Sequence[int]) -> int:
    """The most bytes in use at once when operations run in this order.

    Raises:
        AssertionError: an operand can't be there, an operation may not run (again), the
            first runs are not in the program's order, or an output is missing.
    """
    first = {op: time for time, op in reversed(list(enumerate(runs)))}
    assert sorted(first, key=first.__getitem__) == list(range(a.num_ops))
    end = len(runs)
    makes = {t: [] for t in range(a.num_tensors)}  # times
    reads = {t: [end] if t in a.output else [] for t in range(a.num_tensors)}
    for time, op in enumerate(runs):
        assert time == first[op] or a.recomputable[op], f"operation {op} runs again"
        for t in a.outputs[op]:
            makes[t].append(time)
        for t in a.inputs[op]:
            reads[t].append(time)
            gone = a.overwritten_at[t]
            assert gone == NEVER or time <= first[gone], f"tensor {t} is overwritten"
    alive = [[] for _ in range(end + 1)]  # (tensor, is it made here, does it die here)
    peak = sum(a.bytes[t] for t in range(a.num_tensors) if a.producer[t] < 0)
    for t in range(a.num_tensors):
        births = makes[t] if a.producer[t] >= 0 else [-1]
        assert all(births and time > births[0] for time in reads[t]), f"no tensor {t}"
        if a.bytes[t] == 0:
            continue
        if a.is_pinned[t]:  # made once; overwritten, it hands its block on
            gone = a.overwritten_at[t]
            stop = end if gone == NEVER else first[gone]
            start = births[0] + (1 if t in a.overwrites else 0)
            spans = [(start, stop + (1 if stop == end else 0))]
        else:
            spans = []
            for k, birth in enumerate(births):
                until = births[k + 1] if k + 1 < len(births) else end + 1
                spans.append(
                    (birth, max([r for r in reads[t] if birth < r <= until] or [birth]))
                )
        for start, last in spans:
            for time in range(max(start, 0), min(last, end) + 1):
                alive[time].append((t, time == start, time == last))
    for time, here in enumerate(alive):
        used = sum(a.bytes[t] for t, _, _ in here)
        if time < end:
            op = runs[time]
            made = {t for t, is_made, _ in here if is_made}
            dying = {t for t, new, dies in here if dies and not new and not a.is_pinned[t]}
            pairs = [(i, o) for i, o in a.in_place[op] if i in dying and o in made]
            used += a.workspace[op] - _taken_over(a, pairs)
        peak = max(peak, used)
    return peak


def _taken_over(a: Arrays, pairs: Sequence[tuple[int, int]]) -> int:
    """The most bytes that pairs can save, each tensor in one of them at most."""
    if not pairs:
        return 0
    (i, o), rest = pairs[0], pairs[1:]
    without = [(x, y) for x, y in rest if x != i and y != o]
    return max(_taken_over(a, rest), a.bytes[i] + _taken_over(a, without))
