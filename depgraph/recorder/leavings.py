"""What the recorder leaves of each process, until it is packed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_EVENTS, _TABLES = "events-*.jsonl", "sectors-{}.bin"


@dataclass(frozen=True, slots=True)
class Leavings:
    """Of one process.

    Attributes
    ----------
    process : int
    architecture : int or None
        Of its GPU, such as 90.
    events : list of dict
        In order, without the first, which is about the recording.
    tables : uint8[n]
        What the events point into.
    """

    process: int
    architecture: int | None
    events: list[dict[str, Any]]
    tables: NDArray[np.uint8]

    @property
    def kernels(self) -> int:
        """Number of launches."""
        return sum(event["event"] == "kernel" for event in self.events)


def leavings_in(folder: Path) -> list[Leavings]:
    """Read what processes have left, but for those that launched nothing.

    A line that a crash has cut is the last one: what stands before it counts.
    """
    found = []
    for path in sorted(folder.glob(_EVENTS)):
        events = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                break
        if not events:
            continue
        tables = folder / _TABLES.format(events[0]["process"])
        raw = np.memmap(tables, np.uint8, "r") if tables.stat().st_size else np.empty(0, np.uint8)
        architecture = next(
            (event["architecture"] for event in events if event["event"] == "context"), None
        )
        left = Leavings(events[0]["process"], architecture, events[1:], raw)
        if left.kernels:
            found.append(left)
    return found
