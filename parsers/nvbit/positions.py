"""Where inside blocks the accesses of an NVBit log stand: a second reading of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from depgraph.dependence.positions import STEPS, PositionedRanges, join_positioned
from depgraph.errors import ModelError, TraceError
from depgraph.parsers.nvbit import position_scanner_jit as scanner
from depgraph.parsers.nvbit.log import NvbitTrace
from depgraph.parsers.nvbit.text import LaunchTable
from depgraph.parsers.scanning.inputs import TraceInput, whole_lines
from depgraph.parsers.scanning.opcodes import OpcodeTable
from depgraph.parsers.scanning.tables_jit import LANES
from depgraph.parsers.scanning.text_jit import overlapping_words
from depgraph.trace.records import Ranges, Trace

if TYPE_CHECKING:
    from depgraph.graph.program import Extraction
    from depgraph.system.arrays import Text

_PART_BYTES = 32 << 20
_RANGES = 1 << 21
_ID_OFFSETS = (0, 1)  # by how much launch lines may count ahead of access lines


def read_positions(trace: Trace, extraction: Extraction) -> PositionedRanges:
    """Read a trace a second time, for where inside blocks its accesses stand."""
    if not isinstance(trace, NvbitTrace) or trace.input_bytes is None:
        raise ModelError("--positions needs an NVBit log in a file: it is read a second time")
    items = [TraceInput(path) for path in trace.sources.paths]
    if any(trace.dialect(item).rewrite is not None for item in items):
        raise ModelError("--positions reads logs as NVBit 1.5 and later write them")
    with trace.sources.unchanged():
        for offset in _ID_OFFSETS:
            reader = _Reader(items, extraction, offset)
            for _ in reader.scan(0):
                pass
            if (reader.seen.sum(axis=1) == extraction.counts.accesses).all():
                reader.totals, reader.seen = reader.seen, np.zeros_like(reader.seen)
                return join_positioned(list(reader.scan(STEPS)))
        raise TraceError(trace.name, "its accesses were counted differently on a second reading")


class _Reader:
    def __init__(self, items: list[TraceInput], extraction: Extraction, offset: int) -> None:
        graph = extraction.graph
        self._items = items
        launches = LaunchTable()
        grid = np.ones((graph.n_operations, 3), np.int64)
        for kernel in extraction.kernels:
            grid[kernel.operation] = kernel.grid
            identifier = (kernel.trace_id or 0) - offset
            if not launches.enter(kernel.context, identifier, kernel.operation):
                raise ModelError(
                    "--positions: launch ids start again, as if of another process; give the log "
                    "of one process"
                )
        self._program = scanner.Program(launches.arrays, graph.first_block, grid)
        self._opcodes = OpcodeTable()
        self.seen = np.zeros((graph.n_blocks, scanner.WARPS), np.int32)
        self.totals = self.seen

    def scan(self, steps: int) -> Iterator[PositionedRanges]:
        """Scan the log once and yield ranges, joined part by part."""
        for item in self._items:
            with item.open() as stream:
                for buffer in whole_lines(stream, _PART_BYTES):
                    yield from self._scan_text(buffer.text, buffer.size, steps, item.name)
                    buffer.release()

    def _scan_text(self, text: Text, end: int, steps: int, path: str) -> Iterator[PositionedRanges]:
        words = overlapping_words(text)
        position = 0
        out = PositionedRanges.reserve(_RANGES)
        ranges = Ranges(out.block, out.kind, out.start, out.end)
        positioned = scanner.Positioned(ranges, out.first, out.last)
        warps = scanner.Warps(steps, self.seen, self.totals)
        lanes = np.zeros(LANES, np.uint64)
        state = np.full(scanner.STATE_SIZE, -1, np.int64)
        state[scanner.N_RANGES] = 0
        while True:
            with np.errstate(over="ignore"):
                status, position, detail = scanner.scan_positions(
                    text, words, position, end,
                    self._opcodes.arrays, self._program, warps, positioned, state, lanes,
                )  # fmt: skip
                if status == scanner.NEW_OPCODE:
                    self._opcodes.add(words, detail, path, "mem_trace output")
                    continue
            if used := int(state[scanner.N_RANGES]):
                yield join_positioned([out.take(used)])
                state[scanner.N_RANGES] = 0
            if status == scanner.DONE:
                return
