"""Streams and events that let a plain CUDA program run what is independent side by side."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from depgraph.apply.matching import operations_of
from depgraph.apply.order import barrier_edges, branches_of, reachable, reduced
from depgraph.mechanisms.base import dependent_operations

if TYPE_CHECKING:
    from depgraph.graph.program import Kernel
    from depgraph.store.store import Store

MOST_STREAMS = 16


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel or copy of a program, and what it waits for.

    Attributes
    ----------
    number : int
        Kernel number; ``-1 - i`` for copy or memset i.
    kernel : Kernel or None
    needs : tuple of int
        Numbers of all that it depends on, without those that others imply.
    stream : int
        From 0.
    waits : tuple of int
        Those of them on other streams: it waits for their events.
    is_awaited : bool
        Whether another stream waits for it.
    keeps_place : bool
        Whether not all of its accesses are known: it stays behind all before it and ahead of all
        after it.
    """

    number: int
    kernel: Kernel | None
    needs: tuple[int, ...]
    stream: int
    waits: tuple[int, ...]
    is_awaited: bool
    keeps_place: bool


def stream_code(store: Store, most_streams: int = MOST_STREAMS) -> list[Launch]:
    """Put the operations of a store on streams, in program order.

    Certain and possible dependences of all kinds count.
    """
    operations = operations_of(store.kernels, store.copies)
    n = len(operations)
    source, target = dependent_operations(store.graph())
    opaque = {i for i, each in enumerate(operations) if each.kernel and each.kernel.untraced}
    needed = set(zip(source.tolist(), target.tolist(), strict=True))
    edges = reduced(n, needed | barrier_edges(n, opaque))
    stream = branches_of(n, edges, [1.0] * n, most_streams)
    needs: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges:
        needs[b].append(a)
    waits = _waits(n, needs, stream)
    awaited = {node for nodes in waits for node in nodes}
    copies = count(-1, -1)
    number = [next(copies) if o.kernel is None else o.kernel.kernel for o in operations]
    return [
        Launch(
            number=number[i],
            kernel=operations[i].kernel,
            needs=tuple(number[a] for a in needs[i]),
            stream=stream[i],
            waits=tuple(number[a] for a in waits[i]),
            is_awaited=i in awaited,
            keeps_place=i in opaque,
        )
        for i in range(n)
    ]


def _waits(n: int, needs: list[list[int]], stream: list[int]) -> list[list[int]]:
    """Return what each node has to wait for that its own stream does not bring."""
    last: dict[int, int] = {}
    behind = []
    for node in range(n):
        if stream[node] in last:
            behind.append((last[stream[node]], node))
        last[stream[node]] = node
    before = reachable(n, [*behind, *((a, b) for b in range(n) for a in needs[b])])
    ahead = {b: a for a, b in behind}
    found = []
    for node in range(n):
        own = ahead.get(node)
        known = 0 if own is None else before[own] | 1 << own
        found.append([a for a in needs[node] if not known >> a & 1])
    return found
