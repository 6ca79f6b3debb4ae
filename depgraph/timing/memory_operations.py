"""Memsets and copies of a profile, and which matched kernels they come before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.timing.matched_profile import Match


@dataclass(frozen=True, slots=True)
class MemoryOperations:
    """Memsets or copies of one sort, at one place in the program."""

    name: str  # as the file spells it
    before: int | None  # the kernel of the trace that is next to start; None if no such is known
    count: int  # in an iteration; where `before` is None, in the whole profile
    time: float  # the same, in the unit of the match


def memory_operations(match: Match) -> list[MemoryOperations]:
    """Return memsets and copies in the order of kernels; iterations are picked as of kernels."""
    memory = match.profile.memory
    if memory is None:
        return []
    iteration, place = _next_kernels(match)
    duration = memory.duration * match.scale
    found = []
    picked = {int(number): line for line, number in enumerate(match.picked)}
    groups: dict[tuple[int, str], list[int]] = {}
    for row, name in enumerate(memory.name):
        groups.setdefault((int(place[row]), name), []).append(row)
    for (at, name), rows in sorted(groups.items(), key=lambda item: (item[0][0] < 0, item[0])):
        if at < 0:
            found.append(MemoryOperations(name, None, len(rows), float(duration[rows].sum())))
            continue
        each = np.zeros((len(picked), 2))
        for row in rows:
            line = picked.get(int(iteration[row]))
            if line is not None:
                each[line] += 1, duration[row]
        count, time = match.reduced(each).tolist()
        if count:
            number = match.kernels[at].kernel
            found.append(MemoryOperations(name, number, round(count), time))
    return found


def _next_kernels(match: Match) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return iteration and place of the matched kernel that starts next, -1 where none does."""
    profile, memory = match.profile, match.profile.memory
    if memory is None or memory.start is None or profile.start is None:
        none = np.full(0 if memory is None else len(memory), -1)
        return none, none
    place = np.full((2, len(profile) + 1), -1)
    line, column = np.nonzero(match.rows >= 0)
    place[:, match.rows[line, column]] = line, column
    order = np.argsort(profile.start, kind="stable")
    after = np.searchsorted(profile.start[order], memory.start, side="left")
    next_row = np.append(order, len(profile))[after]
    return place[0, next_row], place[1, next_row]
