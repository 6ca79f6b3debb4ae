"""Lines of a simulator's log that launch kernels, and that say when the blocks they name run.

The second sort is that of Kuper et al.: rkuper/gpgpu-sim_distribution.
"""

import re
from collections import defaultdict, deque
from typing import NamedTuple

from depgraph.trace.records import Dim3

# Looking for the mark first takes no time with the square of the line's length.
PUSHED_MARK = "pushing kernel '"
_PUSHED = re.compile(
    r"pushing kernel '(.*?)' to stream (\d{1,18})"
    r", gridDim= ?\((\d{1,99}),(\d{1,99}),(\d{1,99})\)"
    r" blockDim ?= ?\((\d{1,99}),(\d{1,99}),(\d{1,99})\)"
)
_ISSUED = re.compile(r"thread block = (\d{1,10}),(\d{1,10}),(\d{1,10})")
_STARTED = re.compile(r"Started CTA \([\d,]+\) #\d+ \((\d{1,18}),(\d{1,18})\)")
_FINISHED = re.compile(
    r"Finished CTA \((\d{1,10}),(\d{1,10}),(\d{1,10})\) #\d+ \((\d{1,18}),(\d{1,18})\)"
)
_OF_KERNEL = re.compile(r" kernel=(\d{1,18})")


class PushedKernel(NamedTuple):
    """A kernel that the simulator launches."""

    name: str
    stream: int
    grid: Dim3
    block: Dim3


def pushed_kernel(line: str) -> PushedKernel | None:
    """Return the kernel that a line launches; None if it is no such line."""
    at = line.find(PUSHED_MARK)
    match = _PUSHED.match(line, at) if at >= 0 else None
    if match is None:
        return None
    gx, gy, gz, bx, by, bz = (int(number) for number in match.groups()[2:])
    return PushedKernel(match[1], int(match[2]), (gx, gy, gz), (bx, by, bz))


class FinishedBlock(NamedTuple):
    """A block that has finished, in cycles from the beginning of the simulation."""

    kernel: int
    block: Dim3
    start: int | None  # None where no line says it
    end: int


class NamedBlocks:
    """Pairs lines of blocks; cycles count from an interval, which began at the second number."""

    def __init__(self) -> None:
        self._issued: Dim3 | None = None
        self._starts: defaultdict[Dim3, deque[int]] = defaultdict(deque)

    def issue(self, line: str) -> None:
        """Take a line that names a block; the next one that starts is this."""
        match = _ISSUED.match(line)
        self._issued = (int(match[1]), int(match[2]), int(match[3])) if match else None

    def take_issued(self) -> Dim3 | None:
        """Return the block that was named and has not started; None if there is none."""
        issued, self._issued = self._issued, None
        return issued

    def start(self, line: str) -> bool:
        """Take a line on which a block starts, which names none; tell whether it is one."""
        match = _STARTED.search(line)
        if match and (issued := self.take_issued()) is not None:
            self._starts[issued].append(int(match[1]) + int(match[2]))
        return match is not None

    def finish(self, line: str) -> FinishedBlock | None:
        """Return the block that finishes on a line, its first start taken; None if none does."""
        match = _FINISHED.search(line)
        kernel = _OF_KERNEL.search(line, match.end()) if match else None
        if match is None or kernel is None:
            return None
        block = int(match[1]), int(match[2]), int(match[3])
        starts = self._starts.get(block)
        start = starts.popleft() if starts else None
        return FinishedBlock(int(kernel[1]), block, start, int(match[4]) + int(match[5]))

    @property
    def unfinished(self) -> int:
        """Blocks that started and did not finish."""
        return sum(len(starts) for starts in self._starts.values())
