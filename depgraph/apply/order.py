"""Orders between the nodes of a graph, as bits of integers: which edges are needed, and branches.

Nodes are numbered in an order that is allowed; bit i of a mask is node i.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

Edge = tuple[int, int]


def masks_of(n: int, edges: Iterable[Edge]) -> list[int]:
    """Return for each node the nodes that edges lead from, all of them smaller."""
    found = [0] * n
    for source, target in edges:
        found[target] |= 1 << source
    return found


def nodes_of(mask: int) -> Iterator[int]:
    """Yield the nodes of a mask, the largest first."""
    while mask:
        node = mask.bit_length() - 1
        mask ^= 1 << node
        yield node


def reduced(before: Sequence[int]) -> tuple[list[Edge], list[int]]:
    """Return the fewest edges that keep an order, and for each node a mask of all before it."""
    edges: list[Edge] = []
    closed: list[int] = []
    for target, mask in enumerate(before):
        implied = 0
        while left := mask & ~implied:
            source = left.bit_length() - 1
            edges.append((source, target))
            implied |= closed[source] | 1 << source
        closed.append(implied)
    return sorted(edges), closed


def chain(n: int) -> list[Edge]:
    """Return the edges of a chain."""
    return [(i, i + 1) for i in range(n - 1)]


def branches_of(n: int, edges: Iterable[Edge], weight: Sequence[float], width: int) -> list[int]:
    """Return the branch of each node: that of a node it waits for, else the one idle first."""
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


def along_branches(branches: Sequence[int]) -> list[Edge]:
    """Return the edges that keep the nodes of each branch one after another."""
    last: dict[int, int] = {}
    found = []
    for node, branch in enumerate(branches):
        if branch in last:
            found.append((last[branch], node))
        last[branch] = node
    return found


def postponing(node: int, edges: Sequence[Edge], closed: Sequence[int]) -> list[int]:
    """Return the permitted order in which a node comes last; free choices go backwards."""
    n = len(closed)
    waits = [0] * n
    after: list[list[int]] = [[] for _ in range(n)]
    for source, target in edges:
        waits[target] += 1
        after[source].append(target)

    def rank(other: int) -> tuple[bool, int]:
        return other == node or bool(closed[other] >> node & 1), -other

    ready = [(*rank(other), other) for other in range(n) if not waits[other]]
    heapq.heapify(ready)
    order = []
    while ready:
        *_, first = heapq.heappop(ready)
        order.append(first)
        for other in after[first]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (*rank(other), other))
    return order


def adversarial_orders(
    edges: Sequence[Edge], closed: Sequence[int], most: int
) -> tuple[list[list[int]], int]:
    """Return permitted orders that turn each free pair around, and how many pairs none turns."""
    # A missing edge lets its two nodes change places: in one of these orders they have.
    n = len(closed)
    free = [0] * n  # those behind a node that need not wait for it
    for later, before in enumerate(closed):
        for earlier in nodes_of(((1 << later) - 1) & ~before):
            free[earlier] |= 1 << later
    orders: list[list[int]] = []
    while len(orders) < most and any(free):
        node = max(range(n), key=lambda i: free[i].bit_count())
        orders.append(postponing(node, edges, closed))
        ran = 0
        for other in orders[-1]:
            free[other] &= ~ran
            ran |= 1 << other
    return orders, sum(mask.bit_count() for mask in free)
