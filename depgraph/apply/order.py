"""Edges between the nodes of a graph: those that are needed, without those that others imply."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Edge = tuple[int, int]


def reachable(n: int, edges: Iterable[Edge]) -> list[int]:
    """Return for each node what comes before it, directly or not, as bits of an integer.

    Parameters
    ----------
    n : int
        Number of nodes; every edge goes from a smaller number to a larger one.
    """
    sources: list[list[int]] = [[] for _ in range(n)]
    for source, target in edges:
        sources[target].append(source)
    before = [0] * n
    for node in range(n):
        for source in sources[node]:
            before[node] |= before[source] | 1 << source
    return before


def reduced(n: int, edges: Iterable[Edge]) -> list[Edge]:
    """Return the fewest edges that order the nodes in the same way: the transitive reduction."""
    edges = set(edges)
    before = reachable(n, edges)
    sources: list[list[int]] = [[] for _ in range(n)]
    for source, target in edges:
        sources[target].append(source)
    kept = []
    for target in range(n):
        implied = 0
        for source in sorted(sources[target], reverse=True):
            if not implied >> source & 1:
                kept.append((source, target))
            implied |= before[source] | 1 << source
    return sorted(kept)


def chain(n: int) -> list[Edge]:
    """Return the edges of a chain."""
    return [(i, i + 1) for i in range(n - 1)]


def barrier_edges(n: int, barriers: Collection[int]) -> set[Edge]:
    """Return edges that order some nodes with everything before and after them."""
    found: set[Edge] = set()
    fence = -1
    for node in range(n):
        if fence >= 0:
            found.add((fence, node))
        if node in barriers:
            found.update((other, node) for other in range(max(fence, 0), node))
            fence = node
    return found


def merged(n: int, edges: Sequence[Edge], weight: Sequence[float], width: int) -> list[Edge]:
    """Put the nodes of a graph on at most `width` branches: one after another on each.

    As streams do it: a node goes to the branch whose last node it waits for, else to the one that
    is idle first.

    Parameters
    ----------
    weight : sequence of float
        How long each node takes.

    Returns
    -------
    list of (int, int)
        The edges, those of the branches among them, without those that others imply.
    """
    branches = branches_of(n, edges, weight, width)
    last: dict[int, int] = {}
    found = set(edges)
    for node, branch in enumerate(branches):
        if branch in last:
            found.add((last[branch], node))
        last[branch] = node
    return reduced(n, found)


def branches_of(n: int, edges: Sequence[Edge], weight: Sequence[float], width: int) -> list[int]:
    """Return for each node the branch that it runs on; see `merged`."""
    sources: list[list[int]] = [[] for _ in range(n)]
    for source, target in edges:
        sources[target].append(source)
    ends = [0.0] * n
    free: list[float] = []
    last: list[int] = []
    branch = [0] * n
    for node in range(n):
        ready = max((ends[s] for s in sources[node]), default=0.0)
        own = [branch[s] for s in sources[node] if last[branch[s]] == s]
        if own:
            chosen = max(own, key=lambda b: free[b])
        elif len(free) < width and not any(f <= ready for f in free):
            chosen = len(free)
            free.append(0.0)
            last.append(-1)
        else:
            chosen = min(range(len(free)), key=lambda b: (free[b], b))
        ends[node] = max(ready, free[chosen]) + weight[node]
        free[chosen], last[chosen], branch[node] = ends[node], node, chosen
    return branch
