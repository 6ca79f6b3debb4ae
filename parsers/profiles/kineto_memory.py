"""What PyTorch's caching allocator did, from a trace of its profiler with ``profile_memory=True``.

CUDA sees segments that the allocator keeps; the tensors in them come and go without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.host_spans import HostSpans
from depgraph.parsers.profiles.json_events import ChromeTrace
from depgraph.parsers.profiles.kineto import (
    CALLS,
    SPANS,
    add_span,
    arguments_of,
    category_of,
    sizes,
    thread_of,
    time_of,
    whole,
)
from depgraph.parsers.profiles.source import text_chunks
from depgraph.timing.launch_sites import NOWHERE, Site
from depgraph.timing.profile import UNKNOWN

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.trace.records import Dim3

HINT = (
    "profile with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
    "profile_memory=True, with_stack=True), from the program's start, and write it with "
    "prof.export_chrome_trace(...)"
)
_MEMORY = "[memory]"
_CUDA = 1  # of the device types of PyTorch
_MOST_EVENTS = 1 << 24
_ADDRESS_END = 1 << 57


class Launch(NamedTuple):
    """A kernel, and when the host called for it, in ns."""

    called: int
    name: str
    grid: Dim3 | None
    block: Dim3 | None


class Change(NamedTuple):
    """A block of memory that was allocated or freed."""

    time: int  # in ns
    address: int
    size: int  # below 0 of what is freed
    reserved: int | None  # bytes that the allocator has in all from CUDA
    site: Site  # what the host was doing


class MemoryProfile(NamedTuple):
    """The launches, in the order of the calls, and allocations by time, of a profiled run."""

    launches: list[Launch]
    changes: list[Change]
    processes: frozenset[int]


def read_memory(path: Path) -> MemoryProfile:
    """Read what the caching allocator did on the GPU."""
    trace = ChromeTrace(path, text_chunks(path))
    reader = _Reader()
    for event in trace.events():
        if isinstance(event, dict):
            reader.take(event)
    if not trace.has_events:
        raise ProfileError(path, "is JSON, but has no list of trace events", HINT)
    if not reader.changes:
        raise ProfileError(path, "tells nothing of memory on a GPU", HINT)
    return reader.finish()


class _Reader:
    """Takes the events of a trace one by one."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int, int, int | None]] = []
        self._host = HostSpans()
        self._called: dict[int, int] = {}
        self._kernels: list[tuple[int, str, Dim3 | None, Dim3 | None]] = []
        self._processes: set[int] = set()

    def take(self, event: dict[str, Any]) -> None:
        """Take what an event says of launches, of memory, and of what the host was at."""
        category, found = category_of(event), arguments_of(event)
        time = time_of(event, "ts")
        if time is None:
            return
        correlation = whole(found.get("correlation"))
        if correlation is not None and category in CALLS:
            self._called.setdefault(correlation, time)
        elif correlation is not None and category == "kernel":
            name = event.get("name")
            known = name if isinstance(name, str) else ""
            grid, block = sizes(found.get("grid")), sizes(found.get("block"))
            self._kernels.append((correlation, known, grid, block))
        elif category in SPANS:
            add_span(self._host, category, event)
        elif event.get("name") == _MEMORY and len(self.changes) < _MOST_EVENTS:
            change = _change_of(found)
            if change is not None:
                self._host.add_call((UNKNOWN, len(self.changes)), time, thread_of(event))
                self.changes.append((time, *change))
                self._processes.add(whole(event.get("pid")) or 0)

    def finish(self) -> MemoryProfile:
        """Return all of it, in order."""
        n = len(self.changes)
        calls = [(UNKNOWN, number) for number in range(n)]
        site, sites = self._host.sites(calls, np.full(n, UNKNOWN))
        changes = [
            Change(*change, sites[site[i]] if sites else NOWHERE)
            for i, change in enumerate(self.changes)
        ]
        launches = [
            Launch(self._called[correlation], name, grid, block)
            for correlation, name, grid, block in self._kernels
            if correlation in self._called
        ]
        return MemoryProfile(
            sorted(launches, key=lambda launch: launch.called),
            sorted(changes, key=lambda change: change.time),
            frozenset(self._processes),
        )


def _change_of(arguments: dict[str, Any]) -> tuple[int, int, int | None] | None:
    """Return address, size and reserved bytes; None for memory of the host, or nonsense."""
    address, size = whole(arguments.get("Addr")), whole(arguments.get("Bytes"))
    if whole(arguments.get("Device Type")) != _CUDA or address is None or not size:
        return None
    if not 0 < address < _ADDRESS_END - abs(size):
        return None
    return address, size, whole(arguments.get("Total Reserved"))
