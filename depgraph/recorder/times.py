"""Times as traces of the PyTorch profiler: of an unrecorded run, and of blocks in another one."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.recorder.raw_recording import RawRecording, json_lines, read_raw_recordings
from depgraph.trace.block_spans import BlockSpans

Events = list[dict[str, Any]]
Launch = tuple[str, tuple[int, ...]]

_TAKEN = "taken"
TIMES = np.dtype(
    [
        ("not_begin", "<u8"), ("end", "<u8"), ("sm", "<u4"), ("began", "<u4"), ("left", "<u4"),
        ("left_cycle", "<u4"),
    ]
)  # fmt: skip
_LONG = 1 << 31  # cycles of which the lower half does not tell
_STEPS = 100  # of the clock, that tell how fast cycles are
PAUSE_NS = 5000  # of pause.cpp


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
    at, size = kernel["times_at"], kernel["times"] * TIMES.itemsize
    raw = left.tables[at : at + size]
    if len(raw) < size:
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
    """Turn cycles into ns, by SM from a block that read the clock of all, else from its first."""
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
    """Put block times with the nth launch of each kernel, from the best run; say what has none."""
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
    found, missing = list(events), 0
    for place, event in enumerate(events):
        if event["cat"] == "kernel":
            spans = next(left[as_launched(event, event["args"])])
            packed = None if spans is None else spans.packed()
            missing += packed is None
            if packed is not None:
                found[place] = {**event, "args": {**event["args"], "blocks": packed}}
    lacking = f"kernels without block times: {missing} of {counts.total()}"
    return found, lacking if missing else ""


def patch_ns_in(runs: Sequence[BlockRun]) -> int | None:
    """Return what measuring adds to a block, from a run of pause.cpp; None where none is known."""
    known = [s.duration for run in runs for _, s in run.launches if s is not None]
    return max(0, int(np.median(np.concatenate(known))) - PAUSE_NS) if known else None


def timed_in(folder: Path, *, in_region: Callable[[int], bool] = lambda _: False) -> list[Events]:
    """Return what ran of each process that launched kernels, as PyTorch profiler events."""
    processes = [
        _in_order(json_lines(path), in_region=in_region(int(path.stem.rpartition("-")[2])))
        for path in sorted(folder.glob("times-*.jsonl"))
    ]
    return [events for events in processes if launches_in(events)]


def take_times(timed: list[Events], launched: Events) -> Events:
    """Take from `timed`, by time, the events of the process that launched most of these kernels."""
    kernels = [event for event in launched if event["event"] == "kernel"]
    wanted = Counter(as_launched(kernel, kernel) for kernel in kernels)
    ordinals = {kernel["ordinal"] for kernel in kernels}

    def shared(events: Events) -> int:
        return (wanted & launches_in(_at(ordinals, events))).total()

    best = max(timed, key=shared, default=[])
    if not shared(best):
        return []
    found = _at(ordinals, best)
    devices = {event["args"]["device"] for event in found if event["cat"] == "kernel"}
    found = [event for event in found if event["args"]["device"] in devices]
    taken = set(map(id, found))
    # Places of launches that are left must stay as they are.
    best[:] = [{**event, "cat": _TAKEN} if id(event) in taken else event for event in best]
    return sorted(found, key=lambda event: event["ts"])


def _at(ordinals: Container[int], events: Events) -> Events:
    """Return copies, memsets, and of the kernels those at some places in the order of launches."""
    launches = [event for event in events if "grid" in event["args"]]
    kernels = [event for place, event in enumerate(launches) if place in ordinals]
    others = [event for event in events if "grid" not in event["args"]]
    return [event for event in [*kernels, *others] if event["cat"] != _TAKEN]


def launches_in(events: Events) -> Counter[Launch]:
    """Count the launches of each kernel, grid and block among the events of a run."""
    return Counter(as_launched(each, each["args"]) for each in events if each["cat"] == "kernel")


def as_launched(named: dict[str, Any], sized: dict[str, Any]) -> Launch:
    """Return name, grid and block: what two runs of a program show alike."""
    return named["name"], (*sized["grid"], *sized["block"])


def _in_order(lines: Events, *, in_region: bool) -> Events:
    marks = sorted((line["correlation"], line["region"]) for line in lines if "region" in line)
    numbers = [number for number, _ in marks]

    def is_inside(correlation: int) -> bool:
        n_before = bisect_left(numbers, correlation)
        return not in_region or (n_before > 0 and marks[n_before - 1][1] == "start")

    events = (e for e in lines if "cat" in e and is_inside(e["args"]["correlation"]))
    return sorted(events, key=lambda event: (event["args"]["correlation"], event["ts"]))


def as_trace(events: Events, gpus: Sequence[str]) -> dict[str, Any]:
    """Return events as a trace of the PyTorch profiler, which ``--timing`` reads."""
    devices = [{"id": number, "name": name} for number, name in enumerate(gpus)]
    return {"deviceProperties": devices, "traceEvents": events}
