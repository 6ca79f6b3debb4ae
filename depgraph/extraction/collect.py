"""Scanned parts of a trace put together in its order: numbered, their counts and ranges kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.sweep import address_spaces
from depgraph.dependence.sweep_jit import EXCHANGES, SYNCHRONISES
from depgraph.errors import ModelError, TraceError
from depgraph.footprint.footprints import Footprints, Run, concatenate_footprints, freed_between
from depgraph.graph.dependences import FOUND, SUSPECTED
from depgraph.graph.program import Kernel
from depgraph.system.text import counted
from depgraph.trace.records import WRITE, Damage, KernelLaunch, MemoryOperation, ScannedPart

if TYPE_CHECKING:
    from depgraph.dependence.sweep import ShardResult
    from depgraph.graph.program import BlockCounts
    from depgraph.system import arrays
    from depgraph.trace.records import Allocation, BlockTouches, Operation, PossibleWrites, Trace

Number = TypeVar("Number", bound="np.generic[Any]")

# Global block numbers are 32-bit; this leaves room for the copies and memsets.
MOST_BLOCKS = 2**31 - 2**20
_LEFT_OUT = -1
_UNKNOWN = -2


def grown(values: NDArray[Number], size: int, fill: float) -> NDArray[Number]:
    """Return an array with at least so many rows, the new ones filled."""
    if len(values) >= size:
        return values
    more = np.full((2 * size - len(values), *values.shape[1:]), fill, values.dtype)
    return np.concatenate([values, more])


class BlockNumbers:
    """Numbers operations and blocks in program order, of `kernels` ``[first, end)`` alone."""

    def __init__(
        self, trace: Trace, kernels: tuple[int | None, int | None], most_blocks: int
    ) -> None:
        self.operations: list[Operation] = []  # but for those that are left out
        self.launches = 0  # kernels so far, with those that are left out
        self._trace = trace.name
        self._order = trace.program_order()
        self._low, self._high = kernels[0] or 0, kernels[1]
        self._most_blocks = min(most_blocks, MOST_BLOCKS)
        self._copies = 0
        self._kernel: list[int] = []
        self._first_block = [0]
        self._seen = 0
        # For each operation of the trace its place among `operations`.
        self._place = np.full(1, _LEFT_OUT, np.int64)
        # For each of `operations`, with room for more.
        self._grid = np.ones((1, 3), np.int64)
        self._first = np.zeros(1, np.int64)

    @property
    def n_blocks(self) -> int:
        """Blocks so far, copies and memsets included."""
        return self._first_block[-1]

    @property
    def first_block(self) -> arrays.FirstBlocks:
        """Global number of the first block of each operation."""
        return np.array(self._first_block, np.int64)

    @property
    def kernel(self) -> arrays.KernelNumbers:
        """Kernel number of each operation."""
        return np.array(self._kernel, np.int32)

    def add(self, part: ScannedPart) -> NDArray[np.int64]:
        """Take a part's operations; return the place of each of its launches, or below 0."""
        indices = self._order.add(part)
        operations = self._order.operations
        self._place = grown(self._place, len(operations), _LEFT_OUT)
        for index in range(self._seen, len(operations)):
            self._take(index, operations[index])
        self._seen = len(operations)
        return np.where(indices >= 0, self._place[indices], _UNKNOWN)

    def _take(self, index: int, operation: Operation) -> None:
        is_launch = isinstance(operation, KernelLaunch)
        kernel = self.launches if is_launch else -1 - self._copies
        next_kernel = self.launches  # a copy goes with the kernel after it
        self.launches += is_launch
        self._copies += not is_launch
        if next_kernel < self._low or (self._high is not None and next_kernel >= self._high):
            return
        blocks = operation.blocks if isinstance(operation, KernelLaunch) else 1
        if self.n_blocks + blocks > self._most_blocks:
            raise self._too_many_blocks(kernel, blocks)
        place = len(self.operations)
        self._grid = grown(self._grid, place + 1, 1)
        self._first = grown(self._first, place + 1, 0)
        if isinstance(operation, KernelLaunch):
            self._grid[place] = operation.grid
        self._first[place] = self.n_blocks
        self._place[index] = place
        self.operations.append(operation)
        self._kernel.append(kernel)
        self._first_block.append(self.n_blocks + blocks)

    def possible_writes(self, writes: PossibleWrites, places: NDArray[np.int64]) -> Footprints:
        """Return what blocks may write, by global numbers; `places` are as `add` returns them."""
        operation = places[writes.launch]
        blocks = self._grid[operation].prod(axis=1)
        is_kept = (operation >= 0) & (writes.block < blocks)
        count = np.where(writes.block < 0, blocks, 1) * is_kept
        row = np.repeat(np.arange(len(count)), count)
        index = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        block = self._first[operation][row] + np.maximum(writes.block[row], 0) + index
        kind = np.full(len(row), WRITE, np.uint8)
        return Footprints(block.astype(np.int32), kind, writes.start[row], writes.end[row])

    def without_left_out(self, allocations: Iterable[Allocation]) -> list[Allocation]:
        """Return the allocations that stood while an operation ran that is not left out."""
        kept = np.flatnonzero(self._place[: self._seen] >= 0)

        def place(index: int) -> int:
            return int(np.searchsorted(kept, index))

        moved = (
            replace(a, allocated=place(a.allocated), freed=a.freed and place(a.freed))
            for a in allocations
        )
        return [a for a in moved if a.allocated < len(kept) and a.freed != 0]

    def _too_many_blocks(self, kernel: int, blocks: int) -> TraceError:
        if blocks > MOST_BLOCKS:
            limit = f"no more than {MOST_BLOCKS} can be numbered"
            hint = "the trace is damaged; extract other kernels with --kernels A:B"
        else:
            limit = f"with those before it, no more than {self._most_blocks} fit in memory"
            hint = "extract fewer kernels with --kernels A:B, or allow more with --memory-limit"
        found = f"kernel {kernel} has a grid of {blocks} blocks; {limit}"
        return TraceError(self._trace, found, hint)

    def blocks_of_rows(
        self, part: ScannedPart, places: NDArray[np.int64]
    ) -> tuple[arrays.Blocks, list[Damage]]:
        """Return the block of each row, -1 for none, and rows off any grid as damage."""
        damage = []
        touches = part.touches
        operation = places[touches.launch]
        lost = np.flatnonzero(operation == _UNKNOWN)
        if len(lost):
            key = part.keys[int(touches.launch[lost[0]])]
            accesses = counted(int(touches.accesses[lost].sum()), "access", "accesses")
            found = (
                f"{accesses} from here on with launch id {key[-1]}, which no launch line announces"
            )
            damage.append(Damage(1, found))
        known = np.maximum(operation, 0)
        grid = self._grid[known]
        x, y, z = touches.x.astype(np.int64), touches.y, touches.z
        inside = (x < grid[:, 0]) & (y < grid[:, 1]) & (z < grid[:, 2])
        outside = np.flatnonzero((operation >= 0) & ~inside)
        if len(outside):
            row = outside[0]
            instructions = counted(int(touches.instructions[outside].sum()), "instruction")
            found = (
                f"block ({x[row]},{y[row]},{z[row]}) is outside the grid "
                f"{tuple(grid[row].tolist())} of kernel {self._kernel[operation[row]]}; "
                f"{instructions} from here on in such blocks"
            )
            damage.append(Damage(1, found))
        number = self._first[known] + x + grid[:, 0] * (y + grid[:, 1] * z)
        return np.where((operation >= 0) & inside, number, -1).astype(np.int32), damage


# Above this many damaged access lines in a hundred, what is left is no basis for a graph.
_DAMAGED_LINES_LIMIT = 0.01
# What a block costs at the peak, whether or not it touches anything: measured on empty grids.
BLOCK_BYTES = 128


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

    def add(self, part: ScannedPart, blocks: arrays.Blocks) -> None:
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
        # Takes the byte ranges of each part, as `RangeStore.add` does.
        add_ranges: Callable[[BlockTouches, Sequence[Run], arrays.Blocks, int], object],
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
        self._add_ranges = add_ranges
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

    @property
    def kernels(self) -> dict[int, KernelLaunch]:
        """The kernels, by their place among the operations."""
        return {i: o for i, o in enumerate(self.operations) if isinstance(o, KernelLaunch)}

    @property
    def copies(self) -> Iterator[tuple[int, MemoryOperation]]:
        """Copies and memsets, and the block of each."""
        placed = zip(self.numbers.first_block.tolist(), self.operations, strict=False)
        return ((block, each) for block, each in placed if isinstance(each, MemoryOperation))

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
            self._add_ranges(part.touches, runs, blocks, self.numbers.n_blocks)
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
        """Refuse a trace without kernels, without accesses, or one that is too damaged."""
        if not self.numbers.launches:
            if not self.total.bytes and not self.trace.input_bytes:
                raise TraceError(self.trace.name, "the file is empty", "trace the program again")
            found = "no kernel launch"
            if self.total.lines:
                found += f" in {counted(self.total.lines, 'line')}"
            if self.total.damaged_lines:
                found += f", {self.total.damaged_lines} of which are damaged"
            raise TraceError(self.trace.name, found, self.trace.hint)
        if not self.kernels:
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

    def _refuse_empty(self) -> None:
        """Refuse kernels that never touched memory: whatever is found of them means nothing."""
        if self._allow_empty or self._accesses:
            return
        kernels = self.kernels
        reasons = list(filter(None, map(self.untraced_of, kernels)))
        if reasons:
            raise TraceError(
                self.trace.name,
                f"no access to global memory was traced; opaque kernels: {len(reasons)} of "
                f"{len(kernels)} ({reasons[0]})",
                "record what they touch on the GPU (Compute Sanitizer), or pass --allow-empty",
            )
        seen = int(self._counters.instructions.sum())
        which = "no readable access" if self.total.damaged_lines else "no access"
        raise TraceError(
            self.trace.name,
            f"the tracer saw nothing: {counted(len(kernels), 'kernel')} launched, and {which} to "
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
    def space(self) -> arrays.AddressSpaces | None:
        """The number of the address space of each operation; None if there is one."""
        return address_spaces(self.operations)

    def _warn_of_spaces(self) -> None:
        """Warn where the operations do not, or may not, share an address space."""
        if self.space is not None:
            self.total.warnings[
                "CUDA contexts or processes, each taken to have memory of its own (dependences "
                "through peer access or IPC are missing)"
            ] = len(np.unique(self.space))
        launches = self.kernels.values()
        ids = [(o.process, o.context, o.trace_id) for o in launches if o.trace_id is not None]
        if repeated := len(ids) - len(set(ids)):
            self.total.warnings[
                "launches with the id of an earlier one, as if of another process (dependences "
                "between processes are not real)"
            ] = repeated

    def counts(self) -> tuple[arrays.PerBlock, arrays.PerBlock, arrays.BlockTimes | None]:
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
    launches = collector.kernels
    chosen = list(launches)
    first_block = collector.numbers.first_block

    def per_operation(values: NDArray[Any]) -> NDArray[Any]:
        return np.diff(np.append(0, np.cumsum(values))[first_block])

    read, written, ldgsts = result.operation_bytes
    counted_by_operation = {
        "kernel": collector.numbers.kernel,
        "first_block": first_block[:-1],
        "active_blocks": per_operation(counts.instructions > 0),
        "accesses": per_operation(counts.accesses),
        "instructions": per_operation(counts.instructions),
        "read_bytes": read,
        "written_bytes": written,
        "shared_written_bytes": result.shared_bytes,
        "ldgsts_bytes": ldgsts,
    }
    return Kernel.launched(
        list(launches.values()),
        {
            **{name: values[chosen].tolist() for name, values in counted_by_operation.items()},
            "operation": chosen,
            "untraced": map(collector.untraced_of, chosen),
            "reach": map(collector.reach.get, chosen),
            "waits_inside": map(_waits_inside, result.inside[chosen].tolist()),
        },
    )


def _waits_inside(evidence: int) -> str | None:
    """Say whether blocks of a kernel wait for one another, by what `sum_sharing` found of it."""
    if not evidence & SYNCHRONISES:
        return None
    return FOUND if evidence & EXCHANGES else SUSPECTED
