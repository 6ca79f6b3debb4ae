"""The times that a first, unrecorded run took, as a trace of the PyTorch profiler."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

from depgraph.recorder.raw_recording import json_lines

Events = list[dict[str, Any]]

_FILES = "times-*.jsonl"
_TAKEN = "taken"


def timed_in(folder: Path, *, in_region: Callable[[int], bool] = lambda _: False) -> list[Events]:
    """Return what ran of each process that launched kernels, as PyTorch profiler events."""
    processes = [
        _in_order(json_lines(path), in_region=in_region(int(path.stem.rpartition("-")[2])))
        for path in sorted(folder.glob(_FILES))
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


def launches_in(events: Events) -> Counter[tuple[str, tuple[int, ...]]]:
    """Count the launches of each kernel, grid and block among the events of a run."""
    return Counter(as_launched(each, each["args"]) for each in events if each["cat"] == "kernel")


def as_launched(named: dict[str, Any], sized: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return name, grid and block: what two runs of a program show alike."""
    return named["name"], (*sized["grid"], *sized["block"])


def _in_order(lines: Events, *, in_region: bool) -> Events:
    marks = sorted((line["correlation"], line["region"]) for line in lines if "region" in line)
    events = sorted(
        (line for line in lines if "cat" in line),
        key=lambda line: (line["args"]["correlation"], line["ts"]),
    )
    if in_region:
        return [event for event in events if _is_inside(event["args"]["correlation"], marks)]
    return events


def _is_inside(correlation: int, marks: Sequence[tuple[int, str]]) -> bool:
    before = [what for number, what in marks if number < correlation]
    return bool(before) and before[-1] == "start"


def as_trace(events: Events, gpus: Sequence[str]) -> dict[str, Any]:
    """Return events as a trace of the PyTorch profiler, which ``--timing`` reads."""
    devices = [{"id": number, "name": name} for number, name in enumerate(gpus)]
    return {"deviceProperties": devices, "traceEvents": events}
