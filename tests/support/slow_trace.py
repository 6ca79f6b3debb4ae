"""A trace that takes its time, so that a worker can be killed while it scans.

In a module that the workers of a cluster can import.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from depgraph.parsers.nvbit.log import NvbitTrace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from depgraph.trace.records import Overflow, PartTask, ScannedPart


class SlowPart:
    """A part that leaves a file when it is begun."""

    def __init__(self, part: PartTask, started: Path) -> None:
        self.part = part
        self.started = started
        self.input_bytes = part.input_bytes

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        self.started.touch()
        time.sleep(0.3)
        return self.part.scan(overflow)


class SlowTrace(NvbitTrace):
    """The trace in slow parts."""

    def tasks(self) -> Iterator[PartTask]:
        for part in super().tasks():
            yield SlowPart(part, self.sources.paths[0].with_suffix(".started"))
