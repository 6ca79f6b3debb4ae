"""Schedules of blocks on SMs: serialized, and event by event under given rules.

What the event loop knows and changes is in the records of the modules beside it, one for each
subject. Its steps leave work to one another in lists: operations that open, blocks that are ready
to be placed, blocks that are released to run.
"""

import numpy as np

from depgraph.schedule.events_jit import (
    ENDED,
    ENTERED,
    FILLED,
    OPENED,
    PREPARED,
    TAKEN_BACK,
    TRIGGERED,
    add_event,
    event_of,
    next_event,
    pop_rank,
    pop_time,
    push_time,
)
from depgraph.schedule.launching_jit import (
    begin_launching,
    end_launching,
    launch_event,
    leave_queue,
)
from depgraph.schedule.policy import ALL_ENDED, ALL_PLACED, ALL_TRIGGERED
from depgraph.schedule.sms_jit import (
    RANKS,
    deal_warps,
    is_sparing,
    next_class,
    next_on_sms,
    prepare_on_shared_sm,
    queue_block,
    roomiest,
    roomiest_gpc,
    roomiest_of_gpc,
    roomiest_spared,
    start_on_shared_sm,
    take,
)
from depgraph.schedule.waits_jit import (
    PLACED,
    end_in_stage,
    end_operation,
    enter_operations,
    fire_gates,
    let_open,
    open_operations,
    pass_in_turn,
    release,
    wake,
)
from depgraph.system.compiled import compiled_if_large, compiled_on_records, compiled_within

_NOBODY = np.int64(-1)
_NONE = np.int64(0)
# One type of number, so that what takes one is compiled once.
_ALL_ENDED = np.int64(ALL_ENDED)
_ALL_PLACED = np.int64(ALL_PLACED)
_ALL_TRIGGERED = np.int64(ALL_TRIGGERED)


@compiled_if_large
def serial_schedule(durations, first_block, slots, issued, gap):
    """Run operations one after another, each one's blocks in order on the first free slot.

    `first_block` has one entry more than there are operations; `slots` says how many blocks of each
    may run at once, `issued` before what time it is not known, and `gap` what time passes before it
    starts, once it is known and the one before it has ended. Returns the start of each block and
    its slot (int32), and the end of each operation.
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
        running = 0
        for block in range(first_block[k], first_block[k + 1]):
            begin = now
            place = running
            if place == slots[k]:
                begin, place = pop_time(times, items, running)
                running -= 1
            start[block] = begin
            slot[block] = place
            finish = begin + durations[block]
            end = max(end, finish)
            push_time(times, items, running, finish, place)
            running += 1
        now = end
        ends[k] = end
    return start, slot, ends


@compiled_on_records
def event_schedule(
    runs, operations, gates, blocks, stages, waits, waiting, room, sharing, launches, events
):
    """Run blocks on SMs by rules that are data.

    An operation *enters* in program order, one at a time, *opens* once its gates have, and its
    blocks are then placed as soon as their own gates have opened and an SM has room, on the SM
    that could host most further blocks of its class, the lowest such. A placed block may have to
    wait in its place for others. Blocks that run on one SM may slow each other; the duration of a
    block is then its work, the time it would take at a rate of 1.

    Start, end and SM of the blocks are filled in. The end of a block that never runs, because the
    rules wait for each other, stays -1. Without `launches` (None) nothing is compiled for them.
    """
    run = runs[0]
    is_settled = False  # at this time, but for what the next event at this time changes
    is_timed = False  # whether the last event was one of `events`
    while True:
        _run_released(run, operations, blocks, sharing, launches, events)
        goes_on = is_timed and run.n_events > 0 and events.times[0] == run.now
        if not is_settled and not goes_on:
            enter_operations(run, operations, events)
            if run.opening >= 0:
                open_operations(run, operations, blocks, events)
            _queue_ready(run, operations, blocks, stages, room, waiting)
            if run.now >= run.filled_at:
                _place(run, operations, gates, blocks, room, waiting, sharing, launches, events)
            elif not run.is_filling:
                run.is_filling = True
                add_event(run, events, run.filled_at, FILLED, _NONE)
            is_settled = run.opening < 0
            if is_settled:
                run.filled_at = max(run.filled_at, run.now + run.fill * run.most_filled)
                run.most_filled = 0
                run.n_passes += 1
            is_timed = False
            continue
        # Blocks are placed after each single end: two that end at once free two SMs in turn.
        is_timed = run.n_events > 0 and (goes_on or events.times[0] <= sharing.next[1])
        if is_timed:
            run.now, code = next_event(run, events)
        elif sharing.next[1] < np.inf:
            run.now = sharing.next[1]
            code = next_on_sms(run, sharing, operations, blocks)
        else:
            break
        is_settled = False
        kind, number = event_of(code)
        ended = _NOBODY  # the operation that ends now
        if kind == ENDED:
            blocks.end[number] = run.now
            sm = np.int64(blocks.sm[number])
            take(run, room, sm, operations[blocks.operation[number]].room_class, _NOBODY)
            if run.stages_ahead > 0:
                end_in_stage(run, stages, blocks, number)
            wake(run, waits, operations, blocks, number)
            ended = _end_block(run, operations, blocks, waiting, launches, events, number)
        elif kind == OPENED:
            let_open(run, operations, operations[number].launching)
        elif kind == ENTERED:
            run.is_entering = False
            pass_in_turn(run, operations, number)
        elif kind == TRIGGERED:
            k = np.int64(blocks.operation[number])
            operations[k].untriggered -= 1
            if operations[k].untriggered == 0:
                fire_gates(run, operations, gates, blocks, k, _ALL_TRIGGERED)
        elif kind == TAKEN_BACK:
            run.is_taking_back = False
        elif kind == FILLED:
            run.is_filling = False
        elif kind == PREPARED:
            blocks.state[number] = PLACED
            release(run, operations[blocks.operation[number]], blocks, number)
        elif launches is not None:
            ended = launch_event(run, launches, operations, blocks, waiting, events, kind, number)
        if ended >= 0:
            end_operation(run, operations, ended)
            if operations[ended].untriggered > 0:
                operations[ended].untriggered = 0
                fire_gates(run, operations, gates, blocks, ended, _ALL_TRIGGERED)
            fire_gates(run, operations, gates, blocks, ended, _ALL_ENDED)


@compiled_within
def _run_released(run, operations, blocks, sharing, launches, events):
    """Let blocks that nothing holds any more run to their ends."""
    while run.released >= 0:
        block = run.released
        run.released = np.int64(blocks.next[block])
        k = blocks.operation[block]
        if launches is not None and begin_launching(run, launches, blocks, events, block):
            continue
        if operations[k].load > 0:
            start_on_shared_sm(run, sharing, operations, blocks, block)
            continue
        begin = max(blocks.start[block], blocks.earliest[block])
        blocks.end[block] = begin + blocks.duration[block]
        add_event(run, events, blocks.end[block], ENDED, block)
        if operations[k].trigger < 1:
            time = max(run.now, begin + operations[k].trigger * blocks.duration[block])
            add_event(run, events, time, TRIGGERED, block)


@compiled_within
def _queue_ready(run, operations, blocks, stages, room, waiting):
    """Queue blocks that are ready for placement, or keep them until their stage may start."""
    while run.ready >= 0:
        block = run.ready
        run.ready = np.int64(blocks.next[block])
        if run.stages_ahead > 0 and blocks.stage[block] >= run.first_stage + run.stages_ahead:
            stage = stages[blocks.stage[block]]
            blocks.next[block] = stage.kept
            stage.kept = block
        else:
            operation = operations[blocks.operation[block]]
            rank = operation.came * RANKS + np.int64(blocks.rank[block])
            queue_block(room, waiting, operation.room_class, rank)


@compiled_within
def _place(run, operations, gates, blocks, room, waiting, sharing, launches, events):
    """Place blocks, best first, until none fits or an operation opens."""
    while run.opening < 0:
        c = next_class(run, room, waiting)
        if c < 0:
            break
        own = room.classes[c]
        if not _goes_out(run, operations, blocks, waiting, own, events):
            break
        gpc = _NOBODY
        if own.cluster > 1:
            gpc = roomiest_gpc(run, room, c)
            run.n_clusters += 1
        for _ in range(own.cluster):
            rank = pop_rank(waiting.ranks, own.first_rank, own.n_ranks)
            own.n_ranks -= 1
            block = np.int64(waiting.block_of_rank[rank % RANKS])
            k = np.int64(blocks.operation[block])
            sm = _NOBODY
            if own.cluster > 1:
                sm = roomiest_of_gpc(run, room, c, gpc, np.int64(run.n_clusters))
                room.sms[sm].cluster = run.n_clusters
            elif run.spares or run.now <= run.spared_until:
                sm = roomiest_spared(run, room, c)
            if sm < 0:
                sm = roomiest(room.tree, room.need, c)
            if own.takes_room:
                _fill(run, room, sm)
            take(run, room, sm, c, np.int64(1))
            blocks.start[block] = run.now
            blocks.sm[block] = sm
            blocks.state[block] = PLACED
            operation = operations[k]
            if own.takes_room:
                deal_warps(sharing, operation, blocks, block)
            is_first = operation.unplaced == operation.end_block - operation.first_block
            if is_first and is_sparing(run, own):
                run.spared_until = run.now + run.spared_for
            release(run, operation, blocks, block)
            if operation.preamble > 0 and blocks.state[block] == PLACED:
                prepare_on_shared_sm(run, sharing, operations, blocks, block)
            operation.unplaced -= 1
            if operation.unplaced == 0:
                fire_gates(run, operations, gates, blocks, k, _ALL_PLACED)
                if launches is not None and k >= run.first_child:
                    leave_queue(run, launches, operations, blocks, waiting, k)


@compiled_within
def _fill(run, room, sm):
    """Count the further blocks that an SM takes at once which was empty."""
    own = room.sms[sm]
    if own.residents == 0:
        own.filling = run.n_passes
        own.filled = 0
    elif own.filling == run.n_passes:
        own.filled += 1
        run.most_filled = max(run.most_filled, own.filled)


@compiled_within
def _goes_out(run, operations, blocks, waiting, own, events):
    """Let blocks of a class go out, unless those of a kernel placed before may not be back yet."""
    if run.take_back == 0 or not (run.has_carve_outs and own.takes_room):
        return True
    rank = waiting.ranks[own.first_rank] % RANKS
    k = np.int64(blocks.operation[waiting.block_of_rank[rank]])
    is_early = k != run.last_placed and run.now < run.taken_back
    if is_early and operations[run.last_placed].running > 0:
        if not run.is_taking_back:
            run.is_taking_back = True
            add_event(run, events, run.taken_back, TAKEN_BACK, _NONE)
        return False
    run.last_placed = k
    run.taken_back = max(run.taken_back, run.now) + run.take_back * own.cluster
    return True


@compiled_within
def _end_block(run, operations, blocks, waiting, launches, events, block):
    """Count a block as ended; return the operation of the program that ends with it, else -1."""
    k = np.int64(blocks.operation[block])
    operation = operations[k]
    operation.running -= 1
    if launches is not None:
        return end_launching(run, launches, operations, blocks, waiting, events, block)
    return k if operation.running == 0 else _NOBODY
