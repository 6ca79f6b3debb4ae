"""From footprints to dependences: the sweep over addresses, and what it finds in factored form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.dependence.sweep_jit import RAW, WAR, sweep_addresses
from depgraph.graph.builder import assemble
from depgraph.graph.kinds import KIND_NAMES, Basis
from depgraph.graph.lists import concatenate_lists, gather_lists, list_of_each, list_offsets
from depgraph.graph.lists_jit import intern_lists
from depgraph.trace.records import KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.trace.records import Operation


@dataclass(frozen=True, slots=True)
class SetPairs:
    """Sets of blocks, and pairs of them that depend on one another, of some addresses.

    Attributes
    ----------
    set_operation, set_ldgsts, set_offsets, set_blocks, set_hash
        As `sweep_addresses` returns them.
    pairs : uint64[n_pairs]
    shared_bytes : int64[n_operations]
    inside : uint8[n_operations]
    """

    set_operation: NDArray[np.int32]
    set_ldgsts: NDArray[np.bool_]
    set_offsets: NDArray[np.int64]
    set_blocks: NDArray[np.int32]
    set_hash: NDArray[np.uint64]
    pairs: NDArray[np.uint64]
    shared_bytes: NDArray[np.int64]
    inside: NDArray[np.uint8]


def sweep(
    footprints: Footprints, operation_of_block: NDArray[np.int32], n_operations: int
) -> SetPairs:
    """Sweep over some addresses; see `depgraph.dependence.sweep_jit`."""
    with np.errstate(over="ignore"):
        return SetPairs(
            *sweep_addresses(
                footprints.block,
                footprints.kind,
                footprints.start,
                footprints.end,
                np.argsort(footprints.start),
                np.argsort(footprints.end),
                operation_of_block,
                n_operations,
            )
        )


def sweep_spaces(
    footprints: Footprints,
    operation_of_block: NDArray[np.int32],
    n_operations: int,
    space: NDArray[np.int32] | None,
) -> list[SetPairs]:
    """Sweep over each address space by itself.

    Parameters
    ----------
    footprints : Footprints
    operation_of_block : int32[n_blocks]
    n_operations : int
    space : int32[n_operations] or None
        Number of the address space of each operation; None if there is one.
    """
    if space is None:
        return [sweep(footprints, operation_of_block, n_operations)]
    of_range = space[operation_of_block[footprints.block]]
    return [
        sweep(footprints.take(of_range == number), operation_of_block, n_operations)
        for number in np.unique(space)
    ]


def address_spaces(operations: Sequence[Operation]) -> NDArray[np.int32] | None:
    """Give each CUDA context of each process an address space, and say which operation is in which.

    A host copy is taken to be of the context of the kernel after it.

    Returns
    -------
    int32[n_operations] or None
        None if there is only one.
    """
    numbers: dict[tuple[int, int], int] = {}
    result = np.zeros(len(operations), np.int32)
    latest = 0
    for at in range(len(operations) - 1, -1, -1):
        operation = operations[at]
        if isinstance(operation, KernelLaunch):
            key = (operation.process, operation.context)
            latest = numbers.setdefault(key, len(numbers))
        result[at] = latest
    return result if len(numbers) > 1 else None


def find_dependences(
    footprints: Footprints, first_block: NDArray[np.int64], kernel: NDArray[np.int32]
) -> tuple[BlockGraph, NDArray[np.int64]]:
    """Find which blocks depend on which, byte by byte, last writer first.

    Parameters
    ----------
    footprints : Footprints
    first_block : int64[n_operations + 1]
        Global number of the first block of each operation, in program order.
    kernel : int32[n_operations]
        Kernel number of each operation, ``-1 - i`` for host copy i.

    Returns
    -------
    graph : BlockGraph
    shared_bytes : int64[n_operations]
        Bytes that a block writes and another block of the same operation touches.
    """
    swept = sweep(footprints, list_of_each(first_block), len(kernel))
    return build_graph([swept], first_block, kernel), swept.shared_bytes


def build_graph(
    swept: Sequence[SetPairs], first_block: NDArray[np.int64], kernel: NDArray[np.int32]
) -> BlockGraph:
    """Put together what sweeps over disjoint addresses found.

    Parameters
    ----------
    swept : sequence of SetPairs
        At least one.
    first_block, kernel
        As for `find_dependences`.
    """
    set_offsets, set_blocks = concatenate_lists([(p.set_offsets, p.set_blocks) for p in swept])
    pairs = []
    n_sets = 0
    for piece in swept:
        shift = np.uint64(n_sets)
        pairs.append(piece.pairs + (shift << np.uint64(33)) + (shift << np.uint64(2)))
        n_sets += len(piece.set_operation)
    set_operation = np.concatenate([piece.set_operation for piece in swept])
    set_hash = np.concatenate([piece.set_hash for piece in swept])
    pair = np.concatenate(pairs)
    source = (pair >> np.uint64(33)).astype(np.int64)
    target = (pair >> np.uint64(2) & np.uint64(2**31 - 1)).astype(np.int64)
    kind = (pair & np.uint64(3)).astype(np.uint8)
    set_ldgsts = np.concatenate([piece.set_ldgsts for piece in swept])
    by_ldgsts = np.where(kind == RAW, set_ldgsts[target], (kind == WAR) & set_ldgsts[source])
    if len(swept) > 1 or set_ldgsts.any():
        order = np.lexsort((set_hash[:, 1], set_hash[:, 0], set_operation))
        differs = (set_operation[order[1:]] != set_operation[order[:-1]]) | np.any(
            set_hash[order[1:]] != set_hash[order[:-1]], axis=1
        )
        group = np.append(0, np.cumsum(differs))[: len(order)]
        representative = np.empty(len(order), np.int64)
        representative[order] = order[np.append(0, np.flatnonzero(differs) + 1)[group]]
        source, target = representative[source], representative[target]
    return _factor(
        set_operation,
        set_offsets,
        set_blocks,
        set_hash,
        source,
        target,
        kind,
        by_ldgsts,
        first_block,
        kernel,
    )


def _factor(
    set_operation: NDArray[np.int32],
    set_offsets: NDArray[np.int64],
    set_blocks: NDArray[np.int32],
    set_hash: NDArray[np.uint64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    kind: NDArray[np.uint8],
    by_ldgsts: NDArray[np.bool_],
    first_block: NDArray[np.int64],
    kernel: NDArray[np.int32],
) -> BlockGraph:
    """Join the pairs whose targets follow the same sources.

    The numbering of sets and joins depends on their contents alone, not on the order in which the
    sweep met them, so that an analysis in pieces gives the same graph.
    """
    used = np.zeros(len(set_operation), np.bool_)
    used[source] = True
    used[target] = True
    order = np.flatnonzero(used)
    if len(order):
        first_member = set_blocks[set_offsets[order]]
        size = np.diff(set_offsets)[order]
        order = order[np.lexsort((set_hash[order, 0], size, first_member, set_operation[order]))]
    renumbered = np.full(len(set_operation), -1, np.int64)
    renumbered[order] = np.arange(len(order))
    set_operation = set_operation[order]
    set_offsets, set_blocks = gather_lists(set_offsets, set_blocks, order)
    source = renumbered[source]
    target = renumbered[target]

    labels = [(k, Basis.SEEN) for k in range(len(KIND_NAMES))]
    if by_ldgsts.any():
        labels += [(RAW, Basis.LDGSTS), (WAR, Basis.LDGSTS)]
    pieces = []
    for k, basis in labels:
        chosen = (kind == k) & (by_ldgsts == (basis == Basis.LDGSTS))
        pieces.append(_join_one_kind(source[chosen], target[chosen], set_operation))
    join_kind, join_basis = np.repeat(
        np.array(labels, np.uint8), [len(p[0]) - 1 for p in pieces], axis=0
    ).T
    return assemble(
        kernel,
        first_block,
        (set_operation, set_offsets, set_blocks),
        join_kind,
        concatenate_lists([(p[0], p[1]) for p in pieces]),
        concatenate_lists([(p[2], p[3]) for p in pieces]),
        join_basis,
    )


def _join_one_kind(
    source: NDArray[np.int64], target: NDArray[np.int64], set_operation: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Turn pairs of one kind into joins: lists of source sets and lists of target sets."""
    keys = np.unique((target.astype(np.uint64) << np.uint64(32)) | source.astype(np.uint64))
    later = (keys >> np.uint64(32)).astype(np.int32)
    earlier = (keys & np.uint64(2**32 - 1)).astype(np.int32)
    begins = np.ones(len(keys), np.bool_)
    source_operation = set_operation[earlier]
    begins[1:] = (later[1:] != later[:-1]) | (source_operation[1:] != source_operation[:-1])
    offsets = np.append(np.flatnonzero(begins), len(keys)).astype(np.int64)
    group_target = later[offsets[:-1]]
    # Equal source lists have one source operation; the target operation has to be told apart.
    with np.errstate(over="ignore"):
        number, first = intern_lists(offsets, earlier, set_operation[group_target].astype(np.int64))
    source_offsets, sources = gather_lists(offsets, earlier, first)
    by_join = np.argsort(number, kind="stable")
    target_offsets = list_offsets(np.bincount(number, minlength=len(first)))
    return source_offsets, sources, target_offsets, group_target[by_join].astype(np.int32)
