"""A run under CUTracer: an NDJSON file a launch, and its kernel events if they are there."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.parsers.cutracer.launches import ADDRESSES, EVENT, METADATA, read_events
from depgraph.parsers.cutracer.scan import COMPLETION, TILES, read_records
from depgraph.parsers.nvbit.log import BLIND_SPOTS
from depgraph.parsers.nvbit.text import untraced_by_name
from depgraph.parsers.scanning.inputs import InputTrace, TraceInput, WholeInput, name_of
from depgraph.trace.records import KernelLaunch, KnownPart, PartTask, ProgramOrder, ScannedPart

FORMAT = "cutracer"
NO_STREAMS = "on which stream a kernel was launched, which only the kernel events file says"
_HEAD_BYTES = (1 << 16, 1 << 20, 1 << 24)
_EVENT_KINDS = {EVENT, "callstack_def"}
_RECORD_KINDS = {
    *_EVENT_KINDS, METADATA, TILES, COMPLETION, *ADDRESSES, "mem_value_trace", "reg_trace",
    "opcode_only",
}  # fmt: skip
_NOT_TRACED = "has no file with its accesses: was it left out by KERNEL_FILTERS?"
_NO_LAUNCH = 1 << 63  # behind all others
_KIND = re.compile(rb'"type"\s{0,8}:\s{0,8}"(\w{1,40})"')
_NUMBER = re.compile(rb'"grid_launch_id"\s{0,8}:\s{0,8}(\d{1,19})')
_MARKS = (b'"kernel_checksum"', b'"grid_launch_id"', b'"callstack_id"')


def sniff(head: bytes) -> bool:
    """Tell whether a file begins with a record of CUTracer."""
    return _first_kind(head) is not None


def _first_kind(head: bytes) -> str | None:
    """Return what the first record is; its line may be longer than what there is of it."""
    line = head.lstrip().partition(b"\n")[0]
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line).get("type")
    except (ValueError, RecursionError):  # it may be cut here
        kinds = {match.decode() for match in _KIND.findall(line)} & _RECORD_KINDS
        found = kinds.pop() if len(kinds) == 1 else None
    is_known = isinstance(found, str) and found in _RECORD_KINDS
    return found if is_known and any(mark in line for mark in _MARKS) else None


def files_in(folder: Path) -> list[Path]:
    """Return CUTracer's files in a folder, none if it is not of a run under it."""
    return sorted(folder.glob("*kernel_*.ndjson*"))


def open_inputs(inputs: Sequence[TraceInput]) -> "CutracerTrace":
    """Open the files of a run, in any order; a pipe or standard input holds all of one."""
    return CutracerTrace(inputs)


def _beginning(source: TraceInput) -> tuple[str | None, int]:
    """Return the kind of the first record, and the number of the first launch with records."""
    kind, number = None, None
    for size in _HEAD_BYTES:
        head = source.head(size)
        kind, number = _first_kind(head), _NUMBER.search(head)
        if kind in _EVENT_KINDS or (kind and number) or len(head) < size:
            break
    return kind, int(number[1]) if number else _NO_LAUNCH


class CutracerTrace(InputTrace):
    """The files of a run, each of a launch as a rule, in launch order."""

    format = FORMAT
    hint = (
        "trace with CUTRACER_INSTRUMENT=mem_addr_trace,tma_trace: other records have no addresses"
    )

    def __init__(self, inputs: Sequence[TraceInput]) -> None:
        super().__init__(inputs)
        found = [(item, *_beginning(item)) for item in inputs]
        launches = [(number, item) for item, kind, number in found if kind not in _EVENT_KINDS]
        events = [item for item, kind, _ in found if kind in _EVENT_KINDS]
        if len(events) > 1:
            raise TraceError(events[1].name, "is a second file of kernel events", "give one run")
        if not launches:
            hint = "give it with the kernel_*.ndjson files beside it"
            raise TraceError(events[0].name, "names launches and no accesses", hint)
        self._inputs = [item for _, item in sorted(launches, key=itemgetter(0))]
        self.name = name_of(self._inputs[0], len(inputs))
        self._events = read_events(events[0]) if events else {}
        self.blind_spots = BLIND_SPOTS if events else (*BLIND_SPOTS, NO_STREAMS)

    def tasks(self) -> Iterator[PartTask]:
        """Yield the files in launch order, and what the kernel events have behind the last."""
        for item in self._inputs:
            size = item.path.stat().st_size if item.path is not None else 0
            yield WholeInput(item, read_records, size, len(self._inputs) > 1)
        if self._events:
            yield KnownPart(ScannedPart(keys=[(_NO_LAUNCH,)], launches=[None]))

    def program_order(self) -> "LaunchOrder":
        """Return what puts the launches in the order of their numbers."""
        return LaunchOrder(self._events)

    def untraced(self, launch: KernelLaunch) -> str | None:
        """Say what a kernel's name gives away, where nothing is known of its code."""
        return untraced_by_name(launch.name)


class LaunchOrder(ProgramOrder):
    """Puts launches in the order of their numbers; `events` know those without records, too."""

    def __init__(self, events: dict[int, KernelLaunch]) -> None:
        super().__init__()
        self._events = events
        self._numbers = sorted(events, reverse=True)  # that are still to come
        self._index: dict[int, int] = {}
        self._context = 0
        self._unrecorded: list[int] = []

    def add(self, part: ScannedPart) -> NDArray[np.int64]:
        """Take the next part; return the index in `operations` of each of its launches, or -1."""
        launches: dict[int, Any] = dict(
            zip((key for (key,) in part.keys), part.launches, strict=True)
        )
        for number in sorted(launches):
            launch = launches[number]
            if launch is not None:
                self._context = launch.context or self._context
                launch = replace(launch, context=self._context)
            while self._numbers and self._numbers[-1] < number:
                self._enter(self._numbers.pop(), None)
            if self._numbers and self._numbers[-1] == number:
                self._enter(self._numbers.pop(), launch)
            elif launch is not None and number in self._index:
                found = f"two files announce launch {number}"
                raise TraceError("the trace", found, "give the files of one process and one run")
            elif launch is not None:
                self._enter(number, launch)
        for number in self._unrecorded:
            part.untraced[len(part.keys)] = _NOT_TRACED
            part.keys.append((number,))
        self._unrecorded.clear()
        return np.array([self._index.get(key, -1) for (key,) in part.keys], np.int64)

    def _enter(self, number: int, launch: KernelLaunch | None) -> None:
        if launch is None:
            launch = replace(self._events[number], context=self._context)
            self._unrecorded.append(number)
        elif number in self._events:
            launch = replace(launch, stream=self._events[number].stream)
        last = getattr(self.operations[-1], "trace_id", None) or 0 if self.operations else 0
        if number < last:
            found = f"launch {number} comes behind launch {last}"
            hint = "give the files of one run, each with the records of one launch"
            raise TraceError("the trace", found, hint)
        self._index[number] = len(self.operations)
        self.operations.append(launch)
