"""Launches from the device: child kernels that blocks launch while they run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """The launches that blocks of a program can make, or do the work of themselves.

    Attributes
    ----------
    block : int64[n]
        Global number of the block that launches.
    at : float64[n]
        Share of the block's own work that comes before, 0 to 1.
    warp : int64[n]
        Warp of the block that launches, -1 where that is not said. Warps of a block run side by
        side; launches of one warp at the same share are lanes of one instruction. Those without a
        warp come one after another.
    lanes : int64[n]
        Lanes of the warp that launch: what the launch costs depends on it.
    child_grid : int64[n]
        Blocks of the child, of all lanes together. They take the room of the parent's blocks.
    child_duration, inline : float64[n]
        Time of each child block; time that the parent takes if it does the child's work itself.
    join : uint8[n]
        Which of `JOINS`.
    stream : int64[n]
        Children that one block launches into the same stream run in order; -1: a stream of its own.
    items : int64[n]
        Work items of the child, that thresholds are about.

    Notes
    -----
    Sorted by block; those of a block by warp, then by `at`.
    """

    block: NDArray[np.int64]
    at: NDArray[np.float64]
    warp: NDArray[np.int64]
    lanes: NDArray[np.int64]
    child_grid: NDArray[np.int64]
    child_duration: NDArray[np.float64]
    inline: NDArray[np.float64]
    join: NDArray[np.uint8]
    stream: NDArray[np.int64]
    items: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.block)

    def in_order(self) -> DeviceLaunches:
        """Return the same launches, sorted as they have to be."""
        order = np.lexsort((self.at, self.warp, self.block))
        return DeviceLaunches(*(getattr(self, f.name)[order] for f in fields(self)))

    @cached_property
    def begins_warp(self) -> NDArray[np.bool_]:
        """Whether a launch is the first of its warp: bool[n]."""
        changes = (np.diff(self.block) != 0) | (np.diff(self.warp) != 0)
        return np.concatenate([np.ones(min(1, len(self)), np.bool_), changes])

    @cached_property
    def begins_instruction(self) -> NDArray[np.bool_]:
        """Whether a launch is the first lane of its instruction: bool[n]."""
        apart = (np.diff(self.at) != 0) | (self.warp[1:] < 0)
        apart = np.concatenate([np.ones(min(1, len(self)), np.bool_), apart])
        begins: NDArray[np.bool_] = self.begins_warp | apart
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

    def inlined(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return durations of blocks that do all work themselves: float64[n_blocks].

        Parameters
        ----------
        durations : float64[n_blocks]
            Of their own work.
        """
        inline = self._of_instructions(np.maximum, self.inline)
        return durations + self._of_blocks(inline, len(durations))

    def without_work_of(self, launched: NDArray[np.bool_]) -> DeviceLaunches:
        """Return the same launches, parents having nothing to do for those that are made.

        Parameters
        ----------
        launched : bool[n]
        """
        return replace(self, inline=np.where(launched, 0.0, self.inline))

    def least_work(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the least time of each block and its children together: float64[n_blocks].

        Launches are free here, and of each instruction the cheaper is taken: all done by the
        parent, or the smallest child launched.
        """
        inline = self._of_instructions(np.maximum, self.inline)
        child = self._of_instructions(np.minimum, self.child_work)
        return durations + self._of_blocks(np.minimum(inline, child), len(durations))

    def least_durations(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the least time from a block's start until its children have ended, too.

        Launches are free here, and each is made if that is shorter.

        Parameters
        ----------
        durations : float64[n_blocks]
            Of their own work.
        """
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
