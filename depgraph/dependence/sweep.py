"""From footprints to dependences: the sweep over addresses, shard by shard, and what it finds.

Shards of the address space are analysed one by one or side by side, and put together at the end.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.sweep_jit import Frees, Ranges, find_changes, pair_changes, sum_sharing
from depgraph.footprint.footprints import (
    ADDRESS_END,
    PAGE_BYTES,
    Footprints,
    RangeStore,
    Run,
    SpilledFootprints,
    concatenate_footprints,
    cut_to_spans,
    stack_footprints,
    write_run,
)
from depgraph.graph.block_graph import BlockGraph, assemble
from depgraph.graph.dependences import ALL_KINDS, KIND_NAMES, RAW, REUSE, WAR, Basis
from depgraph.graph.graph_jit import intern_lists
from depgraph.system import arrays
from depgraph.system.output import Scratch
from depgraph.system.workers import Workers, return_free_memory
from depgraph.trace.records import READ, WRITE, KernelLaunch, Operation

# Boundaries are multiples of the coarsest granularity, so that rounding stays inside a shard.
_ALIGNMENT = 128
# What the analysis of a shard holds at its peak, for each range: the range itself several times
# over while it is cut and joined, two orders, and the links of the sweep.
_BYTES_PER_RANGE = 160
_SMALL = 100_000


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


def _sweep_possible(
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


@dataclass(frozen=True, slots=True)
class Shard:
    """The footprints between two addresses: pieces in memory, or where they stand in files."""

    pieces: Sequence[Footprints] = ()
    runs: Sequence[Run] = ()
    # The addresses that a reader of `runs` takes; multiples of `PAGE_BYTES`.
    low: int = 0
    high: int = ADDRESS_END
    output: Path | None = None  # where to leave the joined footprints; None to return them

    def load(self) -> list[Footprints]:
        """Return the footprints of the shard, by global block number."""
        return [*self.pieces, *(run.read(self.low, self.high) for run in self.runs)]


@dataclass(slots=True)
class ShardResult:
    """What is found between some addresses: in one shard, or in all of them."""

    footprints: Footprints | SpilledFootprints  # none of them where a shard left them in a file
    # [3, n_operations]: distinct bytes that each operation reads, writes, and reads by LDGSTS alone
    operation_bytes: NDArray[np.int64]
    block_bytes: NDArray[np.int64]  # [2, n_blocks]: distinct bytes that each block reads and writes
    block_ranges: NDArray[np.int64]  # [n_blocks]: number of ranges of each block
    # Found byte by byte, one for each address space of each shard.
    exact: list[SetPairs] = field(default_factory=list)
    # Found at a coarser granularity, where one was asked for.
    rounded: list[SetPairs] = field(default_factory=list)
    possible: list[SetPairs] = field(default_factory=list)  # between what blocks may write as well

    @classmethod
    def none(cls, n_operations: int, n_blocks: int) -> Self:
        """Return what is found where nothing is."""
        return cls(
            stack_footprints([]),
            np.zeros((3, n_operations), np.int64),
            np.zeros((2, n_blocks), np.int64),
            np.zeros(n_blocks, np.int64),
        )

    def add(self, other: Self) -> None:
        """Add what was found elsewhere, but for the footprints."""
        self.operation_bytes += other.operation_bytes
        self.block_bytes += other.block_bytes
        self.block_ranges += other.block_ranges
        self.exact += other.exact
        self.rounded += other.rounded
        self.possible += other.possible

    @property
    def shared_bytes(self) -> NDArray[np.int64]:
        """Bytes that a block writes and another of the operation touches: int64[n_operations]."""
        total = np.zeros(self.operation_bytes.shape[1], np.int64)
        return sum((swept.shared_bytes for swept in self.exact), total)

    @property
    def inside(self) -> NDArray[np.uint8]:
        """What blocks do with each other's bytes, see `sum_sharing`: uint8[n_operations]."""
        flags = np.zeros(self.operation_bytes.shape[1], np.uint8)
        return reduce(or_, (swept.inside for swept in self.exact), flags)


@dataclass(frozen=True, slots=True)
class ShardAnalysis:
    """Joins the footprints inside a shard and finds the dependences there."""

    first_block: arrays.FirstBlocks
    granularity: int  # bytes; above 1, dependences are looked for at both granularities
    space: arrays.AddressSpaces | None = None
    frees: Footprints | None = None  # as `sweep` takes it
    possible: Footprints | None = None  # what blocks may write out of sight

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.first_block[-1])

    @property
    def n_operations(self) -> int:
        """Number of operations."""
        return len(self.first_block) - 1

    def __call__(self, shard: Shard) -> ShardResult:
        """Analyse one shard."""
        import nvtx

        with nvtx.annotate("shard", domain="depgraph"):
            n_blocks, n_operations = self.n_blocks, self.n_operations
            operation_of_block = arrays.list_of_each(self.first_block)
            program = operation_of_block, n_operations, self.space, self.frees
            footprints = concatenate_footprints(shard.load(), n_blocks)
            operation = operation_of_block[footprints.block]
            by_operation = replace(footprints, block=operation).joined(n_operations)
            ldgsts_bytes = by_operation.ldgsts_bytes(n_operations)
            result = ShardResult(
                footprints,
                np.stack([*_bytes_by_kind(by_operation, n_operations), ldgsts_bytes]),
                _bytes_by_kind(footprints, n_blocks),
                np.bincount(footprints.block, minlength=n_blocks),
                sweep_spaces(footprints, *program),
            )
            if self.granularity != 1:
                rounded = footprints.rounded(self.granularity, n_blocks)
                result.rounded = sweep_spaces(rounded, *program)
            if self.possible is not None:
                writes = self.possible.between(shard.low, shard.high)
                result.possible = _sweep_possible(footprints, writes, *program)
            if shard.output is not None:
                write_run(footprints, shard.output)
                result.footprints = stack_footprints([])
            return result


def _bytes_by_kind(footprints: Footprints, n: int) -> NDArray[np.int64]:
    return np.stack([footprints.bytes_per_block(access, n) for access in (READ, WRITE)])


def choose_boundaries(
    samples: Sequence[NDArray[np.uint64]], shards: int, alignment: int = _ALIGNMENT
) -> NDArray[np.uint64]:
    """Choose at most `shards` - 1 multiples of `alignment` that cut samples about equally."""
    starts = np.sort(np.concatenate([*samples, np.empty(0, np.uint64)]))
    if not len(starts) or shards <= 1:
        return np.empty(0, np.uint64)
    at = np.arange(1, shards) * len(starts) // shards
    boundaries = np.unique(starts[at] & ~np.uint64(alignment - 1))
    return boundaries[boundaries > 0]


def cut_footprints(footprints: Footprints, boundaries: NDArray[np.uint64]) -> list[Footprints]:
    """Cut footprints at address boundaries; return those of each shard."""
    ends = pairwise([0, *boundaries.tolist(), ADDRESS_END])
    return [footprints.between(low, high) for low, high in ends]


def analyse_shards(
    ranges: RangeStore, analysis: ShardAnalysis, workers: Workers, scratch: Scratch, memory: int
) -> ShardResult:
    """Cut ranges, using them up, into shards, analyse them side by side in `memory`, and sum up."""
    sweeps = 1 if analysis.possible is None or not len(analysis.possible) else 2
    most_ranges = max(1, memory // workers.jobs // (sweeps * _BYTES_PER_RANGE))
    side_by_side = 1 if ranges.n_ranges < _SMALL else 2 * workers.jobs
    wanted = max(side_by_side, -(-ranges.n_ranges // most_ranges))
    in_files = bool(ranges.runs)
    if in_files:
        shards = _file_shards(ranges, scratch, wanted)
    else:
        shards = _memory_shards(ranges, workers, wanted)
    total = ShardResult.none(analysis.n_operations, analysis.n_blocks)
    joined = []
    with closing(workers.map(analysis, shards)) as results:
        for result in results:
            total.add(result)
            joined.append(result.footprints.load())
            if in_files:
                return_free_memory()
    if in_files:
        total.footprints = SpilledFootprints(
            [shard.output for shard in shards if shard.output is not None],
            arrays.list_offsets(total.block_ranges),
            most_ranges,
        )
    elif len(joined) == 1:
        total.footprints = joined[0]
    else:
        total.footprints = concatenate_footprints(joined, analysis.n_blocks)
    return total


def _memory_shards(ranges: RangeStore, workers: Workers, wanted: int) -> list[Shard]:
    boundaries = choose_boundaries(ranges.samples, wanted)
    pieces, ranges.pieces = ranges.pieces, []
    if not len(boundaries):
        return [Shard(pieces)]
    cut = list(workers.map(lambda piece: cut_footprints(piece, boundaries), pieces))
    ends = pairwise([0, *boundaries.tolist(), ADDRESS_END])
    return [
        Shard(of_shard, (), low, high)
        for of_shard, (low, high) in zip(zip(*cut, strict=True), ends, strict=True)
    ]


def _file_shards(ranges: RangeStore, scratch: Scratch, wanted: int) -> list[Shard]:
    boundaries = choose_boundaries(ranges.samples, wanted, PAGE_BYTES).tolist()
    return [
        Shard((), ranges.runs, low, high, scratch.new_file("shard"))
        for low, high in pairwise([0, *boundaries, ADDRESS_END])
    ]


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
