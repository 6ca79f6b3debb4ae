"""When the blocks of each kernel ran, in a run of its own, put with the times of the first run."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.recorder.raw_recording import RawRecording, read_raw_recordings
from depgraph.recorder.times import as_launched
from depgraph.trace.block_spans import BlockSpans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from depgraph.recorder.times import Events

TIMES = np.dtype([("not_begin", "<u8"), ("end", "<u8"), ("sm", "<u4"), ("unused", "<u4", 3)])
PAUSE_NS = 5000  # of pause.cpp
Launch = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """The launches of one process on one GPU, in order, and when their blocks ran."""

    launches: list[tuple[Launch, BlockSpans | None]]
    clock_ns: int  # the step of the GPU's clock, as far as its times show

    @property
    def is_measured(self) -> bool:
        """Whether there are block times of any launch."""
        return any(spans is not None for _, spans in self.launches)

    def shared(self, events: Events) -> int:
        """Count the launches that are among these events, too."""
        mine = Counter(launch for launch, _ in self.launches)
        return (mine & Counter(as_launched(e, e["args"]) for e in _kernels(events))).total()


def block_runs_in(
    folder: Path, only_regions_of: Callable[[int], bool] = lambda _: False, patch_ns: int = 0
) -> list[BlockRun]:
    """Return what a run for block times left of each process on each GPU that it used."""
    return [_run(left, patch_ns) for left in read_raw_recordings(folder, only_regions_of)]


def _run(left: RawRecording, patch_ns: int) -> BlockRun:
    kernels = [event for event in left.events if event["event"] == "kernel"]
    rows = [_rows(left, kernel) for kernel in kernels]
    clock = _clock([row for row in rows if row is not None])
    launches = [
        (as_launched(kernel, kernel), None if row is None else _spans(row, clock, patch_ns))
        for kernel, row in zip(kernels, rows, strict=True)
    ]
    return BlockRun(launches, clock)


def _rows(left: RawRecording, kernel: dict[str, Any]) -> NDArray[Any] | None:
    """Return the begin, end and SM of each block; None where not all of them ran to their end."""
    if kernel["state"] != "recorded" or not kernel.get("times"):
        return None
    at = kernel["times_at"]
    raw = left.tables[at : at + kernel["times"] * TIMES.itemsize]
    if len(raw) < kernel["times"] * TIMES.itemsize:
        return None
    rows = np.frombuffer(raw.tobytes(), TIMES)
    begin = ~rows["not_begin"]
    is_whole = (rows["not_begin"] > 0) & (rows["end"] >= begin)
    return rows if is_whole.all() else None


def _clock(tables: Sequence[NDArray[Any]]) -> int:
    """Return the step of the clock: all that it showed are multiples."""
    steps = [np.gcd.reduce(np.append(~rows["not_begin"], rows["end"])) for rows in tables]
    return int(np.gcd.reduce(np.array(steps, np.uint64))) if steps else 1


def _spans(rows: NDArray[Any], clock: int, patch_ns: int) -> BlockSpans:
    begin = (~rows["not_begin"]).astype(np.int64)
    end = rows["end"].astype(np.int64)
    sm = rows["sm"].astype(np.int64)
    return BlockSpans(begin - begin.min(), end - begin, sm, clock, patch_ns)


def with_block_times(events: Events, runs: list[BlockRun]) -> tuple[Events, str]:
    """Put block times with the events of kernels, and take from `runs` the one that has them.

    It is the one that launched most of the same. The nth launch of a function, grid and block in
    one is the nth in the other, if there are as many. Also says of how many kernels there are
    none, "" if there are of all.
    """
    known: defaultdict[Launch, list[BlockSpans | None]] = defaultdict(list)
    if runs:
        best = max(runs, key=lambda run: run.shared(events))
        runs.remove(best)
        for launch, spans in best.launches:
            known[launch].append(spans)
    counts = Counter(as_launched(each, each["args"]) for each in _kernels(events))
    left: dict[Launch, Any] = {
        launch: iter(known[launch] if len(known[launch]) == n else [None] * n)
        for launch, n in counts.items()
    }
    found, missing = [], 0
    for event in events:
        spans = None
        if event["cat"] == "kernel":
            spans = next(left[as_launched(event, event["args"])])
            packed = None if spans is None else spans.packed()
            missing += packed is None
            if packed is not None:
                event = {**event, "args": {**event["args"], "blocks": packed}}  # noqa: PLW2901
        found.append(event)
    if not missing:
        return found, ""
    return found, f"kernels without block times: {missing} of {counts.total()}"


def patch_ns_in(runs: Sequence[BlockRun]) -> int | None:
    """Return what measuring adds to a block, from a run of pause.cpp; None where none is known."""
    known = [s.duration for run in runs for _, s in run.launches if s is not None]
    return max(0, int(np.median(np.concatenate(known))) - PAUSE_NS) if known else None


def _kernels(events: Events) -> Events:
    return [event for event in events if event["cat"] == "kernel"]
