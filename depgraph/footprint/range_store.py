"""The ranges of a whole trace as its parts come in: in memory as long as there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.footprint.footprints import Footprints, concatenate_footprints
from depgraph.footprint.spill import sample_starts, write_run_by_start
from depgraph.system.memory import return_free_memory
from depgraph.trace.records import READ, WRITE, MemoryOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from depgraph.footprint.spill import Run
    from depgraph.system.scratch import Scratch
    from depgraph.trace.records import BlockTouches

_RANGE_BYTES = 21


def touched_by_copies(copies: Iterable[tuple[int, MemoryOperation]]) -> Footprints:
    """Return what copies and memsets read and write, by the block of each."""
    touched = [
        (block, kind, start, start + copy.size)
        for block, copy in copies
        for kind, start in ((READ, copy.source), (WRITE, copy.address))
        if copy.size > 0 and start is not None
    ]
    rows = zip(*touched, strict=True) if touched else ((),) * 4
    types = np.int32, np.uint8, np.uint64, np.uint64
    return Footprints(*(np.array(c, t) for c, t in zip(rows, types, strict=True)))


class RangeStore:
    """Collects byte ranges by global block number.

    Parameters
    ----------
    memory : int
        Bytes that ranges may take before they are written to a file.

    Attributes
    ----------
    pieces : list of Footprints
        What is in memory; ranges of two pieces may overlap.
    runs : list of Run
        What is in files.
    samples : list of uint64 arrays
        Some of all start addresses.
    n_ranges : int
    """

    def __init__(self, memory: int, scratch: Scratch) -> None:
        self.pieces: list[Footprints] = []
        self.runs: list[Run] = []
        self.samples: list[NDArray[np.uint64]] = []
        self.n_ranges = 0
        self._in_memory = 0
        self._most = max(1, memory // _RANGE_BYTES)
        self._scratch = scratch

    def add(
        self, touches: BlockTouches, runs: Sequence[Run], blocks: NDArray[np.int32], n_blocks: int
    ) -> None:
        """Take the ranges of a part.

        Parameters
        ----------
        runs : sequence of Run
            Hold ranges of the part that are not in `touches`.
        blocks : int32[n_rows]
            Global block number of each row of the part; -1 for none.
        n_blocks : int
            Blocks so far.
        """
        if len(touches.row):
            block = blocks[touches.row]
            piece = Footprints(block, touches.kind, touches.start, touches.end)
            self._keep(piece if block.min() >= 0 else piece.take(block >= 0), n_blocks)
        for run in runs:
            self.runs.append(replace(run, blocks=blocks))
            self.samples.append(run.samples)
            self.n_ranges += run.n_ranges

    def _keep(self, piece: Footprints, n_blocks: int) -> None:
        self.pieces.append(piece)
        self.samples.append(sample_starts(piece))
        self.n_ranges += len(piece)
        self._in_memory += len(piece)
        if self._in_memory > self._most:
            joined = concatenate_footprints(self.pieces, n_blocks)
            self.pieces = [joined]
            self._in_memory = len(joined)
            # Joining again before as much has gathered anew would cost more than it frees.
            if 2 * len(joined) > self._most:
                self._spill()

    def finish(self, copies: Iterable[tuple[int, MemoryOperation]]) -> None:
        """Take what copies and memsets do, by the block of each; nothing comes after."""
        piece = touched_by_copies(copies)
        if len(piece):
            self.pieces.append(piece)
            self.samples.append(sample_starts(piece))
        if self.runs and self.pieces:
            self._spill()

    def _spill(self) -> None:
        for piece in self.pieces:
            self.runs.append(write_run_by_start(piece, self._scratch.new_file("run")))
        self.pieces = []
        self._in_memory = 0
        return_free_memory()
