"""Where the ranges of a part go that are more than a thread may hold while it scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.extraction.collect import RunFile
from depgraph.extraction.shards import sample_starts
from depgraph.footprint.footprints import Footprints
from depgraph.footprint.spill import write_run_by_start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from depgraph.trace.records import Ranges

# What a range costs while a part is scanned: in the table and in its copies while the table is
# joined, and in the few results of a thread that wait to be gathered.
_BYTES_PER_RANGE = 144
# Of the memory allowed, what all threads together may hold of ranges.
_SHARE = 4
_LEAST_RANGES = 1 << 17


def most_ranges(memory: int, jobs: int) -> int:
    """Return how many ranges each of `jobs` threads may hold within `memory` bytes for all."""
    return max(_LEAST_RANGES, memory // _SHARE // jobs // _BYTES_PER_RANGE)


class FileOverflow:
    """Leaves ranges in files, each sorted by start address.

    Parameters
    ----------
    new_file : callable
        Returns the path of a file that does not exist yet.
    most_ranges : int
        How many a scanner may hold.

    Attributes
    ----------
    runs : list of RunFile
    """

    def __init__(self, new_file: Callable[[], Path], most_ranges: int) -> None:
        self.most_ranges = most_ranges
        self.runs: list[RunFile] = []
        self._new_file = new_file

    def take(self, ranges: Ranges) -> None:
        """Write some ranges to a file of their own."""
        self.runs.append(write_ranges(Footprints(*ranges), self._new_file()))


def write_ranges(ranges: Footprints, path: Path) -> RunFile:
    """Write ranges of a part by start address; return what a gatherer wants to know of the file."""
    write_run_by_start(ranges, path)
    return RunFile(path, len(ranges), sample_starts(ranges))
