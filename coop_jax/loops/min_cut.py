"""Minimum cut: Dinic's algorithm on integer capacities."""

from __future__ import annotations

import collections

INFINITE = 1 << 200  # More than any sum of capacities.


class Network:
    """A directed graph with capacities whose minimum cut between two nodes is asked for.

    Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks
    with power estimation", 1970.
    """

    def __init__(self, num_nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(num_nodes)]
        self._to: list[int] = []
        self._left: list[int] = []

    def add_edge(self, source: int, target: int, capacity: int) -> None:
        """An edge; its reverse, of capacity 0, has the next number."""
        for node, other, room in ((source, target, capacity), (target, source, 0)):
            self._edges[node].append(len(self._to))
            self._to.append(other)
            self._left.append(room)

    def source_side(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of the minimum cut with the fewest nodes there.

        Arguments:
            source, sink: two nodes that no path of infinite capacity connects.
        """
        while True:
            level = self._levels(source)
            if sink not in level:
                return set(level)
            self._block(source, sink, level)

    def _levels(self, source: int) -> dict[int, int]:
        level = {source: 0}
        queue = collections.deque([source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                if self._left[edge] and self._to[edge] not in level:
                    level[self._to[edge]] = level[node] + 1
                    queue.append(self._to[edge])
        return level

    def _block(self, source: int, sink: int, level: dict[int, int]) -> None:
        """Augments along shortest paths until none is left; without recursion, since
        paths are as long as programs."""
        following = [0] * len(self._edges)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                room = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= room
                    self._left[edge ^ 1] += room
                full = next(i for i, edge in enumerate(path) if not self._left[edge])
                node = self._to[path[full] ^ 1]
                del path[full:]
                continue
            edge = self._next_edge(node, following, level)
            if edge is not None:
                path.append(edge)
                node = self._to[edge]
            elif path:
                following[self._to[path[-1] ^ 1]] += 1
                node = self._to[path.pop() ^ 1]
            else:
                return

    def _next_edge(
        self, node: int, following: list[int], level: dict[int, int]
    ) -> int | None:
        edges = self._edges[node]
        while following[node] < len(edges):
            edge = edges[following[node]]
            if self._left[edge] and level.get(self._to[edge], -1) == level[node] + 1:
                return edge
            following[node] += 1
        return None
