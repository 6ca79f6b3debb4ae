"""Numbers for kernels, copies and memsets and blocks, as the parts of a trace come in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from depgraph.errors import TraceError
from depgraph.footprint.footprints import Footprints
from depgraph.system.text import counted
from depgraph.trace.records import WRITE, Damage, KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from depgraph.system.arrays import Blocks, FirstBlocks, KernelNumbers
    from depgraph.trace.records import Allocation, Operation, PossibleWrites, ScannedPart, Trace

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
    def first_block(self) -> FirstBlocks:
        """Global number of the first block of each operation."""
        return np.array(self._first_block, np.int64)

    @property
    def kernel(self) -> KernelNumbers:
        """Kernel number of each operation."""
        return np.array(self._kernel, np.int32)

    @property
    def is_empty(self) -> bool:
        """Whether the trace has had no operation at all."""
        return not self._order.operations

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
    ) -> tuple[Blocks, list[Damage]]:
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
