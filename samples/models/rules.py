"""Rules by which others put operators on streams, on the graph of a captured function.

Nodes are numbered in launch order; edges lead from smaller to larger ones. Opara (IEEE TC 2025)
and Nimble (NeurIPS 2020) work on graphs of operators: an edge is there where one uses a tensor that
another has made or changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.apply.order import along_branches, masks_of, reduced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.apply.captured import Captured
    from depgraph.apply.may_sets import Unit
    from depgraph.apply.order import Edge


def operator_edges(captured: Captured, units: Sequence[Unit]) -> list[Edge]:
    """Return edges between operators by the tensors that they are given, whole ones."""
    found: set[Edge] = set()
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    barrier = -1
    for place, unit in enumerate(units):
        call = captured.nodes[unit.first].call
        if call < 0 or unit.fixed:  # of no operator: after all, before all
            found.update((i, place) for i in range(max(barrier, 0), place))
            barrier = place
            continue
        if barrier >= 0:
            found.add((barrier, place))
        operands = captured.calls[call].operands
        for operand in operands:
            memory = operand.view.memory.number
            if memory in writer:
                found.add((writer[memory], place))
            if operand.is_written:
                found.update((i, place) for i in readers.pop(memory, ()) if i != place)
        for operand in operands:
            memory = operand.view.memory.number
            if operand.is_written:
                writer[memory] = place
            else:
                readers.setdefault(memory, []).append(place)
    return sorted(edge for edge in found if edge[0] < edge[1])


def opara_streams(n: int, edges: Sequence[Edge]) -> list[int]:
    """Return a stream for each operator: that of its first predecessor that has not given it away.

    Opara: Exploiting operator parallelism for expediting DNN inference on GPUs, section IV-A.
    """
    sources: list[list[int]] = [[] for _ in range(n)]
    for source, target in sorted(edges):
        sources[target].append(source)
    stream: list[int] = []
    given: set[int] = set()
    count = 0
    for node in range(n):
        heir = next((source for source in sources[node] if source not in given), None)
        if heir is None:
            stream.append(count)
            count += 1
        else:
            given.add(heir)
            stream.append(stream[heir])
    return stream


def nimble_streams(n: int, edges: Sequence[Edge]) -> list[int]:
    """Return a stream for each operator: chains of a maximum matching of the fewest edges.

    Nimble: Lightweight and parallel GPU task scheduling for deep learning, section 4.2.
    """
    fewest, _ = reduced(masks_of(n, edges))
    after: list[list[int]] = [[] for _ in range(n)]
    for source, target in fewest:
        after[source].append(target)
    taken_by = [-1] * n  # of each target
    follows = [-1] * n
    for source in range(n):
        _augment(source, after, taken_by)
    for target, source in enumerate(taken_by):
        if source >= 0:
            follows[source] = target
    stream = [-1] * n
    count = 0
    for first in range(n):
        if stream[first] >= 0:
            continue
        node = first
        while node >= 0:
            stream[node] = count
            node = follows[node]
        count += 1
    return stream


def _augment(source: int, after: Sequence[Sequence[int]], taken_by: list[int]) -> None:
    """Match one more source, if there is an alternating path to a target that is free."""
    came_from: dict[int, int] = {}  # a target, and the source that it was reached from
    waiting = [source]
    while waiting:
        node = waiting.pop()
        for target in after[node]:
            if target in came_from:
                continue
            came_from[target] = node
            if taken_by[target] >= 0:
                waiting.append(taken_by[target])
                continue
            before = {taken_by[t]: t for t in came_from if taken_by[t] >= 0}
            while True:  # back along the path
                giver = came_from[target]
                taken_by[target] = giver
                if giver == source:
                    return
                target = before[giver]  # noqa: PLW2901


def on_streams(edges: Sequence[Edge], streams: Sequence[int]) -> list[Edge]:
    """Return the fewest edges that keep each stream in order, and what waits between streams."""
    fewest, _ = reduced(masks_of(len(streams), [*edges, *along_branches(streams)]))
    return fewest
