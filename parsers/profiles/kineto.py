"""Kernel times, and what the caching allocator did, from the PyTorch profiler's Chrome trace.

With ``profile_memory=True`` it has the tensors that come and go in segments which the allocator
keeps, and which are all that CUDA sees.
"""

import operator
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.host_spans import HostSpans
from depgraph.parsers.profiles.json_events import ROCPROF, ROCPROF_HINT, ChromeTrace
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.parsers.profiles.source import text_chunks
from depgraph.store.companions import TIMES, open_companion
from depgraph.timing.profile import NOWHERE, UNKNOWN, KernelProfile, Site
from depgraph.trace.block_spans import unpacked
from depgraph.trace.records import Dim3

HINT = (
    "profile with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA]) and write it with prof.export_chrome_trace(...)"
)
CALLS = {"cuda_runtime", "cuda_driver"}
_MEMORY = {"gpu_memset", "gpu_memcpy"}
_OP, _PYTHON = "cpu_op", "python_function"
SPANS = {_OP, _PYTHON, "user_annotation"}
_DIMENSIONS = 3
_NS_PER_US = 1000
_MOST_RANKS = 1 << 24
_LARGEST_EXPONENT = 20
_MORE_THAN_ANYTHING = 1 << 66


def read_kineto(path: Path) -> KernelProfile:
    """Read the kernels of a Kineto trace; memory grows with the kernels, not with the file."""
    trace, store = _opened(path)
    columns = KernelColumns(path)
    of_rocprof = False
    for event in trace.events():
        if not isinstance(event, dict):
            columns.skipped["events that are no JSON object"] += 1
        elif not _add(columns, event):
            of_rocprof |= {"BeginNs", "EndNs"} <= arguments_of(event).keys()
    if of_rocprof and not len(columns):
        raise ProfileError(path, f"is {ROCPROF}", ROCPROF_HINT)
    if trace.passed_over:
        columns.skipped["parts of values above 16 MiB"] += trace.passed_over
        columns.notes.append(f"{trace.passed_over} parts of values above 16 MiB were passed over")
    if not trace.has_events:
        raise ProfileError(path, "is JSON, but has no list of trace events", HINT)
    if trace.cut_at is not None:
        found = f"the file ends early, on line {trace.cut_at}"
        columns.notes.append(f"{found}: kernels beyond it are missing")
        columns.skipped["unfinished ends of file"] += 1
    distributed = trace.properties.get("distributedInfo")
    rank = whole(distributed.get("rank")) if isinstance(distributed, dict) else None
    columns.rank = rank if rank is not None and 0 <= rank < _MOST_RANKS else None
    return columns.profile(
        "kineto",
        start_origin=whole(trace.properties.get("baseTimeNanoseconds")) or 0,
        sms_of_device=_devices(trace.properties, columns),
        store=store,
        hint=HINT,
    )


def _opened(path: Path) -> tuple[ChromeTrace, str | None]:
    """Open a trace; times beside a store are read from what was found intact, with its id."""
    beside = open_companion(path)
    if beside is None:
        return ChromeTrace(path, text_chunks(path)), None
    beside.refuse_others(TIMES, None)
    return ChromeTrace(path, iter([beside.text.decode("utf-8", "replace")])), beside.store


def _add(columns: KernelColumns, event: dict[str, Any]) -> bool:
    """Take what an event says; return False if it says nothing of use."""
    category, name = category_of(event), event.get("name")
    if category == "kernel":
        columns.add(*_measured(event), **_launch(arguments_of(event)))
    elif category in _MEMORY:
        columns.memory.add(*_measured(event), **_place(arguments_of(event)))
    elif category in CALLS and isinstance(name, str) and "Launch" in name:
        correlation = whole(arguments_of(event).get("correlation"))
        columns.add_call(correlation, time_of(event, "ts"), thread_of(event))
    elif category in SPANS:
        add_span(columns.host, category, event)
    else:
        return False
    return True


def category_of(event: dict[str, Any]) -> str:
    """Return what sort of event has a duration; "" for others."""
    category = event.get("cat")
    return category.lower() if isinstance(category, str) and event.get("ph") == "X" else ""


def thread_of(event: dict[str, Any]) -> tuple[str, str]:
    """Name the thread of the host that an event is of."""
    return str(event.get("pid")), str(event.get("tid"))


def arguments_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return what an event says beyond name and time."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def time_of(event: dict[str, Any], member: str) -> int | None:
    """Return a time in whole nanoseconds; None where there is none."""
    time = exact_number(event.get(member))
    return None if time is None else round(_NS_PER_US * time)


def add_span(host: HostSpans, category: str, event: dict[str, Any]) -> None:
    """Note what the host was doing for a while."""
    name, start, duration = event.get("name"), time_of(event, "ts"), time_of(event, "dur")
    if not isinstance(name, str) or start is None or duration is None:
        return
    where = start, start + duration, thread_of(event)
    if category == _OP:
        known = arguments_of(event)
        host.add_op(name, *where, whole(known.get("External id")))
        sequence, forward = whole(known.get("Sequence number")), known.get("Fwd thread id")
        if sequence is not None and forward is not None:
            host.add_pass(sequence, *where, is_forward=forward == 0)
    elif category == _PYTHON:
        host.add_python(name, *where)
    else:
        host.add_range(name, *where)


def _measured(event: dict[str, Any]) -> tuple[str, float | None, int | None]:
    name, duration = event.get("name"), exact_number(event.get("dur"))
    time = None if duration is None else float(_NS_PER_US * duration)
    return name if isinstance(name, str) else "", time, time_of(event, "ts")


def _place(arguments: dict[str, Any]) -> dict[str, Any]:
    # A copy between two GPUs names the one whose engine moves it.
    return {
        "device": whole(arguments.get("device", arguments.get("inDevice"))),
        "context": whole(arguments.get("context", arguments.get("inContext"))),
        "stream": whole(arguments.get("stream")),
        "correlation": whole(arguments.get("correlation")),
    }


def _launch(arguments: dict[str, Any]) -> dict[str, Any]:
    grid = sizes(arguments.get("grid"))
    return {
        "grid": grid,
        "block_spans": None if grid is None else unpacked(arguments.get("blocks"), prod(grid)),
        "block": sizes(arguments.get("block")),
        "registers": whole(arguments.get("registers per thread")),
        "shared_bytes": whole(arguments.get("shared memory")),
        "op_number": whole(arguments.get("External id")),
        **_place(arguments),
    }


def _devices(properties: dict[str, Any], columns: KernelColumns) -> dict[int, int]:
    devices = properties.get("deviceProperties")
    sms: dict[int, int] = {}
    for device in devices if isinstance(devices, list) else []:
        number = whole(device.get("id")) if isinstance(device, dict) else None
        if number is not None:
            columns.device_names[number] = str(device.get("name", ""))
            if count := whole(device.get("numSms")):
                sms[number] = count
    return sms


def exact_number(value: object) -> Decimal | None:
    """Return a number that can be a time; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    return number if number.is_finite() and number.adjusted() < _LARGEST_EXPONENT else None


def whole(value: object) -> int | None:
    """Return a whole number; None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() >= _LARGEST_EXPONENT:
        return _MORE_THAN_ANYTHING
    number = exact_number(value)
    return int(number) if number is not None and number == int(number) else None


def sizes(value: object) -> Dim3 | None:
    """Return three whole numbers; None for anything else."""
    if not isinstance(value, list) or len(value) != _DIMENSIONS:
        return None
    x, y, z = (whole(size) for size in value)
    return None if x is None or y is None or z is None else (x, y, z)


MEMORY_HINT = (
    "profile with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
    "profile_memory=True, with_stack=True), from the program's start, and write it with "
    "prof.export_chrome_trace(...)"
)
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
    trace, _ = _opened(path)
    host = HostSpans()
    launches, changes, processes = _memory_events(trace, host)
    if not trace.has_events:
        raise ProfileError(path, "is JSON, but has no list of trace events", MEMORY_HINT)
    if len(changes) == _MOST_EVENTS:
        found = f"tells of {_MOST_EVENTS} allocations and frees, or more"
        raise ProfileError(path, found, "profile a shorter run")
    if not changes:
        raise ProfileError(path, "tells nothing of memory on a GPU", MEMORY_HINT)
    calls = [(UNKNOWN, i) for i in range(len(changes))]
    site, sites = host.sites(calls, np.full(len(calls), UNKNOWN))
    if sites:
        changes = [each._replace(site=sites[at]) for each, at in zip(changes, site, strict=True)]
    launches.sort(key=operator.itemgetter(0))
    changes.sort(key=operator.itemgetter(0))
    return MemoryProfile(launches, changes, frozenset(processes))


def _memory_events(
    trace: ChromeTrace, host: HostSpans
) -> tuple[list[Launch], list[Change], set[int]]:
    """Return launches, changes and their processes; `host` gets what the host was doing."""
    called, processes = dict[int, int](), set[int]()
    kernels: list[tuple[int, tuple[str, Dim3 | None, Dim3 | None]]] = []
    changes: list[Change] = []
    for event in trace.events():
        if not isinstance(event, dict) or (time := time_of(event, "ts")) is None:
            continue
        category, found = category_of(event), arguments_of(event)
        correlation = whole(found.get("correlation"))
        if correlation is not None and category in CALLS:
            called.setdefault(correlation, time)
        elif correlation is not None and category == "kernel":
            name, *_ = _measured(event)
            sized = sizes(found.get("grid")), sizes(found.get("block"))
            kernels.append((correlation, (name, *sized)))
        elif category in SPANS:
            add_span(host, category, event)
        elif event.get("name") != "[memory]" or len(changes) >= _MOST_EVENTS:
            continue
        elif (change := _change_of(found)) is not None:
            host.add_call((UNKNOWN, len(changes)), time, thread_of(event))
            changes.append(Change(time, *change, NOWHERE))
            processes.add(whole(event.get("pid")) or 0)
    launches = [Launch(called[c], *named) for c, named in kernels if c in called]
    return launches, changes, processes


def _change_of(arguments: dict[str, Any]) -> tuple[int, int, int | None] | None:
    """Return address, size and reserved bytes; None for memory of the host, or nonsense."""
    address, size = whole(arguments.get("Addr")), whole(arguments.get("Bytes"))
    if whole(arguments.get("Device Type")) != _CUDA or address is None or not size:
        return None
    if not 0 < address < _ADDRESS_END - abs(size):
        return None
    return address, size, whole(arguments.get("Total Reserved"))
