"""What the event loop of `depgraph.schedule.simulate_jit` knows and changes: arrays, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GraphLists(NamedTuple):
    """The block graph as a schedule walks it: from a block over its sets to those that wait.

    Attributes
    ----------
    first_block, operation_of_block, set_offsets, set_blocks, target_offsets, targets
        Of the block graph.
    block_set_offsets, block_sets : int64[n_blocks + 1], int32[...]
        For each block the sets it is in.
    set_join_offsets, set_joins : int64[n_sets + 1], int32[...]
        For each set the joins it is a source of.
    """

    first_block: NDArray[np.int64]
    operation_of_block: NDArray[np.int32]
    set_offsets: NDArray[np.int64]
    set_blocks: NDArray[np.int32]
    block_set_offsets: NDArray[np.int64]
    block_sets: NDArray[np.int32]
    set_join_offsets: NDArray[np.int64]
    set_joins: NDArray[np.int32]
    target_offsets: NDArray[np.int64]
    targets: NDArray[np.int32]


class Joins(NamedTuple):
    """What joins do to the blocks that wait for them, and what they still wait for.

    Attributes
    ----------
    gate : uint8[n_joins]
        `IGNORED`, `PLACES` (targets are placed once all sources have ended) or `HOLDS` (placed
        targets run on once all sources have ended).
    need : float64[n_joins] or float64[0]
        Share of a target's work, 0 to 1, that it can do before it needs the join.
    member_need : float64[n_set_blocks] or float64[0]
        The same for each member of a target set; where both are given the larger counts.
    sources_left : int64[n_joins]
        Source sets with a block that has not ended.
    members_left : int64[n_sets]
        Blocks that have not ended.
    places_left, holds_left : int32[n_sets]
        Joins of either sort that the set waits for.
    """

    gate: NDArray[np.uint8]
    need: NDArray[np.float64]
    member_need: NDArray[np.float64]
    sources_left: NDArray[np.int64]
    members_left: NDArray[np.int64]
    places_left: NDArray[np.int32]
    holds_left: NDArray[np.int32]


class GateLists(NamedTuple):
    """Gates between operations, by the source.

    Attributes
    ----------
    offsets : int64[n_operations + 1]
    target : int32[n_gates]
    event : uint8[n_gates]
        `ALL_PLACED`, `ALL_TRIGGERED` or `ALL_ENDED`: what has to happen to the source's blocks.
    holds : bool[n_gates]
        Whether the blocks of the target are placed and wait, instead of not being placed.
    lead : float64[n_gates]
        Time that a block can work for before it needs the event; for gates that hold.
    """

    offsets: NDArray[np.int64]
    target: NDArray[np.int32]
    event: NDArray[np.uint8]
    holds: NDArray[np.bool_]
    lead: NDArray[np.float64]


class Operations(NamedTuple):
    """What operations wait for, and how far they are.

    Attributes
    ----------
    waits_for_all : bool[n_operations]
        Whether the operation opens only when all before it have ended.
    launch : float64[n_operations]
        Time between the last gate's opening and the operation's.
    enter : float64[n_operations]
        Time to enter, one operation after another.
    gates_left, holds_left : int64[n_operations]
        Gates that keep the operation from opening, entering among them, or hold its blocks.
    trigger : float64[n_operations]
        Share of its work after which a block triggers; 1 where that is its end.
    turn : int64[n_operations]
        The operation opens in this of the turns only.
    turns : float64[2]
        How many turns there are, and how long each is.
    unplaced, untriggered, running : int64[n_operations]
        Blocks that are not placed, have not triggered or ended; `running` is -1 once that was seen.
    is_open : bool[n_operations]
        Whether its last gate has opened.
    """

    waits_for_all: NDArray[np.bool_]
    launch: NDArray[np.float64]
    enter: NDArray[np.float64]
    gates_left: NDArray[np.int64]
    holds_left: NDArray[np.int64]
    trigger: NDArray[np.float64]
    turn: NDArray[np.int64]
    turns: NDArray[np.float64]
    unplaced: NDArray[np.int64]
    untriggered: NDArray[np.int64]
    running: NDArray[np.int64]
    is_open: NDArray[np.bool_]


class Window(NamedTuple):
    """Which operations have entered.

    Attributes
    ----------
    size : int
        Operations that may have entered and not left; 0 for any number.
    in_order : bool
        Whether operations leave the window in program order.
    last : int
        Operations that enter: all but child kernels, which come after them.
    order : int64[last]
        These operations, as they enter.
    entered, entering, oldest, ended : int64[1]
        Operations that have entered or are entering; whether one is entering; the first that has
        not ended; how many have.
    opening, n_opening : int64[n_operations], int64[1]
        Operations whose last gate has opened, still to be looked at: the last comes first.
    """

    size: int
    in_order: bool
    last: int
    order: NDArray[np.int64]
    entered: NDArray[np.int64]
    entering: NDArray[np.int64]
    oldest: NDArray[np.int64]
    ended: NDArray[np.int64]
    opening: NDArray[np.int64]
    n_opening: NDArray[np.int64]


class Blocks(NamedTuple):
    """Where and when blocks run.

    Attributes
    ----------
    duration, alone : float64[n_blocks]
        What a block takes at a rate of 1, and alone on its SM.
    start, end : float64[n_blocks]
        End is -1 for a block that has not run.
    earliest : float64[n_blocks]
        When a block would have to run from without a stop, by what it waited for in its place.
    sm : int32[n_blocks]
    state : uint8[n_blocks]
    places_left, holds_left : int32[n_blocks]
        Sets with a join that keeps the block from being placed, that holds it.
    ready, n_ready : int32[n_blocks], int64[1]
        Blocks that nothing keeps from being placed any more, still to be queued.
    released, n_released : int32[n_blocks], int64[1]
        Placed blocks that nothing holds any more, still to be run.
    """

    duration: NDArray[np.float64]
    alone: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    earliest: NDArray[np.float64]
    sm: NDArray[np.int32]
    state: NDArray[np.uint8]
    places_left: NDArray[np.int32]
    holds_left: NDArray[np.int32]
    ready: NDArray[np.int32]
    n_ready: NDArray[np.int64]
    released: NDArray[np.int32]
    n_released: NDArray[np.int64]


class Waiting(NamedTuple):
    """Blocks that may be placed, a heap of ranks for each class.

    Attributes
    ----------
    block_of_rank, rank_of_block : int32[n_blocks]
        Priorities: lower ranks are placed first.
    strict : bool
        Whether a block that fits nowhere holds up those of higher rank.
    offsets, ranks, n : int64[n_classes + 1], int32[n_blocks], int64[n_classes]
    """

    block_of_rank: NDArray[np.int32]
    rank_of_block: NDArray[np.int32]
    strict: bool
    offsets: NDArray[np.int64]
    ranks: NDArray[np.int32]
    n: NDArray[np.int64]


class Stages(NamedTuple):
    """Stages of blocks: those too far ahead are kept from being placed.

    Attributes
    ----------
    ahead : int
        A block is placed only if its stage is less than this after the first stage with a block
        that has not ended; 0 for no such rule.
    of_block : int32[n_blocks] or int32[0]
    left : int64[n_stages + 1]
        Blocks of each that have not ended.
    first : int64[1]
        The first stage with a block that has not ended.
    kept, next_kept : int32[n_stages + 1], int32[n_blocks] or int32[0]
        For each stage a linked list of the blocks that are kept; -1 ends it.
    """

    ahead: int
    of_block: NDArray[np.int32]
    left: NDArray[np.int64]
    first: NDArray[np.int64]
    kept: NDArray[np.int32]
    next_kept: NDArray[np.int32]


class CarveOutLists(NamedTuple):
    """How the SMs divide what is both L1 cache and shared memory.

    Attributes
    ----------
    shared : int
        The resource that is shared memory.
    capacity : int
        Of an SM at its largest carve-out.
    least, chosen : int64[n_classes] or int64[0]
        What an SM where others run must have for a block of the class, and what an empty one is
        set to. Empty where carve-outs do not count.
    of_sm, residents : int64[n_sms]
        The carve-out of each SM, and its blocks.
    """

    shared: int
    capacity: int
    least: NDArray[np.int64]
    chosen: NDArray[np.int64]
    of_sm: NDArray[np.int64]
    residents: NDArray[np.int64]


class Clusters(NamedTuple):
    """Blocks that are placed together, on SMs of one cluster of processors (GPC).

    Attributes
    ----------
    size : int64[n_classes]
        Blocks that are placed together.
    offsets : int64[n_gpcs + 1]
        The SMs of GPC g are those from ``offsets[g]`` to before ``offsets[g + 1]``.
    """

    size: NDArray[np.int64]
    offsets: NDArray[np.int64]


class PlaceLists(NamedTuple):
    """Which SMs may hold blocks of each class, and the links that they need.

    Attributes
    ----------
    first, last : int64[n_classes] or int64[0]
        Both ends included. Empty where any SM may hold any block.
    link, taken : int64[n_classes] or int64[0]
        -1 for none, and what a block takes of it.
    free : int64[n_links]
        What is left of each.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    link: NDArray[np.int64]
    taken: NDArray[np.int64]
    free: NDArray[np.int64]


class Room(NamedTuple):
    """What is free on the SMs, and for each class of blocks a tree of maxima to find room by.

    Attributes
    ----------
    class_of_operation : int32[n_operations]
        Blocks of operations of one class take equal room.
    need : int64[n_classes, n_resources]
    free : int64[n_sms, n_resources]
    tree : int64[n_trees, 2 * leaves]
        With several resources how many blocks of a class fit on an SM. With one resource a single
        tree, of what is free, serves all classes.
    changed, n_changed : int32[2 * n_blocks] or int32[0], int64[1]
        On which SMs room was taken or given back.
    seen : int64[n_classes]
        How much of `changed` the tree of each class has seen.
    """

    class_of_operation: NDArray[np.int32]
    need: NDArray[np.int64]
    free: NDArray[np.int64]
    tree: NDArray[np.int64]
    changed: NDArray[np.int32]
    n_changed: NDArray[np.int64]
    seen: NDArray[np.int64]
    carve_out: CarveOutLists
    clusters: Clusters
    places: PlaceLists


class Events(NamedTuple):
    """What happens when: a heap.

    Attributes
    ----------
    times, items, n : float64[...], int64[...], int64[1]
        An item is a block that ends, or n_blocks + k: operation k opens, or n_blocks +
        n_operations + k: operation k has entered, or, after those, what launches wait for. Below 0:
        block -1 - item triggers.
    """

    times: NDArray[np.float64]
    items: NDArray[np.int64]
    n: NDArray[np.int64]


class Sharing(NamedTuple):
    """How blocks that run on one SM slow each other, and where each SM stands.

    All blocks of an SM run at one rate. Its clock counts the work that a block has done which
    has run from the beginning: a block ends when the clock reaches where it stood, plus its work.

    Attributes
    ----------
    slowdown : float
        The rate is 1 / (1 + slowdown * load).
    load : float64[n_operations] or float64[0]
        Of a running block. Empty where blocks do not slow each other.
    held, clock, since : float64[n_sms]
        Load of the running blocks, the clock, and the time at which both were so.
    ends, items, n : float64[n_sms, most], int64[n_sms, most], int64[n_sms]
        Of each SM a heap: where the clock stands as each running block ends, or triggers.
    next : float64[2 * leaves]
        A tree of minima: when each SM's first block ends.
    side : int64[n_operations] or int64[0]
        0 for computation, 1 for communication. Empty where neither slows the other.
    beside : float64[2]
        How much longer each side takes while the other one runs.
    active : int64[2]
        Blocks of each side that run.
    computing : int64[n_sms]
        Running blocks of computation: an SM that holds some runs at the rate of their side.
    """

    slowdown: float
    load: NDArray[np.float64]
    held: NDArray[np.float64]
    clock: NDArray[np.float64]
    since: NDArray[np.float64]
    ends: NDArray[np.float64]
    items: NDArray[np.int64]
    n: NDArray[np.int64]
    next: NDArray[np.float64]
    side: NDArray[np.int64]
    beside: NDArray[np.float64]
    active: NDArray[np.int64]
    computing: NDArray[np.int64]


class ChildLoad(NamedTuple):
    """What the blocks of child kernels do, as SPAWN counts it.

    Attributes
    ----------
    window : float
        Time over which running blocks are averaged.
    times, running, area : float64[n_changes]
        When the number of running blocks changed, to what, and its integral until then.
    n, old : int64[1]
        Changes so far, and the last before the window.
    pending, ended : int64[1]
        Blocks that are queued or running, that have ended.
    busy : float64[1]
        Time of those that have ended, summed.
    """

    window: float
    times: NDArray[np.float64]
    running: NDArray[np.float64]
    area: NDArray[np.float64]
    n: NDArray[np.int64]
    old: NDArray[np.int64]
    pending: NDArray[np.int64]
    ended: NDArray[np.int64]
    busy: NDArray[np.float64]


class Launches(NamedTuple):
    """Launches from the device, the warps that make them, and where child kernels wait.

    Child kernels are operations after those of the program, in the order of the launches.

    Attributes
    ----------
    first : int
        The first child kernel.
    block, instruction : int64[n]
        Who launches.
    lanes, inline : float64[n]
        Lanes that launch; time of the parent if it does the work itself.
    mode, join : uint8[n]
        `INLINE`, `LAUNCH` or `DECIDE`; nobody waits, the block does, or the child for the kernel.
    stream : int32[n]
        Launches into one stream run in order.
    launched, issued : bool[n], float64[n]
        Whether a child was launched, and when the launch was through.
    offsets : int64[n_instructions + 1]
        First launch of each instruction.
    at : float64[n_instructions]
        Own work of the block that comes before.
    warp_offsets, warps : int64[n_program_blocks + 1] or int64[0], int64[n_warps + 1]
        First warp of each block that launches, first instruction of each warp. Empty where nothing
        is launched.
    warp : int64[n_instructions]
        Warp of each instruction.
    awaited : int32[n_instructions]
        Children that the warp waits for.
    warps_left, finish : int64[n_program_blocks], float64[n_program_blocks]
        Warps that are not through with their launches; when the last of the others ends.
    children : int64[n_program_operations]
        Child kernels that have not ended.
    of_operation : int64[n_program_operations + 1] or int64[0]
        The first launch of each operation's blocks.
    head, last : int64[n_queues]
        Launches in the hardware queues, linked by `next`; -1 for none.
    next : int64[n]
    n_ranks : int64[1]
        Ranks that are given away: children get theirs as they come.
    busy : bool[n_streams]
        Whether a child of the stream runs.
    stall, lane_stall : float
        Time of a launch, and more for each lane.
    dispatch, free : float, float64[1]
        Time for each child, one after another, before it waits in its queue; when the last is done.
    finish_time, over : float, float64[1]
        Time until a kernel knows that a child has ended; when the last child was known to.
    load : ChildLoad
    """

    first: int
    block: NDArray[np.int64]
    instruction: NDArray[np.int64]
    lanes: NDArray[np.float64]
    inline: NDArray[np.float64]
    mode: NDArray[np.uint8]
    join: NDArray[np.uint8]
    stream: NDArray[np.int32]
    launched: NDArray[np.bool_]
    issued: NDArray[np.float64]
    offsets: NDArray[np.int64]
    at: NDArray[np.float64]
    warp_offsets: NDArray[np.int64]
    warps: NDArray[np.int64]
    warp: NDArray[np.int64]
    awaited: NDArray[np.int32]
    warps_left: NDArray[np.int64]
    finish: NDArray[np.float64]
    children: NDArray[np.int64]
    of_operation: NDArray[np.int64]
    head: NDArray[np.int64]
    last: NDArray[np.int64]
    next: NDArray[np.int64]
    n_ranks: NDArray[np.int64]
    busy: NDArray[np.bool_]
    stall: float
    lane_stall: float
    dispatch: float
    free: NDArray[np.float64]
    finish_time: float
    over: NDArray[np.float64]
    load: ChildLoad


class Running(NamedTuple):
    """What happens when: at times that are known, and as blocks on SMs come to their ends."""

    events: Events
    sharing: Sharing
    launches: Launches
