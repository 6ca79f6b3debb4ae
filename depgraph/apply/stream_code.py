"""Streams and events that let a plain CUDA program run what is independent side by side."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from depgraph.apply.matching import operations_of
from depgraph.apply.order import Edge, along_branches, branches_of, masks_of, reduced
from depgraph.graph.block_graph import dependent_operations
from depgraph.graph.program import Kernel
from depgraph.store.store import Store

_MOST_STREAMS = 16


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel or copy of a program, and what it waits for."""

    number: int  # kernel number; ``-1 - i`` for copy or memset i
    kernel: Kernel | None
    needs: tuple[int, ...]  # numbers of all that it depends on, without those that others imply
    stream: int  # from 0
    waits: tuple[int, ...]  # those of them on other streams: it waits for their events
    is_awaited: bool  # whether another stream waits for it
    keeps_place: bool  # behind all before and ahead of all after: not all it accesses is known


def stream_code(store: Store) -> list[Launch]:
    """Put the operations of a store on streams; certain and possible dependences count."""
    operations = operations_of(store.kernels, store.copies)
    n = len(operations)
    source, target = dependent_operations(store.graph())
    kernels = [each if isinstance(each, Kernel) else None for each in operations]
    opaque = {i for i, kernel in enumerate(kernels) if kernel and kernel.untraced}
    needed = set(zip(source.tolist(), target.tolist(), strict=True))
    edges, _ = reduced(masks_of(n, [*needed, *_keeping_place(n, opaque)]))
    stream = branches_of(n, edges, [1.0] * n, _MOST_STREAMS)
    needs: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges:
        needs[b].append(a)
    # What is on the same stream waits by itself, and lets others know of what came before.
    fewest, _ = reduced(masks_of(n, [*edges, *along_branches(stream)]))
    waits: list[list[int]] = [[] for _ in range(n)]
    for a, b in fewest:
        if stream[a] != stream[b]:
            waits[b].append(a)
    awaited = {node for nodes in waits for node in nodes}
    number = [o.kernel if isinstance(o, Kernel) else o.number for o in operations]
    return [
        Launch(
            number=number[i],
            kernel=kernels[i],
            needs=tuple(number[a] for a in needs[i]),
            stream=stream[i],
            waits=tuple(number[a] for a in waits[i]),
            is_awaited=i in awaited,
            keeps_place=i in opaque,
        )
        for i in range(n)
    ]


def _keeping_place(n: int, nodes: Collection[int]) -> Iterator[Edge]:
    """Yield edges that keep some nodes behind everything before and ahead of everything after."""
    fence = -1
    for node in range(n):
        if fence >= 0:
            yield fence, node
        if node in nodes:
            yield from ((other, node) for other in range(max(fence, 0), node))
            fence = node
