"""From rules and a graph to a schedule: what its blocks launch, and where they may be placed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.errors import DeadlockError, NotApplicableError
from depgraph.schedule.events_jit import Events, per, writable
from depgraph.schedule.launching_jit import launches_of
from depgraph.schedule.policy import IGNORED, Children, LaunchRules, Places, Rules, Schedule
from depgraph.schedule.simulate_jit import event_schedule
from depgraph.schedule.sms_jit import room_of, sharing_of, waiting_of
from depgraph.schedule.waits_jit import (
    blocks_of,
    gates_of,
    operations_of,
    run_of,
    stages_of,
    waits_of,
)

if TYPE_CHECKING:
    from depgraph.gpu.model import Gpu
    from depgraph.gpu.sm_resources import SmResources
    from depgraph.gpu.sm_sharing import CarveOuts, SmSharing
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import DeviceLaunches
    from depgraph.schedule.launching_jit import Launches
    from depgraph.schedule.waits_jit import Blocks

# SMs of a GPC where a GPU's model does not say: those of an H100 have up to 18.
LARGEST_GPC = 18
# What takes nothing of an SM runs at a rate of its own, too: its load must be above 0.
_LEAST_LOAD = 1e-9


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
    """Schedule the blocks of a graph by some rules, or raise a `DeadlockError`."""
    # On infinitely many SMs all blocks stand on SM 0. Where blocks on one SM slow each other
    # (`sharing`), `durations` are the work of the blocks.
    graph = rules.graph or graph
    program = graph
    durations = writable(durations if rules.durations is None else rules.durations)
    need = None
    if rules.launching is not None:
        own, _ = resources.binding
        rules, graph, durations, need = with_children(rules, graph, durations, own)
    if isinstance(rules.joins, int) and rules.joins == IGNORED:
        graph = graph.only_joins(np.zeros(len(graph.join_kind), np.bool_))
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
        Events.at_most(2 + n_launches + 2 * (graph.n_blocks + graph.n_operations)),
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
    """Return a program with the children of all launches, which need what their parents do."""
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


class Placed(NamedTuple):
    """What counts where blocks are placed."""

    need: NDArray[np.int64]  # of each operation, of each resource
    capacity: NDArray[np.int64]  # of an SM, of each resource
    places: Places | None
    sharing: SmSharing | None
    cluster: NDArray[np.int64]  # of each operation: blocks placed together, in one GPC
    gpcs: NDArray[np.int64]  # the first SM of each GPC, and the end
    sms: int
    longer: NDArray[np.float64]  # how many times as long each block takes

    @property
    def sparing(self) -> int:
        """How large clusters are, at least, that find no place in some GPC; 0 if there are none.

        When they have just begun, blocks of other kernels go there first, as many as find room.
        """
        large = self.cluster[self.cluster > np.diff(self.gpcs).min()]
        counts = self.sharing is not None and self.sharing.cluster_start > 0
        return int(large.min()) if counts and len(large) else 0

    @property
    def carve_outs(self) -> CarveOuts | None:
        """What L1 cache leaves of shared memory, where that counts."""
        return None if self.sharing is None else self.sharing.carve_outs


def where_placed(
    rules: Rules,
    graph: BlockGraph,
    resources: SmResources,
    sharing: SmSharing | None,
    sms: float,
    need: NDArray[np.int64] | None,  # of the binding resources, if not what the program's take
) -> Placed:
    """Return what blocks take of an SM, where they run, how many SMs count, what takes longer."""
    own, capacity = resources.binding
    need = own if need is None else need
    if sharing is not None and sharing.carve_outs is not None:
        need, capacity = resources.placed, resources.capacity
    if rules.workers:
        need = (graph.kernel >= 0).astype(np.int64)[:, None]
        capacity = np.array([rules.workers], np.int64)
        sharing = sharing and sharing._replace(carve_outs=None)
    places = rules.places
    if rules.unlimited or math.isinf(sms):
        need, capacity, sms = np.zeros((len(need), 1), np.int64), np.ones(1, np.int64), 1
        sharing, places = None, None if places is None else places.without_sms()
    longer = np.ones(graph.n_blocks)
    cluster = per(rules.cluster, 1, graph.n_operations, np.int64)
    # A block takes the first empty SM if there is one, so that further ones stay empty.
    size = min(int(sms), max(1, graph.n_blocks))
    if places is not None or (cluster > 1).any():
        size = int(sms)
    if places is not None:
        need = np.where(places.first[:, None] < size, need, 0)
        if len(capacity) == 1:  # so that each class of blocks has a tree of its own
            need, capacity = np.repeat(need, 2, axis=1), np.repeat(capacity, 2)
        sharing, times = _on_copy_engines(places, sharing, size)
        longer = times[graph.operation_of_block]
        sharing = _with_sides(places, need, sharing)
    cluster = np.where(need.any(axis=1), cluster, 1)
    gpcs = _gpcs(resources.gpu, size)
    _check_clusters(cluster, int(np.diff(gpcs).max()), graph)
    return Placed(need, capacity, places, sharing, cluster, gpcs, size, longer)


def _on_copy_engines(
    places: Places, sharing: SmSharing | None, size: int
) -> tuple[SmSharing | None, NDArray[np.float64]]:
    """Take what copy engines run from the SMs' load; say how much longer each takes alone."""
    if sharing is None:
        return None, np.ones(len(places.first))
    off = (places.first >= size) & (sharing.load > 0)
    longer = np.where(off, 1 + sharing.slowdown * sharing.load_of(1), 1.0)
    return sharing._replace(load=np.where(off, _LEAST_LOAD, sharing.load)), longer


def _with_sides(
    places: Places, need: NDArray[np.int64], sharing: SmSharing | None
) -> SmSharing | None:
    """Let computation and communication slow each other."""
    if not any(places.beside):
        return sharing
    if sharing is None:
        from depgraph.gpu.sm_sharing import SmSharing

        sharing = SmSharing(0.0, (need.sum(axis=1) > 0).astype(np.float64), 0.0, 0.0)
    load = np.maximum(sharing.load, places.communicates * _LEAST_LOAD)
    return sharing._replace(
        load=load, side=places.communicates.astype(np.int64), beside=places.beside
    )


def largest_gpc(gpu: Gpu, sms: float) -> float:
    """Return how many SMs the largest GPC has, of a GPU of so many."""
    return sms if math.isinf(sms) else float(np.diff(_gpcs(gpu, int(sms))).max())


def _gpcs(gpu: Gpu, sms: int) -> NDArray[np.int64]:
    """Return the first SM of each GPC, and the end: equal parts where the GPU has other ones."""
    sizes = gpu.gpc_sms or ()
    if sum(sizes) != sms:
        n = -(-sms // max(sizes, default=LARGEST_GPC))
        sizes = tuple(sms * (g + 1) // n - sms * g // n for g in range(n))
    return np.cumsum([0, *sizes], dtype=np.int64)


def _check_clusters(cluster: NDArray[np.int64], largest: int, graph: BlockGraph) -> None:
    """Raise `NotApplicableError` if a cluster has more blocks than the largest GPC has SMs."""
    for k in np.flatnonzero(cluster > largest):
        raise NotApplicableError(
            f"a cluster of {cluster[k]} blocks of kernel {graph.kernel[k]} fits into no "
            f"GPC of {largest} SMs"
        )
