"""Where inside blocks the accesses of an NVBit log stand: a second reading of the log."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.positions import STEPS, PositionedRanges, join_positioned
from depgraph.errors import ModelError, TraceError
from depgraph.extraction.collect import MOST_BLOCKS, BlockNumbers
from depgraph.graph.program import Extraction
from depgraph.parsers.nvbit.log import NvbitTrace
from depgraph.parsers.nvbit.text import scan_text
from depgraph.parsers.scanning.inputs import TraceInput, whole_lines
from depgraph.parsers.scanning.scanning_jit import WARPS
from depgraph.parsers.scanning.tables import WarpTouches
from depgraph.system.arrays import Blocks
from depgraph.trace.records import BlockTouches, Trace

PerWarp = NDArray[np.int32]  # [n_blocks, WARPS]: accesses

_PART_BYTES = 16 << 20


def read_positions(trace: Trace, extraction: Extraction) -> PositionedRanges:
    """Read a trace that was extracted again, for where inside blocks its accesses stand."""
    if not isinstance(trace, NvbitTrace) or trace.input_bytes is None:
        raise ModelError("--positions needs an NVBit log in a file: it is read a second time")
    items = [TraceInput(path) for path in trace.sources.paths]
    if any(trace.dialect(item).rewrite is not None for item in items):
        raise ModelError("--positions reads logs as NVBit 1.5 and later write them")
    if len({(k.context, k.trace_id) for k in extraction.kernels}) < len(extraction.kernels):
        raise ModelError(
            "--positions: launch ids start again, as if of another process; give the log of one "
            "process"
        )
    with trace.sources.unchanged():
        totals = np.zeros((extraction.graph.n_blocks, WARPS), np.int32)
        for touches, block, warps, _ in _read(trace, items, extraction):
            _count(totals, touches, block, warps)
        if (totals.sum(axis=1) != extraction.counts.accesses).any():
            found = "its accesses were counted differently on a second reading"
            raise TraceError(trace.name, found)
        return join_positioned(list(_placed(trace, items, extraction, totals)))


def _read(
    trace: NvbitTrace, items: list[TraceInput], extraction: Extraction
) -> Iterator[tuple[BlockTouches, Blocks, NDArray[np.int32], NDArray[np.int32]]]:
    """Yield what warps touch part by part, block (or -1) and warp of each row, and ordinals."""
    first, end = extraction.metadata["options"]["kernels"] or (None, None)
    numbers = BlockNumbers(trace, (first, end), MOST_BLOCKS)
    for item in items:
        with item.open() as stream:
            for buffer in whole_lines(stream, _PART_BYTES):
                table = WarpTouches()
                part = scan_text(
                    buffer.text, buffer.size, item.name, id_offset=trace.id_offset, touches=table
                )
                buffer.release()
                block, _ = numbers.blocks_of_rows(part, numbers.add(part))
                yield part.touches, block, table.warps, table.arrays.ordinals


def _count(counts: PerWarp, touches: BlockTouches, block: Blocks, warps: NDArray[np.int32]) -> None:
    known = block >= 0
    np.add.at(counts, (block[known], warps[known]), touches.accesses[known])


def _placed(
    trace: NvbitTrace, items: list[TraceInput], extraction: Extraction, totals: PerWarp
) -> Iterator[PositionedRanges]:
    """Yield ranges with their positions, joined part by part."""
    seen = np.zeros_like(totals)
    for touches, block, warps, ordinals in _read(trace, items, extraction):
        chosen = np.flatnonzero(block[touches.row] >= 0)
        row = touches.row[chosen]
        ordinal = seen[block[row], warps[row]].astype(np.int64) + ordinals[chosen]
        total = totals[block[row], warps[row]]
        yield join_positioned(
            [
                PositionedRanges(
                    block=block[row],
                    kind=touches.kind[chosen],
                    start=touches.start[chosen],
                    end=touches.end[chosen],
                    first=(-(-STEPS * ordinal // total)).astype(np.uint8),
                    last=(STEPS * (ordinal + 1) // total).astype(np.uint8),
                )
            ]
        )
        _count(seen, touches, block, warps)
