"""Describing a captured graph: its nodes in order, and the pointers among their parameters."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from depgraph.apply.captured import COPY, KERNEL, MEMSET, Captured, Node, Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.torch.driver import Driver

_WORD = 8
_LEAST_ADDRESS = 1 << 20
_MOST_ADDRESS = 1 << 57


def in_order(driver: Driver, graph: int) -> list[int]:
    """Return the nodes in the order of the capture, mended where an edge goes backwards."""
    made = driver.nodes(graph)
    place = {node: i for i, node in enumerate(made)}
    edges = driver.edges(graph)
    if all(place[a] < place[b] for a, b in edges):
        return made
    waits = dict.fromkeys(made, 0)
    after: dict[int, list[int]] = {node: [] for node in made}
    for a, b in edges:
        waits[b] += 1
        after[a].append(b)
    ready = [place[node] for node, n in waits.items() if not n]
    heapq.heapify(ready)
    order = []
    while ready:
        node = made[heapq.heappop(ready)]
        order.append(node)
        for follower in after[node]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, place[follower])
    return order


def describe(
    driver: Driver, graph: int, handles: Sequence[int], regions: Sequence[Region]
) -> Captured:
    """Describe a graph.

    Parameters
    ----------
    handles : sequence of int
        Its nodes, in an order that its edges allow.
    regions : sequence of Region
        Of two that hold an address, the first counts.
    """
    memory = _Memory(driver, regions)
    nodes = []
    for handle in handles:
        kind = driver.kind(handle)
        if kind == KERNEL:
            name, grid, block, shared = driver.kernel(handle)
            words = [
                (parameter, byte, value)
                for parameter, raw in enumerate(driver.parameters(handle))
                for byte in range(0, len(raw) - _WORD + 1, _WORD)
                if memory.holds(value := int.from_bytes(raw[byte : byte + _WORD], "little"))
            ]
            nodes.append(Node(kind, name, grid, block, shared, tuple(words)))
        elif kind == MEMSET:
            at = driver.memset(handle)
            nodes.append(Node(kind, words=((0, 0, at),) if memory.holds(at) else ()))
        elif kind == COPY:
            source, target, to_host = driver.copy(handle)
            ends = [(i, 0, at) for i, at in enumerate((source, target)) if memory.holds(at)]
            nodes.append(Node(kind, words=tuple(ends), to_host=to_host))
        else:
            nodes.append(Node(kind))
    place = {handle: i for i, handle in enumerate(handles)}
    edges = sorted((place[a], place[b]) for a, b in driver.edges(graph))
    return Captured(tuple(nodes), tuple(edges), tuple(memory.used))


class _Memory:
    """The regions, numbered by first use; what the driver alone knows is added."""

    def __init__(self, driver: Driver, regions: Sequence[Region]) -> None:
        self._driver = driver
        self._regions = list(regions)
        self._known: dict[int, Region | None] = {}
        self.used: list[Region] = []

    def holds(self, address: int) -> bool:
        """Tell whether an address lies in a region; note which."""
        if not _LEAST_ADDRESS <= address < _MOST_ADDRESS:
            return False
        if address not in self._known:
            self._known[address] = self._find(address)
        found = self._known[address]
        if found is not None and found not in self.used:
            self.used.append(found)
        return found is not None

    def _find(self, address: int) -> Region | None:
        for region in self._regions:
            if address in region:
                return region
        allocation = self._driver.allocation(address)
        if allocation is None:
            return None
        region = Region(*allocation, is_own=False)
        self._regions.append(region)
        return region
