"""Child kernels: further operations of a program before it runs, and what has come of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from depgraph.schedule.schedule import Children

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.schedule.launching_jit import Launches
    from depgraph.schedule.policy import LaunchRules, Rules
    from depgraph.schedule.waits_jit import Blocks


def with_children(
    rules: Rules, graph: BlockGraph, durations: NDArray[np.float64], need: NDArray[np.int64]
) -> tuple[Rules, BlockGraph, NDArray[np.float64], NDArray[np.int64]]:
    """Return a program with the children of all launches after it, as further operations.

    `need` is what a block takes of an SM; those of a child take what its parent's do.
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


def children_of(
    given: DeviceLaunches, launches: Launches, blocks: Blocks, sm: NDArray[np.int32]
) -> Children:
    """Return the blocks of children that were launched; they come after all of the program."""
    launch, index = given.child_blocks
    launched = launches.launches["launched"].copy()
    ran = np.flatnonzero(launched[launch])
    at = len(sm) - len(launch) + ran
    return Children(
        launched, launches.launches["issued"].copy(), launch[ran], index[ran],
        blocks.start[at], blocks.end[at], sm[at], float(launches.devices["over"][0]),
    )  # fmt: skip
