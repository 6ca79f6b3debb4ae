"""Child kernels as the compiled schedule takes them, and what comes back of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from depgraph.graph.launches import no_launches
from depgraph.schedule.event_state import ChildLoad, Launches
from depgraph.schedule.policy import LaunchRules
from depgraph.schedule.schedule import Children

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.schedule.event_state import Blocks
    from depgraph.schedule.policy import Rules


def with_children(
    rules: Rules, graph: BlockGraph, durations: NDArray[np.float64], need: NDArray[np.int64]
) -> tuple[Rules, BlockGraph, NDArray[np.float64], NDArray[np.int64]]:
    """Return a program with the children of all launches after it, as further operations.

    Parameters
    ----------
    rules : Rules
        With rules for launches.
    durations : float64[n_blocks]
    need : int64[n_operations, n_resources]
        What a block takes of an SM; those of a child take what its parent's do.
    """
    launches = cast("LaunchRules", rules.launching).launches
    n = len(launches)
    parent = graph.operation_of_block[launches.block]
    first_child = graph.n_blocks + np.cumsum(launches.child_grid)
    graph = replace(
        graph,
        kernel=np.concatenate([graph.kernel, np.arange(n, dtype=np.int32)]),
        first_block=np.concatenate([graph.first_block, first_child]),
    )
    durations = np.concatenate([durations, np.repeat(launches.child_duration, launches.child_grid)])

    def padded(values: ArrayLike) -> NDArray[Any]:
        own = np.broadcast_to(values, graph.n_operations - n)
        return np.concatenate([own, np.zeros(n, own.dtype)])

    rules = replace(
        rules, launch=padded(rules.launch), enter=padded(rules.enter),
        waits_for_all=padded(rules.waits_for_all),
    )  # fmt: skip
    return rules, graph, durations, np.concatenate([need, need[parent]])


def launch_lists(
    rules: LaunchRules | None, program: BlockGraph, durations: NDArray[np.float64]
) -> Launches:
    """Return the launches before the first event; none without rules for them.

    Whole numbers become floats: the event loop is compiled once, which takes half a minute.
    """
    if rules is None:
        given = no_launches()
        rules = LaunchRules(given, given.join, 0.0, 0.0, 0)
        parents = 0
    else:
        given, parents = rules.launches, program.n_operations
    n, instruction = len(given), np.cumsum(given.begins_instruction) - 1
    leaders = np.flatnonzero(given.begins_instruction)
    blocks_of_warps = given.block[given.begins_warp]
    warps_left = np.bincount(blocks_of_warps, minlength=program.n_blocks if n else 0)
    alone = np.where(given.stream < 0, -1 - np.arange(n), given.stream)
    _, stream = np.unique(np.stack([given.block, alone], 1), axis=0, return_inverse=True)
    first = program.first_block if n else np.empty(0, np.int64)
    most = int(given.child_grid.sum())
    return Launches(
        first=program.n_operations,
        block=given.block,
        instruction=instruction,
        lanes=given.lanes.astype(np.float64),
        inline=given.inline.copy(),
        mode=rules.mode.copy(),
        join=given.join.copy(),
        stream=stream.reshape(-1).astype(np.int32),
        launched=np.zeros(n, np.bool_),
        issued=np.full(n, np.nan),
        offsets=np.append(leaders, n),
        at=given.at[leaders] * durations[given.block[leaders]],
        warp_offsets=np.concatenate([[0], np.cumsum(warps_left)]),
        warps=np.append(instruction[given.begins_warp], len(leaders)),
        warp=(np.cumsum(given.begins_warp) - 1)[leaders],
        awaited=np.zeros(len(leaders), np.int32),
        warps_left=warps_left,
        finish=np.zeros(len(warps_left)),
        children=np.zeros(parents, np.int64),
        of_operation=np.searchsorted(given.block, first),
        head=np.full(rules.queues, -1),
        last=np.full(rules.queues, -1),
        next=np.full(n, -1),
        n_ranks=np.full(1, program.n_blocks),
        busy=np.zeros(n, np.bool_),
        stall=float(rules.stall),
        lane_stall=float(rules.lane_stall),
        dispatch=float(rules.dispatch),
        free=np.zeros(1),
        finish_time=float(rules.finish),
        over=np.zeros(1),
        load=ChildLoad(
            window=float(rules.window),
            times=np.zeros(2 * most + 1),
            running=np.zeros(2 * most + 1),
            area=np.zeros(2 * most + 1),
            n=np.ones(1, np.int64),
            old=np.zeros(1, np.int64),
            pending=np.zeros(1, np.int64),
            ended=np.zeros(1, np.int64),
            busy=np.zeros(1),
        ),
    )


def children_of(
    given: DeviceLaunches, launches: Launches, blocks: Blocks, sm: NDArray[np.int32]
) -> Children:
    """Return the blocks of children that were launched; they come after all of the program."""
    launch, index = given.child_blocks
    ran = np.flatnonzero(launches.launched[launch])
    at = len(sm) - len(launch) + ran
    return Children(
        launches.launched, launches.issued, launch[ran], index[ran],
        blocks.start[at], blocks.end[at], sm[at], float(launches.over[0]),
    )  # fmt: skip
