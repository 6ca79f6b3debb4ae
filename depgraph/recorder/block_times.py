"""When the blocks of each kernel ran, in a run of its own, put with the times of the first run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from depgraph.recorder.raw_recording import RawRecording, read_raw_recordings
from depgraph.recorder.times import as_launched, launches_in
from depgraph.trace.block_spans import BlockSpans

if TYPE_CHECKING:
    from depgraph.recorder.times import Events

TIMES = np.dtype(
    [
        ("not_begin", "<u8"), ("end", "<u8"), ("sm", "<u4"), ("began", "<u4"), ("left", "<u4"),
        ("left_cycle", "<u4"),
    ]
)  # fmt: skip
_LONG = 1 << 31  # cycles of which the lower half does not tell
_STEPS = 100  # of the clock, that tell how fast cycles are
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
        return (mine & launches_in(events)).total()


def block_runs_in(
    folder: Path, only_regions_of: Callable[[int], bool] = lambda _: False, patch_ns: int = 0
) -> list[BlockRun]:
    """Return what a run for block times left of each process on each GPU that it used."""
    return [_run(left, patch_ns) for left in read_raw_recordings(folder, only_regions_of)]


def _run(left: RawRecording, patch_ns: int) -> BlockRun:
    kernels = [event for event in left.events if event["event"] == "kernel"]
    rows = [_rows(left, kernel) for kernel in kernels]
    there = [each for each in rows if each is not None]
    clock = _step_of_clock(there)
    usual = _ns_per_cycle(np.concatenate(there), 0.0) if there else 0.0

    def spans(rows: NDArray[Any]) -> BlockSpans:
        enough = _of_timed(rows)[0].sum() >= _STEPS * clock
        rate = _ns_per_cycle(rows, usual) if enough else usual
        return _spans(rows, rate, clock, patch_ns)

    launches = [
        (as_launched(kernel, kernel), None if each is None or not usual else spans(each))
        for kernel, each in zip(kernels, rows, strict=True)
    ]
    return BlockRun(launches, clock)


def _rows(left: RawRecording, kernel: dict[str, Any]) -> NDArray[Any] | None:
    """Return what was noted of each block; None where not all of them ran to their end."""
    if kernel["state"] != "recorded" or not kernel.get("times"):
        return None
    at = kernel["times_at"]
    raw = left.tables[at : at + kernel["times"] * TIMES.itemsize]
    if len(raw) < kernel["times"] * TIMES.itemsize:
        return None
    rows = np.frombuffer(raw.tobytes(), TIMES)
    is_whole = (rows["not_begin"] > 0) & (rows["end"] >= ~rows["not_begin"])
    return rows if is_whole.all() else None


def _is_timed(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which blocks read the GPU's clock, and are not too long for what they kept of it."""
    is_short = rows["end"] + rows["not_begin"] + 1 < _LONG
    found: NDArray[np.bool_] = is_short & (rows["left_cycle"] > 0)
    return found


def _of_timed(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return nanoseconds and cycles that passed in blocks that read the GPU's clock."""
    timed = rows[_is_timed(rows)]
    cycles = timed["left_cycle"] - (~timed["not_begin"]).astype(np.uint32)
    return (timed["left"] - timed["began"]).astype(np.int64), cycles.astype(np.int64)


def _ns_per_cycle(rows: NDArray[Any], otherwise: float) -> float:
    ns, cycles = (int(each.sum()) for each in _of_timed(rows))
    return ns / cycles if ns and cycles else otherwise


def _step_of_clock(tables: Sequence[NDArray[Any]]) -> int:
    """Return the step of the GPU's clock: what all times between two readings are multiples of."""
    step = 0
    for rows in tables:
        apart = np.diff(rows["began"][_is_timed(rows)]).astype(np.int32)
        step = int(np.gcd.reduce([step, *_of_timed(rows)[0], *np.abs(apart)]))
    return max(step, 1)


def _spans(rows: NDArray[Any], rate: float, clock: int, patch_ns: int) -> BlockSpans:
    """Turn cycles into ns; those of an SM count from a block that read the clock of all.

    An SM without such a block is taken to have begun with the first that there is.
    """
    begin, sm = (~rows["not_begin"]).astype(np.int64), rows["sm"].astype(np.int64)
    cycle, ns = np.full(sm.max() + 1, np.iinfo(np.int64).max), np.zeros(sm.max() + 1)
    np.minimum.at(cycle, sm, begin)
    timed = np.flatnonzero(_is_timed(rows))[::-1]  # the first of an SM is what stays
    if len(timed):
        cycle[sm[timed]] = begin[timed]
        ns[sm[timed]] = (rows["began"][timed] - rows["began"][timed[-1]]).astype(np.int32)
    since = np.rint(ns[sm] + (begin - cycle[sm]) * rate).astype(np.int64)
    cycles = rows["end"].astype(np.int64) - begin
    duration = np.rint(cycles * rate).astype(np.int64)
    return BlockSpans(since - since.min(), duration, sm, clock, patch_ns)


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
    counts = launches_in(events)
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
