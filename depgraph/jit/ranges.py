"""Byte ranges grouped by row and kind: sort and join them."""

from __future__ import annotations

import numpy as np

from depgraph.jit.compiled import compiled


@compiled
def join_ranges(row, kind, start, end, n_ranges, n_rows):
    """Sort ranges by (row, kind, start) and join those that overlap or touch.

    Parameters
    ----------
    row : int32[>= n_ranges]
        Group of each range, below `n_rows`.
    kind : uint8[>= n_ranges]
        0 or 1.
    start, end : uint64[>= n_ranges]
        Half-open byte ranges.
    n_ranges, n_rows : int

    Returns
    -------
    row, kind, start, end : arrays of the joined ranges, in order
    """
    offsets = np.zeros(2 * n_rows + 1, np.int64)
    for i in range(n_ranges):
        offsets[2 * np.int64(row[i]) + kind[i] + 1] += 1
    for g in range(2 * n_rows):
        offsets[g + 1] += offsets[g]
    fill = offsets[:-1].copy()
    starts = np.empty(n_ranges, np.uint64)
    ends = np.empty(n_ranges, np.uint64)
    for i in range(n_ranges):
        group = 2 * np.int64(row[i]) + kind[i]
        at = fill[group]
        # Runs that go on where the last one ended are joined before the sort sees them.
        if at > offsets[group] and ends[at - 1] == start[i] and starts[at - 1] <= start[i]:
            ends[at - 1] = end[i]
            continue
        starts[at] = start[i]
        ends[at] = end[i]
        fill[group] = at + 1

    kept = np.zeros(2 * n_rows, np.int64)
    total = 0
    for group in range(2 * n_rows):
        low = offsets[group]
        high = fill[group]
        if low == high:
            continue
        ordered = True
        for i in range(low + 1, high):
            if starts[i] < starts[i - 1]:
                ordered = False
                break
        if not ordered:
            order = np.argsort(starts[low:high])
            starts[low:high] = starts[low:high][order]
            ends[low:high] = ends[low:high][order]
        last = low
        for i in range(low + 1, high):
            if starts[i] <= ends[last]:
                ends[last] = max(ends[last], ends[i])
            else:
                last += 1
                starts[last] = starts[i]
                ends[last] = ends[i]
        kept[group] = last + 1 - low
        total += kept[group]

    out_row = np.empty(total, np.int32)
    out_kind = np.empty(total, np.uint8)
    out_start = np.empty(total, np.uint64)
    out_end = np.empty(total, np.uint64)
    n = 0
    for group in range(2 * n_rows):
        low = offsets[group]
        for i in range(low, low + kept[group]):
            out_row[n] = group >> 1
            out_kind[n] = group & 1
            out_start[n] = starts[i]
            out_end[n] = ends[i]
            n += 1
    return out_row, out_kind, out_start, out_end
