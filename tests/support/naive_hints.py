"""Slow twins of hints and filters: sets of keys, plain loops."""

import naive_schedule

from depgraph.trace.records import READ, WRITE

ALIGNMENT = 512
KINDS = (("RAW", READ, WRITE), ("WAR", WRITE, READ), ("WAW", WRITE, WRITE))


def keys_of(hints):
    """Return the keys that each unit reads and writes: a list of pairs of sets."""
    found = [(set(), set()) for _ in hints.operation]
    for unit, kind, first, last in zip(
        hints.unit, hints.kind, hints.first, hints.last, strict=True
    ):
        keys = set(range(int(first), int(last) + 1))
        assert not keys & found[unit][kind]
        found[unit][kind].update(keys)
    return found


def keys_by_hand(  # noqa: C901 - one page of plain loops
    touched, operation_of, unit_of, allocations, n_operations, size
):
    """Return what each unit reads and writes: sets of (segment of memory, place in it).

    `touched` are (block, access, first byte, past the last); with no `size` a key is a segment.
    """

    def blocks_of(start, end):
        return set(range(start // ALIGNMENT, (end - 1) // ALIGNMENT + 1))

    extents = [blocks_of(a.address, a.address + a.size) for a in allocations]
    for k in range(n_operations):
        own = [blocks_of(start, end) for b, _, start, end in touched if operation_of[b] == k]
        left = set().union(*own)
        while left:
            run = {min(left)}
            while max(run) + 1 in left:
                run.add(max(run) + 1)
            extents.append(run)
            left -= run
    cuts = {min(e) for e in extents} | {max(e) + 1 for e in extents}
    in_use = sorted(set().union(*extents))
    begin, segment_of = None, {}
    for at in in_use:
        if at in cuts or at - 1 not in segment_of:
            begin = at
        segment_of[at] = begin
    found = [(set(), set()) for _ in range(max(unit_of) + 1)]
    for block, access, start, end in touched:
        for at in blocks_of(start, end):
            keys = found[unit_of[block]][access]
            begin = segment_of[at]
            if size:
                low = max(start, at * ALIGNMENT) - begin * ALIGNMENT
                high = min(end, (at + 1) * ALIGNMENT) - 1 - begin * ALIGNMENT
                keys.update((begin, place) for place in range(low // size, high // size + 1))
                continue
            keys.add((begin, 0))
            for tensor, a in zip(extents, allocations, strict=False):
                freed = n_operations if a.freed is None else a.freed
                if at in tensor and a.allocated <= operation_of[block] < freed:
                    keys.update((segment_of[other], 0) for other in tensor)
    return found


def spanned(keys):
    """Return all places between the first and the last of each segment."""
    segments = {segment for segment, _ in keys}
    ends = {s: [place for segment, place in keys if segment == s] for s in segments}
    return {(s, place) for s in segments for place in range(min(ends[s]), max(ends[s]) + 1)}


def bits_of(keys, bits, hashes):
    """Return the bits that keys set; without hashes each key has its own."""
    if not hashes:
        return set(keys)
    return {bit for key in keys for bit in naive_schedule.bloom_bits(key, bits, hashes)}


def says_yes(asked, there, kinds, bits, hashes):
    """Tell whether a filter over all units `there` answers yes to one that asks."""
    filters = [bits_of({k for unit in there for k in unit[kind]}, bits, hashes) for kind in (0, 1)]
    return any(
        bits_of({key}, bits, hashes) <= filters[others]
        for name, own, others in KINDS
        if name in kinds
        for key in asked[own]
    )


def end_times(hints, durations, kinds, *, bits, hashes, window, counting):
    """Return when each block ends on as many SMs as it takes: kernels in order, one pass."""
    keys = keys_of(hints)
    units = [[] for _ in range(max(hints.operation) + 1)]
    for unit, operation in enumerate(hints.operation):
        units[operation].append(unit)
    ends, now, done = {}, 0.0, []
    for k, own in enumerate(units):
        inside = [i for i in range(k) if done[i] > now]
        if len(inside) == window:
            now = min(done[i] for i in inside)
        inside = [i for i in range(k) if done[i] > now]
        for unit in own:
            there = {i: [keys[u] for u in units[i]] for i in inside}
            hit = [i for i in inside if says_yes(keys[unit], there[i], kinds, bits, hashes)]
            if counting:
                every = [u for each in there.values() for u in each]
                hit = inside if says_yes(keys[unit], every, kinds, bits, hashes) else []
            start = max([now, *(done[i] for i in hit)])
            for block, at in enumerate(hints.unit_of_block):
                if at == unit:
                    ends[block] = start + durations[block]
        done.append(max(ends[b] for b, u in enumerate(hints.unit_of_block) if u in own))
    return [ends[block] for block in range(len(durations))]
