"""A PyTorch profiler trace with what depgraph knows of it: critical path, false dependences.

The format: "Trace Event Format" by N. Duca and D. Sinclair (Google, 2016). The trace is copied as
it is, and events are put in front of its own: slices of the critical path on a process of their
own, and arrows between kernels for dependences that renaming a buffer would remove.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from depgraph.errors import NotApplicableError
from depgraph.graph.queries import critical_path
from depgraph.reports.tables.table import kernel_name
from depgraph.scenario.scenario import Scenario
from depgraph.system.output import new_file
from depgraph.timing.matched_profile import Match
from depgraph.timing.profile import UNKNOWN

MOST_ARROWS = 100_000
_PROCESS = 1_000_001  # of no host: Linux gives numbers below 2**22, and Kineto GPUs theirs from 0
_CATEGORY = "depgraph"
_CHUNK = 1 << 20
_LONGEST_HEAD = 64 << 20  # in front of the events
_BASE = re.compile(rb'"baseTimeNanoseconds"\s{0,8}:\s{0,8}(\d{1,20})[^\d]')
_EVENTS = re.compile(rb'(?:\A\s{0,64}|"traceEvents"\s{0,64}:\s{0,64})\[\s*')


def write_annotated(
    scenario: Scenario, opened: Callable[[], RawIOBase] | None, path: Path, *, force: bool
) -> str:
    """Copy the profile that a scenario has its times from, annotated; return what it leaves out."""
    match = scenario.fit.match if scenario.fit else None
    if (
        opened is None
        or match is None
        or match.profile.format != "kineto"
        or match.profile.start is None
    ):
        message = "--what profile needs --timing PROFILE, a trace of PyTorch's profiler"
        raise NotApplicableError(message)
    arrows = _arrows(scenario, match)
    left_out = ""
    if len(arrows) > MOST_ARROWS:
        n = len(arrows) - MOST_ARROWS
        left_out = (
            f"false dependences without an arrow: {n} of {len(arrows)} ({MOST_ARROWS} is the limit)"
        )
    events = list(_events(scenario, match, _base_of(opened), arrows[:MOST_ARROWS], left_out))
    with new_file(path, force=force) as temporary, temporary.open("wb") as raw:
        packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else None
        with packed or nullcontext(raw) as out:
            _copy(opened, out, events)
    return left_out


def _base_of(opened: Callable[[], RawIOBase]) -> int:
    """Return what all times of the file are relative to, in ns; older files do not say."""
    before = b""
    with opened() as stream:
        while chunk := stream.read(_CHUNK):
            found = _BASE.search(before + chunk)
            if found:
                return int(found[1])
            before = chunk[-64:]
    return 0


def _copy(
    opened: Callable[[], RawIOBase], out: BinaryIO | gzip.GzipFile, events: list[dict[str, Any]]
) -> None:
    with opened() as stream:
        head = b""
        found = None
        while found is None and len(head) < _LONGEST_HEAD and (chunk := stream.read(_CHUNK)):
            head += chunk
            found = _EVENTS.search(head)
        if found is None:
            message = "the profile has no list of events that could be annotated"
            raise NotApplicableError(message)
        head += b"" if len(head) > found.end() else stream.read(_CHUNK) or b""
        out.write(head[: found.end()])
        text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events).encode()
        rest = head[found.end() :]
        out.write(text + (b"" if rest.lstrip().startswith(b"]") else b",\n") + rest)
        while chunk := stream.read(_CHUNK):
            out.write(chunk)


def _arrows(scenario: Scenario, match: Match) -> list[tuple[int, int, str]]:
    """Return rows of the profile of which one waits for another in vain, and kinds."""
    rows, device = match.row_of_kernel, match.profile.filled("device")
    found = []
    for pair in scenario.pairs:
        source, target = rows.get(pair.source), rows.get(pair.target)
        if pair.raw or not (pair.war or pair.waw) or source is None or target is None:
            continue
        if UNKNOWN not in (device[source], device[target]):
            kinds = " and ".join(name for name, n in (("WAR", pair.war), ("WAW", pair.waw)) if n)
            found.append((source, target, kinds))
    return found


def _events(
    scenario: Scenario, match: Match, base: int, arrows: list[tuple[int, int, str]], note: str
) -> Iterator[dict[str, Any]]:
    profile, rows = match.profile, match.row_of_kernel
    starts = profile.start
    start = np.zeros(len(profile)) if starts is None else (starts - base) / 1000
    duration = profile.duration / 1000
    device, stream = profile.filled("device"), profile.filled("stream")
    names = {kernel.kernel: kernel_name(kernel.name) for kernel in scenario.kernels}
    yield _named("process_name", f"depgraph ({note})" if note else "depgraph")
    yield _named("thread_name", "critical path")
    steps = critical_path(scenario.bound_graph, scenario.least_durations)
    for number in dict.fromkeys(step.kernel for step in steps):
        if (row := rows.get(number)) is not None:
            yield {
                "ph": "X", "cat": _CATEGORY, "name": names[number], "pid": _PROCESS, "tid": 0,
                "ts": float(start[row]), "dur": float(duration[row]), "args": {"kernel": number},
            }  # fmt: skip

    def end(kind: str, number: int, row: int, at: float, kinds: str) -> dict[str, Any]:
        more = {"bp": "e"} if kind == "f" else {}
        return {
            "ph": kind, "cat": _CATEGORY, "name": f"false dependence ({kinds})", "id": number,
            "pid": int(device[row]), "tid": int(stream[row]), "ts": float(at), **more,
        }  # fmt: skip

    for number, (source, target, kinds) in enumerate(arrows, 1):
        # An arrow is bound to the slice that its end lies in.
        yield end("s", number, source, start[source] + duration[source] / 2, kinds)
        yield end("f", number, target, start[target], kinds)


def _named(what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": 0, "args": {"name": name}}
