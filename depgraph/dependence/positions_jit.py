"""Overlapping byte ranges with positions, laid over one another."""

import numpy as np

from depgraph.system.compiled import compiled


@compiled
def overlay_ranges(group, start, end, first, last, by_end, steps):
    """Cut the ranges of each group where they overlap; keep least `first` and largest `last`.

    `group`, four times a block plus a kind, ascends, as does `start` within it; positions are at
    most `steps`; `by_end` lists the ranges by group and end: what sorts cannot be kept once it is
    compiled. What comes back is disjoint within a group; what touches differs in positions.
    """
    n = len(group)
    out_group = np.empty(2 * n, np.int64)
    out_start = np.empty(2 * n, np.uint64)
    out_end = np.empty(2 * n, np.uint64)
    out_first = np.empty(2 * n, np.uint8)
    out_last = np.empty(2 * n, np.uint8)
    firsts = np.zeros(steps + 1, np.int64)
    lasts = np.zeros(steps + 1, np.int64)
    m = 0
    low = 0
    while low < n:
        high = low
        while high < n and group[high] == group[low]:
            high += 1
        opened = low
        closed = low
        is_open = 0
        address = start[low]
        while closed < high:
            following = end[by_end[closed]]
            if opened < high:
                following = min(following, start[opened])
            if is_open > 0 and following > address:
                least = 0
                while firsts[least] == 0:
                    least += 1
                most = steps
                while lasts[most] == 0:
                    most -= 1
                if (
                    m > 0
                    and out_group[m - 1] == group[low]
                    and out_end[m - 1] == address
                    and out_first[m - 1] == least
                    and out_last[m - 1] == most
                ):
                    out_end[m - 1] = following
                else:
                    out_group[m] = group[low]
                    out_start[m] = address
                    out_end[m] = following
                    out_first[m] = least
                    out_last[m] = most
                    m += 1
            address = following
            while closed < high and end[by_end[closed]] == address:
                firsts[first[by_end[closed]]] -= 1
                lasts[last[by_end[closed]]] -= 1
                is_open -= 1
                closed += 1
            while opened < high and start[opened] == address:
                firsts[first[opened]] += 1
                lasts[last[opened]] += 1
                is_open += 1
                opened += 1
        low = high
    block = (out_group[:m] >> 2).astype(np.int32)
    kind = (out_group[:m] & 3).astype(np.uint8)
    return (
        block,
        kind,
        out_start[:m].copy(),
        out_end[:m].copy(),
        out_first[:m].copy(),
        out_last[:m].copy(),
    )
