"""Running rules: from a mechanism's rules and a graph to a schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from depgraph.errors import DeadlockError, NotApplicableError
from depgraph.gpu.sm_sharing import SmSharing
from depgraph.graph.lists_jit import invert_lists
from depgraph.schedule.device_launches import children_of, launch_lists, with_children
from depgraph.schedule.event_state import (
    Blocks,
    CarveOutLists,
    Clusters,
    Events,
    GateLists,
    GraphLists,
    Joins,
    Operations,
    PlaceLists,
    Room,
    Running,
    Sharing,
    Stages,
    Waiting,
    Window,
)
from depgraph.schedule.schedule import Schedule
from depgraph.schedule.simulate_jit import HOLDS, PLACES, event_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from depgraph.gpu.model import Gpu
    from depgraph.gpu.sm_resources import SmResources
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.schedule.policy import Gates, Places, Rules

Number = TypeVar("Number", bound="np.generic[Any]")

_NONE = np.empty(0, np.float64)
# SMs of a GPC where a GPU's model does not say: those of an H100 have up to 18.
LARGEST_GPC = 18
_NOTHING = np.empty(0, np.int64)
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
    device_order: Sequence[int] | None = None,
    sharing: SmSharing | None = None,
) -> Schedule:
    """Schedule the blocks of a graph by some rules.

    Parameters
    ----------
    name : str
        Of the schedule.
    durations : float64[n_blocks]
    sms : float
        Number of SMs, infinite for no limit: all blocks then stand on SM 0.
    device_order : sequence of int, optional
        Order of SMs that decides ties; default ascending.
    sharing : SmSharing, optional
        How blocks on one SM slow each other; `durations` are then the work of the blocks.

    Raises
    ------
    DeadlockError
        If the rules let some block wait forever.
    """
    graph = rules.graph or graph
    program = graph
    durations = _writable(durations if rules.durations is None else rules.durations)
    need = None
    if rules.launching is not None:
        own, _ = resources.binding
        rules, graph, durations, need = with_children(rules, graph, durations, own)
    placed = _placed(rules, graph, resources, sharing, sms, need)
    need, capacity, places, sharing = placed.need, placed.capacity, placed.places, placed.sharing
    clusters, size = placed.clusters, placed.sms
    durations = durations * placed.longer
    lists = _graph_lists(graph)
    joins, places_left, holds_left = _joins(rules, graph)
    gates = _gate_lists(rules.gates, graph.n_operations)
    operations = _operations(rules, graph, gates)
    room = _room(need, capacity, size, graph.n_blocks, sharing, clusters, places)
    alone = durations
    if sharing is not None:
        alone = durations * (1 + sharing.slowdown * sharing.load)[graph.operation_of_block]
    blocks = _blocks(durations, alone, places_left, holds_left)
    waiting = _waiting(rules, room.class_of_operation, len(room.need), operations.running)
    launches = launch_lists(rules.launching, program, durations)
    most = 2 * (graph.n_blocks + graph.n_operations) + len(launches.warps) + len(launches.lanes)
    running = Running(
        _events(most),
        _sharing(sharing, need, capacity, len(room.free), places, operations.trigger),
        launches,
    )
    event_schedule(
        lists,
        joins,
        gates,
        operations,
        _window(rules, program.n_operations, graph.n_operations),
        blocks,
        waiting,
        _stages(rules, graph.n_blocks),
        room,
        running,
    )
    start, end, sm = blocks.start, blocks.end, blocks.sm
    stuck = np.flatnonzero(end[: program.n_blocks] < 0)
    if len(stuck):
        operation = graph.operation_of_block[stuck[0]]
        block = int(stuck[0] - graph.first_block[operation])
        raise DeadlockError(name, int(graph.kernel[operation]), block, len(stuck) - 1)
    sm = np.minimum(sm, np.int32(size - 1))  # what runs on no SM is shown on the last
    if device_order is not None:
        sm = np.asarray(device_order, np.int32)[sm]
    if sharing is not None:
        return Schedule(name, start, end, sm)
    if rules.launching is not None:
        n, children = program.n_blocks, children_of(rules.launching.launches, launches, blocks, sm)
        return Schedule(name, start[:n], end[:n], sm[:n], children=children)
    waited = end - start - durations
    waited[waited < 1e-9 * np.maximum(end, 1e-300)] = 0.0
    return Schedule(name, start, end, sm, float(waited.sum()))


class _Placed(NamedTuple):
    """What counts where blocks are placed: see `_placed`."""

    need: NDArray[np.int64]
    capacity: NDArray[np.int64]
    places: Places | None
    sharing: SmSharing | None
    clusters: Clusters
    sms: int
    longer: NDArray[np.float64]


def _placed(
    rules: Rules,
    graph: BlockGraph,
    resources: SmResources,
    sharing: SmSharing | None,
    sms: float,
    need: NDArray[np.int64] | None,
) -> _Placed:
    """Return what blocks take of an SM, where they run, how many SMs count, what takes longer.

    `need` is what they take of the binding resources where that is not what the program's do.
    """
    own, capacity = resources.binding
    need = own if need is None else need
    if sharing is not None and sharing.carve_outs is not None:
        need, capacity = resources.placed, resources.capacity
    if rules.workers:
        need = (graph.kernel >= 0).astype(np.int64)[:, None]
        capacity = np.array([rules.workers], np.int64)
        sharing = sharing and replace(sharing, carve_outs=None)
    places = rules.places
    if rules.unlimited or math.isinf(sms):
        need, capacity, sms = np.zeros((len(need), 1), np.int64), np.ones(1, np.int64), 1
        sharing, places = None, None if places is None else places.without_sms()
    longer = np.ones(graph.n_blocks)
    cluster = _per(rules.cluster, 1, graph.n_operations, np.int64)
    # A block takes the first empty SM if there is one, so that further ones stay empty.
    size = min(int(sms), max(1, graph.n_blocks))
    if places is not None or (cluster > 1).any():
        size = int(sms)
    clusters = Clusters(cluster, _gpcs(resources.gpu, size))
    _check_clusters(clusters, graph, need, capacity)
    if places is not None:
        need, capacity = _on_their_places(places, need, capacity, size)
        sharing, times = _on_copy_engines(places, sharing, size)
        longer = times[graph.operation_of_block]
        sharing = _with_sides(places, need, sharing)
    return _Placed(need, capacity, places, sharing, clusters, size, longer)


def _graph_lists(graph: BlockGraph) -> GraphLists:
    """Return the graph as compiled code walks it."""
    block_set_offsets, block_sets = invert_lists(
        graph.set_offsets, graph.set_blocks, graph.n_blocks
    )
    set_join_offsets, set_joins = invert_lists(
        graph.source_offsets, graph.sources, len(graph.set_operation)
    )
    return GraphLists(
        first_block=_writable(graph.first_block),
        operation_of_block=graph.operation_of_block,
        set_offsets=_writable(graph.set_offsets),
        set_blocks=_writable(graph.set_blocks),
        block_set_offsets=block_set_offsets,
        block_sets=block_sets,
        set_join_offsets=set_join_offsets,
        set_joins=set_joins,
        target_offsets=_writable(graph.target_offsets),
        targets=_writable(graph.targets),
    )


def _joins(rules: Rules, graph: BlockGraph) -> tuple[Joins, NDArray[np.int32], NDArray[np.int32]]:
    """Return the joins before the first event, and for each block the sets that it waits for.

    Returns
    -------
    joins : Joins
    places_left, holds_left : int32[n_blocks]
    """
    gate = _per(rules.joins, PLACES, len(graph.join_kind), np.uint8)
    gate_of_target = np.repeat(gate, np.diff(graph.target_offsets))
    of_sets, of_blocks = [], []
    for kind in (PLACES, HOLDS):
        of_set = np.bincount(
            graph.targets[gate_of_target == kind], minlength=len(graph.set_operation)
        )
        is_gated = np.repeat(of_set > 0, np.diff(graph.set_offsets))
        of_block = np.bincount(graph.set_blocks[is_gated], minlength=graph.n_blocks)
        of_sets.append(of_set.astype(np.int32))
        of_blocks.append(of_block.astype(np.int32))
    joins = Joins(
        gate=gate,
        need=_NONE if rules.join_need is None else _writable(rules.join_need),
        member_need=_NONE if rules.member_need is None else _writable(rules.member_need),
        sources_left=np.diff(graph.source_offsets),
        members_left=np.diff(graph.set_offsets),
        places_left=of_sets[0],
        holds_left=of_sets[1],
    )
    return joins, of_blocks[0], of_blocks[1]


def _gate_lists(gates: Gates, n_operations: int) -> GateLists:
    by_source = np.argsort(gates.source, kind="stable")
    return GateLists(
        offsets=np.searchsorted(gates.source[by_source], np.arange(n_operations + 1)),
        target=gates.target[by_source],
        event=gates.event[by_source],
        holds=gates.holds[by_source],
        lead=gates.lead[by_source],
    )


def _operations(rules: Rules, graph: BlockGraph, gates: GateLists) -> Operations:
    n = graph.n_operations
    waits_for_all = _per(rules.waits_for_all, default=False, size=n, dtype=np.bool_)
    # One gate more than is listed: entering. One more yet: all before, of which there are none
    # before the first.
    gates_left = 1 + waits_for_all + np.bincount(gates.target[~gates.holds], minlength=n)
    gates_left[:1] -= waits_for_all[:1]
    return Operations(
        waits_for_all=waits_for_all,
        launch=_per(rules.launch, 0.0, n, np.float64),
        enter=_per(rules.enter, 0.0, n, np.float64),
        gates_left=gates_left,
        holds_left=np.bincount(gates.target[gates.holds], minlength=n),
        trigger=_per(rules.trigger, 1.0, n, np.float64),
        turn=_per(rules.turn, 0, n, np.int64),
        turns=np.array(rules.turns, np.float64),
        unplaced=np.diff(graph.first_block),
        untriggered=np.diff(graph.first_block),
        running=np.diff(graph.first_block),
        is_open=np.zeros(n, np.bool_),
    )


def _window(rules: Rules, last: int, n_operations: int) -> Window:
    return Window(
        size=rules.window,
        in_order=rules.in_order,
        last=last,
        order=np.arange(last) if rules.entry is None else _writable(rules.entry),
        entered=_counter(),
        entering=_counter(),
        oldest=_counter(),
        ended=_counter(),
        opening=np.empty(n_operations, np.int64),
        n_opening=_counter(),
    )


def _blocks(
    durations: NDArray[np.float64],
    alone: NDArray[np.float64],
    places_left: NDArray[np.int32],
    holds_left: NDArray[np.int32],
) -> Blocks:
    n = len(durations)
    return Blocks(
        duration=durations,
        alone=alone,
        start=np.zeros(n, np.float64),
        end=np.full(n, -1.0),
        earliest=np.zeros(n, np.float64),
        sm=np.zeros(n, np.int32),
        state=np.zeros(n, np.uint8),
        places_left=places_left,
        holds_left=holds_left,
        ready=np.empty(n, np.int32),
        n_ready=_counter(),
        released=np.empty(n, np.int32),
        n_released=_counter(),
    )


def _waiting(
    rules: Rules,
    class_of_operation: NDArray[np.int32],
    n_classes: int,
    blocks_of_operation: NDArray[np.int64],
) -> Waiting:
    n_blocks = int(blocks_of_operation.sum())
    order = np.arange(n_blocks) if rules.order is None else rules.order
    rank = np.empty(n_blocks, np.int32)
    rank[order] = np.arange(n_blocks, dtype=np.int32)
    of_class = np.bincount(class_of_operation, blocks_of_operation, minlength=n_classes)
    return Waiting(
        block_of_rank=order.astype(np.int32),
        rank_of_block=rank,
        strict=rules.strict,
        offsets=np.concatenate([[0], np.cumsum(of_class)]).astype(np.int64),
        ranks=np.empty(n_blocks, np.int32),
        n=np.zeros(n_classes, np.int64),
    )


def _stages(rules: Rules, n_blocks: int) -> Stages:
    stage = np.empty(0, np.int32) if rules.stage is None else _writable(rules.stage)
    n_stages = int(stage.max(initial=-1)) + 1
    return Stages(
        ahead=rules.stages_ahead,
        of_block=stage,
        left=np.bincount(stage, minlength=n_stages + 1),
        first=_counter(),
        kept=np.full(n_stages + 1, -1, np.int32),
        next_kept=np.empty(n_blocks if rules.stages_ahead > 0 else 0, np.int32),
    )


def _on_their_places(
    places: Places, need: NDArray[np.int64], capacity: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what is placed, and the capacity, where each class of blocks has SMs of its own."""
    need = np.where(places.first[:, None] < size, need, 0)
    if len(capacity) == 1:  # so that each class has a tree of its own
        need, capacity = np.repeat(need, 2, axis=1), np.repeat(capacity, 2)
    return need, capacity


def _on_copy_engines(
    places: Places, sharing: SmSharing | None, size: int
) -> tuple[SmSharing | None, NDArray[np.float64]]:
    """Take what runs on copy engines from the load of SMs.

    Returns
    -------
    sharing : SmSharing or None
    longer : float64[n_operations]
        How many times as long a block takes alone as at a rate of 1, where an engine runs it.
    """
    if sharing is None:
        return None, np.ones(len(places.first))
    off = (places.first >= size) & (sharing.load > 0)
    longer = np.where(off, 1 + sharing.slowdown * sharing.load, 1.0)
    return replace(sharing, load=np.where(off, _LEAST_LOAD, sharing.load)), longer


def _with_sides(
    places: Places, need: NDArray[np.int64], sharing: SmSharing | None
) -> SmSharing | None:
    """Let computation and communication slow each other."""
    if not any(places.beside):
        return sharing
    if sharing is None:
        sharing = SmSharing(0.0, (need.sum(axis=1) > 0).astype(np.float64), 0.0, 0.0)
    load = np.maximum(sharing.load, places.talks * _LEAST_LOAD)
    return replace(sharing, load=load, side=places.talks.astype(np.int64), beside=places.beside)


def _room(
    need: NDArray[np.int64],
    capacity: NDArray[np.int64],
    sms: int,
    n_blocks: int,
    sharing: SmSharing | None,
    clusters: Clusters,
    places: Places | None,
) -> Room:
    """Return SMs that are empty, and one more for blocks that take none.

    `clusters` has the sizes of operations.
    """
    carve_outs = None if sharing is None else sharing.carve_outs
    columns = np.column_stack([need, clusters.size])
    none = np.empty(0, np.int64)
    if carve_outs is not None:
        columns = np.column_stack([columns, carve_outs.least, carve_outs.chosen])
    if places is not None:
        columns = np.column_stack([columns, places.first, places.last, places.link, places.taken])
        sms += 1
    _, first, class_of_operation = np.unique(
        columns, axis=0, return_index=True, return_inverse=True
    )
    n_classes = len(first)
    n_trees = 1 if len(capacity) == 1 else n_classes
    leaves = 1 << (sms - 1).bit_length()
    tree = np.full((n_trees, 2 * leaves), -1, np.int64)
    if len(capacity) == 1:
        tree[0, leaves : leaves + sms] = capacity[0]
        for at in range(leaves - 1, 0, -1):
            tree[0, at] = max(tree[0, 2 * at], tree[0, 2 * at + 1])
    return Room(
        class_of_operation=class_of_operation.reshape(-1).astype(np.int32),
        need=np.ascontiguousarray(need[first]),
        free=np.tile(capacity, (sms, 1)),
        tree=tree,
        changed=np.empty(2 * n_blocks if len(capacity) > 1 else 0, np.int32),
        n_changed=_counter(),
        # So far behind that each tree is made anew.
        seen=np.full(n_classes, -1 - leaves, np.int64),
        carve_out=CarveOutLists(
            shared=0 if carve_outs is None else carve_outs.shared,
            capacity=0 if carve_outs is None else int(capacity[carve_outs.shared]),
            least=none if carve_outs is None else carve_outs.least[first],
            chosen=none if carve_outs is None else carve_outs.chosen[first],
            of_sm=np.zeros(sms, np.int64),
            residents=np.zeros(sms, np.int64),
        ),
        clusters=clusters._replace(size=clusters.size[first]),
        places=PlaceLists(none, none, none, none, none)
        if places is None
        else PlaceLists(
            places.first[first], places.last[first], places.link[first], places.taken[first],
            places.capacity.copy(),
        ),
    )  # fmt: skip


def _gpcs(gpu: Gpu, sms: int) -> NDArray[np.int64]:
    """Return the first SM of each GPC, and the end: equal parts where the GPU has other ones."""
    sizes = gpu.gpc_sms or ()
    if sum(sizes) != sms:
        n = -(-sms // max(sizes, default=LARGEST_GPC))
        sizes = tuple(sms * (g + 1) // n - sms * g // n for g in range(n))
    return np.cumsum([0, *sizes], dtype=np.int64)


def _check_clusters(
    clusters: Clusters, graph: BlockGraph, need: NDArray[np.int64], capacity: NDArray[np.int64]
) -> None:
    """Raise `NotApplicableError` if a cluster fits into no GPC."""
    largest = int(np.diff(clusters.offsets).max())
    for k in np.flatnonzero((clusters.size > 1) & need.any(axis=1)):
        taken = need[k] > 0
        if (capacity[taken] // need[k, taken]).min() * largest < clusters.size[k]:
            raise NotApplicableError(
                f"a cluster of {clusters.size[k]} blocks of kernel {graph.kernel[k]} fits into no "
                f"GPC of {largest} SMs"
            )


def _sharing(
    sharing: SmSharing | None,
    need: NDArray[np.int64],
    capacity: NDArray[np.int64],
    sms: int,
    places: Places | None,
    trigger: NDArray[np.float64],
) -> Sharing:
    """Return SMs on which nothing runs."""
    side, beside = _NOTHING, (0.0, 0.0)
    if sharing is None:
        sms, most, load, slowdown = 1, 1, _NONE, 0.0
    else:
        load, slowdown = sharing.load, sharing.slowdown
        if sharing.side is not None:
            side, beside = sharing.side, sharing.beside
        loaded = need[(load > 0) & need.any(axis=1)]
        # Each block takes something of one resource at least.
        scarce = (loaded > 0).all(axis=0)
        held = capacity[scarce] // loaded[:, scarce].min(axis=0, initial=1 << 62)
        most = int(held.min(initial=1 << 30)) if len(loaded) else 1
        if places is not None:
            most = max(most, places.at_once(need.sum(axis=1) == 0))
        most *= 1 + int((trigger < 1).any())
    leaves = 1 << max(0, (sms - 1).bit_length())
    return Sharing(
        slowdown=slowdown,
        load=load,
        held=np.zeros(sms, np.float64),
        clock=np.zeros(sms, np.float64),
        since=np.zeros(sms, np.float64),
        ends=np.empty((sms, most + 1), np.float64),
        items=np.empty((sms, most + 1), np.int64),
        n=np.zeros(sms, np.int64),
        next=np.full(2 * leaves, np.inf),
        side=side,
        beside=np.array(beside),
        active=np.zeros(2, np.int64),
        computing=np.zeros(sms, np.int64),
    )


def _events(most: int) -> Events:
    return Events(np.empty(most, np.float64), np.empty(most, np.int64), _counter())


def _counter() -> NDArray[np.int64]:
    """Return a number that compiled code can count up."""
    return np.zeros(1, np.int64)


def _per(values: ArrayLike | None, default: float, size: int, dtype: type) -> NDArray[Any]:
    result: NDArray[Any] = np.empty(size, dtype)
    result[:] = default if values is None else values
    return result


def _writable(values: NDArray[Number]) -> NDArray[Number]:
    """Return an array that compiled code need not be compiled for once more."""
    return values if values.flags.writeable else values.copy()
