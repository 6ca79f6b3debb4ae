"""The times that a first, unrecorded run took, as a trace of the PyTorch profiler."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from depgraph.recorder.run import Selection

_FILES = "times-*.jsonl"


def timed_in(folder: Path, selection: Selection) -> list[dict[str, Any]]:
    """Return what ran of the process that launched most kernels, in the order of the launches.

    Parameters
    ----------
    folder : Path
        In which processes left their times.
    selection : Selection
        Others are left out, as they are from the recording.

    Returns
    -------
    list of dict
        Events of the PyTorch profiler: kernels, copies and memsets.
    """
    processes = [_chosen(_lines(path), selection) for path in sorted(folder.glob(_FILES))]
    return max(processes, key=_kernels, default=[])


def _kernels(events: Sequence[dict[str, Any]]) -> int:
    return sum(event["cat"] == "kernel" for event in events)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file but for a last one that is cut."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _chosen(lines: Sequence[dict[str, Any]], selection: Selection) -> list[dict[str, Any]]:
    marks = sorted((line["correlation"], line["region"]) for line in lines if "region" in line)
    events = sorted(
        (line for line in lines if "cat" in line),
        key=lambda line: (line["args"]["correlation"], line["ts"]),
    )
    if selection.in_region:
        events = [event for event in events if _is_inside(event["args"]["correlation"], marks)]
    kernels = [event for event in events if event["cat"] == "kernel"]
    others = [event for event in events if event["cat"] != "kernel"]
    kernels = kernels[selection.first or 0 : selection.end]
    if selection.name:
        kernels = [kernel for kernel in kernels if re.search(selection.name, kernel["name"])]
    return sorted([*kernels, *others], key=lambda event: event["ts"])


def _is_inside(correlation: int, marks: Sequence[tuple[int, str]]) -> bool:
    before = [what for number, what in marks if number < correlation]
    return bool(before) and before[-1] == "start"


def write_times(path: Path, events: Sequence[dict[str, Any]], gpus: Sequence[str]) -> None:
    """Write events as a file that ``--timing`` reads.

    Parameters
    ----------
    path : Path
    events : sequence of dict
    gpus : sequence of str
        Names of the GPUs, by number.
    """
    devices = [{"id": number, "name": name} for number, name in enumerate(gpus)]
    content = {"deviceProperties": devices, "traceEvents": list(events)}
    path.write_text(json.dumps(content, indent=0), encoding="utf-8")
