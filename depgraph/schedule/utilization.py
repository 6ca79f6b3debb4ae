"""Slot utilization over time in a schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.schedule.schedule import Schedule


def running_part(schedule: Schedule, durations: NDArray[np.float64]) -> Schedule:
    """Return when blocks run, where some also wait in a slot: their last part, as they end.

    Parameters
    ----------
    durations : float64[n_blocks]
        Where blocks launch child kernels, how long they run depends on the schedule: nothing
        changes.
    """
    if schedule.children is not None:
        return schedule
    return replace(schedule, start=np.maximum(schedule.start, schedule.end - durations))


def utilization_over_time(
    schedule: Schedule, shares: NDArray[np.float64], sms: int, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Average utilization between instants; exact, not sampled.

    Parameters
    ----------
    shares : float64[n_blocks]
        Share of an SM that each block takes.
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


def slots_on_sm(schedule: Schedule) -> NDArray[np.int32]:
    """Deal the blocks that run at once on one SM out to slots, so that none overlap in a slot.

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
