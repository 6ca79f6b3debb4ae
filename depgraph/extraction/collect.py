"""Scanned parts of a trace put together in its order: blocks numbered, counts and ranges kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from depgraph.dependence.possible import waits_inside
from depgraph.dependence.sweep import address_spaces
from depgraph.errors import ModelError, TraceError
from depgraph.extraction.numbering import MOST_BLOCKS, BlockNumbers, grown
from depgraph.footprint.footprints import Footprints, concatenate_footprints, freed_between
from depgraph.graph.program import Kernel
from depgraph.system.text import counted
from depgraph.trace.records import Damage, KernelLaunch, MemoryOperation, ScannedPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from depgraph.extraction.shards import ShardResult
    from depgraph.footprint.spill import Run
    from depgraph.graph.program import BlockCounts
    from depgraph.system.arrays import AddressSpaces, Blocks, BlockTimes, PerBlock
    from depgraph.trace.records import Allocation, BlockTouches, Operation, Trace

# Above this many damaged access lines in a hundred, what is left is no basis for a graph.
_DAMAGED_LINES_LIMIT = 0.01
# What a block costs at the peak, whether or not it touches anything: measured on empty grids.
BLOCK_BYTES = 128


class RangeSink(Protocol):
    """What takes the byte ranges of the parts, as `RangeStore` does."""

    def add(
        self, touches: BlockTouches, runs: Sequence[Run], blocks: Blocks, n_blocks: int
    ) -> None:
        """Take the ranges of a part."""

    def finish(self, copies: Iterable[tuple[int, MemoryOperation]]) -> None:
        """Take what copies and memsets write."""


class BlockCounters:
    """Accesses, instructions and durations of every block, added up part by part."""

    def __init__(self) -> None:
        self.accesses = np.zeros(0, np.int64)
        self.instructions = np.zeros(0, np.int64)
        self.durations = np.zeros(0, np.float64)

    def reserve(self, n_blocks: int) -> None:
        """Make room for so many blocks."""
        self.accesses = grown(self.accesses, n_blocks, 0)
        self.instructions = grown(self.instructions, n_blocks, 0)
        self.durations = grown(self.durations, n_blocks, np.nan)

    def add(self, part: ScannedPart, blocks: Blocks) -> None:
        """Add the rows of a part, whose blocks are -1 where they do not count."""
        kept = blocks >= 0
        np.add.at(self.accesses, blocks[kept], part.touches.accesses[kept])
        np.add.at(self.instructions, blocks[kept], part.touches.instructions[kept])
        if part.durations is not None:
            timed = kept & ~np.isnan(part.durations)
            self.durations[blocks[timed]] = part.durations[timed]


class Collector:
    """Takes the parts of a trace one after another; `on_damage` gets faults instead of raising."""

    def __init__(
        self,
        trace: Trace,
        ranges: RangeSink,
        *,
        kernels: tuple[int | None, int | None] = (None, None),
        allow_damaged: bool = False,  # count damage instead of raising it
        allow_empty: bool = False,
        most_blocks: int = MOST_BLOCKS,  # more are refused, before room for them is made
        on_damage: Callable[[Damage], object] | None = None,
    ) -> None:
        self.trace = trace
        self.numbers = BlockNumbers(trace, kernels, most_blocks)
        self.total = ScannedPart()  # what all parts count together
        # Of operations that write out of sight, though not anywhere: one of `REACHES`.
        self.reach: dict[int, str] = {}
        self._ranges = ranges
        self._counters = BlockCounters()
        self._allow_damaged = allow_damaged
        self._allow_empty = allow_empty
        self._on_damage = on_damage or self._refuse_or_count
        self._untraced: dict[int, str] = {}
        self._possible: list[Footprints] = []
        self._accesses = 0
        self._lines_of: Counter[str | None] = Counter()  # of each file, where there are several

    @property
    def operations(self) -> list[Operation]:
        """Kernels, copies and memsets in program order."""
        return self.numbers.operations

    def add(self, part: ScannedPart, runs: Sequence[Run] = ()) -> None:
        """Take the next part, in the order of the trace; `runs` hold more of its ranges."""
        for damage in part.damage:
            self._on_damage(self._placed(damage, part))
        if part.damaged_line and self.total.damaged_line is None:
            self.total.damaged_line = self._placed(part.damaged_line, part)
        self.total.count(part)
        self._accesses += int(part.touches.accesses.sum())
        places = self.numbers.add(part)
        for launch, reason in part.untraced.items():
            self._untraced[int(places[launch])] = reason
        self.reach |= {int(places[launch]): reach for launch, reach in part.reach.items()}
        self._possible += [self.numbers.possible_writes(each, places) for each in part.possible]
        if len(part.touches.launch):
            blocks, damaged = self.numbers.blocks_of_rows(part, places)
            for damage in damaged:
                self._on_damage(self._placed(damage, part))
            self._counters.reserve(self.numbers.n_blocks)
            self._counters.add(part, blocks)
            self._ranges.add(part.touches, runs, blocks, self.numbers.n_blocks)
        self._lines_of[part.path] += part.lines

    def _placed(self, damage: Damage, part: ScannedPart) -> Damage:
        """Let a fault of a part name its file, and count lines from the start of that."""
        if damage.path is not None:
            return damage
        line = self._lines_of[part.path] + damage.line
        return Damage(line, damage.found, part.path or self.trace.name)

    def _refuse_or_count(self, damage: Damage) -> None:
        if not self._allow_damaged:
            raise TraceError(
                damage.path or self.trace.name,
                damage.found,
                "trace the program again, or pass --allow-damaged to use what is readable",
                line=damage.line,
            )
        self.total.warnings[damage.found] += 1

    def finish(self) -> None:
        """Add the copies and memsets, and refuse a trace without kernels or one too damaged."""
        if self.numbers.is_empty:
            if self.total.bytes == 0:
                raise TraceError(self.trace.name, "the file is empty", "trace the program again")
            raise TraceError(
                self.trace.name,
                f"no kernel launch in {counted(self.total.lines, 'line')}",
                "give the standard output of a program run under NVBit's mem_trace, "
                "or an Accel-Sim trace",
            )
        if not any(isinstance(o, KernelLaunch) for o in self.operations):
            raise ModelError(
                f"{self.trace.name}: no kernel is selected; "
                f"the trace has kernels 0 to {self.numbers.launches - 1}"
            )
        total = self.total
        if total.damaged_lines > _DAMAGED_LINES_LIMIT * total.access_lines:
            first = total.damaged_line or Damage(1, "access line is damaged", self.trace.name)
            of_all = f"{total.damaged_lines} of {total.access_lines} access lines"
            self._on_damage(replace(first, found=f"{first.found}; {of_all} are damaged"))
        self._refuse_empty()
        self._warn_of_spaces()
        first_block = self.numbers.first_block.tolist()
        self._ranges.finish(
            (block, copy)
            for block, copy in zip(first_block, self.operations, strict=False)
            if isinstance(copy, MemoryOperation)
        )

    def _refuse_empty(self) -> None:
        """Refuse kernels that never touched memory: whatever is found of them means nothing."""
        if self._allow_empty or self._accesses:
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
        seen = int(self._counters.instructions.sum())
        which = "no readable access" if self.total.damaged_lines else "no access"
        raise TraceError(
            self.trace.name,
            f"the tracer saw nothing: {counted(launches, 'kernel')} launched, and {which} to "
            f"global memory ({counted(seen, 'instruction')} in all)",
            "trace all instructions of these kernels (no INSTR_BEGIN, INSTR_END or kernel limits, "
            "a tracer that knows this GPU), or pass --allow-empty",
        )

    @cached_property
    def allocations(self) -> list[Allocation]:
        """Allocations, where the trace knows of frees."""
        return self.numbers.without_left_out(self.total.allocations)

    @property
    def possible(self) -> Footprints:
        """What blocks may write out of sight."""
        return concatenate_footprints(self._possible, self.numbers.n_blocks)

    @cached_property
    def frees(self) -> Footprints | None:
        """What was freed, as `freed_between` returns it."""
        return freed_between(self.allocations, len(self.operations))

    @cached_property
    def space(self) -> AddressSpaces | None:
        """The number of the address space of each operation; None if there is one."""
        return address_spaces(self.operations)

    def _warn_of_spaces(self) -> None:
        """Warn where the operations do not, or may not, share an address space."""
        if self.space is not None:
            self.total.warnings[
                "CUDA contexts or processes, each taken to have memory of its own (dependences "
                "through peer access or IPC are missing)"
            ] = len(np.unique(self.space))
        launches = [o for o in self.operations if isinstance(o, KernelLaunch)]
        ids = [(o.process, o.context, o.trace_id) for o in launches if o.trace_id is not None]
        if repeated := len(ids) - len(set(ids)):
            self.total.warnings[
                "launches with the id of an earlier one, as if of another process (dependences "
                "between processes are not real)"
            ] = repeated

    def counts(self) -> tuple[PerBlock, PerBlock, BlockTimes | None]:
        """Return accesses, instructions and (where the trace has any) cycles of every block."""
        n, counters = self.numbers.n_blocks, self._counters
        counters.reserve(n)
        durations = counters.durations[:n]
        timed = not np.isnan(durations).all()
        return counters.accesses[:n], counters.instructions[:n], durations if timed else None

    def untraced_of(self, operation: int) -> str | None:
        """Say what the trace cannot show of a kernel: by its opcodes, else by its name."""
        launch = self.operations[operation]
        if operation in self._untraced:
            return self._untraced[operation]
        if self.total.shows_bulk or not isinstance(launch, KernelLaunch):
            return None
        return self.trace.untraced(launch)


def kernel_rows(collector: Collector, counts: BlockCounts, result: ShardResult) -> list[Kernel]:
    """Describe the kernels of a trace."""
    first_block = collector.numbers.first_block
    numbers = collector.numbers.kernel.tolist()
    read, written, ldgsts = result.operation_bytes.tolist()
    shared, inside = result.shared_bytes.tolist(), result.inside.tolist()

    def per_operation(values: NDArray[Any]) -> list[int]:
        running = np.append(0, np.cumsum(values))
        return np.diff(running[first_block]).tolist()  # type: ignore[no-any-return]

    accesses = per_operation(counts.accesses)
    instructions = per_operation(counts.instructions)
    active = per_operation(counts.instructions > 0)
    rows = []
    for index, launch in enumerate(collector.operations):
        if not isinstance(launch, KernelLaunch):
            continue
        rows.append(
            Kernel.launched(
                launch,
                kernel=numbers[index],
                operation=index,
                first_block=int(first_block[index]),
                active_blocks=active[index],
                accesses=accesses[index],
                instructions=instructions[index],
                read_bytes=read[index],
                written_bytes=written[index],
                shared_written_bytes=shared[index],
                untraced=collector.untraced_of(index),
                reach=collector.reach.get(index),
                waits_inside=waits_inside(inside[index]),
                ldgsts_bytes=ldgsts[index],
            )
        )
    return rows
