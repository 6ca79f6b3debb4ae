"""Where inside a block its accesses stand, kept with the graph.

Each byte that a block reads (or writes) has the share of the block's work before the first such
access and the share after the last, in sixteenths. The sweep over addresses then sees each block
and pair of shares as a block of its own, so that sets of blocks carry them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.positions_jit import overlay_ranges
from depgraph.dependence.possible import with_joins_in_known_memory, with_possible_joins
from depgraph.dependence.sweep import build_graph, sweep_spaces
from depgraph.footprint.footprints import Footprints, touched_by_copies
from depgraph.graph.program import Extraction
from depgraph.system.arrays import AccessKinds, Addresses, Blocks
from depgraph.trace.records import MemoryOperation

STEPS = 16
"""Positions are counted in sixteenths of a block's accesses."""


class PositionedRanges(NamedTuple):
    """Byte ranges with the positions of the accesses that touched them."""

    block: Blocks
    kind: AccessKinds
    start: Addresses
    end: Addresses
    # Sixteenths of the block's accesses before the first one here, rounded up.
    first: NDArray[np.uint8]
    last: NDArray[np.uint8]  # sixteenths done with the last one here, rounded down


def join_positioned(pieces: Sequence[PositionedRanges]) -> PositionedRanges:
    """Cut ranges where positions differ, join alike ones; earliest and latest count of a byte."""
    block, kind, start, end, first, last = map(np.concatenate, zip(*pieces, strict=True))
    group = 4 * block.astype(np.int64) + kind
    order = np.lexsort((start, group))
    group, start, end, first, last = (column[order] for column in (group, start, end, first, last))
    by_end = np.lexsort((end, group))
    return PositionedRanges(*overlay_ranges(group, start, end, first, last, by_end, STEPS))


def with_positions(extraction: Extraction, ranges: PositionedRanges) -> Extraction:
    """Return an extraction, at byte granularity, that knows where in blocks dependences matter."""
    graph = extraction.graph
    touched = touched_by_copies(
        (c.block, MemoryOperation(c.address, c.size, c.source)) for c in extraction.copies
    )
    whole = np.zeros(len(touched), np.uint8), np.full(len(touched), STEPS, np.uint8)
    pieces: list[tuple[NDArray[Any], ...]] = [ranges, (*touched.columns, *whole)]
    ranges = PositionedRanges(*map(np.concatenate, zip(*pieces, strict=True)))
    key = (ranges.block.astype(np.int64) * (STEPS + 1) + ranges.first) * (STEPS + 1) + ranges.last
    distinct, number = np.unique(key, return_inverse=True)
    block = (distinct // (STEPS + 1) ** 2).astype(np.int32)
    swept = sweep_spaces(
        Footprints(number.astype(np.int32), ranges.kind, ranges.start, ranges.end),
        graph.operation_of_block[block],
        graph.n_operations,
        graph.space,
        graph.frees,
    )
    fine = build_graph(swept, graph.first_block, graph.kernel, graph.frees)
    fine = fine.with_kinds(graph.kinds)
    member = fine.set_blocks
    fine = replace(
        graph.with_dependences_of(fine),
        set_blocks=block[member],
        first_use=(distinct // (STEPS + 1) % (STEPS + 1))[member] / STEPS,
        last_use=(distinct % (STEPS + 1))[member] / STEPS,
        position_step=1 / STEPS,
    )
    fine = with_possible_joins(fine, extraction.kernels)
    fine = with_joins_in_known_memory(fine, graph)
    metadata = {**extraction.metadata, "position_step": 1 / STEPS}
    return replace(extraction, graph=fine, metadata=metadata)
