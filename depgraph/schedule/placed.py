"""Where blocks may be placed, and what they take there, by some rules on a GPU of some size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.errors import NotApplicableError
from depgraph.gpu.sm_resources import CarveOuts, SmSharing
from depgraph.system.record_tables import per

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.gpu.model import Gpu
    from depgraph.gpu.sm_resources import SmResources
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.schedule.policy import Places, Rules

# SMs of a GPC where a GPU's model does not say: those of an H100 have up to 18.
LARGEST_GPC = 18
# What takes nothing of an SM runs at a rate of its own, too: its load must be above 0.
_LEAST_LOAD = 1e-9


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
    def carve_outs(self) -> CarveOuts | None:
        """What L1 cache leaves of shared memory, where that counts."""
        return None if self.sharing is None else self.sharing.carve_outs


def where_placed(
    rules: Rules,
    graph: BlockGraph,
    resources: SmResources,
    sharing: SmSharing | None,
    sms: float,
    need: NDArray[np.int64] | None,
) -> Placed:
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
    cluster = per(rules.cluster, 1, graph.n_operations, np.int64)
    # A block takes the first empty SM if there is one, so that further ones stay empty.
    size = min(int(sms), max(1, graph.n_blocks))
    if places is not None or (cluster > 1).any():
        size = int(sms)
    gpcs = _gpcs(resources.gpu, size)
    _check_clusters(cluster, int(np.diff(gpcs).max()), graph, need, capacity)
    if places is not None:
        need, capacity = _on_their_places(places, need, capacity, size)
        sharing, times = _on_copy_engines(places, sharing, size)
        longer = times[graph.operation_of_block]
        sharing = _with_sides(places, need, sharing)
    return Placed(need, capacity, places, sharing, cluster, gpcs, size, longer)


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

    Also returns how many times as long a block of each operation takes alone as at a rate of 1,
    where an engine runs it.
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


def _gpcs(gpu: Gpu, sms: int) -> NDArray[np.int64]:
    """Return the first SM of each GPC, and the end: equal parts where the GPU has other ones."""
    sizes = gpu.gpc_sms or ()
    if sum(sizes) != sms:
        n = -(-sms // max(sizes, default=LARGEST_GPC))
        sizes = tuple(sms * (g + 1) // n - sms * g // n for g in range(n))
    return np.cumsum([0, *sizes], dtype=np.int64)


def _check_clusters(
    cluster: NDArray[np.int64],
    largest: int,
    graph: BlockGraph,
    need: NDArray[np.int64],
    capacity: NDArray[np.int64],
) -> None:
    """Raise `NotApplicableError` if a cluster fits into no GPC, the largest of so many SMs."""
    for k in np.flatnonzero((cluster > 1) & need.any(axis=1)):
        taken = need[k] > 0
        if (capacity[taken] // need[k, taken]).min() * largest < cluster[k]:
            raise NotApplicableError(
                f"a cluster of {cluster[k]} blocks of kernel {graph.kernel[k]} fits into no "
                f"GPC of {largest} SMs"
            )
