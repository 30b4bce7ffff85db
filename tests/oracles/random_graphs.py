"""Random graphs to plan: the families that planners are compared on.

Every family makes a graph of a number of operations from a seed: one result per
operation, sizes of 1 to 10 units and times of 1 to 10 ms, both uniform. Reproducible:
`numpy.random.default_rng`.

    layered   the random layered graphs of the scheduling literature: layers of random
              width, every node reads from the layer before, some from further back.
    chain     a training step without skips: forward, then backward reading each value.
    tree      results are combined in pairs down to one.
    u_shaped  a chain whose first half is read again by the second, in reverse order,
              and a backward of all of it.
    dense     every operation reads several results from anywhere before it.
    step      forward with random skips, mirrored by a backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from coop_jax import planning

UNIT_BYTES = 1 << 16


def layered(num_ops: int, seed: int) -> planning.Graph:
    random = np.random.default_rng(seed)
    width = max(2, round(num_ops**0.5 / 2))
    layers: list[list[int]] = []
    reads: list[list[int]] = []
    while len(reads) < num_ops:
        size = min(int(random.integers(1, 2 * width)), num_ops - len(reads))
        layer = list(range(len(reads), len(reads) + size))
        for _ in layer:
            before = layers[-1] if layers else []
            inputs = [i for i in before if random.random() < 2 / len(before)]
            inputs += [int(random.choice(before))] if before else []
            if len(layers) > 1 and random.random() < 0.5:
                inputs.append(int(random.integers(0, layers[-1][0])))
            reads.append(inputs)
        layers.append(layer)
    return _graph(reads, random)


def chain(num_ops: int, seed: int) -> planning.Graph:
    half = (num_ops + 1) // 2
    reads = [[k - 1] if k else [] for k in range(half)]
    reads += [[half + k - 1, half - 1 - k] for k in range(num_ops - half)]
    return _graph(reads, np.random.default_rng(seed))


def tree(num_ops: int, seed: int) -> planning.Graph:
    random = np.random.default_rng(seed)
    open_: list[int] = []
    reads: list[list[int]] = []
    for i in range(num_ops):
        remaining = num_ops - i
        is_leaf = len(open_) < 2 or (len(open_) < remaining and random.random() < 0.5)
        picks = [] if is_leaf else random.choice(len(open_), 2, replace=False).tolist()
        reads.append([open_[k] for k in picks])
        open_ = [t for k, t in enumerate(open_) if k not in picks] + [i]
    return _graph(reads, random)


def u_shaped(num_ops: int, seed: int) -> planning.Graph:
    forward = (num_ops + 1) // 2
    down = (forward + 1) // 2
    reads = [[k - 1] if k else [] for k in range(down)]
    reads += [[k - 1, 2 * down - 1 - k] for k in range(down, forward)]
    for k in range(num_ops - forward):
        i = forward - 1 - k
        reads.append([forward + k - 1, *reads[i], i] if i >= 0 else [forward + k - 1])
    return _graph(reads, np.random.default_rng(seed))


def dense(num_ops: int, seed: int) -> planning.Graph:
    random = np.random.default_rng(seed)
    reads = [
        random.choice(i, min(i, int(random.integers(1, 6))), replace=False).tolist()
        for i in range(num_ops)
    ]
    return _graph(reads, random)


def step(num_ops: int, seed: int) -> planning.Graph:
    random = np.random.default_rng(seed)
    half = (num_ops + 1) // 2
    reads: list[list[int]] = []
    for k in range(half):
        skip = [int(random.integers(0, k))] if k > 1 and random.random() < 0.3 else []
        reads.append(([k - 1] if k else []) + skip)
    reads += [[half + k - 1, half - 1 - k] for k in range(num_ops - half)]
    return _graph(reads, random)


FAMILIES: dict[str, Callable[[int, int], planning.Graph]] = {
    f.__name__: f for f in (layered, chain, tree, u_shaped, dense, step)
}


def _graph(reads: Sequence[Sequence[int]], random: np.random.Generator) -> planning.Graph:
    reads = [list(dict.fromkeys(inputs)) for inputs in reads]
    num_ops = len(reads)
    is_output = np.ones(num_ops, bool)
    is_output[list(itertools.chain.from_iterable(reads))] = False
    return planning.Graph(
        op_seconds=random.integers(1, 11, num_ops) * 1e-3,
        op_workspace_bytes=np.zeros(num_ops, np.int64),
        op_recomputable=np.ones(num_ops, bool),
        op_inputs_ptr=np.cumsum([0, *map(len, reads)]).astype(np.int64),
        op_inputs=np.array(list(itertools.chain.from_iterable(reads)), np.int64),
        op_outputs_ptr=np.arange(num_ops + 1),
        op_outputs=np.arange(num_ops),
        tensor_bytes=random.integers(1, 11, num_ops) * UNIT_BYTES,
        tensor_external=np.zeros(num_ops, bool),
        tensor_pinned=np.zeros(num_ops, bool),
        tensor_output=is_output,
        in_place=np.zeros((0, 3), np.int64),
        overwrites=np.zeros((0, 3), np.int64),
        releases=None,
    )
