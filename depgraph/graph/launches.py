"""Launches from the device: child kernels that blocks launch while they run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.system.arrays import BlockTimes, Mask

MOST_CHILD_BLOCKS = 1 << 21
JOINS = ("none", "block", "kernel")
"""Who waits: nobody inside the kernel; the block, for its child; the child, for the kernel."""
JOIN_BLOCK = JOINS.index("block")
JOIN_KERNEL = JOINS.index("kernel")


def no_launches() -> DeviceLaunches:
    """Return launches of which there are none."""
    whole, times = np.empty(0, np.int64), np.empty(0, np.float64)
    join = np.empty(0, np.uint8)
    return DeviceLaunches(whole, times, whole, whole, whole, times, times, join, whole, whole)


@dataclass(frozen=True)
class DeviceLaunches:
    """Launches that blocks can make, or do the work of: sorted by block, warp, then `at`."""

    block: NDArray[np.int64]  # global number of the block that launches
    at: NDArray[np.float64]  # share of the block's own work that comes before, 0 to 1
    # Warp of the block that launches, -1 where that is not said. Warps of a block run side by side;
    # launches of one warp at the same share are lanes of one instruction. Those without a warp come
    # one after another.
    warp: NDArray[np.int64]
    lanes: NDArray[np.int64]  # lanes of the warp that launch: what the launch costs depends on it
    # Blocks of the child, of all lanes together. They take the room of the parent's blocks.
    child_grid: NDArray[np.int64]
    # Time of each child block; time that the parent takes if it does the child's work itself.
    child_duration: NDArray[np.float64]
    inline: NDArray[np.float64]
    join: NDArray[np.uint8]  # which of `JOINS`
    # Children that one block launches into the same stream run in order; -1: a stream of its own.
    stream: NDArray[np.int64]
    items: NDArray[np.int64]  # work items of the child, that thresholds are about

    def __len__(self) -> int:
        return len(self.block)

    def in_order(self) -> DeviceLaunches:
        """Return the same launches, sorted as they have to be."""
        order = np.lexsort((self.at, self.warp, self.block))
        return DeviceLaunches(*(getattr(self, f.name)[order] for f in fields(self)))

    @cached_property
    def begins_warp(self) -> Mask:
        """Whether a launch is the first of its warp: bool[n]."""
        changes = (np.diff(self.block) != 0) | (np.diff(self.warp) != 0)
        return np.concatenate([np.ones(min(1, len(self)), np.bool_), changes])

    @cached_property
    def begins_instruction(self) -> Mask:
        """Whether a launch is the first lane of its instruction: bool[n]."""
        apart = (np.diff(self.at) != 0) | (self.warp[1:] < 0)
        apart = np.concatenate([np.ones(min(1, len(self)), np.bool_), apart])
        begins: Mask = self.begins_warp | apart
        return begins

    @property
    def child_work(self) -> NDArray[np.float64]:
        """Time of all blocks of each child, summed: float64[n]."""
        return self.child_grid * self.child_duration

    @cached_property
    def child_blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each block of all children the launch, and its number in the child: int64[n] each."""
        launch = np.repeat(np.arange(len(self)), self.child_grid)
        first = np.cumsum(self.child_grid) - self.child_grid
        return launch, np.arange(len(launch)) - first[launch]

    def inlined(self, durations: BlockTimes) -> BlockTimes:
        """Return durations of blocks that do all work themselves, not only their own."""
        inline = self._of_instructions(np.maximum, self.inline)
        return durations + self._of_blocks(inline, len(durations))

    def without_work_of(self, launched: Mask) -> DeviceLaunches:
        """Return the same launches, parents having nothing to do for those that are made."""
        return replace(self, inline=np.where(launched, 0.0, self.inline))

    def least_work(self, durations: BlockTimes) -> BlockTimes:
        """Return the least time of each block and its children together.

        Launches are free here, and of each instruction the cheaper is taken: all done by the
        parent, or the smallest child launched.
        """
        inline = self._of_instructions(np.maximum, self.inline)
        child = self._of_instructions(np.minimum, self.child_work)
        return durations + self._of_blocks(np.minimum(inline, child), len(durations))

    def least_durations(self, durations: BlockTimes) -> BlockTimes:
        """Return the least time until a block's children have ended; launches are free here."""
        own = durations[self.block]
        before = np.where(self.join == JOIN_BLOCK, own, self.at * own)
        least = durations.copy()
        either = np.minimum(own + self.inline, before + self.child_duration)
        np.maximum.at(least, self.block, either)
        return least

    def _of_instructions(self, pick: np.ufunc, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one value for each instruction."""
        picked: NDArray[np.float64] = pick.reduceat(values, np.flatnonzero(self.begins_instruction))
        return picked

    def _of_blocks(self, values: NDArray[np.float64], n_blocks: int) -> NDArray[np.float64]:
        """Add up values of instructions within each warp; return the most of a block's warps."""
        first = self.begins_warp[self.begins_instruction]
        of_warps = np.add.reduceat(values, np.flatnonzero(first))
        result = np.zeros(n_blocks)
        np.maximum.at(result, self.block[self.begins_warp], of_warps)
        return result
