"""Joins for what a trace leaves open: kernels it cannot show, or whose blocks wait inside.

A join is certain if accesses in the trace make it. These add joins that are only possible. They
bound nothing, but what claims to be reached obeys them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from depgraph.dependence.sweep import SetPairs, build_graph
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.builder import extend, with_possible_joins_of
from depgraph.graph.dependences import FOUND, KIND_NAMES, RAW, WAR, WAW, Basis
from depgraph.graph.program import Kernel
from depgraph.system.arrays import AddressSpaces, Mask, SetNumbers
from depgraph.trace.records import TILES

_EVERY_KIND = RAW, WAR, WAW


def with_possible_joins(graph: BlockGraph, kernels: Sequence[Kernel]) -> BlockGraph:
    """Add the joins that kernels make possible which are opaque or wait inside.

    An opaque kernel may touch anything: it waits for all blocks of the kernels and copies since
    the opaque kernel before it, and those up to the next one wait for it. Of a kernel whose blocks
    wait for one another, every block of another kernel that waits for one of its blocks waits for
    all of them.
    """
    reads, writes, opaque, unit = np.zeros((4, graph.n_operations), np.bool_)
    writes[graph.kernel < 0] = True
    for kernel in kernels:
        reads[kernel.operation] = kernel.read_bytes > 0
        writes[kernel.operation] = kernel.written_bytes > 0
        opaque[kernel.operation] = kernel.is_opaque
        unit[kernel.operation] = kernel.waits_inside == FOUND
    blocks = np.diff(graph.first_block)
    barriers = [
        (kind, Basis.OPAQUE, source, target)
        for source, target, kinds in opaque_pairs(opaque, reads, writes, graph.space)
        for kind in kinds
        if KIND_NAMES[kind] in graph.kinds and blocks[source] and blocks[target]
    ]
    return extend(graph, barriers, list(_unit_joins(graph, unit & ~opaque, opaque)))


def with_possible_writes(
    graph: BlockGraph, swept: Sequence[SetPairs], kernels: Sequence[Kernel]
) -> BlockGraph:
    """Add the joins that writes out of sight make possible, as `ShardResult.possible` has them."""
    if not swept:
        return graph
    reach = np.zeros(graph.n_operations, np.uint8)
    for kernel in kernels:
        if kernel.reach is not None:
            reach[kernel.operation] = Basis.TILES if kernel.reach == TILES else Basis.RANGE
    found = build_graph(swept, graph.first_block, graph.kernel, graph.frees)
    found = found.with_kinds(graph.kinds)
    kind = found.join_kind
    of_source = np.where(kind == WAR, 0, reach[found.join_source_operation])
    of_target = np.where(kind == RAW, 0, reach[found.join_target_operation])
    # The less is known of the two, the less is known of the join.
    is_ranged = (of_source == Basis.RANGE) | (of_target == Basis.RANGE)
    basis = np.where(is_ranged, Basis.RANGE, np.maximum(of_source, of_target)).astype(np.uint8)
    return with_possible_joins_of(graph, replace(found, join_basis=basis))


def with_joins_in_known_memory(graph: BlockGraph, other: BlockGraph) -> BlockGraph:
    """Add the joins that writes out of sight made possible in another graph of the same blocks."""
    return with_possible_joins_of(
        graph, other.only_joins((other.basis == Basis.RANGE) | (other.basis == Basis.TILES))
    )


def opaque_pairs(
    opaque: Mask, reads: Mask, writes: Mask, space: AddressSpaces | None
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (source, target, kinds) of operations of which one is opaque, in one address space."""
    barrier: dict[int, int] = {}
    since: dict[int, list[int]] = {}
    for operation in range(len(opaque)):
        where = 0 if space is None else int(space[operation])
        before = barrier.get(where)
        if opaque[operation]:
            for earlier in since.pop(where, ()):
                kinds = ((RAW, WAW) if writes[earlier] else ()) + ((WAR,) if reads[earlier] else ())
                yield earlier, operation, kinds
            if before is not None:
                yield before, operation, _EVERY_KIND
            barrier[where] = operation
        elif reads[operation] or writes[operation]:
            since.setdefault(where, []).append(operation)
            if before is not None:
                kinds = ((RAW,) if reads[operation] else ()) + (
                    (WAR, WAW) if writes[operation] else ()
                )
                yield before, operation, kinds


def _unit_joins(
    graph: BlockGraph, unit: Mask, opaque: Mask
) -> Iterator[tuple[int, Basis, int, SetNumbers]]:
    """Yield (kind, basis, source, target sets) of joins for whole kernels that are missing."""
    chosen = np.flatnonzero(
        unit[graph.join_source_operation] & ~opaque[graph.join_target_operation]
    )
    sizes = np.diff(graph.set_offsets)
    targets: dict[tuple[int, int], dict[int, list[SetNumbers]]] = {}
    is_partial: set[tuple[int, int]] = set()
    for join in chosen.tolist():
        pair = int(graph.join_source_operation[join]), int(graph.join_target_operation[join])
        sources = graph.sources[graph.source_offsets[join] : graph.source_offsets[join + 1]]
        if sizes[sources].max() < graph.span(pair[0])[1]:
            is_partial.add(pair)
        own = graph.targets[graph.target_offsets[join] : graph.target_offsets[join + 1]]
        of_kind = targets.setdefault(pair, {})
        of_kind.setdefault(int(graph.join_kind[join]), []).append(own)
    for pair, kinds in targets.items():
        if pair in is_partial:
            for kind, lists in kinds.items():
                yield kind, Basis.UNIT, pair[0], np.unique(np.concatenate(lists))
