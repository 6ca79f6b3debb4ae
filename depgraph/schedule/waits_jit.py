"""What operations and blocks wait for: their turn, gates, joins and stages.

Whatever waits no more is put in a list, which goes from one to the `next`, for a later step of
`depgraph.schedule.simulate_jit`: operations that open, blocks that are ready to be placed, and
placed blocks that are released to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.graph_jit import invert_lists
from depgraph.schedule.events_jit import ENTERED, OPENED, add_event, per, table, writable
from depgraph.schedule.policy import HOLDS, IGNORED, PLACES
from depgraph.system.arrays import list_offsets
from depgraph.system.compiled import compiled_helper, compiled_within

if TYPE_CHECKING:
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.schedule.policy import Gates, Rules
    from depgraph.schedule.simulate import Placed

# States of a block, 0 before it is placed.
PLACED = np.uint8(1)
RUNNING = np.uint8(2)
PREPARING = np.uint8(3)  # at work on what comes before its wait

# The opening of an operation counts as so many of what keeps its blocks from being placed.
_OPEN = np.int64(1 << 30)
_ONE = np.int64(1)

RUN = np.dtype(
    [
        ("now", np.float64),
        ("n_events", np.int64),  # to come
        # Rules
        ("window", np.int64),  # operations that have entered and not left, at most; 0: any number
        ("in_order", np.bool_),  # whether they leave in program order
        ("last", np.int64),  # operations that enter: all but child kernels, which come after them
        ("turns", np.float64),
        ("turn_length", np.float64),
        ("strict", np.bool_),  # whether a block that fits nowhere holds up those of higher rank
        ("first_come", np.bool_),  # whether blocks rank by when their operations opened
        ("stages_ahead", np.int64),  # a block this far after the first stage waits; 0: none does
        ("has_join_need", np.bool_),
        ("has_member_need", np.bool_),
        ("has_places", np.bool_),  # whether blocks are bound to SMs, or to links
        ("has_carve_outs", np.bool_),
        ("shared", np.int64),  # which resource is shared memory, where carve-outs count
        ("shared_capacity", np.int64),  # of an SM at its largest carve-out
        ("has_sides", np.bool_),  # whether computation and communication slow each other
        ("slowdown", np.float64),  # blocks run at 1 / (1 + slowdown * load)
        ("across", np.float64),  # how much of the load of one part counts for the other
        ("first_child", np.int64),  # operations from this on are child kernels
        ("take_back", np.float64),  # time that taking back a block takes; 0: none
        ("taken_back", np.float64),  # no sooner are SMs empty that `last_placed` took
        ("last_placed", np.int64),  # the operation of the last block that was placed
        ("is_taking_back", np.bool_),  # whether others wait for that
        # Time for each further block that an SM takes at once which was empty: none go out then.
        ("fill", np.float64),
        ("filled_at", np.float64),
        ("is_filling", np.bool_),  # whether others wait for that
        ("most_filled", np.int64),  # such blocks of an SM that go out now
        ("n_passes", np.int64),  # how often blocks have gone out
        ("sparing", np.int64),  # clusters of so many blocks leave SMs to others; 0: none do
        ("spared_for", np.float64),  # time for which they do, once they are placed
        ("spared_until", np.float64),
        ("spares", np.bool_),  # whether others have these SMs alone, as such clusters wait for room
        # Operations
        ("entered", np.int64),  # or entering
        ("is_entering", np.bool_),
        ("n_launching", np.int64),  # whose launch took or takes time
        ("n_opened", np.int64),
        ("turn_free", np.float64),  # when the last one that opens is through with that
        ("oldest", np.int64),  # the first that has not ended
        ("ended", np.int64),  # how many have
        # Lists: -1 ends each
        ("opening", np.int64),
        ("last_opening", np.int64),
        ("ready", np.int64),
        ("released", np.int64),
        ("last_released", np.int64),
        # Others
        ("first_stage", np.int64),  # with a block that has not ended
        ("n_changed", np.int64),  # how often room was taken or given back
        ("n_clusters", np.int64),  # that were placed
        ("n_ranks", np.int64),  # that are given away: child kernels get theirs as they come
    ],
    align=True,
)

OPERATION = np.dtype(
    [
        ("first_block", np.int64),
        ("end_block", np.int64),
        ("first_gate", np.int64),  # of those that wait for it
        ("end_gate", np.int64),
        ("entrant", np.int64),  # the operation that enters as this one in turn
        ("waits_for_all", np.bool_),  # it opens only when all before it have ended
        ("launch", np.float64),  # time between the last gate's opening and its own
        ("enter", np.float64),  # time to enter, one operation after another
        ("starting", np.float64),  # time that its opening takes, one after another
        ("turn_comes", np.float64),  # its opening begins no earlier
        ("gates_left", np.int64),  # that keep it from opening, entering among them
        ("holds_left", np.int64),  # gates that hold its blocks in their places
        ("trigger", np.float64),  # share of its work after which a block triggers; 1 is its end
        ("turn", np.int64),  # it opens in this one only
        ("unplaced", np.int64),  # blocks
        ("untriggered", np.int64),
        ("running", np.int64),  # blocks that have not ended; -1 once that was seen
        ("launching", np.int64),  # the operation whose launch begins as this one in turn
        ("is_open", np.bool_),  # whether its last gate has opened
        ("came", np.int64),  # as which it opened, if blocks rank by that
        ("next", np.int64),
        ("room_class", np.int64),  # blocks of one class take equal room
        ("load", np.float64),  # of a running block on its SM; 0 where blocks do not slow each other
        # How many times as long a block takes beside those of its own wave as at a rate of 1:
        # times that a user gives were measured so.
        ("in_wave", np.float64),
        ("preamble", np.float64),  # work of a block before it waits in its place, beside others
        ("side", np.int64),  # 0: computation, 1: communication
        ("part", np.int64),  # of an SM that its blocks keep busy
        ("warps", np.int64),  # of a block, where they keep sub-partitions of an SM busy
        ("clock", np.int64),  # of its blocks on an SM: of those that begin on the first of these
        ("by_smsp", np.bool_),  # whether those that begin on the next ones have the next clocks
        ("first_launch", np.int64),  # of its blocks
        ("end_launch", np.int64),
        ("children", np.int64),  # child kernels that have not ended, as far as it knows
    ],
    align=True,
)

# What waits for something that happens to all blocks of an operation; sorted by that operation.
GATE = np.dtype(
    [
        ("target", np.int64),  # the operation that waits
        ("event", np.int64),  # `ALL_PLACED`, `ALL_TRIGGERED` or `ALL_ENDED`
        ("holds", np.bool_),  # its blocks are placed and wait, instead of not being placed
        ("lead", np.float64),  # time that a block can work for before it needs the event
    ],
    align=True,
)

STAGE = np.dtype(
    [
        ("left", np.int64),  # blocks that have not ended
        ("kept", np.int64),  # the first of a list of blocks that are ready too early; -1: none
    ]
)


class Blocks(NamedTuple):
    """Where and when blocks run."""

    duration: NDArray[np.float64]  # at a rate of 1
    start: NDArray[np.float64]
    end: NDArray[np.float64]  # -1 for a block that has not run
    earliest: NDArray[np.float64]  # it would have run from then without a stop, by what it awaited
    done: NDArray[np.float64]  # of its work, before it waited in its place
    operation: NDArray[np.int32]
    stage: NDArray[np.int32]  # empty where there are none
    rank: NDArray[np.int32]  # lower ones are placed first
    sm: NDArray[np.int32]
    smsp: NDArray[np.int8]  # the sub-partition of the SM that has its first warp
    state: NDArray[np.uint8]
    places_left: NDArray[np.int32]  # sets with a join that keeps the block from being placed
    holds_left: NDArray[np.int32]  # sets with a join that holds the block
    next: NDArray[np.int32]  # in the list that it is in


class Waits(NamedTuple):
    """The block graph, from a block over its sets to those that wait, and what they wait for."""

    block_set_offsets: NDArray[np.int64]  # for each block the sets it is in
    block_sets: NDArray[np.int32]
    set_join_offsets: NDArray[np.int64]  # for each set the joins it is a source of
    set_joins: NDArray[np.int32]
    target_offsets: NDArray[np.int64]  # for each join the sets that wait
    targets: NDArray[np.int32]
    set_offsets: NDArray[np.int64]  # for each set its blocks
    set_blocks: NDArray[np.int32]
    gate: NDArray[np.uint8]  # of each join: `IGNORED`, `PLACES` or `HOLDS`
    need: NDArray[np.float64]  # share of a target's work before it needs the join; may be empty
    member_need: NDArray[np.float64]  # the same for each block of a set: the larger of both counts
    sources_left: NDArray[np.int64]  # of each join: source sets with a block that has not ended
    members_left: NDArray[np.int64]  # of each set: blocks that have not ended
    places_left: NDArray[np.int32]  # of each set: joins that keep it from being placed
    holds_left: NDArray[np.int32]  # of each set: joins that hold it


def run_of(rules: Rules, program: BlockGraph, placed: Placed) -> NDArray[np.void]:
    """Return the run before its first event; `program` is without child kernels."""
    sharing, carve_outs = placed.sharing, placed.carve_outs
    return table(
        RUN,
        1,
        window=rules.window,
        in_order=rules.in_order,
        last=program.n_operations,
        first_child=program.n_operations,
        sparing=placed.sparing,
        spared_for=0.0 if sharing is None else sharing.cluster_start,
        spared_until=-1.0,
        take_back=0.0 if sharing is None else sharing.take_back,
        last_placed=-1,
        fill=0.0 if sharing is None or carve_outs is None else sharing.fill,
        turns=rules.turns[0],
        turn_length=rules.turns[1],
        strict=rules.strict,
        first_come=rules.first_come,
        stages_ahead=rules.stages_ahead,
        has_places=placed.places is not None,
        has_carve_outs=carve_outs is not None,
        shared=0 if carve_outs is None else carve_outs.shared,
        shared_capacity=0 if carve_outs is None else placed.capacity[carve_outs.shared],
        has_sides=sharing is not None and sharing.side is not None,
        slowdown=0.0 if sharing is None else sharing.slowdown,
        across=1.0 if sharing is None else sharing.across,
        has_join_need=rules.join_need is not None,
        has_member_need=rules.member_need is not None,
        opening=-1,
        last_opening=-1,
        ready=-1,
        released=-1,
        last_released=-1,
        n_ranks=program.n_blocks,
    )


def operations_of(rules: Rules, graph: BlockGraph, last: int) -> NDArray[np.void]:
    """Return the operations before the first event; those from `last` on do not enter."""
    n, gates = graph.n_operations, rules.gates
    waits_for_all = per(rules.waits_for_all, default=False, size=n, dtype=np.bool_)
    # One gate more than is listed: entering. One more yet: all before, of which there are none
    # before the first.
    gates_left = 1 + waits_for_all + np.bincount(gates.target[~gates.holds], minlength=n)
    gates_left[:1] -= waits_for_all[:1]
    entrant = np.arange(n)
    if rules.entry is not None:
        entrant[:last] = rules.entry
    lead = np.full(n, np.inf)
    np.minimum.at(lead, gates.target[gates.holds], gates.lead[gates.holds])
    first_gate = list_offsets(np.bincount(gates.source, minlength=n))
    blocks = np.diff(graph.first_block)
    return table(
        OPERATION,
        n,
        first_block=graph.first_block[:-1],
        end_block=graph.first_block[1:],
        first_gate=first_gate[:-1],
        end_gate=first_gate[1:],
        entrant=entrant,
        waits_for_all=waits_for_all,
        launch=rules.launch,
        enter=rules.enter,
        starting=rules.starting,
        gates_left=gates_left,
        holds_left=np.bincount(gates.target[gates.holds], minlength=n),
        trigger=rules.trigger,
        turn=0 if rules.turn is None else rules.turn,
        unplaced=blocks,
        untriggered=blocks,
        running=blocks,
        in_wave=1.0,
        preamble=np.where(np.isfinite(lead), np.maximum(lead, 0.0), 0.0),
    )


def gates_of(gates: Gates) -> NDArray[np.void]:
    """Return the gates between operations, by the source."""
    by_source = np.argsort(gates.source, kind="stable")
    return table(
        GATE,
        len(by_source),
        target=gates.target[by_source],
        event=gates.event[by_source],
        holds=gates.holds[by_source],
        lead=gates.lead[by_source],
    )


def stages_of(rules: Rules) -> NDArray[np.void]:
    """Return the stages of blocks, and an empty one after them."""
    stage = np.empty(0, np.int32) if rules.stage is None else rules.stage
    n = int(stage.max(initial=-1)) + 2
    return table(STAGE, n, left=np.bincount(stage, minlength=n), kept=-1)


def blocks_of(
    rules: Rules, graph: BlockGraph, durations: NDArray[np.float64], waits: Waits
) -> Blocks:
    """Return the blocks before the first event."""
    n = len(durations)
    rank = np.empty(n, np.int32)
    rank[slice(None) if rules.order is None else rules.order] = np.arange(n, dtype=np.int32)
    places_left, holds_left = (
        _sets_that_wait(graph, of_set) for of_set in (waits.places_left, waits.holds_left)
    )
    return Blocks(
        duration=durations,
        start=np.zeros(n, np.float64),
        end=np.full(n, -1.0),
        earliest=np.zeros(n, np.float64),
        done=np.zeros(n, np.float64),
        operation=graph.operation_of_block,
        stage=np.empty(0, np.int32) if rules.stage is None else writable(rules.stage),
        rank=rank,
        sm=np.zeros(n, np.int32),
        smsp=np.zeros(n, np.int8),
        state=np.zeros(n, np.uint8),
        places_left=places_left,
        holds_left=holds_left,
        next=np.empty(n, np.int32),
    )


def waits_of(rules: Rules, graph: BlockGraph) -> Waits:
    """Return what sets of blocks wait for, before the first event."""
    n_sets = len(graph.set_operation)
    block_set_offsets, block_sets = invert_lists(
        graph.set_offsets, graph.set_blocks, graph.n_blocks
    )
    set_join_offsets, set_joins = invert_lists(graph.source_offsets, graph.sources, n_sets)
    gate = per(rules.joins, PLACES, len(graph.join_kind), np.uint8)
    gate_of_target = np.repeat(gate, np.diff(graph.target_offsets))
    places_left, holds_left = (
        np.bincount(graph.targets[gate_of_target == kind], minlength=n_sets).astype(np.int32)
        for kind in (PLACES, HOLDS)
    )
    nothing = np.empty(0, np.float64)
    return Waits(
        block_set_offsets=block_set_offsets,
        block_sets=block_sets,
        set_join_offsets=set_join_offsets,
        set_joins=set_joins,
        target_offsets=writable(graph.target_offsets),
        targets=writable(graph.targets),
        set_offsets=writable(graph.set_offsets),
        set_blocks=writable(graph.set_blocks),
        gate=gate,
        need=nothing if rules.join_need is None else writable(rules.join_need),
        member_need=nothing if rules.member_need is None else writable(rules.member_need),
        sources_left=np.diff(graph.source_offsets),
        members_left=np.diff(graph.set_offsets),
        places_left=places_left,
        holds_left=holds_left,
    )


def _sets_that_wait(graph: BlockGraph, joins_of_set: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return for each block how many of its sets wait for a join at all."""
    waits = np.repeat(joins_of_set > 0, np.diff(graph.set_offsets))
    return np.bincount(graph.set_blocks[waits], minlength=graph.n_blocks).astype(np.int32)


@compiled_within
def enter_operations(run, operations, events):
    """Let operations enter while the window has room and entering takes no time."""
    while run.entered < run.last and not run.is_entering:
        inside = run.entered - (run.oldest if run.in_order else run.ended)
        if run.window > 0 and inside >= run.window:
            break
        k = operations[run.entered].entrant
        run.entered += 1
        if operations[k].enter > 0:
            run.is_entering = True
            add_event(run, events, run.now + operations[k].enter, ENTERED, k)
        else:
            pass_gate(run, operations, k)


@compiled_helper
def pass_gate(run, operations, k):
    """Count one gate of an operation less; the last one opens it."""
    operations[k].gates_left -= 1
    if operations[k].gates_left == 0:
        let_open(run, operations, k)


@compiled_helper
def pass_in_turn(run, operations, k):
    """Count one gate less; the last one opens the operation, if that takes time in its turn."""
    operation = operations[k]
    if operation.starting > 0 and operation.gates_left == 1:
        operation.turn_comes = max(run.now + operation.launch, run.turn_free)
        run.turn_free = operation.turn_comes + operation.starting
    pass_gate(run, operations, k)


@compiled_helper
def let_open(run, operations, k):
    """Have an operation looked at that may open, after those that came before."""
    operations[k].next = -1
    if run.opening < 0:
        run.opening = k
    else:
        operations[run.last_opening].next = k
    run.last_opening = k


@compiled_helper
def open_operations(run, operations, blocks, events):
    """Open operations whose gates have opened, or begin their launch."""
    while run.opening >= 0:
        k = run.opening
        operation = operations[k]
        run.opening = operation.next
        opens = run.now
        if not operation.is_open:
            opens = max(opens + operation.launch, operation.turn_comes)
            if run.turns > 1:
                opens = _next_turn(run.turns, run.turn_length, operation.turn, opens)
        operation.is_open = True
        if opens > run.now:
            operations[run.n_launching].launching = k
            add_event(run, events, opens, OPENED, run.n_launching)
            run.n_launching += 1
            continue
        if run.first_come:
            run.n_opened += 1
            operation.came = run.n_opened
        for block in range(operation.first_block, operation.end_block):
            pass_places(run, blocks, block, _OPEN)


@compiled_helper
def _next_turn(turns, length, turn, time):
    """Return when the next of equal turns begins, or `time` if it goes on now."""
    begin = np.floor(time / (turns * length)) * turns * length + turn * length
    if time >= begin + length:
        begin += turns * length
    return max(time, begin)


@compiled_helper
def pass_places(run, blocks, block, n):
    """Count some of what keeps a block from being placed less; the last makes it ready."""
    blocks.places_left[block] -= n
    if blocks.places_left[block] == -_OPEN:
        blocks.next[block] = run.ready
        run.ready = block


@compiled_helper
def release(run, operation, blocks, block):
    """Let a block of an operation that waits in its place run, if nothing holds it any more."""
    if (
        blocks.holds_left[block] == 0
        and blocks.state[block] == PLACED
        and operation.holds_left == 0
    ):
        blocks.state[block] = RUNNING
        blocks.next[block] = -1
        if run.released < 0:
            run.released = block
        else:
            blocks.next[run.last_released] = block
        run.last_released = block


@compiled_helper
def fire_gates(run, operations, gates, blocks, k, event):
    """Tell the operations that wait for this event of an operation that it has happened."""
    for g in range(operations[k].first_gate, operations[k].end_gate):
        gate = gates[g]
        if gate.event != event:
            continue
        if not gate.holds:
            pass_in_turn(run, operations, gate.target)
            continue
        target = operations[gate.target]
        target.holds_left -= 1
        for block in range(target.first_block, target.end_block):
            since = run.now - min(gate.lead, blocks.duration[block] * target.in_wave)
            blocks.earliest[block] = max(blocks.earliest[block], since)
            release(run, target, blocks, block)


@compiled_helper
def end_in_stage(run, stages, blocks, block):
    """Count a block of a stage less; make blocks of the stages that may start now ready."""
    n_stages = len(stages) - 1
    stages[blocks.stage[block]].left -= 1
    while run.first_stage < n_stages and stages[run.first_stage].left == 0:
        run.first_stage += 1
        admitted = run.first_stage + run.stages_ahead - 1
        if admitted < n_stages:
            kept = stages[admitted].kept
            stages[admitted].kept = -1
            while kept >= 0:
                following = np.int64(blocks.next[kept])
                pass_places(run, blocks, kept, np.int64(0))
                kept = following


@compiled_within
def wake(run, waits, operations, blocks, block):
    """Tell the sets of a block that it has ended, and whoever waits for the last of a join."""
    for i in range(waits.block_set_offsets[block], waits.block_set_offsets[block + 1]):
        s = waits.block_sets[i]
        waits.members_left[s] -= 1
        if waits.members_left[s] > 0:
            continue
        for at in range(waits.set_join_offsets[s], waits.set_join_offsets[s + 1]):
            j = waits.set_joins[at]
            waits.sources_left[j] -= 1
            if waits.sources_left[j] > 0 or waits.gate[j] == IGNORED:
                continue
            for t in range(waits.target_offsets[j], waits.target_offsets[j + 1]):
                if waits.gate[j] == PLACES:
                    _let_place(run, waits, blocks, waits.targets[t])
                else:
                    _let_run_on(run, waits, operations, blocks, j, waits.targets[t])


@compiled_within
def _let_place(run, waits, blocks, s):
    """Count a join less that keeps the blocks of a set from being placed."""
    waits.places_left[s] -= 1
    if waits.places_left[s] == 0:
        for at in range(waits.set_offsets[s], waits.set_offsets[s + 1]):
            pass_places(run, blocks, np.int64(waits.set_blocks[at]), _ONE)


@compiled_within
def _let_run_on(run, waits, operations, blocks, j, s):
    """Count join `j` less, that holds the blocks of a set in their places."""
    waits.holds_left[s] -= 1
    is_last = waits.holds_left[s] == 0
    if not is_last and not run.has_join_need:
        return
    first, end = waits.set_offsets[s], waits.set_offsets[s + 1]
    operation = operations[blocks.operation[waits.set_blocks[first]]]
    now, in_wave, has_member_need = run.now, operation.in_wave, run.has_member_need
    need_of_all = waits.need[j] if run.has_join_need else 0.0
    for at in range(first, end):
        block = np.int64(waits.set_blocks[at])
        need = max(need_of_all, waits.member_need[at]) if has_member_need else need_of_all
        since = now - need * (blocks.duration[block] * in_wave)
        blocks.earliest[block] = max(blocks.earliest[block], since)
        if is_last:
            blocks.holds_left[block] -= 1
            release(run, operation, blocks, block)


@compiled_helper
def end_operation(run, operations, k):
    """Count an operation as ended; let the one open that waits for all before it."""
    operations[k].running = -1
    run.ended += 1
    while run.oldest < len(operations) and operations[run.oldest].running == -1:
        run.oldest += 1
        if run.oldest < len(operations) and operations[run.oldest].waits_for_all:
            pass_gate(run, operations, run.oldest)
