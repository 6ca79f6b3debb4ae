"""The SMs: what is free there, which block is placed next and where, how blocks slow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.schedule.events_jit import (
    ENDED,
    PREPARED,
    TRIGGERED,
    event_code,
    event_of,
    first_with,
    pop_time,
    push_rank,
    push_time,
    set_key,
    table,
)
from depgraph.schedule.waits_jit import PREPARING
from depgraph.system.arrays import distinct_rows
from depgraph.system.compiled import compiled_helper, compiled_within

if TYPE_CHECKING:
    from depgraph.schedule.policy import Rules
    from depgraph.schedule.simulate import Placed

_NO_LIMIT = np.int64(2**62)
_NONE = np.int64(0)
_ONE = np.int64(1)
_NOWHERE = np.int64(-1)
RANKS = np.int64(1 << 31)  # more than there are blocks

# Blocks that take equal room, and those of them that wait to be placed.
ROOM_CLASS = np.dtype(
    [
        ("first_rank", np.int64),  # where their heap of ranks begins
        ("n_ranks", np.int64),
        ("takes_room", np.bool_),  # copies and memsets do not
        ("cluster", np.int64),  # blocks that are placed together, in one cluster of processors
        ("least", np.int64),  # carve-out that an SM where others run must have
        ("chosen", np.int64),  # carve-out that an empty SM is set to
        ("first_sm", np.int64),  # of those that may hold the blocks; both ends included
        ("last_sm", np.int64),
        ("link", np.int64),  # that they need; -1 for none
        ("taken", np.int64),  # by each block of that
        ("seen", np.int64),  # how much of `Room.changed` the tree of the class has seen
    ],
    align=True,
)

SM = np.dtype(
    [
        ("residents", np.int64),  # blocks
        ("carve_out", np.int64),
        ("filling", np.int64),  # in which pass it last got a block when it was empty
        ("filled", np.int64),  # further blocks that it got then
        ("cluster", np.int64),  # the last one that got a block here, counted from 1
        # Blocks of computation that run: while there are any, the SM has the rate of that side.
        ("computing", np.int64),
        ("running", np.int64),  # blocks that run
        ("smsp", np.int64),  # the sub-partition (SMSP) that gets the first warp of its next block
        ("next_clock", np.int64),  # on which something happens next
    ],
    align=True,
)

# The blocks of an SM that run at one rate, as they keep the same of it busy.
CLOCK = np.dtype(
    [
        ("n_ends", np.int64),  # ends and triggers that are to come
        ("work", np.float64),  # done by a block that has run from the beginning
        ("since", np.float64),  # when it was so
        ("rate", np.float64),  # at which it goes on
    ],
    align=True,
)

# What the blocks of a clock keep busy.
COVER = np.dtype(
    [
        ("part", np.int64),  # of an SM
        ("first", np.int64),  # of its sub-partitions
        ("smsps", np.int64),  # how many of these from there on
    ],
    align=True,
)


class Room(NamedTuple):
    """What is free on the SMs, and for each class of blocks a tree of maxima to find room by."""

    classes: NDArray[np.void]
    sms: NDArray[np.void]
    need: NDArray[np.int64]  # of each class, of each resource
    free: NDArray[np.int64]  # on each SM, of each resource
    # How many blocks of each class fit on each SM; or one tree of what is free of one resource.
    tree: NDArray[np.int64]
    changed: NDArray[np.int32]  # SMs where room was taken or given back, as it happened
    links: NDArray[np.int64]  # what is free of each
    gpcs: NDArray[np.int64]  # the first SM of each cluster of processors, and the end


class Waiting(NamedTuple):
    """Blocks that may be placed: of each class a heap of ranks."""

    ranks: NDArray[np.int64]  # `RANKS` times as which their operations came, and their own
    block_of_rank: NDArray[np.int32]


def room_of(operations: NDArray[np.void], placed: Placed) -> Room:
    """Return SMs that are empty, and one more for blocks that take none; class the operations."""
    need, capacity, sms = placed.need, placed.capacity, placed.sms
    carve_outs, places = placed.carve_outs, placed.places
    nowhere = np.zeros(0, np.int64)
    columns = {"cluster": placed.cluster}
    if carve_outs is not None:
        columns |= {"least": carve_outs.least, "chosen": carve_outs.chosen}
    if places is not None:
        columns |= {"first_sm": places.first, "last_sm": places.last}
        columns |= {"link": places.link, "taken": places.taken}
        sms += 1
    first, room_class = distinct_rows(np.column_stack([need, *columns.values()]))
    operations["room_class"] = room_class
    blocks = np.bincount(operations["room_class"], operations["unplaced"], len(first))
    leaves = 1 << (sms - 1).bit_length()
    classes = table(
        ROOM_CLASS,
        len(first),
        first_rank=np.cumsum(blocks) - blocks,
        takes_room=need[first].any(axis=1),
        seen=-1 - leaves,  # so far behind that each tree is made anew
        **({"last_sm": sms, "link": -1} | {name: of[first] for name, of in columns.items()}),
    )
    is_one = len(capacity) == 1
    tree = np.full((1 if is_one else len(first), 2 * leaves), -1, np.int64)
    if is_one:
        tree[0, leaves : leaves + sms] = capacity[0]
        for at in range(leaves - 1, 0, -1):
            tree[0, at] = max(tree[0, 2 * at], tree[0, 2 * at + 1])
    return Room(
        classes=classes,
        sms=np.zeros(sms, SM),
        need=np.ascontiguousarray(need[first]),
        free=np.tile(capacity, (sms, 1)),
        tree=tree,
        changed=np.empty(0 if is_one else 2 * int(operations["unplaced"].sum()), np.int32),
        links=nowhere if places is None else places.capacity.copy(),
        gpcs=placed.gpcs,
    )


def waiting_of(rules: Rules, n_blocks: int) -> Waiting:
    """Return heaps that are empty."""
    order = np.arange(n_blocks) if rules.order is None else rules.order
    return Waiting(np.empty(n_blocks, np.int64), order.astype(np.int32))


@compiled_helper
def _hosts(run, room, sm, c):
    """Return how many blocks of class `c` fit into what is free on an SM."""
    own, free, need = room.classes[c], room.free[sm], room.need[c]
    if not own.first_sm <= sm <= own.last_sm:
        return _NONE
    most = _NO_LIMIT
    for r in range(len(need)):
        if free[r] < need[r]:
            return _NONE
        if need[r] > 0:
            most = min(most, free[r] // need[r])
    if not run.has_carve_outs:
        return most
    size = own.chosen
    if room.sms[sm].residents > 0:
        size = room.sms[sm].carve_out
        if size < own.least:
            return _NONE
    left = size - (run.shared_capacity - free[run.shared])
    wanted = need[run.shared]
    if left < wanted:
        return _NONE
    return min(most, left // wanted) if wanted > 0 else most


@compiled_helper
def _catch_up(run, room, c):
    """Bring the tree of class `c` up to what is free by now."""
    own, tree = room.classes[c], room.tree
    leaves = tree.shape[1] // 2
    if run.n_changed - own.seen > leaves:
        for sm in range(len(room.sms)):
            tree[c, leaves + sm] = _hosts(run, room, np.int64(sm), c)
        for at in range(leaves - 1, 0, -1):
            tree[c, at] = max(tree[c, 2 * at], tree[c, 2 * at + 1])
    else:
        for at in range(own.seen, run.n_changed):
            sm = np.int64(room.changed[at])
            set_key(tree, c, sm, _hosts(run, room, sm, c))
    own.seen = run.n_changed


@compiled_helper
def roomiest_gpc(run, room, c):
    """Return the GPC where the SMs of a cluster of class `c` have most room, -1 if none has any.

    Each block of a cluster takes an SM of its own; the one with least room counts.
    """
    roomiest, least = _NOWHERE, _ONE
    for gpc in range(len(room.gpcs) - 1):
        while _has_room(run, room, c, gpc, least):
            roomiest = np.int64(gpc)
            least += 1
    return roomiest


@compiled_helper
def _has_room(run, room, c, gpc, least):
    """Tell whether a GPC has SMs for a cluster of class `c`, with room for at least so many."""
    found = np.int64(0)
    for sm in range(room.gpcs[gpc], room.gpcs[gpc + 1]):
        found += _hosts(run, room, sm, c) >= least
        if found == room.classes[c].cluster:
            return True
    return False


@compiled_helper
def roomiest_of_gpc(run, room, c, gpc, cluster):
    """Return the lowest SM of a GPC that could host most blocks of class `c`; -1 if none could.

    Not one that has a block of this `cluster`, by number.
    """
    most, roomiest = np.int64(0), _NOWHERE
    for sm in range(room.gpcs[gpc], room.gpcs[gpc + 1]):
        hosts = _hosts(run, room, sm, c)
        if hosts > most and room.sms[sm].cluster != cluster:
            most, roomiest = hosts, np.int64(sm)
    return roomiest


@compiled_helper
def is_sparing(run, own):
    """Tell whether blocks of a class stand in clusters that leave SMs to others."""
    return 0 < run.sparing <= own.cluster


@compiled_helper
def roomiest_spared(run, room, c):
    """Return the lowest SM that could host most blocks of class `c` where such clusters find none.

    -1 if all of these SMs are full: GPCs that are smaller than a cluster.
    """
    most, roomiest = np.int64(0), _NOWHERE
    for gpc in range(len(room.gpcs) - 1):
        if room.gpcs[gpc + 1] - room.gpcs[gpc] < run.sparing:
            sm = roomiest_of_gpc(run, room, c, gpc, _NOWHERE)
            if sm >= 0 and _hosts(run, room, sm, c) > most:
                most, roomiest = _hosts(run, room, sm, c), sm
    return roomiest


@compiled_helper
def roomiest(tree, need, c):
    """Return the lowest SM that could host most blocks of class `c`; there must be one."""
    if need.shape[1] > 1:
        return first_with(tree, c, tree[c, 1])
    if need[c, 0] == 0:
        return np.int64(0)
    return first_with(tree, np.int64(0), tree[0, 1] // need[c, 0] * need[c, 0])


@compiled_helper
def queue_block(room, waiting, c, rank):
    """Let a block of class `c` wait for room."""
    own = room.classes[c]
    push_rank(waiting.ranks, own.first_rank, own.n_ranks, rank)
    own.n_ranks += 1


@compiled_within
def next_class(run, room, waiting):
    """Return the class of the block that is placed next; -1 if none can be.

    `run.spares` then tells whether that is only where large clusters find no place. Copies and
    memsets, which need no room, are held up by nothing that does.
    """
    best, first, copy = _NOWHERE, _NOWHERE, _NOWHERE
    copy_rank = _NO_LIMIT
    best_rank = _NO_LIMIT
    for c in range(len(room.classes)):
        own = room.classes[c]
        if own.n_ranks > 0 and not own.takes_room and waiting.ranks[own.first_rank] < copy_rank:
            copy, copy_rank = np.int64(c), np.int64(waiting.ranks[own.first_rank])
        if own.n_ranks == 0 or waiting.ranks[own.first_rank] >= best_rank:
            continue
        if run.has_places and not _link_has_room(room, own):
            continue
        fits = _fits(run, room, c)
        if run.has_places and not (fits and _is_next(run, room, waiting, c)):
            continue
        if fits or run.strict:
            best_rank = np.int64(waiting.ranks[own.first_rank])
            best, first = np.int64(c if fits else -1), np.int64(c)
    held = best < 0 <= first and not run.has_places
    if held and copy >= 0:
        return copy
    run.spares = held and is_sparing(run, room.classes[first])
    return _next_behind(run, room, waiting, best_rank) if run.spares else best


@compiled_helper
def _next_behind(run, room, waiting, rank):
    """Return the class of the block behind clusters of a rank that find no room, if it has some.

    They hold up all SMs but those where none of them can stand.
    """
    best, best_rank = _NOWHERE, _NO_LIMIT
    for c in range(len(room.classes)):
        own = room.classes[c]
        if own.n_ranks > 0 and rank < waiting.ranks[own.first_rank] < best_rank:
            best, best_rank = np.int64(c), np.int64(waiting.ranks[own.first_rank])
    if best < 0 or room.classes[best].cluster > 1 or roomiest_spared(run, room, best) < 0:
        return _NOWHERE
    return best


@compiled_helper
def _link_has_room(room, own):
    """Tell whether the link that blocks of a class need has room for one more."""
    return own.link < 0 or room.links[own.link] >= own.taken


@compiled_helper
def _is_next(run, room, waiting, c):
    """Tell whether no block that fits nowhere, and may use an SM of class `c`, holds it up."""
    own = room.classes[c]
    for k in range(len(room.classes)):
        other = room.classes[k]
        if (
            run.strict
            and other.n_ranks > 0
            and waiting.ranks[other.first_rank] < waiting.ranks[own.first_rank]
            and other.first_sm <= own.last_sm
            and own.first_sm <= other.last_sm
            and _link_has_room(room, other)
            and not _fits(run, room, k)
        ):
            return False
    return True


@compiled_helper
def _fits(run, room, c):
    """Tell whether some SM has room for a block of class `c`; its tree is then up to date.

    Of a class of clusters: whether some GPC has room for one.
    """
    own = room.classes[c]
    if own.cluster > 1:
        gpc, gpcs = 0, len(room.gpcs) - 1
        while gpc < gpcs and not _has_room(run, room, c, gpc, _ONE):
            gpc += 1
        return gpc < gpcs
    if room.need.shape[1] == 1:
        return room.tree[0, 1] >= room.need[c, 0]
    if own.seen < run.n_changed:
        _catch_up(run, room, c)
    return room.tree[c, 1] > 0


@compiled_within
def take(run, room, sm, c, times):
    """Take the room of a block of class `c`, once or -1 times, and note where it changed."""
    own = room.classes[c]
    n_resources = room.need.shape[1]
    for r in range(n_resources):
        room.free[sm, r] -= times * room.need[c, r]
    if n_resources == 1:
        set_key(room.tree, np.int64(0), sm, room.free[sm, 0])
    else:
        room.changed[run.n_changed] = sm
        run.n_changed += 1
    if own.link >= 0:
        room.links[own.link] -= times * own.taken
    if run.has_carve_outs and own.takes_room:
        if room.sms[sm].residents == 0:
            room.sms[sm].carve_out = own.chosen
        room.sms[sm].residents += times


# Computation, and communication.
SIDE = np.dtype(
    [
        ("beside", np.float64),  # how much longer it takes while the other one runs
        ("active", np.int64),  # blocks that run
    ]
)


class Sharing(NamedTuple):
    """When blocks end that share an SM."""

    sms: NDArray[np.void]
    clocks: NDArray[np.void]  # of each SM one for each of `covers`
    covers: NDArray[np.void]
    held: NDArray[np.float64]  # load of each SM, of each of its parts and sub-partitions
    sides: NDArray[np.void]
    ends: NDArray[np.float64]  # of each clock a heap: where it stands at each end and trigger
    codes: NDArray[np.int64]  # of these events
    next: NDArray[np.float64]  # a tree of minima: when the first of each SM is


def sharing_of(operations: NDArray[np.void], room: Room, placed: Placed) -> Sharing:
    """Return SMs on which nothing runs, and write into the operations what they take of one."""
    need, capacity, places, sharing = placed.need, placed.capacity, placed.places, placed.sharing
    sides, covers = np.zeros(2, SIDE), np.zeros(1, COVER)
    sms, most, parts, smsps = 1, 1, 1, 1
    if sharing is not None:
        sms, parts, smsps = len(room.sms), sharing.parts, sharing.smsps
        operations["warps"] = 1 if sharing.warps is None else sharing.warps
        operations["load"] = load = sharing.load
        if sharing.part is not None:
            operations["part"] = sharing.part
        covers = _covers_of(operations, smsps)
        fit = (capacity // np.maximum(need, 1)).min(axis=1)
        in_wave = np.clip(-(-operations["unplaced"] // placed.sms), 1, np.maximum(fit, 1))
        operations["in_wave"] = 1 + sharing.slowdown * sharing.load_of(in_wave)
        operations["preamble"] *= (load > 0) / operations["in_wave"]
        if sharing.side is not None:
            operations["side"] = sharing.side
            sides["beside"] = sharing.beside
        loaded = need[(load > 0) & need.any(axis=1)]
        # Each block takes something of one resource at least.
        scarce = (loaded > 0).all(axis=0)
        held = capacity[scarce] // loaded[:, scarce].min(axis=0, initial=1 << 62)
        most = int(held.min(initial=1 << 30)) if len(loaded) else 1
        if places is not None:
            most = max(most, places.at_once(need.sum(axis=1) == 0))
        most = min(most, int(operations["unplaced"].sum()))
        most *= 1 + int((operations["trigger"] < 1).any())
    else:
        operations["preamble"] = 0.0
    n_clocks = sms * len(covers)
    leaves = 1 << (sms - 1).bit_length()
    return Sharing(
        sms=room.sms,
        clocks=np.zeros(n_clocks, CLOCK),
        covers=covers,
        held=np.zeros((sms, parts, smsps), np.float64),
        sides=sides,
        ends=np.empty((n_clocks, most + 1), np.float64),
        codes=np.empty((n_clocks, most + 1), np.int64),
        next=np.full(2 * leaves, np.inf),
    )


def _covers_of(operations: NDArray[np.void], smsps: int) -> NDArray[np.void]:
    """Return what the blocks of each clock keep busy, and write each operation's first clock.

    Blocks of fewer warps than there are sub-partitions have a clock for each that they begin on.
    """
    width = np.minimum(operations["warps"], smsps)
    found, kind = distinct_rows(np.column_stack([operations["part"], width]))
    starts = np.where(width < smsps, smsps, 1)[found]
    first = np.cumsum(starts) - starts
    operations["clock"] = first[kind]
    operations["by_smsp"] = width < smsps
    return table(
        COVER,
        int(starts.sum()),
        part=np.repeat(operations["part"][found], starts),
        first=np.arange(starts.sum()) - np.repeat(first, starts),
        smsps=np.repeat(width[found], starts),
    )


@compiled_helper
def next_on_sms(run, sharing, operations, blocks):
    """Return the code of what happens next on an SM, off the SM: a block ends, or triggers."""
    sm = _ONE
    while sm < len(sharing.next) // 2:
        sm = 2 * sm if sharing.next[2 * sm] <= sharing.next[2 * sm + 1] else 2 * sm + 1
    sm -= len(sharing.next) // 2
    at = sm * len(sharing.covers) + sharing.sms[sm].next_clock
    own = sharing.clocks[at]
    _advance(run, sharing, sm)
    _, code = pop_time(sharing.ends[at], sharing.codes[at], own.n_ends)
    own.n_ends -= 1
    kind, block = event_of(code)
    if kind != TRIGGERED:
        operation = operations[blocks.operation[block]]
        _hold(sharing, operation, sm, np.int64(blocks.smsp[block]), -operation.load)
        sharing.sms[sm].running -= 1
        if sharing.sms[sm].running == 0:
            sharing.held[sm] = 0.0  # no rounding is carried on
        if run.has_sides:
            _count(run, sharing, operation.side, sm, -_ONE)
    _renew(run, sharing, sm)
    return code


@compiled_helper
def _hold(sharing, operation, sm, first, load):
    """Add a load to an SM, as the warps of a block spread it that begins on a sub-partition."""
    smsps = sharing.held.shape[2]
    if smsps == 1:
        sharing.held[sm, operation.part, 0] += load
        return
    each, more = operation.warps // smsps, operation.warps % smsps
    for smsp in range(smsps):
        warps = each + ((smsp - first) % smsps < more)
        sharing.held[sm, operation.part, smsp] += load * smsps * warps / operation.warps


@compiled_helper
def _felt(run, sharing, sm, cover):
    """Return the load of the busiest sub-partition that blocks cover."""
    most, smsps = 0.0, sharing.held.shape[2]
    for i in range(cover.smsps):
        smsp = cover.first + i
        smsp -= smsps * (smsp >= smsps)
        held = sharing.held[sm, cover.part, smsp]
        if sharing.held.shape[1] > 1:
            held += run.across * sharing.held[sm, 1 - cover.part, smsp]
        most = max(most, held)
    return most


@compiled_helper
def _slowed(run, sharing, sm, clock):
    """Return how many times as long a running block of a clock takes by now.

    Its slowest warps tell: those on the sub-partition with most load.
    """
    most = sharing.held[sm, 0, 0]
    if sharing.held.shape[1] > 1 or sharing.held.shape[2] > 1:
        most = _felt(run, sharing, sm, sharing.covers[clock])
    times = 1.0 + run.slowdown * most
    if run.has_sides:
        side = 0 if sharing.sms[sm].computing > 0 else 1
        if sharing.sides[1 - side].active > 0:
            times *= 1.0 + sharing.sides[side].beside
    return times


@compiled_helper
def _count(run, sharing, side, sm, change):
    """Count a running block of a side; its first and its last change the rates of all SMs."""
    turns = sharing.sides[side].active == max(0, -change)
    if turns:
        for other in range(len(sharing.sms)):
            if sharing.sms[other].running > 0:
                _advance(run, sharing, other)
    sharing.sides[side].active += change
    if side == 0:
        sharing.sms[sm].computing += change
    if turns:
        for other in range(len(sharing.sms)):
            if sharing.sms[other].running > 0:
                _renew(run, sharing, other)


@compiled_helper
def _advance(run, sharing, sm):
    """Let time pass on an SM."""
    n = len(sharing.covers)
    for clock in range(n):
        own = sharing.clocks[sm * n + clock]
        if own.n_ends > 0:
            own.work += (run.now - own.since) * own.rate
        own.since = run.now


@compiled_helper
def _renew(run, sharing, sm):
    """Say when the first block of an SM ends if nothing changes there."""
    n = len(sharing.covers)
    first = np.inf
    for clock in range(n):
        own = sharing.clocks[sm * n + clock]
        if own.n_ends > 0:
            slowed = _slowed(run, sharing, sm, clock)
            own.rate = 1.0 / slowed
            time = own.since + max(0.0, sharing.ends[sm * n + clock, 0] - own.work) * slowed
            if time < first:
                first = time
                sharing.sms[sm].next_clock = clock
    at = len(sharing.next) // 2 + sm
    sharing.next[at] = first
    at >>= 1
    while at > 0:
        sharing.next[at] = min(sharing.next[2 * at], sharing.next[2 * at + 1])
        at >>= 1


@compiled_helper
def prepare_on_shared_sm(run, sharing, operations, blocks, block):
    """Let a block that waits in its place do what it can before, beside others."""
    operation = operations[blocks.operation[block]]
    sm, clock = _join(run, sharing, operation, blocks, block)
    blocks.state[block] = PREPARING
    blocks.done[block] = min(operation.preamble, blocks.duration[block])
    _add_end(sharing, sm, clock, blocks.done[block], event_code(PREPARED, block))
    _renew(run, sharing, sm)


@compiled_helper
def start_on_shared_sm(run, sharing, operations, blocks, block):
    """Let a block run on its SM, beside others; what it did before it waited counts as done."""
    operation = operations[blocks.operation[block]]
    sm, clock = _join(run, sharing, operation, blocks, block)
    done = blocks.done[block]
    if operation.preamble == 0:
        # As much as it could do before it had to wait, and no more than it had time for.
        ahead = (run.now - blocks.earliest[block]) / operation.in_wave
        done = min(ahead, (run.now - blocks.start[block]) / _slowed(run, sharing, sm, clock))
    left = max(0.0, blocks.duration[block] - done)
    _add_end(sharing, sm, clock, left, event_code(ENDED, block))
    if operation.trigger < 1:
        left = max(0.0, left - (1 - operation.trigger) * blocks.duration[block])
        _add_end(sharing, sm, clock, left, event_code(TRIGGERED, block))
    _renew(run, sharing, sm)


@compiled_helper
def _join(run, sharing, operation, blocks, block):
    """Add a block that begins to run to the load of its SM; return this and the block's clock."""
    sm, smsp = np.int64(blocks.sm[block]), np.int64(blocks.smsp[block])
    _advance(run, sharing, sm)
    if run.has_sides:
        _count(run, sharing, operation.side, sm, _ONE)
    _hold(sharing, operation, sm, smsp, operation.load)
    sharing.sms[sm].running += 1
    return sm, operation.clock + operation.by_smsp * smsp


@compiled_helper
def _add_end(sharing, sm, clock, left, code):
    """Have a running block end, or trigger, when so much of its work is done."""
    at = sm * len(sharing.covers) + clock
    own = sharing.clocks[at]
    push_time(sharing.ends[at], sharing.codes[at], own.n_ends, own.work + left, code)
    own.n_ends += 1


@compiled_helper
def deal_warps(sharing, operation, blocks, block):
    """Give the warps of a block that is placed to the sub-partitions of its SM, in turn."""
    smsps = sharing.held.shape[2]
    if smsps > 1:
        own = sharing.sms[blocks.sm[block]]
        blocks.smsp[block] = own.smsp
        more = operation.warps % smsps
        own.smsp = (own.smsp + (more if more > 0 else 1)) % smsps
