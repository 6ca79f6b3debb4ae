"""Schedules of blocks on SMs: kernel after kernel, and block by block."""

from __future__ import annotations

import numpy as np

from depgraph.jit.compiled import compiled


@compiled
def _push_time(times, items, size, time, item):
    """Add to a binary heap ordered by (time, item); the caller counts the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and items[parent] <= item):
            break
        times[at] = times[parent]
        items[at] = items[parent]
        at = parent
    times[at] = time
    items[at] = item


@compiled
def _pop_time(times, items, size):
    """Remove the first element of a heap of `size`; return its time and item."""
    first_time = times[0]
    first_item = items[0]
    size -= 1
    time = times[size]
    item = items[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            times[other] < times[child]
            or (times[other] == times[child] and items[other] < items[child])
        ):
            child = other
        if time < times[child] or (time == times[child] and item <= items[child]):
            break
        times[at] = times[child]
        items[at] = items[child]
        at = child
    times[at] = time
    items[at] = item
    return first_time, first_item


@compiled
def serial_schedule(durations, first_block, slots, gap):
    """Run operations one after another, each one's blocks in order on the first free slot.

    Parameters
    ----------
    durations : float64[n_blocks]
    first_block : int64[n_operations + 1]
    slots : int64[n_operations]
        Blocks that may run at once.
    gap : float64[n_operations]
        Time before each operation starts.

    Returns
    -------
    start : float64[n_blocks]
    slot : int32[n_blocks]
        Slot of its operation that each block runs in.
    ends : float64[n_operations]
        When each operation ends.
    """
    n_operations = len(first_block) - 1
    start = np.zeros(len(durations), np.float64)
    slot = np.zeros(len(durations), np.int32)
    ends = np.zeros(n_operations, np.float64)
    most = 0
    for k in range(n_operations):
        most = max(most, min(slots[k], first_block[k + 1] - first_block[k]))
    times = np.empty(most + 1, np.float64)
    items = np.empty(most + 1, np.int64)
    now = 0.0
    for k in range(n_operations):
        now += gap[k]
        end = now
        running = 0
        for block in range(first_block[k], first_block[k + 1]):
            begin = now
            place = np.int64(running)
            if running < slots[k]:
                running += 1
                size = running - 1
            else:
                begin, place = _pop_time(times, items, running)
                size = running - 1
            start[block] = begin
            slot[block] = place
            finish = begin + durations[block]
            end = max(end, finish)
            _push_time(times, items, size, finish, place)
        now = end
        ends[k] = end
    return start, slot, ends


@compiled
def _push_rank(heap, size, rank):
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= rank:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = rank


@compiled
def _pop_rank(heap, size):
    first = heap[0]
    size -= 1
    rank = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if rank <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = rank
    return first


@compiled
def _set_room(tree, leaves, sm, room):
    """Write the free room of an SM into a tree of maxima."""
    at = leaves + sm
    tree[at] = room
    at >>= 1
    while at > 0:
        largest = max(tree[2 * at], tree[2 * at + 1])
        if tree[at] == largest:
            break
        tree[at] = largest
        at >>= 1


@compiled
def _most_room(tree, leaves):
    """Return the lowest SM among those with the most free room."""
    at = 1
    while at < leaves:
        at = 2 * at if tree[2 * at] == tree[at] else 2 * at + 1
    return at - leaves


@compiled
def dataflow_schedule(
    durations,
    block_of_rank,
    rank_of_block,
    class_of_operation,
    class_size,
    capacity,
    n_sms,
    operation_of_block,
    set_offsets,
    set_blocks,
    block_set_offsets,
    block_sets,
    source_offsets,
    set_join_offsets,
    set_joins,
    target_offsets,
    targets,
):
    """Start each block as soon as all it depends on has ended and an SM has room.

    Whenever an SM has room, the ready block of the best rank that fits is placed, on the SM with
    the most free room, the lowest such. Waiting blocks hold no room.

    Parameters
    ----------
    durations : float64[n_blocks]
    block_of_rank, rank_of_block : int32[n_blocks]
        Priorities: lower ranks go first.
    class_of_operation : int32[n_operations]
        Blocks of operations of one class take equal room.
    class_size : int64[n_classes]
        Room that one block takes.
    capacity : int64
        Room of one SM.
    n_sms : int
    operation_of_block : int32[n_blocks]
    set_offsets, set_blocks, source_offsets, target_offsets, targets
        Of the block graph.
    block_set_offsets, block_sets
        For each block the sets it is in.
    set_join_offsets, set_joins
        For each set the joins it is a source of.

    Returns
    -------
    start : float64[n_blocks]
    sm : int32[n_blocks]
    """
    n_blocks = len(durations)
    n_sets = len(set_offsets) - 1
    n_joins = len(source_offsets) - 1
    start = np.zeros(n_blocks, np.float64)
    placed_on = np.zeros(n_blocks, np.int32)

    members_left = np.empty(n_sets, np.int64)
    joins_left = np.zeros(n_sets, np.int32)
    sources_left = np.empty(n_joins, np.int64)
    sets_left = np.zeros(n_blocks, np.int32)
    for s in range(n_sets):
        members_left[s] = set_offsets[s + 1] - set_offsets[s]
    for j in range(n_joins):
        sources_left[j] = source_offsets[j + 1] - source_offsets[j]
        for t in range(target_offsets[j], target_offsets[j + 1]):
            joins_left[targets[t]] += 1
    for s in range(n_sets):
        if joins_left[s] > 0:
            for at in range(set_offsets[s], set_offsets[s + 1]):
                sets_left[set_blocks[at]] += 1

    n_classes = len(class_size)
    per_class = np.zeros(n_classes + 1, np.int64)
    for block in range(n_blocks):
        per_class[class_of_operation[operation_of_block[block]] + 1] += 1
    for c in range(n_classes):
        per_class[c + 1] += per_class[c]
    waiting = np.empty(n_blocks, np.int32)
    n_waiting = np.zeros(n_classes, np.int64)

    leaves = 1
    while leaves < n_sms:
        leaves *= 2
    room = np.zeros(2 * leaves, np.int64)
    for sm in range(n_sms):
        room[leaves + sm] = capacity
    for at in range(leaves - 1, 0, -1):
        room[at] = max(room[2 * at], room[2 * at + 1])

    times = np.empty(n_blocks + 1, np.float64)
    running = np.empty(n_blocks + 1, np.int64)
    n_running = 0
    for block in range(n_blocks):
        if sets_left[block] == 0:
            c = class_of_operation[operation_of_block[block]]
            heap = waiting[per_class[c] : per_class[c + 1]]
            _push_rank(heap, n_waiting[c], rank_of_block[block])
            n_waiting[c] += 1

    now = 0.0
    while True:
        while True:
            best = -1
            best_rank = n_blocks
            for c in range(n_classes):
                if n_waiting[c] > 0 and class_size[c] <= room[1]:
                    rank = waiting[per_class[c]]
                    if rank < best_rank:
                        best_rank = rank
                        best = c
            if best < 0:
                break
            heap = waiting[per_class[best] : per_class[best + 1]]
            rank = _pop_rank(heap, n_waiting[best])
            n_waiting[best] -= 1
            block = block_of_rank[rank]
            sm = _most_room(room, leaves)
            _set_room(room, leaves, sm, room[leaves + sm] - class_size[best])
            start[block] = now
            placed_on[block] = sm
            _push_time(times, running, n_running, now + durations[block], np.int64(block))
            n_running += 1
        if n_running == 0:
            break
        now = times[0]
        while n_running > 0 and times[0] == now:
            _, block = _pop_time(times, running, n_running)
            n_running -= 1
            c = class_of_operation[operation_of_block[block]]
            sm = placed_on[block]
            _set_room(room, leaves, sm, room[leaves + sm] + class_size[c])
            for i in range(block_set_offsets[block], block_set_offsets[block + 1]):
                s = block_sets[i]
                members_left[s] -= 1
                if members_left[s] > 0:
                    continue
                for k in range(set_join_offsets[s], set_join_offsets[s + 1]):
                    j = set_joins[k]
                    sources_left[j] -= 1
                    if sources_left[j] > 0:
                        continue
                    for t in range(target_offsets[j], target_offsets[j + 1]):
                        target = targets[t]
                        joins_left[target] -= 1
                        if joins_left[target] > 0:
                            continue
                        for at in range(set_offsets[target], set_offsets[target + 1]):
                            follower = set_blocks[at]
                            sets_left[follower] -= 1
                            if sets_left[follower] == 0:
                                fc = class_of_operation[operation_of_block[follower]]
                                heap = waiting[per_class[fc] : per_class[fc + 1]]
                                _push_rank(heap, n_waiting[fc], rank_of_block[follower])
                                n_waiting[fc] += 1
    return start, placed_on
