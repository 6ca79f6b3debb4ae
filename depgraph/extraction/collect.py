"""Scanned parts of a trace put together in its order, in memory or in files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from depgraph.dependence.sweep import address_spaces
from depgraph.errors import ModelError, TraceError
from depgraph.extraction.shards import sample_starts
from depgraph.footprint.footprints import Footprints, concatenate_footprints
from depgraph.footprint.spill import write_run_by_start
from depgraph.system.memory import return_free_memory
from depgraph.system.text import counted
from depgraph.trace.records import WRITE, BlockTouches, Damage, HostCopy, KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.system.scratch import Scratch
    from depgraph.trace.records import Operation, ScannedPart, Trace

# Above this many damaged access lines in a hundred, what is left is no basis for a graph.
_DAMAGED_LINES_LIMIT = 0.01
# Global block numbers are 32-bit; this leaves room for the host copies.
_MAX_BLOCKS = 2**31 - 2**20
# What a block costs at the peak, whether or not it touches anything: measured on empty grids.
BLOCK_BYTES = 128
RANGE_BYTES = 21


@dataclass(frozen=True, slots=True)
class Run:
    """Footprints in a file, sorted by start address and cut into pages.

    Attributes
    ----------
    path : Path
    blocks : NDArray or None
        Where the file numbers rows of a part instead of blocks: the global block number of each
        row, -1 for none.
    """

    path: Path
    blocks: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class RunFile:
    """The ranges of a part, left in a file by row.

    Attributes
    ----------
    path : Path
    n_ranges : int
    samples : NDArray
        Some of the start addresses.
    """

    path: Path
    n_ranges: int
    samples: NDArray[np.uint64]


class Gatherer:
    """Numbers blocks and collects counts and footprints, part by part.

    Parameters
    ----------
    trace : Trace
    kernels : (int or None, int or None)
        First kernel, and last kernel plus one, in launch order.
    allow_damaged : bool
        Count damage instead of raising it.
    memory : int
        Bytes that footprints may take before they are written to a file.
    scratch : Scratch
    most_blocks : int
        A trace whose grids have more is refused, before room for them is made.
    allow_empty : bool
        Take a trace without a single access to global memory.
    """

    def __init__(
        self,
        trace: Trace,
        kernels: tuple[int | None, int | None],
        *,
        allow_damaged: bool,
        memory: int,
        scratch: Scratch,
        most_blocks: int = _MAX_BLOCKS,
        allow_empty: bool = False,
    ) -> None:
        self.trace = trace
        self.allow_empty = allow_empty
        self.allow_damaged = allow_damaged
        self.skipped: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.opcodes: Counter[str] = Counter()
        self.lines = 0
        self.bytes = 0
        self.text_bytes = 0
        self.operations: list[Operation] = []
        self.untraced: dict[int, str] = {}
        self._shows_bulk = False
        self.pieces: list[Footprints] = []
        self.runs: list[Run] = []
        self.samples: list[NDArray[np.uint64]] = []
        self.n_ranges = 0
        self._order = trace.program_order()
        self._low = kernels[0] or 0
        self._high = kernels[1]
        self._seen = 0
        self._launches = 0
        self._copies = 0
        # For each operation of the trace its place among the kept ones, -1 for none.
        self._kept = np.full(64, -1, np.int64)
        self._first_block = [0]
        self._kernel: list[int] = []
        self._grid = np.ones((64, 3), np.int64)
        self._first = np.zeros(64, np.int64)
        self._accesses = np.zeros(1024, np.int64)
        self._instructions = np.zeros(1024, np.int64)
        self._durations = np.full(1024, np.nan)
        self._access_lines = 0
        self._damaged_lines = 0
        self._damaged_at: Damage | None = None
        self._seen_accesses = 0
        self._lines_of: Counter[str | None] = Counter()  # of each file, where there are several
        self._ranges_in_memory = 0
        self._most_ranges = max(1, memory // RANGE_BYTES)
        self._scratch = scratch
        self._most_blocks = min(most_blocks, _MAX_BLOCKS)

    @property
    def n_blocks(self) -> int:
        """Blocks so far, host copies included."""
        return self._first_block[-1]

    @property
    def first_block(self) -> NDArray[np.int64]:
        """Global number of the first block of each operation: int64[n_operations + 1]."""
        return np.array(self._first_block, np.int64)

    @property
    def operation_kernel(self) -> NDArray[np.int32]:
        """Kernel number of each operation, ``-1 - i`` for host copy i: int32[n_operations]."""
        return np.array(self._kernel, np.int32)

    def add(self, part: ScannedPart, runs: Sequence[RunFile] = ()) -> None:
        """Take the next part, in the order of the trace.

        Parameters
        ----------
        part : ScannedPart
        runs : sequence of RunFile
            Hold ranges of the part that are not in the part itself.
        """
        for damage in part.damage:
            self._damage(self._placed(damage, part))
        if part.damaged_line and self._damaged_at is None:
            self._damaged_at = self._placed(part.damaged_line, part)
        self._damaged_lines += part.damaged_lines
        self._access_lines += part.access_lines
        self.skipped += part.skipped
        self.warnings += part.warnings
        self.opcodes += part.opcodes
        self._shows_bulk |= part.shows_bulk
        self._seen_accesses += int(part.touches.accesses.sum())
        indices = self._order.add(part)
        self._take_operations()
        for index, reason in part.untraced.items():
            if indices[index] >= 0:
                self.untraced[int(self._kept[indices[index]])] = reason
        if len(part.touches.launch):
            blocks = self._number_rows(part, indices)
            self._count_rows(part, blocks)
            if len(part.touches.row):
                self._keep_ranges(part.touches, blocks)
            for run in runs:
                self.runs.append(Run(run.path, blocks))
                self.samples.append(run.samples)
                self.n_ranges += run.n_ranges
        self.lines += part.lines
        self._lines_of[part.path] += part.lines
        self.bytes += part.bytes
        self.text_bytes += part.text_bytes

    def _placed(self, damage: Damage, part: ScannedPart) -> Damage:
        """Let a fault of a part name its file, and count lines from the start of that."""
        if damage.path is not None:
            return damage
        line = self._lines_of[part.path] + damage.line
        return Damage(line, damage.found, part.path or self.trace.name)

    def _damage(self, damage: Damage) -> None:
        if not self.allow_damaged:
            raise TraceError(
                damage.path or self.trace.name,
                damage.found,
                "trace the program again, or pass --allow-damaged to use what is readable",
                line=damage.line,
            )
        self.warnings[damage.found] += 1

    def _take_operations(self) -> None:
        operations = self._order.operations
        if len(self._kept) < len(operations):
            more = np.full(2 * len(operations) - len(self._kept), -1, np.int64)
            self._kept = np.append(self._kept, more)
        for index in range(self._seen, len(operations)):
            operation = operations[index]
            if isinstance(operation, KernelLaunch):
                kernel, blocks, next_kernel = self._launches, operation.blocks, self._launches
                self._launches += 1
            else:
                kernel, blocks, next_kernel = -1 - self._copies, 1, self._launches
                self._copies += 1
            if next_kernel < self._low or (self._high is not None and next_kernel >= self._high):
                continue
            if self.n_blocks + blocks > self._most_blocks:
                raise self._too_many_blocks(kernel, blocks)
            place = len(self.operations)
            if place == len(self._grid):
                self._grid = np.append(self._grid, np.ones_like(self._grid), axis=0)
                self._first = np.append(self._first, np.zeros_like(self._first))
            if isinstance(operation, KernelLaunch):
                self._grid[place] = operation.grid
            self._first[place] = self.n_blocks
            self._kept[index] = place
            self.operations.append(operation)
            self._kernel.append(kernel)
            self._first_block.append(self.n_blocks + blocks)
        self._seen = len(operations)

    def _too_many_blocks(self, kernel: int, blocks: int) -> TraceError:
        if blocks > _MAX_BLOCKS:
            limit = f"no more than {_MAX_BLOCKS} can be numbered"
            hint = "the trace is damaged; extract other kernels with --kernels A:B"
        else:
            limit = f"with those before it, no more than {self._most_blocks} fit in memory"
            hint = "extract fewer kernels with --kernels A:B, or allow more with --memory-limit"
        found = f"kernel {kernel} has a grid of {blocks} blocks; {limit}"
        return TraceError(self.trace.name, found, hint)

    def _number_rows(self, part: ScannedPart, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the global block number of each row, -1 for those that do not count."""
        touches = part.touches
        launch = indices[touches.launch]
        known = launch >= 0
        if not known.all():
            lost = int(touches.accesses[~known].sum())
            key = part.keys[int(touches.launch[np.flatnonzero(~known)[0]])]
            found = (
                f"{counted(lost, 'access', 'accesses')} from here on with launch id {key[-1]}, "
                "which no launch line announces"
            )
            self._damage(self._placed(Damage(1, found), part))
        operation = np.where(known, self._kept[np.maximum(launch, 0)], -1)
        grid = self._grid[operation]
        x, y, z = touches.x.astype(np.int64), touches.y, touches.z
        inside = (x < grid[:, 0]) & (y < grid[:, 1]) & (z < grid[:, 2])
        outside = np.flatnonzero((operation >= 0) & ~inside)
        if len(outside):
            row = outside[0]
            lost = int(touches.instructions[outside].sum())
            found = (
                f"block ({x[row]},{y[row]},{z[row]}) is outside the grid "
                f"{tuple(grid[row].tolist())} of kernel {self._kernel[operation[row]]}; "
                f"{counted(lost, 'instruction')} from here on in such blocks"
            )
            self._damage(self._placed(Damage(1, found), part))
        number = self._first[operation] + x + grid[:, 0] * (y + grid[:, 1] * z)
        return np.where((operation >= 0) & inside, number, -1).astype(np.int32)

    def _count_rows(self, part: ScannedPart, blocks: NDArray[np.int32]) -> None:
        self.reserve_counts()
        kept = blocks >= 0
        np.add.at(self._accesses, blocks[kept], part.touches.accesses[kept])
        np.add.at(self._instructions, blocks[kept], part.touches.instructions[kept])
        if part.durations is not None:
            timed = kept & ~np.isnan(part.durations)
            self._durations[blocks[timed]] = part.durations[timed]

    def reserve_counts(self) -> None:
        """Make room for the counts of all blocks so far."""
        missing = self.n_blocks - len(self._accesses)
        if missing > 0:
            more = np.zeros(missing + self.n_blocks, np.int64)
            self._accesses = np.append(self._accesses, more)
            self._instructions = np.append(self._instructions, more)
            self._durations = np.append(self._durations, np.full(len(more), np.nan))

    def _keep_ranges(self, touches: BlockTouches, blocks: NDArray[np.int32]) -> None:
        of_range = blocks[touches.row]
        piece = Footprints(of_range, touches.kind, touches.start, touches.end)
        if len(of_range) and of_range.min() < 0:
            piece = piece.take(of_range >= 0)
        self.pieces.append(piece)
        self.samples.append(sample_starts(piece))
        self.n_ranges += len(piece)
        self._ranges_in_memory += len(piece)
        if self._ranges_in_memory > self._most_ranges:
            joined = concatenate_footprints(self.pieces, self.n_blocks)
            self.pieces = [joined]
            self._ranges_in_memory = len(joined)
            # Joining again before as much has gathered anew would cost more than it frees.
            if 2 * len(joined) > self._most_ranges:
                self._spill()

    def _spill(self) -> None:
        for piece in self.pieces:
            path = self._scratch.new_file("run")
            write_run_by_start(piece, path)
            self.runs.append(Run(path))
        self.pieces = []
        self._ranges_in_memory = 0
        return_free_memory()

    def finish(self) -> None:
        """Add the host copies, and refuse a trace without kernels or one too damaged."""
        if not self._order.operations:
            if self.bytes == 0:
                raise TraceError(self.trace.name, "the file is empty", "trace the program again")
            raise TraceError(
                self.trace.name,
                f"no kernel launch in {counted(self.lines, 'line')}",
                "give the standard output of a program run under NVBit's mem_trace, "
                "or an Accel-Sim trace",
            )
        if not any(isinstance(o, KernelLaunch) for o in self.operations):
            raise ModelError(
                f"{self.trace.name}: no kernel is selected; "
                f"the trace has kernels 0 to {self._launches - 1}"
            )
        if self._damaged_lines > _DAMAGED_LINES_LIMIT * self._access_lines:
            first = self._damaged_at or Damage(1, "access line is damaged", self.trace.name)
            of_all = f"{self._damaged_lines} of {self._access_lines} access lines"
            self._damage(replace(first, found=f"{first.found}; {of_all} are damaged"))
        self._refuse_empty()
        self._warn_of_spaces()
        copies = [
            (first, operation)
            for first, operation in zip(self._first_block, self.operations, strict=False)
            if isinstance(operation, HostCopy) and operation.size > 0
        ]
        if copies:
            piece = Footprints(
                np.array([first for first, _ in copies], np.int32),
                np.full(len(copies), WRITE, np.uint8),
                np.array([copy.address for _, copy in copies], np.uint64),
                np.array([copy.address + copy.size for _, copy in copies], np.uint64),
            )
            self.pieces.append(piece)
            self.samples.append(sample_starts(piece))
        if self.runs and self.pieces:
            self._spill()
        self.reserve_counts()

    def _refuse_empty(self) -> None:
        """Refuse kernels that never touched memory: whatever is found of them means nothing."""
        if self.allow_empty or self._seen_accesses:
            return
        launched = [i for i, o in enumerate(self.operations) if isinstance(o, KernelLaunch)]
        launches = len(launched)
        reasons = [reason for i in launched if (reason := self.untraced_of(i))]
        if reasons:
            raise TraceError(
                self.trace.name,
                f"no access to global memory was traced; opaque kernels: {len(reasons)} of "
                f"{launches} ({reasons[0]})",
                "record what they touch on the GPU (Compute Sanitizer), or pass --allow-empty",
            )
        seen = int(self._instructions.sum())
        which = "no readable access" if self._damaged_lines else "no access"
        raise TraceError(
            self.trace.name,
            f"the tracer saw nothing: {counted(launches, 'kernel')} launched, and {which} to "
            f"global memory ({counted(seen, 'instruction')} in all)",
            "trace all instructions of these kernels (no INSTR_BEGIN, INSTR_END or kernel limits, "
            "a tracer that knows this GPU), or pass --allow-empty",
        )

    @cached_property
    def space(self) -> NDArray[np.int32] | None:
        """The number of the address space of each operation; None if there is one."""
        return address_spaces(self.operations)

    def _warn_of_spaces(self) -> None:
        """Warn where the operations do not, or may not, share an address space."""
        if self.space is not None:
            self.warnings[
                "CUDA contexts or processes, each taken to have memory of its own (dependences "
                "through peer access or IPC are missing)"
            ] = len(np.unique(self.space))
        launches = [o for o in self.operations if isinstance(o, KernelLaunch)]
        ids = [(o.process, o.context, o.trace_id) for o in launches if o.trace_id is not None]
        if repeated := len(ids) - len(set(ids)):
            self.warnings[
                "launches with the id of an earlier one, as if of another process (dependences "
                "between processes are not real)"
            ] = repeated

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64] | None]:
        """Return accesses, instructions and (where the trace has any) cycles of every block."""
        n = self.n_blocks
        durations = self._durations[:n]
        timed = not np.isnan(durations).all()
        return self._accesses[:n], self._instructions[:n], durations if timed else None

    def untraced_of(self, operation: int) -> str | None:
        """Say what the trace cannot show of a kernel: by its opcodes, else by its name."""
        launch = self.operations[operation]
        if operation in self.untraced:
            return self.untraced[operation]
        if self._shows_bulk or not isinstance(launch, KernelLaunch):
            return None
        return self.trace.untraced(launch)


def without_ranges(part: ScannedPart) -> ScannedPart:
    """Return a part whose ranges were written elsewhere."""
    empty = BlockTouches.empty()
    touches = replace(
        part.touches, row=empty.row, kind=empty.kind, start=empty.start, end=empty.end
    )
    return replace(part, touches=touches)
