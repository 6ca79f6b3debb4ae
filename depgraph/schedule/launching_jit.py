"""Launches from the device, the warps that make them, and where child kernels wait.

Child kernels are operations after those of the program, in the order of the launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.program import JOIN_BLOCK, JOIN_KERNEL
from depgraph.schedule.events_jit import ENDED, KNOWN, LAUNCHED, QUEUED, REACHED, add_event, table
from depgraph.schedule.policy import DECIDE, INLINE
from depgraph.schedule.waits_jit import pass_gate
from depgraph.system.arrays import distinct_rows
from depgraph.system.compiled import compiled_helper

if TYPE_CHECKING:
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.schedule.policy import LaunchRules

_NOBODY = np.int64(-1)

# What launches cost, and what all of them together have come to.
DEVICE = np.dtype(
    [
        ("stall", np.float64),  # time of a launch
        ("lane_stall", np.float64),  # and more for each lane
        ("dispatch", np.float64),  # time for each child, one after another, before it is queued
        ("free", np.float64),  # when the last child is dispatched
        ("finish", np.float64),  # time until a kernel knows that a child has ended
        ("over", np.float64),  # when the last child was known to
        # What the blocks of child kernels do, as SPAWN counts it
        ("window", np.float64),  # time over which running blocks are averaged
        ("n_changes", np.int64),
        ("old", np.int64),  # the last change before the window
        ("pending", np.int64),  # blocks that are queued or running
        ("ended", np.int64),  # blocks
        ("busy", np.float64),  # time of those, summed
    ],
    align=True,
)

LAUNCH = np.dtype(
    [
        ("block", np.int64),  # that launches
        ("instruction", np.int64),
        ("lanes", np.float64),
        ("inline", np.float64),  # time of the parent if it does the work itself
        ("mode", np.int64),  # `INLINE`, `LAUNCH` or `DECIDE`
        ("join", np.int64),  # who waits: nobody, the block, or the child for the kernel
        ("stream", np.int64),  # launches into one stream run in order
        ("launched", np.bool_),
        ("issued", np.float64),  # when the launch was through
        ("next", np.int64),  # in its hardware queue
    ],
    align=True,
)

INSTRUCTION = np.dtype(
    [
        ("first", np.int64),  # launch
        ("end", np.int64),
        ("at", np.float64),  # own work of the block that comes before
        ("last", np.int64),  # instruction of the warp
        ("awaited", np.int64),  # children that the warp waits for
    ],
    align=True,
)

# A block of the program that may launch.
PARENT = np.dtype(
    [
        ("first_warp", np.int64),
        ("warps_left", np.int64),  # that are not through with their launches
        ("finish", np.float64),  # when the last of the others ends
    ],
    align=True,
)

QUEUE = np.dtype([("head", np.int64), ("last", np.int64)])  # launches; -1 for none

# The running blocks of child kernels from one moment on.
CHANGE = np.dtype(
    [
        ("time", np.float64),
        ("running", np.float64),
        ("area", np.float64),  # integral of them until then
    ]
)


class Launches(NamedTuple):
    """Launches from the device."""

    devices: NDArray[np.void]  # one
    launches: NDArray[np.void]
    instructions: NDArray[np.void]
    warps: NDArray[np.int64]  # the first instruction of each
    parents: NDArray[np.void]
    queues: NDArray[np.void]
    busy: NDArray[np.bool_]  # whether a child of each stream runs
    changes: NDArray[np.void]


def launches_of(
    rules: LaunchRules,
    program: BlockGraph,
    durations: NDArray[np.float64],
    operations: NDArray[np.void],
) -> Launches:
    """Return the launches before the first event, and write into the operations which are theirs.

    `program` is without child kernels.
    """
    given = rules.launches
    of_operation = np.searchsorted(given.block, program.first_block)
    operations["first_launch"][: program.n_operations] = of_operation[:-1]
    operations["end_launch"][: program.n_operations] = of_operation[1:]
    n = len(given)
    leaders = np.flatnonzero(given.begins_instruction)
    warp = (np.cumsum(given.begins_warp) - 1)[leaders]
    warps_of_block = np.bincount(given.block[given.begins_warp], minlength=program.n_blocks)
    alone = np.where(given.stream < 0, -1 - np.arange(n), given.stream)
    _, stream = distinct_rows(np.stack([given.block, alone], 1))
    instruction = np.cumsum(given.begins_instruction) - 1
    return Launches(
        devices=table(
            DEVICE,
            1,
            stall=rules.stall,
            lane_stall=rules.lane_stall,
            dispatch=rules.dispatch,
            finish=rules.finish,
            window=rules.window,
            n_changes=1,
        ),
        launches=table(
            LAUNCH,
            n,
            block=given.block,
            instruction=instruction,
            lanes=given.lanes,
            inline=given.inline,
            mode=rules.mode,
            join=given.join,
            stream=stream.reshape(-1),
            issued=np.nan,
            next=-1,
        ),
        instructions=table(
            INSTRUCTION,
            len(leaders),
            first=leaders,
            end=np.append(leaders[1:], n)[: len(leaders)],
            at=given.at[leaders] * durations[given.block[leaders]],
            last=np.searchsorted(warp, warp, "right") - 1,
        ),
        warps=instruction[given.begins_warp],
        parents=table(
            PARENT,
            len(warps_of_block),
            first_warp=np.cumsum(warps_of_block) - warps_of_block,
            warps_left=warps_of_block,
        ),
        queues=table(QUEUE, rules.queues, head=-1, last=-1),
        busy=np.zeros(n, np.bool_),
        changes=np.zeros(2 * int(given.child_grid.sum()) + 1, CHANGE),
    )


@compiled_helper
def launch_event(run, launches, operations, blocks, waiting, events, kind, number):
    """Let come what launches wait for; return the operation of the program that ends, else -1."""
    if kind == REACHED:
        _decide(run, launches, operations, blocks, events, number)
    elif kind == LAUNCHED:
        _end_launches(run, launches, operations, blocks, waiting, events, number)
    elif kind == QUEUED:
        _enqueue(run, launches, operations, blocks, waiting, number)
    elif kind == KNOWN:
        return _forget_child(run, launches, operations, blocks, number)
    return _NOBODY


@compiled_helper
def begin_launching(run, launches, blocks, events, block):
    """Let the warps of a block run to their first launches; tell whether it has any.

    A block of a child kernel, which has none, is counted.
    """
    if blocks.operation[block] >= run.first_child:
        _count_children(run, launches, 1.0)
        return False
    begin = max(blocks.start[block], blocks.earliest[block])
    parent = launches.parents[block]
    for warp in range(parent.first_warp, parent.first_warp + parent.warps_left):
        i = launches.warps[warp]
        add_event(run, events, begin + launches.instructions[i].at, REACHED, i)
    return parent.warps_left > 0


@compiled_helper
def end_launching(run, launches, operations, blocks, waiting, events, block):
    """Count a block as ended that may have launched, or is of a child.

    Return the operation of the program that ends with it, else -1.
    """
    k = np.int64(blocks.operation[block])
    if k >= run.first_child:
        return _end_child_block(run, launches, operations, blocks, waiting, events, block)
    if operations[k].running > 0:
        return _NOBODY
    for child in range(operations[k].first_launch, operations[k].end_launch):
        launch = launches.launches[child]
        if launch.launched and launch.join == JOIN_KERNEL:
            _send(run, launches, operations, blocks, waiting, events, np.int64(child))
    return k if operations[k].children == 0 else _NOBODY


@compiled_helper
def _decide(run, launches, operations, blocks, events, i):
    """Decide on the launches of an instruction, and begin those that are made."""
    instruction, device = launches.instructions[i], launches.devices[0]
    lanes = 0.0
    for child in range(instruction.first, instruction.end):
        launch = launches.launches[child]
        grid = operations[child + run.first_child].unplaced
        if launch.mode == INLINE or (
            launch.mode == DECIDE and not _pays_off(run, launches, child, grid)
        ):
            continue
        launch.launched = True
        device.pending += grid
        operations[blocks.operation[launch.block]].children += 1
        lanes += launch.lanes
        if launch.join == JOIN_BLOCK:
            instruction.awaited += 1
    if lanes == 0:
        _go_on(run, launches, blocks, events, i)
        return
    through = run.now + device.stall + device.lane_stall * lanes
    add_event(run, events, through, LAUNCHED, i)


@compiled_helper
def _end_launches(run, launches, operations, blocks, waiting, events, i):
    """Send the children of an instruction on their way: its launches are through."""
    instruction = launches.instructions[i]
    for child in range(instruction.first, instruction.end):
        launch = launches.launches[child]
        if launch.launched:
            launch.issued = run.now
            if launch.join != JOIN_KERNEL:
                _send(run, launches, operations, blocks, waiting, events, np.int64(child))
    if instruction.awaited == 0:
        _go_on(run, launches, blocks, events, i)


@compiled_helper
def _send(run, launches, operations, blocks, waiting, events, child):
    """Send a child to its queue; all children go one after another."""
    device = launches.devices[0]
    if device.dispatch == 0:
        _enqueue(run, launches, operations, blocks, waiting, child)
        return
    device.free = max(run.now, device.free) + device.dispatch
    add_event(run, events, device.free, QUEUED, child)


@compiled_helper
def _go_on(run, launches, blocks, events, i):
    """Let a warp go on, to its next instruction that launches or to its end."""
    instruction = launches.instructions[i]
    # The lanes that launch nothing do the work side by side.
    longest = 0.0
    for child in range(instruction.first, instruction.end):
        if not launches.launches[child].launched:
            longest = max(longest, launches.launches[child].inline)
    time = run.now + longest
    if i < instruction.last:
        time += launches.instructions[i + 1].at - instruction.at
        add_event(run, events, time, REACHED, i + 1)
        return
    block = launches.launches[instruction.first].block
    parent = launches.parents[block]
    time += blocks.duration[block] - instruction.at
    parent.finish = max(parent.finish, time)
    parent.warps_left -= 1
    if parent.warps_left == 0:
        add_event(run, events, parent.finish, ENDED, block)


@compiled_helper
def _pays_off(run, launches, child, grid):
    """Tell whether a child would end before its parent had done the work, as SPAWN reckons."""
    device, changes, launch = launches.devices[0], launches.changes, launches.launches[child]
    time = device.stall + device.lane_stall * launch.lanes
    if device.ended > 0:
        low = max(0.0, run.now - device.window)
        while device.old + 1 < device.n_changes and changes[device.old + 1].time <= low:
            device.old += 1
        old, new = changes[device.old], changes[device.n_changes - 1]
        area = new.area + new.running * (run.now - new.time)
        area -= old.area + old.running * (low - old.time)
        # Where none has run of late, no throughput is known.
        if area > 0:
            mean_time = device.busy / device.ended
            time += (device.pending + grid) * mean_time * (run.now - low) / area
    return time < launch.inline


@compiled_helper
def _count_children(run, launches, more):
    """Note that more or fewer blocks of child kernels run."""
    device = launches.devices[0]
    old, new = launches.changes[device.n_changes - 1], launches.changes[device.n_changes]
    new.time = run.now
    new.area = old.area + old.running * (run.now - old.time)
    new.running = old.running + more
    device.n_changes += 1


@compiled_helper
def _enqueue(run, launches, operations, blocks, waiting, child):
    """Put a child kernel at the end of its hardware queue."""
    launch = launches.launches[child]
    queue = launches.queues[launch.stream % len(launches.queues)]
    launch.next = -1
    if queue.head >= 0:
        launches.launches[queue.last].next = child
        queue.last = child
        return
    queue.head = child
    queue.last = child
    _let_go(run, launches, operations, blocks, waiting, launch.stream)


@compiled_helper
def leave_queue(run, launches, operations, blocks, waiting, k):
    """Take a child kernel, all of whose blocks are placed, off its hardware queue."""
    launch = launches.launches[k - run.first_child]
    launches.queues[launch.stream % len(launches.queues)].head = launch.next
    _let_go(run, launches, operations, blocks, waiting, launch.stream)


@compiled_helper
def _let_go(run, launches, operations, blocks, waiting, stream):
    """Open the child at the head of a stream's queue, unless one of its own stream runs."""
    child = launches.queues[stream % len(launches.queues)].head
    if child < 0 or launches.busy[launches.launches[child].stream]:
        return
    launches.busy[launches.launches[child].stream] = True
    k = child + run.first_child
    # First come, first placed.
    for block in range(operations[k].first_block, operations[k].end_block):
        waiting.block_of_rank[run.n_ranks] = block
        blocks.rank[block] = run.n_ranks
        run.n_ranks += 1
    pass_gate(run, operations, k)


@compiled_helper
def _end_child_block(run, launches, operations, blocks, waiting, events, block):
    """Count a block of a child as ended; return the operation that ends with it, else -1."""
    k = np.int64(blocks.operation[block])
    child, device = k - run.first_child, launches.devices[0]
    launch = launches.launches[child]
    _count_children(run, launches, -1.0)
    device.pending -= 1
    device.ended += 1
    device.busy += run.now - blocks.start[block]
    if operations[k].running > 0:
        return _NOBODY
    launches.busy[launch.stream] = False
    _let_go(run, launches, operations, blocks, waiting, launch.stream)
    if launch.join == JOIN_BLOCK:
        instruction = launches.instructions[launch.instruction]
        instruction.awaited -= 1
        if instruction.awaited == 0:
            _go_on(run, launches, blocks, events, launch.instruction)
    if device.finish > 0:
        add_event(run, events, run.now + device.finish, KNOWN, child)
        return _NOBODY
    return _forget_child(run, launches, operations, blocks, child)


@compiled_helper
def _forget_child(run, launches, operations, blocks, child):
    """Count a child less that its parent waits for; return the parent if it ends, else -1."""
    k = np.int64(blocks.operation[launches.launches[child].block])
    launches.devices[0].over = run.now
    operations[k].children -= 1
    is_over = operations[k].running == 0 and operations[k].children == 0
    return k if is_over else _NOBODY
