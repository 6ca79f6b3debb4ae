"""How busy the SMs are: over time in a schedule, kernel by kernel, and wave by wave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.sm_resources import share_of
from depgraph.timing import kernel_makespans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.scenario import Scenario
    from depgraph.schedule import Schedule


@dataclass(frozen=True, slots=True)
class KernelLoad:
    """How a kernel, alone on the GPU, fills the SMs.

    Attributes
    ----------
    kernel : int
    blocks : int
    slots : int
        Blocks that run at once: SMs times occupancy.
    time : float
        From the kernel's start to its end, in the unit of the durations.
    utilization : float
        Share of the SMs that its blocks hold, 0 to 1, of the resource that sets its work.
    """

    kernel: int
    blocks: int
    slots: int
    time: float
    utilization: float

    @property
    def full_waves(self) -> int:
        """Waves that fill every slot."""
        return self.blocks // self.slots

    @property
    def tail_blocks(self) -> int:
        """Blocks of the last wave, if it does not fill every slot."""
        return self.blocks % self.slots

    @property
    def tail_utilization(self) -> float:
        """Share of the slots that the last wave fills; 1 where every wave is full."""
        return self.tail_blocks / self.slots if self.tail_blocks else 1.0


def running_part(schedule: Schedule, durations: NDArray[np.float64]) -> Schedule:
    """Return when blocks run, where some also wait in a slot: their last part, as they end.

    Parameters
    ----------
    schedule : Schedule
    durations : float64[n_blocks]
    """
    return replace(schedule, start=np.maximum(schedule.start, schedule.end - durations))


def utilization_over_time(
    schedule: Schedule, shares: NDArray[np.float64], sms: int, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Average utilization between instants; exact, not sampled.

    Parameters
    ----------
    schedule : Schedule
    shares : float64[n_blocks]
        Share of an SM that each block takes.
    sms : int
    edges : float64[n + 1]
        Ascending instants, in the unit of the schedule.

    Returns
    -------
    float64[n]
        0 to 1.
    """
    busy = _area_before(edges, schedule.start, shares) - _area_before(edges, schedule.end, shares)
    widths = np.diff(edges)
    return np.divide(np.diff(busy), widths * sms, out=np.zeros(len(widths)), where=widths > 0)


def _area_before(
    instants: NDArray[np.float64], times: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return, for each instant t, the sum of weight * (t - time) over the times before t."""
    order = np.argsort(times, kind="stable")
    weight = np.concatenate([[0.0], np.cumsum(weights[order])])
    moment = np.concatenate([[0.0], np.cumsum((weights * times)[order])])
    before = np.searchsorted(times[order], instants)
    area: NDArray[np.float64] = weight[before] * instants - moment[before]
    return area


def kernel_loads(scenario: Scenario) -> list[KernelLoad]:
    """Say how each kernel, alone, fills the SMs.

    Parameters
    ----------
    scenario : Scenario
        On one number of SMs.

    Returns
    -------
    list of KernelLoad
        In launch order, without host copies.
    """
    graph, resources = scenario.graph, scenario.resources
    slots = resources.occupancy * int(scenario.sms)
    times = kernel_makespans(graph, scenario.durations, slots)
    busy = np.bincount(
        graph.operation_of_block, weights=scenario.durations, minlength=graph.n_operations
    )
    work = busy * resources.largest_shares / scenario.sms
    blocks = np.diff(graph.first_block)
    return [
        KernelLoad(
            int(graph.kernel[i]), int(blocks[i]), int(slots[i]), float(times[i]),
            share_of(float(work[i]), float(times[i])),
        )
        for i in np.flatnonzero(scenario.is_kernel)
    ]  # fmt: skip


def slots_on_sm(schedule: Schedule) -> NDArray[np.int32]:
    """Deal the blocks that run at once on one SM out to slots, so that none overlap in a slot.

    Parameters
    ----------
    schedule : Schedule

    Returns
    -------
    int32[n_blocks]
        0 is the first slot of each SM; a slot is taken again as soon as it is free.
    """
    import heapq

    slot = np.zeros(len(schedule.start), np.int32)
    running: dict[int, list[tuple[float, int]]] = {}
    free: dict[int, list[int]] = {}
    order = np.lexsort((schedule.end, schedule.start))
    rows = zip(
        order.tolist(),
        schedule.sm[order].tolist(),
        schedule.start[order].tolist(),
        schedule.end[order].tolist(),
        strict=True,
    )
    for block, sm, start, end in rows:
        ends, slots = running.setdefault(sm, []), free.setdefault(sm, [])
        while ends and ends[0][0] <= start:
            heapq.heappush(slots, heapq.heappop(ends)[1])
        chosen = heapq.heappop(slots) if slots else len(ends)
        slot[block] = chosen
        heapq.heappush(ends, (end, chosen))
    return slot
