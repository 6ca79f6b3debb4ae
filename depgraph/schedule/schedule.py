"""A schedule: when and where every block runs, how busy slots are, and what is odd about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import DeviceLaunches


class Children(NamedTuple):
    """The child kernels of a schedule: what blocks launched, and when each child block ran."""

    launched: NDArray[np.bool_]  # [n_launches]: which launches were made
    issued: NDArray[np.float64]  # [n_launches]: when each was through and its child began to wait
    launch: NDArray[np.int64]  # [n]: of each child block
    block: NDArray[np.int64]  # [n]: its number within the child
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]
    over: float  # when the last kernel knows that its last child has ended


class Schedule(NamedTuple):
    """When every block starts and on which SM, in the unit of the durations."""

    name: str
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]
    waiting: float = 0.0  # time that blocks spend waiting in a slot, summed over all blocks
    least: float = 0.0  # time below which the memory bandwidth keeps the schedule as a whole
    children: Children | None = None  # of rules that let blocks launch from the device

    @property
    def makespan(self) -> float:
        """When the last block ends, or what the bytes take at least if that is longer."""
        last = 0.0 if self.children is None else self.children.over
        return max(self.least, last, float(self.end.max(initial=0.0)))

    def of_operations(
        self, first_block: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return when operations start and end, 0 for one without blocks: float64[n] each."""
        start, end = np.zeros((2, len(first_block) - 1))
        full = np.flatnonzero(np.diff(first_block))
        if len(full):
            start[full] = np.minimum.reduceat(self.start, first_block[full])
            end[full] = np.maximum.reduceat(self.end, first_block[full])
        return start, end

    def unfolded(self, launches: DeviceLaunches | None) -> Schedule:
        """Return it with the blocks of all children behind; what is not launched is on SM -1."""
        if launches is None:
            return self
        launch, _ = launches.child_blocks
        start, end, sm = np.zeros(len(launch)), np.zeros(len(launch)), np.full(len(launch), -1)
        if self.children is not None:
            ran = self.children.launched[launch]
            for of_all, own in (
                (start, self.children.start), (end, self.children.end), (sm, self.children.sm)
            ):  # fmt: skip
                of_all[ran] = own
        return self._replace(
            start=np.concatenate([self.start, start]),
            end=np.concatenate([self.end, end]),
            sm=np.concatenate([self.sm, sm.astype(np.int32)]),
            children=None,
        )

    def to_pandas(self, graph: BlockGraph) -> pd.DataFrame:
        """Return one row per block: kernel, block (within the kernel), sm, start, end."""
        import pandas as pd

        kernel, index = graph.block_names()
        return pd.DataFrame(
            {
                "kernel": kernel,
                "block": index,
                "sm": self.sm,
                "start": self.start,
                "end": self.end,
            }
        )


def running_part(schedule: Schedule, durations: NDArray[np.float64]) -> Schedule:
    """Return when blocks run that wait in a slot before: their last part if none launches."""
    if schedule.children is not None:
        return schedule
    return schedule._replace(start=np.maximum(schedule.start, schedule.end - durations))


def utilization_over_time(
    schedule: Schedule, shares: NDArray[np.float64], sms: int, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Average the utilization, 0 to 1, exactly between ascending `edges`: float64[n + 1] to [n]."""
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
    """Deal blocks of an SM out to slots from 0, none overlapping in a slot: int32[n_blocks]."""
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


ANOMALY = "an anomaly of list schedules"
_CLOSE = 1e-9


class Swept(NamedTuple):
    """One point of a sweep."""

    label: str  # of the row
    # Which sweep of a parameter it belongs to, and a number that grows as the rules loosen.
    freedom: tuple[str, float] | None
    sms: float
    makespan: float
    slower_because: str = ANOMALY  # than a point of the sweep with less freedom


def anomaly_notes(points: Sequence[Swept], unit: str) -> list[tuple[str, ...]]:
    """Say of each point of a sweep which one with less room, or a smaller parameter, is faster."""
    # Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
    # 17(2), 1969: a schedule that takes what is ready may become longer with more machines, shorter
    # jobs or fewer constraints.
    notes = []
    for point in points:
        found = []
        fewer = [p for p in points if p.label == point.label and p.sms < point.sms]
        best = min(fewer, key=lambda p: p.makespan, default=None)
        if best and _is_slower(point, best):
            text = f"slower than on {best.sms:.0f} SMs ({best.makespan:.4g} {unit})"
            found.append(f"{text}: {ANOMALY}")
        tighter = [
            p
            for p in points
            if p.sms == point.sms
            and p.freedom is not None
            and point.freedom is not None
            and p.freedom[0] == point.freedom[0]
            and p.freedom[1] < point.freedom[1]
        ]
        best = min(tighter, key=lambda p: p.makespan, default=None)
        if best and _is_slower(point, best):
            text = f"slower than {best.label} ({best.makespan:.4g} {unit})"
            found.append(f"{text}: {point.slower_because}")
        notes.append(tuple(found))
    return notes


def _is_slower(point: Swept, other: Swept) -> bool:
    return point.makespan > other.makespan * (1 + _CLOSE)
