"""From footprints to dependences: the sweep over addresses, and what it finds in factored form."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.sweep_jit import Frees, Ranges, find_changes, pair_changes, sum_sharing
from depgraph.footprint.footprints import Footprints, cut_to_spans, stack_footprints
from depgraph.graph.block_graph import BlockGraph, assemble
from depgraph.graph.dependences import ALL_KINDS, KIND_NAMES, RAW, REUSE, WAR, Basis
from depgraph.graph.graph_jit import intern_lists
from depgraph.system import arrays
from depgraph.trace.records import KernelLaunch, Operation


class SetPairs(NamedTuple):
    """Sets of blocks, and pairs of them that depend on one another, of some addresses."""

    # [n_sets]: twice the operation, plus one where the blocks read by LDGSTS alone.
    set_label: NDArray[np.int64]
    set_hash: NDArray[np.uint64]  # [n_sets, 2]: names the blocks, whatever their order
    sets: arrays.Lists  # blocks of each set, in no order
    pairs: NDArray[np.uint64]  # [n_pairs]: as `pair_changes` returns them
    # As `sum_sharing` returns them.
    shared_bytes: arrays.PerOperation
    inside: NDArray[np.uint8]


def sweep(
    footprints: Footprints,
    operation_of_block: arrays.OperationOfBlock,
    n_operations: int,
    frees: Footprints | None = None,
) -> SetPairs:
    """Sweep over some addresses; `frees` has the operation after each free in place of a block."""
    ranges = Ranges(
        footprints.block,
        4 * operation_of_block[footprints.block] + footprints.kind,
        footprints.start,
        footprints.end,
        np.argsort(footprints.start, kind="stable"),  # made for runs, of which there are many
        np.argsort(footprints.end, kind="stable"),
    )
    with np.errstate(over="ignore"):
        changes, names, offsets, blocks = find_changes(ranges, n_operations)
        pairs = pair_changes(changes, _ends_of(frees), n_operations)
    sets = offsets, blocks[: offsets[-1]]
    sharing = sum_sharing(changes, n_operations)
    return SetPairs(names[:, 0].astype(np.int64), names[:, 1:], sets, pairs, *sharing)


def _ends_of(frees: Footprints | None) -> Frees:
    """Return where freed memory begins and ends, in the order of the addresses."""
    if frees is None:
        frees = stack_footprints([])
    address = np.concatenate([frees.start, frees.end])
    order = np.argsort(address)
    operation = np.concatenate([frees.block, frees.block])
    return Frees(address[order], operation[order], (np.arange(len(address)) < len(frees))[order])


def sweep_spaces(
    footprints: Footprints,
    operation_of_block: arrays.OperationOfBlock,
    n_operations: int,
    space: arrays.AddressSpaces | None,
    frees: Footprints | None,
) -> list[SetPairs]:
    """Sweep over each address space by itself: contexts of one process differ in addresses."""
    if space is None:
        return [sweep(footprints, operation_of_block, n_operations, frees)]
    of_range = space[operation_of_block[footprints.block]]
    return [
        sweep(footprints.take(of_range == number), operation_of_block, n_operations, frees)
        for number in np.unique(space)
    ]


def sweep_possible(
    footprints: Footprints,
    writes: Footprints,
    operation_of_block: arrays.OperationOfBlock,
    n_operations: int,
    space: arrays.AddressSpaces | None,
    frees: Footprints | None,
) -> list[SetPairs]:
    """Sweep over what blocks may write out of sight, and what touches the same bytes."""
    if not len(writes):
        return []
    spans = replace(writes, block=np.zeros_like(writes.block)).joined(1)
    near, _ = cut_to_spans(footprints, spans.start, spans.end)
    everything = stack_footprints([near, writes]).joined(len(operation_of_block))
    return sweep_spaces(everything, operation_of_block, n_operations, space, frees)


def address_spaces(operations: Sequence[Operation]) -> arrays.AddressSpaces | None:
    """Give each process or context a space, copies the next kernel's; None if there is one."""
    numbers: dict[tuple[int, int], int] = {}
    result = np.zeros(len(operations), np.int32)
    latest = 0
    for at in range(len(operations) - 1, -1, -1):
        operation = operations[at]
        if isinstance(operation, KernelLaunch):
            key = (operation.process, 0 if operation.is_unified else operation.context)
            latest = numbers.setdefault(key, len(numbers))
        result[at] = latest
    return result if len(numbers) > 1 else None


def build_graph(
    swept: Sequence[SetPairs],
    first_block: arrays.FirstBlocks,
    kernel: arrays.KernelNumbers,
    frees: Footprints | None = None,
) -> BlockGraph:
    """Put together what sweeps over disjoint addresses found, at least one.

    The numbering of sets and joins depends on their contents alone, not on the order in which the
    sweep met them, so that an analysis in pieces gives the same graph.
    """
    label = np.concatenate([piece.set_label for piece in swept])
    names = np.concatenate([piece.set_hash for piece in swept])
    operation, is_ldgsts = (label >> 1).astype(np.int32), label & 1 == 1
    source, target, kind = _unpacked(swept)
    by_ldgsts = is_ldgsts[target] | is_ldgsts[source]
    if len(swept) > 1 or is_ldgsts.any():
        one = _one_of_equals(operation, names)
        source, target = one[source], one[target]
    is_used = np.zeros(len(label), np.bool_)
    is_used[source] = is_used[target] = True
    used = np.flatnonzero(is_used)
    offsets, blocks = arrays.gather_lists(
        *arrays.concatenate_lists([piece.sets for piece in swept]), used
    )
    blocks = _sorted_members(offsets, blocks)
    order = np.lexsort((names[used, 0], np.diff(offsets), blocks[offsets[:-1]], operation[used]))
    number = np.empty(len(label), np.int64)
    number[used[order]] = np.arange(len(order))
    source, target = number[source], number[target]
    operation = operation[used[order]]

    labels = [(k, Basis.SEEN) for k in range(len(KIND_NAMES))]
    if by_ldgsts.any():
        labels += [(k, Basis.LDGSTS) for k in (RAW, WAR, REUSE)]
    sources, targets = [], []
    for k, basis in labels:
        chosen = (kind == k) & (by_ldgsts == (basis == Basis.LDGSTS))
        of_kind = _join_one_kind(source[chosen], target[chosen], operation)
        sources.append(of_kind[0])
        targets.append(of_kind[1])
    join_kind, join_basis = np.repeat(
        np.array(labels, np.uint8), [len(offsets) - 1 for offsets, _ in sources], axis=0
    ).T
    graph = assemble(
        kernel,
        first_block,
        (operation, *arrays.gather_lists(offsets, blocks, order)),
        join_kind,
        arrays.concatenate_lists(sources),
        arrays.concatenate_lists(targets),
        join_basis,
    )
    return graph if frees is None else replace(graph, kinds=ALL_KINDS, frees=frees)


def _unpacked(
    swept: Sequence[SetPairs],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return source set, target set and kind of all pairs, the sets numbered through."""
    first = arrays.list_offsets([len(piece.set_label) for piece in swept])
    shift = np.repeat(first[:-1], [len(piece.pairs) for piece in swept])
    pair = np.concatenate([piece.pairs for piece in swept])
    source = (pair >> np.uint64(33)).astype(np.int64) + shift
    target = (pair >> np.uint64(2) & np.uint64(2**31 - 1)).astype(np.int64) + shift
    return source, target, (pair & np.uint64(3)).astype(np.uint8)


def _one_of_equals(operation: arrays.Operations, names: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each set the first one with the same blocks."""
    for keys in ((names[:, 0],), (names[:, 1], names[:, 0], operation)):
        order = np.lexsort(keys)
        is_alike = np.diff(names[order, 0]) == 0
        differs = ~is_alike | (np.diff(names[order, 1]) != 0) | (np.diff(operation[order]) != 0)
        if not (differs & is_alike).any():  # else half of a name does not tell all apart
            break
    begins = np.append(0, np.flatnonzero(differs) + 1)
    one = np.empty(len(order), np.int64)
    one[order] = np.repeat(order[begins[: len(order)]], np.diff(np.append(begins, len(order))))
    return one


def _sorted_members(offsets: arrays.Offsets, blocks: arrays.Blocks) -> arrays.Blocks:
    key = arrays.list_of_each(offsets).astype(np.int64) << 32 | blocks
    key.sort()
    return (key & (1 << 32) - 1).astype(np.int32)


def _join_one_kind(
    source: NDArray[np.int64], target: NDArray[np.int64], set_operation: arrays.Operations
) -> tuple[arrays.Lists, arrays.Lists]:
    """Turn pairs of one kind into joins: lists of source sets and lists of target sets."""
    keys = arrays.distinct((target.astype(np.uint64) << np.uint64(32)) | source.astype(np.uint64))
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
    by_join = np.argsort(number, kind="stable")
    targets = arrays.list_offsets(np.bincount(number, minlength=len(first))), group_target[by_join]
    return arrays.gather_lists(offsets, earlier, first), targets
