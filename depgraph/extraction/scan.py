"""The parts of a trace scanned: on threads here, on a cluster, or taken from an earlier run."""

from __future__ import annotations

import pickle
import tempfile
import uuid
from collections import deque
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import nvtx

from depgraph.footprint.footprints import Footprints
from depgraph.footprint.spill import Run, write_run_by_start
from depgraph.system.work_folder import Scratch, one_line_errors
from depgraph.trace.records import BlockTouches, Overflow, PartTask, Ranges, ScannedPart, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from depgraph.system.workers import Workers

    Scanned = tuple[ScannedPart, list[Run]]

# What a range costs while a part is scanned: in the table and in its copies while the table is
# joined, and in the few results of a thread that wait to be gathered.
_BYTES_PER_RANGE = 144
# Of the memory allowed, what all threads together may hold of ranges.
_SHARE = 4
_LEAST_RANGES = 1 << 17
# A dask scheduler warns of tasks of more than 10 MB, and holds what is sent until it is done.
_SENT_BYTES = 1 << 20


def most_ranges(memory: int, jobs: int) -> int:
    """Return how many ranges each of `jobs` threads may hold within `memory` bytes for all."""
    return max(_LEAST_RANGES, memory // _SHARE // jobs // _BYTES_PER_RANGE)


class FileOverflow:
    """Leaves the ranges of a part that are too many to hold in files."""

    def __init__(self, new_file: Callable[[], Path], most_ranges: int) -> None:
        self.most_ranges = most_ranges
        self.runs: list[Run] = []
        self._new_file = new_file

    def take(self, ranges: Ranges) -> None:
        """Write some ranges to a file of their own."""
        self.runs.append(write_run_by_start(Footprints(*ranges), self._new_file()))


def without_ranges(part: ScannedPart) -> ScannedPart:
    """Return a part whose ranges were written elsewhere."""
    nothing = BlockTouches.empty().ranges
    return replace(part, touches=replace(part.touches, **nothing._asdict()))


def scan_to_file(task: PartTask, path: Path, most_ranges: int) -> Scanned:
    """Scan a part and leave its ranges in `path` and files beside it, for another machine."""
    # A worker that was taken for lost may still be writing what another one scans again.
    with (
        nvtx.annotate("scan part", domain="depgraph"),
        one_line_errors(path.parent),
        tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder,
    ):
        mark = uuid.uuid4().hex[:12]

        def new_file() -> Path:
            return Path(folder) / f"{path.stem}-{mark}-{len(overflow.runs)}{path.suffix}"

        overflow = FileOverflow(new_file, most_ranges)
        part = task.scan(overflow)
        by_row = Footprints(*part.touches.ranges)
        written = [*overflow.runs, write_run_by_start(by_row, Path(folder) / path.name)]
        runs = [replace(run, path=run.path.replace(path.parent / run.path.name)) for run in written]
    return without_ranges(part), runs


def _scan_to_file(item: tuple[PartTask, Path, int]) -> Scanned:
    return scan_to_file(*item)


@dataclass(frozen=True, slots=True)
class _ScanHere:
    """Scans parts, their ranges in memory; in `files` only what is too much of them."""

    files: Scratch
    most_ranges: int

    def __call__(self, task: PartTask) -> Scanned:
        with nvtx.annotate("scan part", domain="depgraph"):
            overflow = FileOverflow(lambda: self.files.new_file("part"), self.most_ranges)
            return task.scan(overflow), overflow.runs


@dataclass(frozen=True, slots=True)
class _FiledTask:
    """A task that holds much text, left in a file instead of being sent."""

    path: Path
    input_bytes: int

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Scan the part."""
        task: PartTask = pickle.loads(self.path.read_bytes())  # noqa: S301 - our own file
        return task.scan(overflow)


def _filed_if_large(task: PartTask, files: Scratch) -> PartTask:
    """Return a task that can be sent: as it is if it is small, else what reads it from a file."""
    pickled = pickle.dumps(task)
    if len(pickled) <= _SENT_BYTES:
        return task
    path = files.new_file("text")
    path.write_bytes(pickled)
    return _FiledTask(path, task.input_bytes)


def scan_parts(
    trace: Trace, workers: Workers, files: Scratch, most_ranges: int
) -> Generator[Scanned]:
    """Yield the parts of a trace in its order, and what of their ranges is in files."""
    if workers.remote:
        return _scan_remotely(trace, workers, files, most_ranges)
    return workers.map(_ScanHere(files, most_ranges), trace.tasks())


def _scan_remotely(
    trace: Trace, workers: Workers, files: Scratch, most_ranges: int
) -> Generator[Scanned]:
    texts: deque[Path | None] = deque()

    def items() -> Iterator[tuple[PartTask, Path, int]]:
        for task in trace.tasks():
            filed = _filed_if_large(task, files)
            texts.append(filed.path if isinstance(filed, _FiledTask) else None)
            yield filed, files.new_file("part"), most_ranges

    with closing(workers.map(_scan_to_file, items())) as results:
        for result in results:
            text = texts.popleft()
            if text is not None:
                text.unlink()
            yield result
