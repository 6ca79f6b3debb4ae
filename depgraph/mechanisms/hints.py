"""Software hints: what a launch tells the scheduler that its blocks may touch, never less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.footprint.footprints import Footprints, cut_to_spans, join_footprints
from depgraph.graph.block_graph import BlockGraph
from depgraph.scenario.scenario import Scenario
from depgraph.system.arrays import distinct
from depgraph.trace.records import ACCESS_KINDS, Allocation

Keys = NDArray[np.uint64]

TENSOR, ROW, BLOCK = GRAINS = ("tensor", "row", "block")
# Allocators round up to this (``kMinBlockSize`` of PyTorch's), so that tensors begin at multiples.
ALIGNMENT = 512
# Segments of PyTorch's allocator (``kSmallBuffer``, ``kLargeBuffer``): they hold many tensors.
_POOLS = (2 << 20, 20 << 20)
# What a key stands for: a line, within what a block touches; a page, within the range of a row.
KEY_BYTES = {ROW: 4096, BLOCK: 128}
_SPACE = np.uint64(57)  # addresses have as many bits


@dataclass(frozen=True, slots=True)
class Hints:
    """Keys that units hint at; a unit is a kernel, a row of its blocks, or a block."""

    # Ranges of keys, both ends included: of a unit and kind they ascend and do not overlap.
    unit: NDArray[np.int32]
    kind: NDArray[np.uint8]  # `READ` or `WRITE`
    first: Keys
    last: Keys
    operation: NDArray[np.int32]  # [n_units]
    unit_of_block: NDArray[np.int32]  # [n_blocks]

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(self.operation)

    @property
    def n_keys(self) -> int:
        """Keys are below that."""
        return int(self.last.max(initial=0)) + 1

    @property
    def ranges(self) -> tuple[NDArray[np.int32], NDArray[np.uint8], Keys, Keys]:
        """Unit, kind, first and last key of each range."""
        return self.unit, self.kind, self.first, self.last

    def keys_of_operations(self, n_operations: int) -> NDArray[np.int64]:
        """Return how many keys are looked up for each operation: int64[n_operations]."""
        counts = (self.last - self.first).astype(np.float64) + 1
        operation = self.operation[self.unit]
        return np.bincount(operation, weights=counts, minlength=n_operations).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Byte ranges, each within one segment of memory that no tensor has a part of only."""

    touched: Footprints
    segment: NDArray[np.int64]
    begin: Keys  # [n_segments]: first address
    end: Keys


def footprints_for(mechanism: str, program: Scenario) -> Footprints:
    """Return what blocks touch; raise `NotApplicableError` if the program has no footprints."""
    footprints = None if program.read_footprints is None else program.read_footprints()
    if footprints is None or not len(footprints):
        raise NotApplicableError(f"{mechanism} needs footprints, which only a trace has")
    return footprints


def hints_of(program: Scenario, grain: str) -> Hints:
    """Return the hints of a program's launches at a grain of `GRAINS`."""
    graph = program.graph
    footprints = footprints_for("dataflow-hints", program)
    known = program.allocations if graph.space is None else ()
    allocations = [a for a in known if a.size not in _POOLS]
    pieces = cut_into_segments(graph, footprints, allocations)
    if grain == TENSOR:
        return _by_tensor(graph, pieces, allocations)
    unit_of_block = np.arange(graph.n_blocks, dtype=np.int32)
    if grain == ROW:
        unit_of_block = _rows(program)
    operation = np.zeros(int(unit_of_block.max(initial=-1)) + 1, np.int32)
    operation[unit_of_block] = graph.operation_of_block
    size = np.uint64(KEY_BYTES[grain])
    keys = (pieces.end - pieces.begin + size - np.uint64(1)) // size
    before = np.cumsum(keys) - keys
    begin = pieces.begin[pieces.segment]
    first = before[pieces.segment] + (pieces.touched.start - begin) // size
    last = before[pieces.segment] + (pieces.touched.end - np.uint64(1) - begin) // size
    unit, kind = unit_of_block[pieces.touched.block], pieces.touched.access
    if grain == ROW:
        unit, kind, first, last = _spanned(unit, kind, pieces.segment, first, last)
    return Hints(*_disjoint(unit, kind, first, last), operation, unit_of_block)


def cut_into_segments(
    graph: BlockGraph, footprints: Footprints, allocations: Sequence[Allocation]
) -> Pieces:
    """Cut memory where a tensor begins or ends, and footprints where memory is cut."""
    operation = graph.operation_of_block[footprints.block]
    touched = in_spaces(graph, footprints)
    # Where nothing is known of allocations, what a kernel touches without a gap is a tensor.
    buffers = join_footprints(
        operation, np.zeros_like(footprints.kind), *_rounded(touched.start, touched.end),
        graph.n_operations,
    )  # fmt: skip
    known = np.array([(a.address, a.address + a.size) for a in allocations if a.size], np.uint64)
    starts, ends = _rounded(*known.reshape(-1, 2).T)
    starts, ends = np.append(buffers.start, starts), np.append(buffers.end, ends)
    bounds = np.unique(np.append(starts, ends))
    covered = np.zeros(len(bounds) + 1, np.int64)
    np.add.at(covered, np.searchsorted(bounds, starts), 1)
    np.add.at(covered, np.searchsorted(bounds, ends), -1)
    inside = np.flatnonzero(np.cumsum(covered)[:-1] > 0)
    begin, end = bounds[inside], bounds[inside + 1]
    cut, segment = cut_to_spans(touched, begin, end)
    return Pieces(cut, segment, begin, end)


def in_spaces(graph: BlockGraph, footprints: Footprints) -> Footprints:
    """Return footprints in which addresses of other spaces are other addresses."""
    if graph.space is None:
        return footprints
    operation = graph.operation_of_block[footprints.block]
    shift = graph.space[operation].astype(np.uint64) << _SPACE
    return Footprints(
        footprints.block, footprints.kind, footprints.start + shift, footprints.end + shift
    )


def _rounded(start: Keys, end: Keys) -> tuple[Keys, Keys]:
    mask = np.uint64(ALIGNMENT - 1)
    return start & ~mask, (end + mask) & ~mask


def _by_tensor(graph: BlockGraph, pieces: Pieces, allocations: Sequence[Allocation]) -> Hints:
    """Hint at all segments of each tensor that a kernel touches."""
    operation = graph.operation_of_block[pieces.touched.block]
    group = _groups(operation, pieces.touched.access, pieces.segment, len(pieces.begin))
    unit_and_kind, segment = np.divmod(distinct(group), max(len(pieces.begin), 1))
    unit, kind = np.divmod(unit_and_kind, len(ACCESS_KINDS))
    first, last = segment.copy(), segment.copy()
    for allocation in allocations:
        extent = np.array([allocation.address, allocation.address + allocation.size], np.uint64)
        ends = np.searchsorted(pieces.begin, np.append(*_rounded(extent[:1], extent[1:])))
        freed = graph.n_operations if allocation.freed is None else allocation.freed
        is_its = (segment >= ends[0]) & (segment < ends[1])
        is_its &= (unit >= allocation.allocated) & (unit < freed)
        first[is_its] = np.minimum(first[is_its], ends[0])
        last[is_its] = np.maximum(last[is_its], ends[1] - 1)
    return Hints(
        *_disjoint(
            unit.astype(np.int32), kind.astype(np.uint8), first.astype(np.uint64),
            last.astype(np.uint64),
        ),
        np.arange(graph.n_operations, dtype=np.int32),
        graph.operation_of_block.astype(np.int32),
    )  # fmt: skip


def _rows(program: Scenario) -> NDArray[np.int32]:
    """Return the row of each block: those of a row differ in x alone. int32[n_blocks]."""
    graph = program.graph
    operation = graph.operation_of_block
    width = np.maximum(np.diff(graph.first_block), 1)
    if program.kernels:
        width = np.where(program.is_kernel, program.shape[:, 0], width)
    index = np.arange(graph.n_blocks) - graph.first_block[operation]
    rows = np.stack([operation, index // width[operation]])
    return np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _spanned(
    unit: NDArray[np.int32], kind: NDArray[np.uint8], segment: NDArray[np.int64], first: Keys,
    last: Keys,
) -> tuple[NDArray[np.int32], NDArray[np.uint8], Keys, Keys]:  # fmt: skip
    """Return one range for all that a unit reads, or writes, of a segment."""
    group = _groups(unit, kind, segment, int(segment.max(initial=0)) + 1)
    order = np.argsort(group, kind="stable")
    at = np.flatnonzero(np.diff(group[order], prepend=-1))
    if not len(at):
        return unit, kind, first, last
    return (
        unit[order][at],
        kind[order][at],
        np.minimum.reduceat(first[order], at),
        np.maximum.reduceat(last[order], at),
    )


def _groups(
    unit: NDArray[np.int32], kind: NDArray[np.uint8], segment: NDArray[np.int64], n_segments: int
) -> NDArray[np.int64]:
    """Return a number for each unit, kind and segment, in that order."""
    return (unit.astype(np.int64) * len(ACCESS_KINDS) + kind) * n_segments + segment


def _disjoint(
    unit: NDArray[np.int32], kind: NDArray[np.uint8], first: Keys, last: Keys
) -> tuple[NDArray[np.int32], NDArray[np.uint8], Keys, Keys]:
    """Sort ranges of keys, and leave each key of a unit and kind in one of them alone."""
    order = np.lexsort((last, first, kind, unit))
    unit, kind, first, last = unit[order], kind[order], first[order], last[order]
    group = unit.astype(np.int64) * len(ACCESS_KINDS) + kind
    # The furthest key so far within each group: groups are far apart on one axis of numbers.
    step = np.int64(last.max(initial=0)) + 1
    reached = np.maximum.accumulate(group * step + last.astype(np.int64))
    begins = np.maximum(group[1:] * step + first[1:].astype(np.int64), reached[:-1] + 1)
    first[1:] = (begins - group[1:] * step).astype(np.uint64)
    kept: NDArray[Any] = first <= last
    return unit[kept], kind[kept], first[kept], last[kept]
