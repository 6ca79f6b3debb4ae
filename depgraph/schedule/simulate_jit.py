"""Schedules of blocks on SMs: serialized, and event by event under given rules."""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import compiled_if_large

# What a join does to the blocks that wait for it.
IGNORED = 0
PLACES = 1
HOLDS = 2

# What a gate between operations waits for.
ALL_PLACED = 0
ALL_ENDED = 1

_NO_LIMIT = np.int64(2**62)
# The opening of an operation counts as one gate more of each of its blocks.
_OPEN = 1 << 30

# States of a block, 0 before it is placed.
_PLACED = 1
_RUNNING = 2

# Slots of the array of running sizes.
_EVENTS = 0
_OPENING = 1
_STAGE = 2
_CHANGES = 3
_N_SIZES = 4


@compiled_if_large
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


@compiled_if_large
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


@compiled_if_large
def serial_schedule(durations, first_block, slots, issued, gap):
    """Run operations one after another, each one's blocks in order on the first free slot.

    Parameters
    ----------
    durations : float64[n_blocks]
    first_block : int64[n_operations + 1]
    slots : int64[n_operations]
        Blocks that may run at once.
    issued : float64[n_operations]
        Time before which an operation is not known.
    gap : float64[n_operations]
        Time before each operation starts, once it is known and the one before it has ended.

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
        now = max(now, issued[k]) + gap[k]
        end = now
        running = np.int64(0)
        for block in range(first_block[k], first_block[k + 1]):
            begin = now
            place = running
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


@compiled_if_large
def _push_rank(heap, low, size, rank):
    """Add to the binary heap of `size` ranks that starts at `low`."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[low + parent] <= rank:
            break
        heap[low + at] = heap[low + parent]
        at = parent
    heap[low + at] = rank


@compiled_if_large
def _pop_rank(heap, low, size):
    """Remove the lowest of the `size` ranks of the heap that starts at `low`."""
    first = heap[low]
    size -= 1
    rank = heap[low + size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[low + child + 1] < heap[low + child]:
            child += 1
        if rank <= heap[low + child]:
            break
        heap[low + at] = heap[low + child]
        at = child
    heap[low + at] = rank
    return first


@compiled_if_large
def _set_key(tree, c, leaves, sm, key):
    """Write the key of an SM into row `c` of some trees of maxima."""
    at = leaves + sm
    tree[c, at] = key
    at >>= 1
    while at > 0:
        largest = max(tree[c, 2 * at], tree[c, 2 * at + 1])
        if tree[c, at] == largest:
            break
        tree[c, at] = largest
        at >>= 1


@compiled_if_large
def _first_with(tree, c, leaves, least):
    """Return the lowest SM whose key in row `c` is at least `least`; there must be one."""
    at = 1
    while at < leaves:
        at = 2 * at if tree[c, 2 * at] >= least else 2 * at + 1
    return at - leaves


@compiled_if_large
def _hosts(free, sm, need, c):
    """Return how many blocks that take row `c` of `need` fit into what is free on an SM."""
    for r in range(need.shape[1]):
        if free[sm, r] < need[c, r]:
            return np.int64(0)
    most = _NO_LIMIT
    for r in range(need.shape[1]):
        if need[c, r] > 0:
            most = min(most, free[sm, r] // need[c, r])
    return most


@compiled_if_large
def _take(free, sm, need, c, times, tree, leaves, changed, sizes):
    """Take the room of a block of class `c`, once or -1 times, and note where it changed."""
    for r in range(need.shape[1]):
        free[sm, r] -= times * need[c, r]
    if need.shape[1] == 1:
        _set_key(tree, np.int64(0), leaves, sm, free[sm, 0])
        return
    changed[sizes[_CHANGES]] = sm
    sizes[_CHANGES] += 1


@compiled_if_large
def _catch_up(free, need, c, tree, leaves, changed, seen, sizes):
    """Bring the tree of class `c` up to what is free by now; with one resource it always is."""
    if need.shape[1] == 1:
        return
    if sizes[_CHANGES] - seen[c] > leaves:
        for sm in range(len(free)):
            tree[c, leaves + sm] = _hosts(free, sm, need, c)
        for at in range(leaves - 1, 0, -1):
            tree[c, at] = max(tree[c, 2 * at], tree[c, 2 * at + 1])
    else:
        for at in range(seen[c], sizes[_CHANGES]):
            at_sm = np.int64(changed[at])
            _set_key(tree, c, leaves, at_sm, _hosts(free, at_sm, need, c))
    seen[c] = sizes[_CHANGES]


@compiled_if_large
def _fits(tree, need, c):
    """Tell whether some SM has room for a block of class `c`."""
    if need.shape[1] > 1:
        return tree[c, 1] > 0
    return tree[0, 1] >= need[c, 0]


@compiled_if_large
def _roomiest(tree, leaves, need, c):
    """Return the lowest SM that could host most blocks of class `c`; there must be one."""
    if need.shape[1] > 1:
        return _first_with(tree, c, leaves, tree[c, 1])
    # With one resource a single tree, of what is free, serves all classes.
    if need[c, 0] == 0:
        return np.int64(0)
    return _first_with(tree, np.int64(0), leaves, tree[0, 1] // need[c, 0] * need[c, 0])


@compiled_if_large
def _finish(block, start, end, earliest, durations, state, times, items, sizes):
    """Let a placed block run to its end: all it had to wait for is there."""
    end[block] = max(start[block], earliest[block]) + durations[block]
    state[block] = _RUNNING
    _push_time(times, items, sizes[_EVENTS], end[block], np.int64(block))
    sizes[_EVENTS] += 1


@compiled_if_large
def _make_ready(
    block, stage, stages_ahead, sizes, held_head, held_next, waiting, class_offsets, n_waiting,
    block_class, rank,
):  # fmt: skip
    """Queue a block for placement, or keep it until its stage may start."""
    if stages_ahead > 0 and stage[block] >= sizes[_STAGE] + stages_ahead:
        held_next[block] = held_head[stage[block]]
        held_head[stage[block]] = block
        return
    low = class_offsets[block_class]
    _push_rank(waiting, low, n_waiting[block_class], rank)
    n_waiting[block_class] += 1


@compiled_if_large
def _fire_gates(
    operation, event, now, gate_offsets, gate_target, gate_event, gate_holds, gate_lead,
    first_block, gates_left, opening, holds_left, operation_holds, state, start, end, earliest,
    durations, times, items, sizes,
):  # fmt: skip
    """Tell the operations that wait for this event of `operation` that it has happened."""
    for g in range(gate_offsets[operation], gate_offsets[operation + 1]):
        if gate_event[g] != event:
            continue
        target = np.int64(gate_target[g])
        if not gate_holds[g]:
            gates_left[target] -= 1
            if gates_left[target] == 0:
                opening[sizes[_OPENING]] = target
                sizes[_OPENING] += 1
            continue
        operation_holds[target] -= 1
        for block in range(first_block[target], first_block[target + 1]):
            since = now - min(gate_lead[g], durations[block])
            earliest[block] = max(earliest[block], since)
            if operation_holds[target] == 0 and holds_left[block] == 0 and state[block] == _PLACED:
                _finish(block, start, end, earliest, durations, state, times, items, sizes)


@compiled_if_large
def event_schedule(
    durations,
    block_of_rank,
    rank_of_block,
    strict,
    class_of_operation,
    class_need,
    capacity,
    n_sms,
    first_block,
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
    join_gate,
    join_need,
    member_need,
    gate_offsets,
    gate_target,
    gate_event,
    gate_holds,
    gate_lead,
    waits_for_all,
    launch,
    enter,
    window,
    in_order,
    stage,
    n_stages,
    stages_ahead,
):
    """Run blocks on SMs by rules that are data.

    An operation *enters* in program order, one at a time, *opens* once its gates have, and its
    blocks are then placed as soon as their own gates have opened and an SM has room, on the SM
    that could host most further blocks of its class, the lowest such. A placed block may have to
    wait in its place for others.

    Parameters
    ----------
    durations : float64[n_blocks]
    block_of_rank, rank_of_block : int32[n_blocks]
        Priorities: lower ranks are placed first.
    strict : bool
        Whether a block that fits nowhere holds up those of higher rank.
    class_of_operation : int32[n_operations]
        Blocks of operations of one class take equal room.
    class_need : int64[n_classes, n_resources]
    capacity : int64[n_resources]
        Of one SM.
    n_sms : int
    first_block, operation_of_block, set_offsets, set_blocks, source_offsets, target_offsets,
    targets
        Of the block graph.
    block_set_offsets, block_sets
        For each block the sets it is in.
    set_join_offsets, set_joins
        For each set the joins it is a source of.
    join_gate : uint8[n_joins]
        `IGNORED`, `PLACES` (targets are placed once all sources have ended) or `HOLDS` (placed
        targets run on once all sources have ended).
    join_need : float64[n_joins] or float64[0]
        Share of a target's work, 0 to 1, that it can do before it needs the join.
    member_need : float64[n_set_blocks] or float64[0]
        The same for each member of a target set; where both are given the larger counts.
    gate_offsets : int64[n_operations + 1]
        Gates between operations, by the source.
    gate_target : int32[n_gates]
    gate_event : uint8[n_gates]
        `ALL_PLACED` or `ALL_ENDED`: what has to happen to the blocks of the source.
    gate_holds : bool[n_gates]
        Whether the blocks of the target are placed and wait, instead of not being placed.
    gate_lead : float64[n_gates]
        Time that a block can work for before it needs the event; for gates that hold.
    waits_for_all : bool[n_operations]
        Whether the operation opens only when all before it have ended.
    launch : float64[n_operations]
        Time between the last gate's opening and the operation's.
    enter : float64[n_operations]
        Time to enter, one operation after another.
    window : int
        Operations that may have entered and not left; 0 for any number.
    in_order : bool
        Whether operations leave the window in program order.
    stage : int32[n_blocks] or int32[0]
    n_stages, stages_ahead : int
        A block is placed only if its stage is less than `stages_ahead` after the first stage with
        a block that has not ended; 0 for no such rule.

    Returns
    -------
    start, end : float64[n_blocks]
        End is -1 for a block that never ran: the rules wait for each other.
    sm : int32[n_blocks]
    """
    n_blocks = len(durations)
    n_operations = len(first_block) - 1
    n_sets = len(set_offsets) - 1
    n_joins = len(source_offsets) - 1
    n_classes = len(class_need)
    start = np.zeros(n_blocks, np.float64)
    end = np.empty(n_blocks, np.float64)
    end[:] = -1.0
    earliest = np.zeros(n_blocks, np.float64)
    placed_on = np.zeros(n_blocks, np.int32)
    state = np.zeros(n_blocks, np.uint8)
    sizes = np.zeros(_N_SIZES, np.int64)

    members_left = np.empty(n_sets, np.int64)
    place_joins_left = np.zeros(n_sets, np.int32)
    hold_joins_left = np.zeros(n_sets, np.int32)
    sources_left = np.empty(n_joins, np.int64)
    places_left = np.zeros(n_blocks, np.int32)
    holds_left = np.zeros(n_blocks, np.int32)
    for s in range(n_sets):
        members_left[s] = set_offsets[s + 1] - set_offsets[s]
    for j in range(n_joins):
        sources_left[j] = source_offsets[j + 1] - source_offsets[j]
        for t in range(target_offsets[j], target_offsets[j + 1]):
            if join_gate[j] == PLACES:
                place_joins_left[targets[t]] += 1
            elif join_gate[j] == HOLDS:
                hold_joins_left[targets[t]] += 1
    for s in range(n_sets):
        for at in range(set_offsets[s], set_offsets[s + 1]):
            if place_joins_left[s] > 0:
                places_left[set_blocks[at]] += 1
            if hold_joins_left[s] > 0:
                holds_left[set_blocks[at]] += 1

    blocks_left = np.empty(n_operations, np.int64)
    unplaced = np.empty(n_operations, np.int64)
    # One gate more than is listed: entering. One more yet: all before.
    gates_left = np.ones(n_operations, np.int64)
    operation_holds = np.zeros(n_operations, np.int64)
    is_open = np.zeros(n_operations, np.bool_)
    opening = np.empty(n_operations, np.int64)
    class_offsets = np.zeros(n_classes + 1, np.int64)
    for k in range(n_operations):
        blocks_left[k] = first_block[k + 1] - first_block[k]
        unplaced[k] = blocks_left[k]
        class_offsets[class_of_operation[k] + 1] += blocks_left[k]
        if waits_for_all[k]:
            gates_left[k] += 1
    for g in range(len(gate_target)):
        if gate_holds[g]:
            operation_holds[gate_target[g]] += 1
        else:
            gates_left[gate_target[g]] += 1
    for c in range(n_classes):
        class_offsets[c + 1] += class_offsets[c]
    waiting = np.empty(n_blocks, np.int32)
    n_waiting = np.zeros(n_classes, np.int64)

    stage_left = np.zeros(n_stages + 1, np.int64)
    held_head = np.empty(n_stages + 1, np.int32)
    held_head[:] = -1
    held_next = np.empty(n_blocks if stages_ahead > 0 else 0, np.int32)
    if stages_ahead > 0:
        for block in range(n_blocks):
            stage_left[stage[block]] += 1

    leaves = 1
    while leaves < n_sms:
        leaves *= 2
    n_resources = len(capacity)
    n_trees = 1 if n_resources == 1 else n_classes
    free = np.empty((n_sms, n_resources), np.int64)
    tree = np.empty((n_trees, 2 * leaves), np.int64)
    tree[:] = -1
    for sm in range(n_sms):
        for r in range(n_resources):
            free[sm, r] = capacity[r]
        tree[0, leaves + sm] = capacity[0]
    for at in range(leaves - 1, 0, -1):
        tree[0, at] = max(tree[0, 2 * at], tree[0, 2 * at + 1])
    # Where room was taken or given back, and how much of that the tree of each class has seen.
    changed = np.empty(2 * n_blocks if n_trees > 1 else 0, np.int32)
    seen = np.empty(n_classes, np.int64)
    seen[:] = -1 - leaves

    times = np.empty(n_blocks + 2 * n_operations + 1, np.float64)
    items = np.empty(n_blocks + 2 * n_operations + 1, np.int64)
    next_to_enter = np.int64(0)
    is_entering = False
    oldest = np.int64(0)
    n_ended = np.int64(0)
    now = 0.0
    if n_operations > 0 and waits_for_all[0]:
        gates_left[0] -= 1
    while True:
        while next_to_enter < n_operations and not is_entering:
            inside = next_to_enter - (oldest if in_order else n_ended)
            if window > 0 and inside >= window:
                break
            entrant = next_to_enter
            next_to_enter += 1
            if enter[entrant] > 0:
                is_entering = True
                item = n_blocks + n_operations + entrant
                _push_time(times, items, sizes[_EVENTS], now + enter[entrant], np.int64(item))
                sizes[_EVENTS] += 1
                continue
            gates_left[entrant] -= 1
            if gates_left[entrant] == 0:
                opening[sizes[_OPENING]] = entrant
                sizes[_OPENING] += 1

        while sizes[_OPENING] > 0:
            sizes[_OPENING] -= 1
            k = opening[sizes[_OPENING]]
            if launch[k] > 0 and not is_open[k]:
                is_open[k] = True
                item = n_blocks + k
                _push_time(times, items, sizes[_EVENTS], now + launch[k], np.int64(item))
                sizes[_EVENTS] += 1
                continue
            is_open[k] = True
            launch_over = k
            for block in range(first_block[launch_over], first_block[launch_over + 1]):
                places_left[block] -= _OPEN
                if places_left[block] == -_OPEN:
                    c = np.int64(class_of_operation[k])
                    _make_ready(
                        block, stage, stages_ahead, sizes, held_head, held_next, waiting,
                        class_offsets, n_waiting, c, np.int64(rank_of_block[block]),
                    )  # fmt: skip

        while True:
            best = np.int64(-1)
            best_rank = np.int64(n_blocks)
            for c in range(n_classes):
                if n_waiting[c] == 0 or waiting[class_offsets[c]] >= best_rank:
                    continue
                if not strict:
                    _catch_up(free, class_need, c, tree, leaves, changed, seen, sizes)
                    if not _fits(tree, class_need, c):
                        continue
                best_rank = np.int64(waiting[class_offsets[c]])
                best = np.int64(c)
            if strict and best >= 0:
                _catch_up(free, class_need, best, tree, leaves, changed, seen, sizes)
                if not _fits(tree, class_need, best):
                    best = np.int64(-1)
            if best < 0:
                break
            low = class_offsets[best]
            rank = _pop_rank(waiting, low, n_waiting[best])
            n_waiting[best] -= 1
            block = np.int64(block_of_rank[rank])
            k = np.int64(operation_of_block[block])
            sm = _roomiest(tree, leaves, class_need, best)
            _take(free, sm, class_need, best, np.int64(1), tree, leaves, changed, sizes)
            start[block] = now
            placed_on[block] = sm
            state[block] = _PLACED
            if holds_left[block] == 0 and operation_holds[k] == 0:
                _finish(block, start, end, earliest, durations, state, times, items, sizes)
            unplaced[k] -= 1
            if unplaced[k] == 0 and gate_offsets[k + 1] > gate_offsets[k]:
                _fire_gates(
                    k, np.int64(ALL_PLACED), now, gate_offsets, gate_target, gate_event, gate_holds,
                    gate_lead, first_block, gates_left, opening, holds_left, operation_holds,
                    state, start, end, earliest, durations, times, items, sizes,
                )  # fmt: skip
                if sizes[_OPENING] > 0:
                    break
        if sizes[_OPENING] > 0:
            continue

        if sizes[_EVENTS] == 0:
            break
        now = times[0]
        while sizes[_EVENTS] > 0 and times[0] == now:
            _, item = _pop_time(times, items, sizes[_EVENTS])
            sizes[_EVENTS] -= 1
            if item >= n_blocks + n_operations:
                is_entering = False
                k = item - n_blocks - n_operations
                gates_left[k] -= 1
                if gates_left[k] == 0:
                    opening[sizes[_OPENING]] = k
                    sizes[_OPENING] += 1
                continue
            if item >= n_blocks:
                opening[sizes[_OPENING]] = item - n_blocks
                sizes[_OPENING] += 1
                continue
            block = item
            k = np.int64(operation_of_block[block])
            c = np.int64(class_of_operation[k])
            sm = np.int64(placed_on[block])
            _take(free, sm, class_need, c, np.int64(-1), tree, leaves, changed, sizes)
            if stages_ahead > 0:
                stage_left[stage[block]] -= 1
                while sizes[_STAGE] < n_stages and stage_left[sizes[_STAGE]] == 0:
                    sizes[_STAGE] += 1
                    admitted = sizes[_STAGE] + stages_ahead - 1
                    if admitted >= n_stages:
                        continue
                    held = np.int64(held_head[admitted])
                    held_head[admitted] = -1
                    while held >= 0:
                        following = np.int64(held_next[held])
                        c = np.int64(class_of_operation[operation_of_block[held]])
                        _make_ready(
                            held, stage, stages_ahead, sizes, held_head, held_next, waiting,
                            class_offsets, n_waiting, c, np.int64(rank_of_block[held]),
                        )  # fmt: skip
                        held = following
            for i in range(block_set_offsets[block], block_set_offsets[block + 1]):
                s = block_sets[i]
                members_left[s] -= 1
                if members_left[s] > 0:
                    continue
                for at_join in range(set_join_offsets[s], set_join_offsets[s + 1]):
                    j = set_joins[at_join]
                    sources_left[j] -= 1
                    if sources_left[j] > 0 or join_gate[j] == IGNORED:
                        continue
                    for t in range(target_offsets[j], target_offsets[j + 1]):
                        target = targets[t]
                        low = set_offsets[target]
                        high = set_offsets[target + 1]
                        if join_gate[j] == PLACES:
                            place_joins_left[target] -= 1
                            if place_joins_left[target] > 0:
                                continue
                            for at in range(low, high):
                                follower = np.int64(set_blocks[at])
                                places_left[follower] -= 1
                                if places_left[follower] == -_OPEN:
                                    c = np.int64(class_of_operation[operation_of_block[follower]])
                                    _make_ready(
                                        follower, stage, stages_ahead, sizes, held_head,
                                        held_next, waiting, class_offsets, n_waiting,
                                        c, np.int64(rank_of_block[follower]),
                                    )  # fmt: skip
                            continue
                        hold_joins_left[target] -= 1
                        if hold_joins_left[target] > 0 and len(join_need) == 0:
                            continue
                        for at in range(low, high):
                            follower = np.int64(set_blocks[at])
                            need = 0.0
                            if len(join_need) > 0:
                                need = join_need[j]
                            if len(member_need) > 0:
                                need = max(need, member_need[at])
                            since = now - need * durations[follower]
                            earliest[follower] = max(earliest[follower], since)
                            if hold_joins_left[target] > 0:
                                continue
                            holds_left[follower] -= 1
                            if (
                                holds_left[follower] == 0
                                and state[follower] == _PLACED
                                and operation_holds[operation_of_block[follower]] == 0
                            ):
                                _finish(
                                    follower, start, end, earliest, durations, state, times,
                                    items, sizes,
                                )  # fmt: skip
            blocks_left[k] -= 1
            if blocks_left[k] > 0:
                continue
            blocks_left[k] = -1
            n_ended += 1
            while oldest < n_operations and blocks_left[oldest] == -1:
                oldest += 1
                if oldest < n_operations and waits_for_all[oldest]:
                    gates_left[oldest] -= 1
                    if gates_left[oldest] == 0:
                        opening[sizes[_OPENING]] = oldest
                        sizes[_OPENING] += 1
            _fire_gates(
                k, np.int64(ALL_ENDED), now, gate_offsets, gate_target, gate_event, gate_holds,
                gate_lead, first_block, gates_left, opening, holds_left, operation_holds,
                state, start, end, earliest, durations, times, items, sizes,
            )  # fmt: skip
    return start, end, placed_on
