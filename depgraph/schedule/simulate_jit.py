"""Schedules of blocks on SMs: serialized, and event by event under given rules.

The event loop is cut into steps, each compiled as a part of the loop. Steps leave work to one
another in lists: operations that open, blocks that are ready to be placed, blocks that are released
to run.
"""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import (
    compiled_helper,
    compiled_if_large,
    compiled_in_place,
    compiled_within,
)

# What a join does to the blocks that wait for it.
IGNORED = 0
PLACES = 1
HOLDS = 2

# What a gate between operations waits for.
ALL_PLACED = 0
ALL_ENDED = 1
ALL_TRIGGERED = 2

_NO_LIMIT = np.int64(2**62)
# The opening of an operation counts as one gate more of each of its blocks.
_OPEN = 1 << 30

# What becomes of a launch from the device: the parent does the work, a child is launched, or that
# is decided when the parent comes to it.
INLINE = 0
LAUNCH = 1
DECIDE = 2

# What waits: the parent for its child, or the child for the parent's kernel.
_JOIN_BLOCK = 1
_JOIN_KERNEL = 2

# States of a block, 0 before it is placed.
_PLACED = 1
_RUNNING = 2


@compiled_helper
def _push_time(times, items, n, time, item):
    """Add to a binary heap of ``n[0]`` elements, ordered by (time, item)."""
    at = n[0]
    n[0] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and items[parent] <= item):
            break
        times[at] = times[parent]
        items[at] = items[parent]
        at = parent
    times[at] = time
    items[at] = item


@compiled_helper
def _pop_time(times, items, n):
    """Remove the first element of a heap of ``n[0]``; return its time and item."""
    n[0] -= 1
    size = n[0]
    first_time = times[0]
    first_item = items[0]
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
    running = np.zeros(1, np.int64)
    now = 0.0
    for k in range(n_operations):
        now = max(now, issued[k]) + gap[k]
        end = now
        running[0] = 0
        for block in range(first_block[k], first_block[k + 1]):
            begin = now
            place = running[0]
            if place == slots[k]:
                begin, place = _pop_time(times, items, running)
            start[block] = begin
            slot[block] = place
            finish = begin + durations[block]
            end = max(end, finish)
            _push_time(times, items, running, finish, place)
        now = end
        ends[k] = end
    return start, slot, ends


@compiled_helper
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


@compiled_helper
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


@compiled_helper
def _set_key(tree, c, sm, key):
    """Write the key of an SM into row `c` of some trees of maxima."""
    at = tree.shape[1] // 2 + sm
    tree[c, at] = key
    at >>= 1
    while at > 0:
        largest = max(tree[c, 2 * at], tree[c, 2 * at + 1])
        if tree[c, at] == largest:
            break
        tree[c, at] = largest
        at >>= 1


@compiled_helper
def _first_with(tree, c, least):
    """Return the lowest SM whose key in row `c` is at least `least`; there must be one."""
    leaves = tree.shape[1] // 2
    at = 1
    while at < leaves:
        at = 2 * at if tree[c, 2 * at] >= least else 2 * at + 1
    return at - leaves


@compiled_helper
def _hosts(room, sm, c):
    """Return how many blocks of class `c` fit into what is free on an SM."""
    places = room.places
    if len(places.first) > 0 and not places.first[c] <= sm <= places.last[c]:
        return np.int64(0)
    for r in range(room.need.shape[1]):
        if room.free[sm, r] < room.need[c, r]:
            return np.int64(0)
    most = _NO_LIMIT
    for r in range(room.need.shape[1]):
        if room.need[c, r] > 0:
            most = min(most, room.free[sm, r] // room.need[c, r])
    carve_out = room.carve_out
    if len(carve_out.least) == 0:
        return most
    size = carve_out.chosen[c]
    if carve_out.residents[sm] > 0:
        size = carve_out.of_sm[sm]
        if size < carve_out.least[c]:
            return np.int64(0)
    left = size - (carve_out.capacity - room.free[sm, carve_out.shared])
    wanted = room.need[c, carve_out.shared]
    if left < wanted:
        return np.int64(0)
    return min(most, left // wanted) if wanted > 0 else most


@compiled_helper
def _catch_up(room, c):
    """Bring the tree of class `c` up to what is free by now."""
    leaves = room.tree.shape[1] // 2
    if room.n_changed[0] - room.seen[c] > leaves:
        for sm in range(len(room.free)):
            room.tree[c, leaves + sm] = _hosts(room, sm, c)
        for at in range(leaves - 1, 0, -1):
            room.tree[c, at] = max(room.tree[c, 2 * at], room.tree[c, 2 * at + 1])
    else:
        for at in range(room.seen[c], room.n_changed[0]):
            sm = np.int64(room.changed[at])
            _set_key(room.tree, c, sm, _hosts(room, sm, c))
    room.seen[c] = room.n_changed[0]


@compiled_helper
def _roomiest_gpc(room, c):
    """Return the GPC that could host most blocks of class `c`, and how many."""
    offsets = room.clusters.offsets
    most, roomiest = np.int64(-1), np.int64(0)
    for gpc in range(len(offsets) - 1):
        hosts = np.int64(0)
        for sm in range(offsets[gpc], offsets[gpc + 1]):
            hosts += min(_hosts(room, sm, c), room.clusters.size[c])
        if hosts > most:
            most, roomiest = hosts, np.int64(gpc)
    return roomiest, most


@compiled_helper
def _roomiest_of(room, c, gpc):
    """Return the lowest SM of a GPC that could host most blocks of class `c`."""
    offsets = room.clusters.offsets
    most, roomiest = np.int64(0), np.int64(offsets[gpc])
    for sm in range(offsets[gpc], offsets[gpc + 1]):
        hosts = _hosts(room, sm, c)
        if hosts > most:
            most, roomiest = hosts, np.int64(sm)
    return roomiest


@compiled_helper
def _roomiest(tree, need, c):
    """Return the lowest SM that could host most blocks of class `c`; there must be one."""
    if need.shape[1] > 1:
        return _first_with(tree, c, tree[c, 1])
    if need[c, 0] == 0:
        return np.int64(0)
    return _first_with(tree, np.int64(0), tree[0, 1] // need[c, 0] * need[c, 0])


@compiled_in_place
def event_schedule(graph, joins, gates, operations, window, blocks, waiting, stages, room, running):
    """Run blocks on SMs by rules that are data.

    An operation *enters* in program order, one at a time, *opens* once its gates have, and its
    blocks are then placed as soon as their own gates have opened and an SM has room, on the SM
    that could host most further blocks of its class, the lowest such. A placed block may have to
    wait in its place for others. Blocks that run on one SM may slow each other; the duration of a
    block is then its work, the time it would take at a rate of 1.

    Parameters
    ----------
    graph : GraphLists
    joins : Joins
    gates : GateLists
    operations : Operations
    window : Window
    blocks : Blocks
        Start, end and SM are filled in. The end of a block that never runs, because the rules
        wait for each other, stays -1.
    waiting : Waiting
    stages : Stages
    room : Room
    running : Running
    """
    n_blocks = len(blocks.duration)
    n_operations = len(operations.launch)
    events, sharing = running.events, running.sharing
    now = 0.0
    is_settled = False  # at this time, but for what the next event at this time changes
    is_timed = False  # whether the last event was one of `events`
    while True:
        _run_released(blocks, graph, operations, running, now)
        goes_on = is_timed and events.n[0] > 0 and events.times[0] == now
        if not is_settled and not goes_on:
            _enter(operations, window, events, n_blocks, now)
            if window.n_opening[0] > 0:
                _open(operations, window, graph, blocks, events, now)
            _queue_ready(blocks, graph, room, waiting, stages)
            _place(waiting, room, graph, operations, gates, window, blocks, running, now)
            is_settled = window.n_opening[0] == 0
            is_timed = False
            continue
        # Blocks are placed after each single end: two that end at once free two SMs in turn.
        is_timed = events.n[0] > 0 and (goes_on or events.times[0] <= sharing.next[1])
        if is_timed:
            now, item = _pop_time(events.times, events.items, events.n)
        elif sharing.next[1] < np.inf:
            now = sharing.next[1]
            item = _first_to_end(sharing, graph, now)
        else:
            break
        is_settled = False
        k = np.int64(-1)  # the operation that ends now
        if item < 0:
            triggers = graph.operation_of_block[-1 - item]
            operations.untriggered[triggers] -= 1
            if operations.untriggered[triggers] == 0:
                _fire_gates(gates, graph, operations, window, blocks, now, triggers, ALL_TRIGGERED)
        elif item >= n_blocks + 2 * n_operations:
            k = _launch(running, graph, operations, window, blocks, waiting, now, item)
        elif item >= n_blocks + n_operations:
            window.entering[0] = 0
            _pass_gate(operations, window, item - n_blocks - n_operations)
        elif item >= n_blocks:
            window.opening[window.n_opening[0]] = item - n_blocks
            window.n_opening[0] += 1
        else:
            blocks.end[item] = now
            c = room.class_of_operation[graph.operation_of_block[item]]
            _take(room, blocks.sm[item], c, -1)
            if stages.ahead > 0:
                _end_in_stage(stages, blocks, item)
            _wake(graph, joins, operations, blocks, now, item)
            k = _end_block(running, graph, operations, window, blocks, waiting, now, item)
        if k >= 0:
            _end_operation(operations, window, k)
            if operations.untriggered[k] > 0:
                operations.untriggered[k] = 0
                _fire_gates(gates, graph, operations, window, blocks, now, k, ALL_TRIGGERED)
            _fire_gates(gates, graph, operations, window, blocks, now, k, ALL_ENDED)


@compiled_within
def _end_block(running, graph, operations, window, blocks, waiting, now, block):
    """Count a block as ended; return the operation of the program that ends with it, else -1."""
    launches = running.launches
    k = np.int64(graph.operation_of_block[block])
    operations.running[k] -= 1
    if k >= launches.first:
        child = k - launches.first
        _count_children(launches.load, now, -1.0)
        launches.load.pending[0] -= 1
        launches.load.ended[0] += 1
        launches.load.busy[0] += now - blocks.start[block]
        if operations.running[k] > 0:
            return np.int64(-1)
        launches.busy[launches.stream[child]] = False
        _let_go(launches, operations, graph, window, waiting, launches.stream[child])
        if launches.join[child] == _JOIN_BLOCK:
            i = launches.instruction[child]
            launches.awaited[i] -= 1
            if launches.awaited[i] == 0:
                _go_on(running, operations, blocks, i, now + _longest_inline(launches, i))
        if launches.finish_time > 0:
            item = len(blocks.duration) + 2 * len(operations.launch) + 2 * len(launches.at)
            item += len(launches.lanes) + child
            time, events = now + launches.finish_time, running.events
            _push_time(events.times, events.items, events.n, time, item)
            return np.int64(-1)
        return _forget_child(launches, graph, operations, child, now)
    if operations.running[k] == 0 and len(launches.children) > 0:
        for child in range(launches.of_operation[k], launches.of_operation[k + 1]):
            if launches.launched[child] and launches.join[child] == _JOIN_KERNEL:
                _send(running, graph, operations, window, waiting, child, now)
    if operations.running[k] > 0 or (len(launches.children) > 0 and launches.children[k] > 0):
        return np.int64(-1)
    return k


@compiled_helper
def _forget_child(launches, graph, operations, child, now):
    """Count a child less that its parent waits for; return the parent if it ends, else -1."""
    k = np.int64(graph.operation_of_block[launches.block[child]])
    launches.over[0] = now
    launches.children[k] -= 1
    is_over = operations.running[k] == 0 and launches.children[k] == 0
    return k if is_over else np.int64(-1)


@compiled_within
def _launch(running, graph, operations, window, blocks, waiting, now, item):
    """Let come what launches wait for; return the operation of the program that ends, else -1.

    The item is, in this order, an instruction that is reached, one whose launches are through, a
    child that comes to its queue, or one whose end the parent knows of.
    """
    launches = running.launches
    n_instructions, n = len(launches.at), len(launches.lanes)
    i = item - len(blocks.duration) - 2 * len(operations.launch)
    if i >= 2 * n_instructions + n:
        return _forget_child(launches, graph, operations, i - 2 * n_instructions - n, now)
    if i >= 2 * n_instructions:
        _enqueue(launches, operations, graph, window, waiting, i - 2 * n_instructions)
    elif i >= n_instructions:
        i -= n_instructions
        for child in range(launches.offsets[i], launches.offsets[i + 1]):
            if launches.launched[child]:
                launches.issued[child] = now
                if launches.join[child] != _JOIN_KERNEL:
                    _send(running, graph, operations, window, waiting, child, now)
        if launches.awaited[i] == 0:
            _go_on(running, operations, blocks, i, now + _longest_inline(launches, i))
    else:
        _decide(running, graph, operations, blocks, i, now)
    return np.int64(-1)


@compiled_helper
def _send(running, graph, operations, window, waiting, child, now):
    """Send a child to its queue; all children go one after another."""
    launches, events = running.launches, running.events
    if launches.dispatch == 0:
        _enqueue(launches, operations, graph, window, waiting, child)
        return
    launches.free[0] = max(now, launches.free[0]) + launches.dispatch
    item = len(waiting.rank_of_block) + 2 * len(operations.launch) + 2 * len(launches.at) + child
    _push_time(events.times, events.items, events.n, launches.free[0], item)


@compiled_within
def _decide(running, graph, operations, blocks, i, now):
    """Decide on the launches of an instruction, and begin those that are made."""
    launches = running.launches
    lanes = 0.0
    for child in range(launches.offsets[i], launches.offsets[i + 1]):
        grid = operations.unplaced[child + launches.first]
        if launches.mode[child] == INLINE or (
            launches.mode[child] == DECIDE and not _pays_off(launches, child, grid, now)
        ):
            continue
        launches.launched[child] = True
        launches.load.pending[0] += grid
        k = graph.operation_of_block[launches.block[child]]
        launches.children[k] += 1
        lanes += launches.lanes[child]
        if launches.join[child] == _JOIN_BLOCK:
            launches.awaited[i] += 1
    if lanes == 0:
        _go_on(running, operations, blocks, i, now + _longest_inline(launches, i))
        return
    through = now + launches.stall + launches.lane_stall * lanes
    item = len(blocks.duration) + 2 * len(operations.launch) + len(launches.at) + i
    events = running.events
    _push_time(events.times, events.items, events.n, through, item)


@compiled_helper
def _longest_inline(launches, i):
    """Return what the lanes of an instruction that launch nothing take, side by side."""
    longest = 0.0
    for child in range(launches.offsets[i], launches.offsets[i + 1]):
        if not launches.launched[child]:
            longest = max(longest, launches.inline[child])
    return longest


@compiled_helper
def _pays_off(launches, child, grid, now):
    """Tell whether a child would end before its parent had done the work, as SPAWN reckons."""
    load = launches.load
    time = launches.stall + launches.lane_stall * launches.lanes[child]
    if load.ended[0] > 0:
        low = max(0.0, now - load.window)
        while load.old[0] + 1 < load.n[0] and load.times[load.old[0] + 1] <= low:
            load.old[0] += 1
        old, new = load.old[0], load.n[0] - 1
        area = load.area[new] + load.running[new] * (now - load.times[new])
        area -= load.area[old] + load.running[old] * (low - load.times[old])
        # Where none has run of late, no throughput is known.
        if area > 0:
            mean_time = load.busy[0] / load.ended[0]
            time += (load.pending[0] + grid) * mean_time * (now - low) / area
    return time < launches.inline[child]


@compiled_helper
def _count_children(load, now, more):
    """Note that more or fewer blocks of child kernels run."""
    new = load.n[0]
    load.times[new] = now
    load.area[new] = load.area[new - 1] + load.running[new - 1] * (now - load.times[new - 1])
    load.running[new] = load.running[new - 1] + more
    load.n[0] += 1


@compiled_helper
def _go_on(running, operations, blocks, i, time):
    """Let a warp go on, to its next instruction that launches or to its end."""
    launches, events = running.launches, running.events
    block = launches.block[launches.offsets[i]]
    if i + 1 < launches.warps[launches.warp[i] + 1]:
        item = len(blocks.duration) + 2 * len(operations.launch) + i + 1
        time += launches.at[i + 1] - launches.at[i]
        _push_time(events.times, events.items, events.n, time, item)
        return
    time += blocks.duration[block] - launches.at[i]
    launches.finish[block] = max(launches.finish[block], time)
    launches.warps_left[block] -= 1
    if launches.warps_left[block] == 0:
        _push_time(events.times, events.items, events.n, launches.finish[block], block)


@compiled_helper
def _enqueue(launches, operations, graph, window, waiting, child):
    """Put a child kernel at the end of its hardware queue."""
    queue = launches.stream[child] % len(launches.head)
    launches.next[child] = -1
    if launches.head[queue] >= 0:
        launches.next[launches.last[queue]] = child
        launches.last[queue] = child
        return
    launches.head[queue] = child
    launches.last[queue] = child
    _let_go(launches, operations, graph, window, waiting, launches.stream[child])


@compiled_helper
def _let_go(launches, operations, graph, window, waiting, stream):
    """Open the child at the head of a stream's queue, unless one of its own stream runs."""
    child = launches.head[stream % len(launches.head)]
    if child < 0 or launches.busy[launches.stream[child]]:
        return
    launches.busy[launches.stream[child]] = True
    k = child + launches.first
    # First come, first placed.
    for block in range(graph.first_block[k], graph.first_block[k + 1]):
        waiting.block_of_rank[launches.n_ranks[0]] = block
        waiting.rank_of_block[block] = launches.n_ranks[0]
        launches.n_ranks[0] += 1
    _pass_gate(operations, window, k)


@compiled_helper
def _first_to_end(sharing, graph, now):
    """Return the block that ends now, off its SM, or the item of one that triggers."""
    sm = np.int64(1)
    while sm < len(sharing.next) // 2:
        sm = 2 * sm if sharing.next[2 * sm] <= sharing.next[2 * sm + 1] else 2 * sm + 1
    sm -= len(sharing.next) // 2
    _advance(sharing, sm, now)
    _, block = _pop_time(sharing.ends[sm], sharing.items[sm], sharing.n[sm : sm + 1])
    if block < 0:  # it triggers, and runs on
        _renew(sharing, sm)
        return block
    operation = graph.operation_of_block[block]
    sharing.held[sm] -= sharing.load[operation]
    if sharing.n[sm] == 0:
        sharing.held[sm] = 0.0  # no rounding is carried on
    if len(sharing.side) > 0:
        _count(sharing, sharing.side[operation], sm, -1, now)
    _renew(sharing, sm)
    return block


@compiled_helper
def _slowed(sharing, sm):
    """Return how many times as long a running block of an SM takes by now."""
    times = 1.0 + sharing.slowdown * sharing.held[sm]
    if len(sharing.side) > 0:
        side = 0 if sharing.computing[sm] > 0 else 1
        if sharing.active[1 - side] > 0:
            times *= 1.0 + sharing.beside[side]
    return times


@compiled_helper
def _count(sharing, side, sm, change, now):
    """Count a running block of a side; its first and its last change the rates of all SMs."""
    turns = sharing.active[side] == max(0, -change)
    if turns:
        for other in range(len(sharing.n)):
            if sharing.n[other] > 0:
                _advance(sharing, np.int64(other), now)
    sharing.active[side] += change
    if side == 0:
        sharing.computing[sm] += change
    if turns:
        for other in range(len(sharing.n)):
            if sharing.n[other] > 0:
                _renew(sharing, np.int64(other))


@compiled_helper
def _advance(sharing, sm, now):
    """Let time pass on an SM."""
    rate = 1.0 / _slowed(sharing, sm)
    sharing.clock[sm] += (now - sharing.since[sm]) * rate
    sharing.since[sm] = now


@compiled_helper
def _renew(sharing, sm):
    """Say when the first block of an SM ends if nothing changes there."""
    time = np.inf
    if sharing.n[sm] > 0:
        left = max(0.0, sharing.ends[sm, 0] - sharing.clock[sm])
        time = sharing.since[sm] + left * _slowed(sharing, sm)
    at = len(sharing.next) // 2 + sm
    sharing.next[at] = time
    at >>= 1
    while at > 0:
        sharing.next[at] = min(sharing.next[2 * at], sharing.next[2 * at + 1])
        at >>= 1


@compiled_helper
def _begin(sharing, blocks, operations, block, operation, now):
    """Let a block run on its SM, beside others; what it did before it waited counts as done."""
    sm = np.int64(blocks.sm[block])
    _advance(sharing, sm, now)
    if len(sharing.side) > 0:
        _count(sharing, sharing.side[operation], sm, 1, now)
    sharing.held[sm] += sharing.load[operation]
    rate = 1.0 / _slowed(sharing, sm)
    # As much as it could do before it had to wait, and no more than it had time for.
    rate_alone = 1.0 / (1.0 + sharing.slowdown * sharing.load[operation])
    done = min((now - blocks.earliest[block]) * rate_alone, (now - blocks.start[block]) * rate)
    left = max(0.0, blocks.duration[block] - done)
    _push_time(
        sharing.ends[sm], sharing.items[sm], sharing.n[sm : sm + 1], sharing.clock[sm] + left, block
    )
    if operations.trigger[operation] < 1:
        left = max(0.0, left - (1 - operations.trigger[operation]) * blocks.duration[block])
        _push_time(
            sharing.ends[sm], sharing.items[sm], sharing.n[sm : sm + 1],
            sharing.clock[sm] + left, -1 - block,
        )  # fmt: skip
    _renew(sharing, sm)


@compiled_within
def _enter(operations, window, events, n_blocks, now):
    """Let operations enter while the window has room and entering takes no time."""
    n_operations = len(operations.enter)
    while window.entered[0] < window.last and window.entering[0] == 0:
        inside = window.entered[0] - (window.oldest[0] if window.in_order else window.ended[0])
        if window.size > 0 and inside >= window.size:
            break
        entrant = window.order[window.entered[0]]
        window.entered[0] += 1
        if operations.enter[entrant] > 0:
            window.entering[0] = 1
            item = n_blocks + n_operations + entrant
            _push_time(events.times, events.items, events.n, now + operations.enter[entrant], item)
        else:
            _pass_gate(operations, window, entrant)


@compiled_helper
def _pass_gate(operations, window, operation):
    """Count one gate of an operation less; the last one opens it."""
    operations.gates_left[operation] -= 1
    if operations.gates_left[operation] == 0:
        window.opening[window.n_opening[0]] = operation
        window.n_opening[0] += 1


@compiled_helper
def _open(operations, window, graph, blocks, events, now):
    """Open operations whose gates have opened, or begin their launch."""
    n_blocks = len(blocks.duration)
    while window.n_opening[0] > 0:
        window.n_opening[0] -= 1
        k = window.opening[window.n_opening[0]]
        opens = now if operations.is_open[k] else now + operations.launch[k]
        if operations.turns[0] > 1 and not operations.is_open[k]:
            opens = _next_turn(operations.turns[0], operations.turns[1], operations.turn[k], opens)
        if opens > now:
            _push_time(events.times, events.items, events.n, opens, n_blocks + k)
        else:
            for block in range(graph.first_block[k], graph.first_block[k + 1]):
                _pass_places(blocks, block, _OPEN)
        operations.is_open[k] = True


@compiled_helper
def _next_turn(turns, length, turn, time):
    """Return when the next of equal turns begins, or `time` if it goes on now."""
    begin = np.floor(time / (turns * length)) * turns * length + turn * length
    if time >= begin + length:
        begin += turns * length
    return max(time, begin)


@compiled_helper
def _pass_places(blocks, block, n):
    """Count some of what keeps a block from being placed less; the last makes it ready."""
    blocks.places_left[block] -= n
    if blocks.places_left[block] == -_OPEN:
        blocks.ready[blocks.n_ready[0]] = block
        blocks.n_ready[0] += 1


@compiled_within
def _queue_ready(blocks, graph, room, waiting, stages):
    """Queue blocks that are ready for placement, or keep them until their stage may start."""
    for at in range(blocks.n_ready[0]):
        block = blocks.ready[at]
        if stages.ahead > 0 and stages.of_block[block] >= stages.first[0] + stages.ahead:
            stages.next_kept[block] = stages.kept[stages.of_block[block]]
            stages.kept[stages.of_block[block]] = block
        else:
            c = room.class_of_operation[graph.operation_of_block[block]]
            rank = np.int64(waiting.rank_of_block[block])
            _push_rank(waiting.ranks, waiting.offsets[c], waiting.n[c], rank)
            waiting.n[c] += 1
    blocks.n_ready[0] = 0


@compiled_within
def _place(waiting, room, graph, operations, gates, window, blocks, running, now):
    """Place blocks, best first, until none fits or an operation opens."""
    while window.n_opening[0] == 0:
        c = _next_class(waiting, room)
        if c < 0:
            break
        size = room.clusters.size[c]
        gpc = _roomiest_gpc(room, c)[0] if size > 1 else np.int64(-1)
        for _ in range(size):
            rank = _pop_rank(waiting.ranks, waiting.offsets[c], waiting.n[c])
            waiting.n[c] -= 1
            block = np.int64(waiting.block_of_rank[rank])
            k = np.int64(graph.operation_of_block[block])
            sm = _roomiest(room.tree, room.need, c) if size == 1 else _roomiest_of(room, c, gpc)
            _take(room, sm, c, 1)
            blocks.start[block] = now
            blocks.sm[block] = sm
            blocks.state[block] = _PLACED
            _release(blocks, operations, block, k)
            operations.unplaced[k] -= 1
            if operations.unplaced[k] == 0:
                _fire_gates(gates, graph, operations, window, blocks, now, k, ALL_PLACED)
                launches = running.launches
                if k >= launches.first:
                    child = k - launches.first
                    stream = launches.stream[child]
                    launches.head[stream % len(launches.head)] = launches.next[child]
                    _let_go(launches, operations, graph, window, waiting, stream)


@compiled_within
def _next_class(waiting, room):
    """Return the class of the block that is placed next; -1 if none can be."""
    best = np.int64(-1)
    best_rank = np.int64(len(waiting.block_of_rank))
    for c in range(len(waiting.n)):
        if waiting.n[c] == 0 or waiting.ranks[waiting.offsets[c]] >= best_rank:
            continue
        has_places = len(room.places.link) > 0
        if has_places and not _link_has_room(room.places, c):
            continue
        fits = _fits(room, c)
        if has_places and not (fits and _is_next(waiting, room, c)):
            continue
        if fits or waiting.strict:
            best_rank = np.int64(waiting.ranks[waiting.offsets[c]])
            best = np.int64(c if fits else -1)
    return best


@compiled_helper
def _link_has_room(places, c):
    """Tell whether the link that blocks of class `c` need has room for one more."""
    return places.link[c] < 0 or places.free[places.link[c]] >= places.taken[c]


@compiled_within
def _is_next(waiting, room, c):
    """Tell whether no block that fits nowhere, and may use an SM of class `c`, holds it up."""
    places = room.places
    rank = waiting.ranks[waiting.offsets[c]]
    for other in range(len(waiting.n)):
        if (
            waiting.strict
            and waiting.n[other] > 0
            and waiting.ranks[waiting.offsets[other]] < rank
            and places.first[other] <= places.last[c]
            and places.first[c] <= places.last[other]
            and _link_has_room(places, other)
            and not _fits(room, other)
        ):
            return False
    return True


@compiled_within
def _fits(room, c):
    """Tell whether some SM has room for a block of class `c`; its tree is then up to date.

    Of a class of clusters: whether some GPC has room for all blocks of one.
    """
    if room.clusters.size[c] > 1:
        return _roomiest_gpc(room, np.int64(c))[1] >= room.clusters.size[c]
    if room.need.shape[1] == 1:
        return room.tree[0, 1] >= room.need[c, 0]
    if room.seen[c] < room.n_changed[0]:
        _catch_up(room, np.int64(c))
    return room.tree[c, 1] > 0


@compiled_within
def _take(room, sm, c, times):
    """Take the room of a block of class `c`, once or -1 times, and note where it changed."""
    for r in range(room.need.shape[1]):
        room.free[sm, r] -= times * room.need[c, r]
    if room.need.shape[1] == 1:
        _set_key(room.tree, np.int64(0), np.int64(sm), room.free[sm, 0])
    else:
        room.changed[room.n_changed[0]] = sm
        room.n_changed[0] += 1
    places = room.places
    if len(places.link) > 0 and places.link[c] >= 0:
        places.free[places.link[c]] -= times * places.taken[c]
    if len(room.carve_out.least) > 0 and room.need[c].any():  # not of copies and memsets
        if room.carve_out.residents[sm] == 0:
            room.carve_out.of_sm[sm] = room.carve_out.chosen[c]
        room.carve_out.residents[sm] += times


@compiled_helper
def _release(blocks, operations, block, operation):
    """Let a block that waits in its place run, if nothing holds it any more."""
    if (
        blocks.holds_left[block] == 0
        and blocks.state[block] == _PLACED
        and operations.holds_left[operation] == 0
    ):
        blocks.state[block] = _RUNNING
        blocks.released[blocks.n_released[0]] = block
        blocks.n_released[0] += 1


@compiled_within
def _run_released(blocks, graph, operations, running, now):
    """Let blocks that nothing holds any more run to their ends."""
    events, sharing, launches = running.events, running.sharing, running.launches
    for at in range(blocks.n_released[0]):
        block = np.int64(blocks.released[at])
        operation = graph.operation_of_block[block]
        if operation >= launches.first:
            _count_children(launches.load, now, 1.0)
        elif len(launches.warps_left) > 0 and launches.warps_left[block] > 0:
            begin = max(blocks.start[block], blocks.earliest[block])
            low = launches.warp_offsets[block]
            for warp in range(low, low + launches.warps_left[block]):
                i = launches.warps[warp]
                item = len(blocks.duration) + 2 * len(graph.first_block) - 2 + i
                _push_time(events.times, events.items, events.n, begin + launches.at[i], item)
            continue
        if len(sharing.load) > 0 and sharing.load[operation] > 0:
            _begin(sharing, blocks, operations, block, operation, now)
            continue
        begin = max(blocks.start[block], blocks.earliest[block])
        blocks.end[block] = begin + blocks.duration[block]
        _push_time(events.times, events.items, events.n, blocks.end[block], block)
        if operations.trigger[operation] < 1:
            time = max(now, begin + operations.trigger[operation] * blocks.duration[block])
            _push_time(events.times, events.items, events.n, time, -1 - block)
    blocks.n_released[0] = 0


@compiled_helper
def _fire_gates(gates, graph, operations, window, blocks, now, operation, event):
    """Tell the operations that wait for this event of `operation` that it has happened."""
    for g in range(gates.offsets[operation], gates.offsets[operation + 1]):
        if gates.event[g] != event:
            continue
        target = np.int64(gates.target[g])
        if not gates.holds[g]:
            _pass_gate(operations, window, target)
            continue
        operations.holds_left[target] -= 1
        for block in range(graph.first_block[target], graph.first_block[target + 1]):
            since = now - min(gates.lead[g], blocks.alone[block])
            blocks.earliest[block] = max(blocks.earliest[block], since)
            _release(blocks, operations, block, target)


@compiled_helper
def _end_in_stage(stages, blocks, block):
    """Count a block of a stage less; make blocks of the stages that may start now ready."""
    n_stages = len(stages.left) - 1
    stages.left[stages.of_block[block]] -= 1
    while stages.first[0] < n_stages and stages.left[stages.first[0]] == 0:
        stages.first[0] += 1
        admitted = stages.first[0] + stages.ahead - 1
        if admitted < n_stages:
            kept = stages.kept[admitted]
            stages.kept[admitted] = -1
            while kept >= 0:
                _pass_places(blocks, kept, 0)
                kept = stages.next_kept[kept]


@compiled_within
def _wake(graph, joins, operations, blocks, now, block):
    """Tell the sets of a block that it has ended, and whoever waits for the last of a join."""
    for i in range(graph.block_set_offsets[block], graph.block_set_offsets[block + 1]):
        s = graph.block_sets[i]
        joins.members_left[s] -= 1
        if joins.members_left[s] > 0:
            continue
        for at in range(graph.set_join_offsets[s], graph.set_join_offsets[s + 1]):
            j = graph.set_joins[at]
            joins.sources_left[j] -= 1
            if joins.sources_left[j] > 0 or joins.gate[j] == IGNORED:
                continue
            for t in range(graph.target_offsets[j], graph.target_offsets[j + 1]):
                if joins.gate[j] == PLACES:
                    _let_place(graph, joins, blocks, graph.targets[t])
                else:
                    _let_run_on(graph, joins, operations, blocks, now, j, graph.targets[t])


@compiled_within
def _let_place(graph, joins, blocks, s):
    """Count a join less that keeps the blocks of a set from being placed."""
    joins.places_left[s] -= 1
    if joins.places_left[s] == 0:
        for at in range(graph.set_offsets[s], graph.set_offsets[s + 1]):
            _pass_places(blocks, graph.set_blocks[at], 1)


@compiled_within
def _let_run_on(graph, joins, operations, blocks, now, j, s):
    """Count join `j` less, that holds the blocks of a set in their places."""
    joins.holds_left[s] -= 1
    if joins.holds_left[s] > 0 and len(joins.need) == 0:
        return
    for at in range(graph.set_offsets[s], graph.set_offsets[s + 1]):
        follower = graph.set_blocks[at]
        need = 0.0
        if len(joins.need) > 0:
            need = joins.need[j]
        if len(joins.member_need) > 0:
            need = max(need, joins.member_need[at])
        since = now - need * blocks.alone[follower]
        blocks.earliest[follower] = max(blocks.earliest[follower], since)
        if joins.holds_left[s] == 0:
            blocks.holds_left[follower] -= 1
            _release(blocks, operations, follower, graph.operation_of_block[follower])


@compiled_helper
def _end_operation(operations, window, operation):
    """Count an operation as ended; let the one open that waits for all before it."""
    operations.running[operation] = -1
    window.ended[0] += 1
    while window.oldest[0] < len(operations.running) and operations.running[window.oldest[0]] == -1:
        window.oldest[0] += 1
        oldest = window.oldest[0]
        if oldest < len(operations.running) and operations.waits_for_all[oldest]:
            _pass_gate(operations, window, oldest)
