"""Schedules as a timeline for ui.perfetto.dev, in the Chrome trace event format, streamed.

The format: "Trace Event Format" by N. Duca and D. Sinclair (Google, 2016). A schedule is a
process. Slices of one thread may not overlap, so an SM that runs several blocks at once is as
many threads, one a slot. Times are microseconds in the format; where the unit is another, one of
it stands for one microsecond.
"""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.study import Timeline
from depgraph.graph.queries import block_number
from depgraph.reports.tables.table import kernel_name, shorten
from depgraph.schedule.policy import Schedule, running_part, slots_on_sm, utilization_over_time
from depgraph.system.text import clean_text
from depgraph.timing.profile import NOWHERE

Flows = Literal["path", "all", "none"]

MOST_FLOWS = 100_000
_COUNTER_STEPS = 2000
_BATCH = 4096
_NAME_WIDTH = 48
_FULL_NAME_WIDTH = 400
_NS_PER_UNIT = {"ns": 1}


def write_perfetto(timeline: Timeline, file: Path, *, flows: Flows = "path") -> int:
    """Write all schedules as gzipped JSON; return how many arrows were left out."""
    labels = _labels(timeline)
    pairs, left_out = _flow_pairs(timeline, flows)
    # A constant time and no name in the header: two runs give the same bytes.
    with file.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as out:
        out.write(b'{"displayTimeUnit":"ns","otherData":')
        out.write(_json(_about(timeline, flows, left_out)).encode())
        out.write(b',"traceEvents":[\n')
        events, between = _events(timeline, labels, pairs), b""
        while batch := list(itertools.islice(events, _BATCH)):
            out.write(between + ",\n".join(batch).encode())
            between = b",\n"
        out.write(b"\n]}\n")
    return left_out


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _about(timeline: Timeline, flows: Flows, left_out: int) -> dict[str, Any]:
    kernels = {
        str(k.kernel): shorten(clean_text(k.name), _FULL_NAME_WIDTH) for k in timeline.kernels
    }
    return {
        "tool": "depgraph",
        "sms": timeline.sms,
        "unit": timeline.unit,
        "durations": clean_text(timeline.source),
        "flows": flows,
        "flows_left_out": left_out,
        "kernels": kernels,
    }


def _places(timeline: Timeline) -> list[str]:
    """Return JSON that says where in the code each operation comes from, as more arguments."""
    places = [""] * timeline.graph.n_operations
    sites = timeline.sites
    for kernel in timeline.kernels:
        site = sites.get(kernel.kernel, NOWHERE)._asdict()
        places[kernel.operation] = "".join(
            f',"{name}":{_json(shorten(clean_text(text), _FULL_NAME_WIDTH))}'
            for name, text in site.items()
            if text
        )
    return places


def _labels(timeline: Timeline) -> list[str]:
    """Return the JSON string that names each operation's slices."""
    names = {k.kernel: kernel_name(k.name) for k in timeline.kernels}
    return [
        _json(
            shorten(f"{kernel} {names[kernel]}", _NAME_WIDTH)
            if kernel >= 0
            else timeline.graph.copy_name(kernel)
        )
        for kernel in timeline.graph.kernel.tolist()
    ]


def _flow_pairs(timeline: Timeline, flows: Flows) -> tuple[list[tuple[int, int]], int]:
    """Return (source block, target block) of each arrow, and how many were left out."""
    if flows == "none":
        return [], 0
    if flows == "path":
        path = [block_number(timeline.graph, step.kernel, step.block) for step in timeline.path]
        pairs = list(itertools.pairwise(path))
        return pairs[:MOST_FLOWS], max(0, len(pairs) - MOST_FLOWS)
    kept: list[tuple[int, int]] = []
    for source, target, _ in timeline.graph.certain().edges():
        new = dict.fromkeys(zip(source.tolist(), target.tolist(), strict=True))
        kept += list(new)[: MOST_FLOWS - len(kept)]
        if len(kept) >= MOST_FLOWS:
            break
    kept = list(dict.fromkeys(kept))
    return kept, sum(p.edges for p in timeline.pairs) - len(kept)


def _events(timeline: Timeline, labels: list[str], pairs: list[tuple[int, int]]) -> Iterator[str]:
    for pid, schedule in enumerate(timeline.schedules, start=1):
        yield from _schedule_events(timeline, schedule, pid, labels, pairs)


def _schedule_events(
    timeline: Timeline,
    schedule: Schedule,
    pid: int,
    labels: list[str],
    pairs: list[tuple[int, int]],
) -> Iterator[str]:
    scale = "" if timeline.unit in {"us", "ns"} else f", 1 us here is 1 of {timeline.unit}"
    name = _json(f"{clean_text(schedule.name)} on {timeline.sms} SMs{scale}")
    yield _metadata("process_name", pid, 0, f'"name":{name}')
    yield _metadata("process_sort_index", pid, 0, f'"sort_index":{pid}')
    plan = schedule.unfolded(timeline.launches)
    slot = slots_on_sm(plan).astype(np.int64)
    lanes = int(slot.max(initial=0)) + 1
    # Copies and memsets are of no SM; they come after all of them.
    is_copy = np.zeros(len(plan.sm), np.bool_)
    is_copy[: timeline.graph.n_blocks] = (
        timeline.graph.kernel[timeline.graph.operation_of_block] < 0
    )
    sm = np.where(is_copy, timeline.sms, plan.sm).astype(np.int64)
    thread = np.where(sm < 0, -1, sm * lanes + slot + 1)
    ran = sm >= 0
    yield from _thread_names(pid, thread[ran], sm[ran], slot[ran], timeline.sms)
    begin, end = (_nanoseconds(times, timeline.unit) for times in (plan.start, plan.end))
    yield from _slices(timeline, pid, labels, thread, begin, end)
    middle = (begin + end) // 2
    for number, (source, target) in enumerate(pairs):
        for phase, block in (('"s"', source), ('"f","bp":"e"', target)):
            yield (
                f'{{"ph":{phase},"id":{pid * 10_000_000 + number},"name":"waits",'
                f'"cat":"dependence","pid":{pid},"tid":{thread[block]},'
                f'"ts":{_microseconds(int(middle[block]))}}}'
            )
    yield from _counters(timeline, schedule, pid)


def _metadata(name: str, pid: int, tid: int, arguments: str) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{{{arguments}}}}}'


def _thread_names(
    pid: int,
    thread: NDArray[np.int64],
    sm: NDArray[np.int64],
    slot: NDArray[np.int64],
    sms: int,
) -> Iterator[str]:
    tids, first = np.unique(thread, return_index=True)
    for tid, block in zip(tids.tolist(), first.tolist(), strict=True):
        place = "copies and memsets" if sm[block] == sms else f"SM {sm[block]} slot {slot[block]}"
        yield _metadata("thread_name", pid, tid, f'"name":"{place}"')
        yield _metadata("thread_sort_index", pid, tid, f'"sort_index":{tid}')


def _slices(
    timeline: Timeline,
    pid: int,
    labels: list[str],
    thread: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Iterator[str]:
    kernel, index = timeline.graph.block_names()
    operation = timeline.graph.operation_of_block
    labels, places = labels.copy(), _places(timeline)
    launches = timeline.launches
    if launches is not None:
        # A child is told from its parent by the launch; it has the parent's name and place.
        launch, child_index = launches.child_blocks
        parent = launches.block[launch]
        labels += [
            _json(f"child of {json.loads(labels[o])}") for o in operation[launches.block].tolist()
        ]
        places += [
            f'{places[o]},"launch":{i},"parent":{b}'
            for i, (o, b) in enumerate(
                zip(operation[launches.block].tolist(), index[launches.block].tolist(), strict=True)
            )
        ]
        kernel = np.concatenate([kernel, kernel[parent]])
        index = np.concatenate([index, child_index])
        operation = np.concatenate([operation, timeline.graph.n_operations + launch])
    order = np.argsort(begin, kind="stable")
    order = order[thread[order] >= 0]
    columns = (operation, thread, begin, end - begin, kernel, index)
    for o, tid, start, length, k, b in zip(*(c[order].tolist() for c in columns), strict=True):
        yield (
            f'{{"ph":"X","name":{labels[o]},"cat":"block","pid":{pid},"tid":{tid},'
            f'"ts":{_microseconds(start)},"dur":{_microseconds(length)},'
            f'"args":{{"kernel":{k},"block":{b}{places[o]}}}}}'
        )


def _counters(timeline: Timeline, schedule: Schedule, pid: int) -> Iterator[str]:
    edges = np.linspace(0.0, schedule.makespan, _COUNTER_STEPS + 1)
    running = running_part(schedule, timeline.durations).unfolded(timeline.launches)
    shares = 100 * utilization_over_time(running, timeline.shares, timeline.sms, edges)
    instants = _nanoseconds(edges, timeline.unit).tolist()
    values = [*np.round(shares, 3).tolist(), 0.0]
    before = None
    for instant, value in zip(instants, values, strict=True):
        if value != before:
            yield (
                f'{{"ph":"C","name":"utilization","pid":{pid},"tid":0,'
                f'"ts":{_microseconds(instant)},"args":{{"percent":{value}}}}}'
            )
        before = value


def _nanoseconds(times: NDArray[np.float64], unit: str) -> NDArray[np.int64]:
    """Round to whole nanoseconds: what does not overlap before does not overlap after."""
    return np.rint(times * _NS_PER_UNIT.get(unit, 1000)).astype(np.int64)


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
