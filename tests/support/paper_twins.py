"""Slow twins of mechanisms, written from the papers and the vendor's guide, not from the code.

A program is a list of kernels, each a list of durations of its blocks, and pairs of blocks,
((kernel, block), (kernel, block)), of which the second waits for the first. All blocks take an
equal share of an SM, so that places are counted and not told apart, unless a twin says so.
"""

import heapq
import math
from itertools import combinations, pairwise


def list_schedule(blocks, places, waits=None, begin=0.0):
    """Return when each block ends; of those that may run the first in the list goes first.

    Parameters
    ----------
    blocks : dict
        Block to its duration, in the order in which they are to go.
    places : int
    waits : dict, optional
        Block to blocks of the same list that it waits for.
    begin : float
        When the list may begin.
    """
    waits = waits or {}
    left, end, running, free, now = list(blocks), {}, [], places, begin
    while left or running:
        for block in [b for b in left if all(w in end and end[w] <= now for w in waits.get(b, ()))]:
            if not free:
                break
            left.remove(block)
            free -= 1
            end[block] = now + blocks[block]
            heapq.heappush(running, end[block])
        now = running[0]
        while running and running[0] <= now:
            heapq.heappop(running)
            free += 1
    return end


def numbered(kernels, chosen=None):
    """Return the blocks of kernels in launch order, as `list_schedule` takes them."""
    chosen = range(len(kernels)) if chosen is None else chosen
    return {(k, b): d for k in chosen for b, d in enumerate(kernels[k])}


def alone(durations, places):
    """Return what one kernel takes by itself."""
    return max(list_schedule(dict(enumerate(durations)), places).values())


def serial(kernels, places):
    """Return the time of kernels one after another."""
    return sum(alone(kernel, places) for kernel in kernels)


def kernel_edges(edges):
    """Return which kernel waits for which."""
    return {(s[0], t[0]) for s, t in edges if s[0] != t[0]}


def horizontal_fusion(kernels, edges, places):
    """Kernels of one depth are one launch; launches follow one another (HFuse, Rammer)."""
    depth = {}
    for k in range(len(kernels)):
        depth[k] = 1 + max((depth[s] for s, t in kernel_edges(edges) if t == k), default=-1)
    now = 0.0
    for level in range(max(depth.values()) + 1):
        fused = [k for k in depth if depth[k] == level]
        now = max(list_schedule(numbered(kernels, fused), places, begin=now).values())
    return now


def components(chosen, pairs):
    """Return kernels that are connected by dependences among those chosen."""
    groups = [{k} for k in chosen]
    for s, t in pairs:
        if s in chosen and t in chosen:
            first = next(g for g in groups if s in g)
            second = next(g for g in groups if t in g)
            if first is not second:
                groups.remove(second)
                first |= second
    return [sorted(g) for g in groups]


def ios(kernels, edges, places, most_kernels, most_streams):
    """Return the times of all cuts whose estimate is least (IOS, section 4: stages and groups).

    A stage is estimated by its longest group and by its work; here cuts follow the launch order.
    """
    n, pairs = len(kernels), kernel_edges(edges)
    times = [alone(kernel, places) for kernel in kernels]
    best, found = math.inf, []
    for count in range(n):
        for cuts in combinations(range(1, n), count):
            stages = [range(a, b) for a, b in zip((0, *cuts), (*cuts, n), strict=True)]
            groups = [components(list(stage), pairs) for stage in stages]
            if any(len(g) > most_streams or max(map(len, g)) > most_kernels for g in groups):
                continue
            estimate = sum(
                max(
                    *(sum(times[k] for k in group) for group in own),
                    sum(sum(kernels[k]) for k in stage) / places,
                )
                for stage, own in zip(stages, groups, strict=True)
            )
            if estimate < best - 1e-9:
                best, found = estimate, []
            if estimate <= best + 1e-9:
                found.append(groups)
    return {_staged(kernels, groups, places) for groups in found}


def _staged(kernels, stages, places):
    """Run stages one after another; in each the kernels of a group follow one another."""
    now = 0.0
    for groups in stages:
        before = {b: a for group in groups for a, b in pairwise(group)}
        chosen = sorted(k for group in groups for k in group)
        waits = {
            (k, b): [(before[k], i) for i in range(len(kernels[before[k]]))]
            for k in chosen
            if k in before
            for b in range(len(kernels[k]))
        }
        now = max(list_schedule(numbered(kernels, chosen), places, waits, now).values())
    return now


def queues(chains, at_once, quantum):
    """Return when chains of kernels end of which only so many have a hardware queue at a time.

    Each chain is a list of times of kernels with room enough; only while its group of queues has
    its turn may its next kernel start (Puthoor et al.: round-robin over oversubscribed queues).
    """
    turns = math.ceil(len(chains) / at_once)
    ends = []
    for i, chain in enumerate(chains):
        now = 0.0
        for time in chain:
            while turns > 1 and math.floor(now / quantum) % turns != i // at_once:
                now = (math.floor(now / quantum) + 1) * quantum
            now += time
        ends.append(now)
    return ends


def clusters(kernels, gpcs, places, size):
    """Return the time of serial kernels whose blocks start in clusters (CUDA guide, clusters).

    `gpcs` are the SMs of each GPC, with so many `places` each. All blocks of a cluster start at
    once in one GPC, each on an SM of its own: where the fullest of these has most room. Kernels
    that the size does not divide have no clusters.
    """
    now = 0.0
    for kernel in kernels:
        each = size if len(kernel) % size == 0 else 1
        left = [kernel[i : i + each] for i in range(0, len(kernel), each)]
        free, running = [[places] * sms for sms in gpcs], []
        while left or running:
            gpc = max(range(len(free)), key=lambda g: sorted(free[g])[-each])
            chosen = sorted(range(len(free[gpc])), key=lambda sm: -free[gpc][sm])[:each]
            if left and free[gpc][chosen[-1]] > 0:
                for sm, duration in zip(chosen, left.pop(0), strict=True):
                    heapq.heappush(running, (now + duration, gpc, sm))
                    free[gpc][sm] -= 1
                continue
            now = running[0][0]
            while running and running[0][0] <= now:
                _, gpc, sm = heapq.heappop(running)
                free[gpc][sm] += 1
    return now


def cluster_launch_control(kernels, places, start, *, static):
    """Return the time of serial kernels whose later tiles of a place need no start (CUDA guide)."""
    now = 0.0
    for kernel in kernels:
        slots = [0.0] * min(places, len(kernel))
        for i, duration in enumerate(kernel):
            at = i % len(slots) if static else slots.index(min(slots))
            slots[at] += duration if i < len(slots) else max(0.0, duration - start)
        now += max(slots)
    return now


def green_contexts(kernels, edges, streams, parts):
    """Return the time of streams that are dealt out to parts of so many places each.

    Streams go, those of most work first, to the part that would be done with all its work first; a
    kernel waits for the one before it in its part, and for those elsewhere that it depends on.
    """
    work = {}
    for k, stream in enumerate(streams):
        work[stream] = work.get(stream, 0.0) + sum(kernels[k])
    load, part_of = [0.0] * len(parts), {}
    for stream in sorted(work, key=lambda s: (-work[s], s)):
        done = [(load[p] + work[stream]) / size for p, size in enumerate(parts)]
        part_of[stream] = done.index(min(done))
        load[part_of[stream]] += work[stream]
    ends, last = [], {}
    for k, stream in enumerate(streams):
        part = part_of[stream]
        before = [ends[s] for s, t in kernel_edges(edges) if t == k]
        begin = max([last.get(part, 0.0), *before])
        last[part] = begin + alone(kernels[k], parts[part])
        ends.append(last[part])
    return max(ends)


def conv2d(producers, consumers, places, taps):
    """Return the time of two kernels of which a step waits for a tile (cuSync, policies.h, Conv2D).

    Every consumer needs all producer tiles, each in `taps` steps on end: it waits in the first of
    them. Consumers take places once all producers have one, and hold them while they wait.
    """
    free = [0.0] * places
    heapq.heapify(free)
    ends, placed = [], 0.0
    for duration in producers:
        placed = heapq.heappop(free)
        ends.append(placed + duration)
        heapq.heappush(free, ends[-1])
    steps = len(producers) * taps
    finished = []
    for duration in consumers:
        now = max(placed, heapq.heappop(free))
        for step in range(steps):
            if step % taps == 0:
                now = max(now, ends[step // taps])
            now += duration / steps
        finished.append(now)
        heapq.heappush(free, now)
    return max(ends + finished)


def line_dependences(touched, first, line=128):
    """Return which block waits for which older kernel's block, by whole lines (a perfect filter).

    `touched` is for each block two sets of bytes, read and written.
    """
    lines = [[{byte // line for byte in bytes_} for bytes_ in own] for own in touched]
    kernel = [k for k, (a, b) in enumerate(pairwise(first)) for _ in range(a, b)]
    return {
        (s, t)
        for t in range(len(lines))
        for s in range(len(lines))
        if kernel[s] < kernel[t]
        and (lines[s][1] & (lines[t][0] | lines[t][1]) or lines[s][0] & lines[t][1])
    }
