"""Byte ranges grouped by row and kind: sort and join them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.system.arrays import Offsets
from depgraph.system.compiled import compiled_helper, compiled_if_large


class Groups(NamedTuple):
    """Ranges grouped by row and kind: group ``4 * row + kind`` is ``[offsets[g], stops[g])``."""

    starts: NDArray[np.uint64]
    ends: NDArray[np.uint64]
    offsets: Offsets
    stops: NDArray[np.int64]


@compiled_helper
def _sort_ranges(starts, ends, low, high):
    """Sort ``[low, high)`` by start, merging the runs that are already in order."""
    n = high - low
    bounds = np.empty(n + 1, np.int64)
    n_runs = 0
    for i in range(low, high):
        if i == low or starts[i] < starts[i - 1]:
            bounds[n_runs] = i
            n_runs += 1
    bounds[n_runs] = high
    spare_starts = np.empty(n, np.uint64)
    spare_ends = np.empty(n, np.uint64)
    while n_runs > 1:
        merged = 0
        for run in range(0, n_runs - 1, 2):
            first = bounds[run]
            middle = bounds[run + 1]
            last = bounds[run + 2]
            n_left = middle - first
            for i in range(n_left):
                spare_starts[i] = starts[first + i]
                spare_ends[i] = ends[first + i]
            left = 0
            right = middle
            at = first
            while left < n_left:
                if right < last and starts[right] < spare_starts[left]:
                    starts[at] = starts[right]
                    ends[at] = ends[right]
                    right += 1
                else:
                    starts[at] = spare_starts[left]
                    ends[at] = spare_ends[left]
                    left += 1
                at += 1
            bounds[merged] = first
            merged += 1
        if n_runs % 2:
            bounds[merged] = bounds[n_runs - 1]
            merged += 1
        bounds[merged] = high
        n_runs = merged


@compiled_helper
def _subtract(groups, group, out_start, out_end, n):
    """Write the ranges of a group of kind 2 or 3 less those of the kinds of reads before it.

    All are sorted and disjoint. Returns the new number of ranges in the output, which is only
    counted where it has no room.
    """
    starts, ends, offsets, stops = groups
    plain = group & ~3
    other_kind = plain + 2 if group & 1 else plain
    cut, cut_end = offsets[plain], stops[plain]
    other, other_end = offsets[other_kind], stops[other_kind]
    for i in range(offsets[group], stops[group]):
        start = starts[i]
        while start < ends[i]:
            while cut < cut_end and ends[cut] <= start:
                cut += 1
            while other < other_end and ends[other] <= start:
                other += 1
            if cut < cut_end and starts[cut] <= start:
                start = ends[cut]
                continue
            if other < other_end and starts[other] <= start:
                start = ends[other]
                continue
            stop = ends[i]
            if cut < cut_end:
                stop = min(stop, starts[cut])
            if other < other_end:
                stop = min(stop, starts[other])
            if n < len(out_start):
                out_start[n] = start
                out_end[n] = stop
            n += 1
            start = stop
    return n


@compiled_if_large
def join_ranges(row, kind, start, end, n_ranges, n_rows):
    """Sort ranges by row and kind and join those of one row and kind that overlap or touch.

    `row` is below `n_rows`, `kind` 0 to 3. What stands in kind 0 of a row is left out of kinds 2
    and 3, and what stands in kind 2 is left out of kind 3.
    """
    offsets = np.zeros(4 * n_rows + 1, np.int64)
    for i in range(n_ranges):
        offsets[4 * np.int64(row[i]) + kind[i] + 1] += 1
    for g in range(4 * n_rows):
        offsets[g + 1] += offsets[g]
    stops = offsets[:-1].copy()
    starts = np.empty(n_ranges, np.uint64)
    ends = np.empty(n_ranges, np.uint64)
    groups = Groups(starts, ends, offsets, stops)
    for i in range(n_ranges):
        group = 4 * np.int64(row[i]) + kind[i]
        at = stops[group]
        # Runs that go on where the last one ended are joined before the sort sees them.
        if at > offsets[group] and ends[at - 1] == start[i] and starts[at - 1] <= start[i]:
            ends[at - 1] = end[i]
            continue
        starts[at] = start[i]
        ends[at] = end[i]
        stops[group] = at + 1

    nothing = np.empty(0, np.uint64)
    total = np.int64(0)
    for group in range(4 * n_rows):
        low = offsets[group]
        high = stops[group]
        if low == high:
            continue
        ordered = True
        for i in range(low + 1, high):
            if starts[i] < starts[i - 1]:
                ordered = False
                break
        if not ordered:
            _sort_ranges(starts, ends, low, high)
        last = low
        for i in range(low + 1, high):
            if starts[i] <= ends[last]:
                ends[last] = max(ends[last], ends[i])
            else:
                last += 1
                starts[last] = starts[i]
                ends[last] = ends[i]
        stops[group] = last + 1
        if group & 2:
            total = _subtract(groups, group, nothing, nothing, total)
        else:
            total += last + 1 - low

    out_row = np.empty(total, np.int32)
    out_kind = np.empty(total, np.uint8)
    out_start = np.empty(total, np.uint64)
    out_end = np.empty(total, np.uint64)
    n = np.int64(0)
    for group in range(4 * n_rows):
        low = offsets[group]
        first = n
        if group & 2 and low < stops[group]:
            n = _subtract(groups, group, out_start, out_end, n)
        else:
            for i in range(low, stops[group]):
                out_start[n] = starts[i]
                out_end[n] = ends[i]
                n += 1
        for i in range(first, n):
            out_row[i] = group >> 2
            out_kind[i] = group & 3
    return out_row, out_kind, out_start, out_end
