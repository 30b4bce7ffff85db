"""Anti-dependencies: the readers that an update in an input's memory waits for.

XLA knows no order between two readers of an input of which one overwrites it. Where it
runs the update first, or cannot exclude that it does, it keeps a copy of the input: a GPU
the new value beside the old one, a CPU a copy of the weight from the first operation on.
"""

from __future__ import annotations

from typing import Any

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import Execution


class Readers:
    """Who read the inputs that are overwritten, in the present segment.

    What depends on what is kept in bits, one for every read so far.
    """

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        olds = [old for olds in graph.overwritten_by.values() for old in olds]
        # Of every such input: by reader, its bit, what it depends on and made.
        self._reads: dict[int, list[tuple[int, int, Any]]] = {old: [] for old in olds}
        self._depends: dict[int, int] = {}
        self._num_reads = 0

    def begin_segment(self) -> None:
        """What came before is ordered by the fence."""
        for reads in self._reads.values():
            reads.clear()
        self._depends.clear()
        self._num_reads = 0

    def executed(self, execution: Execution, version: dict[int, Any]) -> None:
        """An operation ran; `version` has the present variable of every tensor."""
        inputs = self._graph.operations[execution.operation].inputs
        depends = self._dependencies(execution.operation)
        new = [t for t in inputs if t in self._reads and execution.makes]
        first = self._num_reads
        self._num_reads += len(new)
        depends |= (1 << self._num_reads) - (1 << first)
        for bit, tensor in enumerate(new, start=first):
            made = version[execution.makes[0]]
            self._reads[tensor].append((1 << bit, depends, made))
        self._depends.update(dict.fromkeys(execution.makes, depends))

    def to_wait_for(self, old: int, update: int) -> list[Any]:
        """What has to be there before `update` overwrites `old`.

        Empty if the update needs it all anyway. What another of them depends on is left
        out: as an operand it would only be kept for longer.
        """
        reads = self._reads[old]
        needed = self._dependencies(update)
        if all(bit & needed for bit, _, _ in reads):
            return []
        covered, last = 0, []
        for bit, depends, made in reversed(reads):
            if not bit & covered:
                last.append(made)
                covered |= depends
        self._depends[old] = self._depends.get(old, 0) | covered
        return last[::-1]

    def _dependencies(self, operation: int) -> int:
        found = 0
        for tensor in self._graph.operations[operation].inputs:
            found |= self._depends.get(tensor, 0)
        return found
