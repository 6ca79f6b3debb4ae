"""Running rules: from a mechanism's rules, a graph and what its blocks launch to a schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from depgraph.errors import DeadlockError
from depgraph.schedule.events_jit import Events
from depgraph.schedule.launching_jit import launches_of
from depgraph.schedule.placed import where_placed
from depgraph.schedule.room_jit import room_of, waiting_of
from depgraph.schedule.schedule import Children, Schedule
from depgraph.schedule.sharing_jit import sharing_of
from depgraph.schedule.simulate_jit import event_schedule
from depgraph.schedule.waits_jit import (
    blocks_of,
    gates_of,
    operations_of,
    run_of,
    stages_of,
    waits_of,
)
from depgraph.system.record_tables import writable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from depgraph.gpu.sm_resources import SmResources, SmSharing
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.schedule.launching_jit import Launches
    from depgraph.schedule.policy import LaunchRules, Rules
    from depgraph.schedule.waits_jit import Blocks


def run_rules(
    name: str,
    rules: Rules,
    graph: BlockGraph,
    durations: NDArray[np.float64],
    resources: SmResources,
    sms: float,
    *,
    sharing: SmSharing | None = None,
) -> Schedule:
    """Schedule the blocks of a graph by some rules, or raise a `DeadlockError`.

    On infinitely many SMs all blocks stand on SM 0. Where blocks on one SM slow each other
    (`sharing`), `durations` are the work of the blocks.
    """
    graph = rules.graph or graph
    program = graph
    durations = writable(durations if rules.durations is None else rules.durations)
    need = None
    if rules.launching is not None:
        own, _ = resources.binding
        rules, graph, durations, need = with_children(rules, graph, durations, own)
    placed = where_placed(rules, graph, resources, sharing, sms, need)
    durations = durations * placed.longer
    run = run_of(rules, program, placed)
    operations = operations_of(rules, graph, program.n_operations)
    waits = waits_of(rules, graph)
    blocks = blocks_of(rules, graph, durations, waits)
    room = room_of(operations, placed)
    on_sms = sharing_of(operations, room, placed)
    launches, n_launches = None, 0
    if rules.launching is not None:
        launches = launches_of(rules.launching, program, durations, operations)
        n_launches = len(launches.launches) + len(launches.instructions)
    event_schedule(
        run,
        operations,
        gates_of(rules.gates),
        blocks,
        stages_of(rules),
        waits,
        waiting_of(rules, graph.n_blocks),
        room,
        on_sms,
        launches,
        Events.at_most(n_launches + 2 * (graph.n_blocks + graph.n_operations)),
    )
    start, end, sm = blocks.start, blocks.end, blocks.sm
    stuck = np.flatnonzero(end[: program.n_blocks] < 0)
    if len(stuck):
        operation = graph.operation_of_block[stuck[0]]
        block = int(stuck[0] - graph.first_block[operation])
        raise DeadlockError(name, int(graph.kernel[operation]), block, len(stuck) - 1)
    sm = np.minimum(sm, np.int32(placed.sms - 1))  # what runs on no SM is shown on the last
    if placed.sharing is not None:
        return Schedule(name, start, end, sm)
    if rules.launching is not None and launches is not None:
        n, children = program.n_blocks, children_of(rules.launching.launches, launches, blocks, sm)
        return Schedule(name, start[:n], end[:n], sm[:n], children=children)
    waited = end - start - durations
    waited[waited < 1e-9 * np.maximum(end, 1e-300)] = 0.0
    return Schedule(name, start, end, sm, float(waited.sum()))


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
