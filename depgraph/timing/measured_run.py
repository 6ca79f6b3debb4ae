"""How a program ran when it was profiled: wall time, gaps between kernels, launch calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.system.arrays import distinct
from depgraph.timing.profile import UNKNOWN, KernelProfile
from depgraph.timing.program_times import median

if TYPE_CHECKING:
    from depgraph.timing.matched_profile import Match


class MeasuredRun(NamedTuple):
    """How the program ran when it was profiled, its iterations picked as kernels' are."""

    wall: float  # from the start of the first matched kernel to the end of the last one
    kernel_time: float  # durations of all kernels that ran in that time, added up
    idle: float  # the part of that time in which no kernel ran; copies may have
    is_graph: bool  # whether most of the kernels were launched as CUDA graphs
    gap: float  # median from the end of all kernels before to a start; 0 where they overlap
    interval: float  # median time between the start of a kernel and that of the next
    host: float | None  # median time between two launch calls, where the profile has them
    # As `gap`, of kernels alone that were launched before the kernel before them in their stream
    # had ended: what the GPU needs between two kernels. None where there are none.
    queued_gap: float | None
    unit: str
    sms: int | None  # of the GPU, where the profile says
    others: int  # kernels that ran in that time and are not in the trace; they count in gaps
    is_stated: bool = False  # whether the user said how long it takes without a profiler

    def without_profiler(self, wall: float) -> MeasuredRun:
        """Return the run as long as the user says: without a profiler the GPU is idle for less."""
        busy = self.wall - self.idle
        if wall < busy:
            raise ModelError(
                f"--wall {wall:.4g} {self.unit}: kernels alone take {busy:.4g} {self.unit}; give "
                "the time of one iteration, on the GPU that was profiled"
            )
        return self._replace(wall=wall, idle=wall - busy, is_stated=True)


def measured_run(match: Match) -> MeasuredRun | None:
    """Return wall time and gaps of the iterations picked; None without start times."""
    profile, scale = match.profile, match.scale
    if profile.start is None:
        return None
    # Relative to the first, so that nanoseconds since 1970 keep their last digits.
    start = (profile.start - profile.start.min()).astype(np.float64)
    end = start + profile.duration
    walls, kernel_times, gaps, intervals, others = [], [], [], [], 0
    of_graphs: list[NDArray[np.bool_]] = []
    calls, queued = [np.empty(0)], [np.empty(0)]
    for line in match.rows[match.picked]:
        rows = line[line >= 0]
        first, last = start[rows].min(), end[rows].max()
        walls.append(last - first)
        inside = np.flatnonzero((start >= first) & (start <= last) & (end <= last))
        inside = inside[np.argsort(start[inside], kind="stable")]
        ended = np.maximum.accumulate(end[inside])
        gaps.append(np.maximum(0.0, start[inside][1:] - ended[:-1]))
        intervals.append(np.diff(start[inside]))
        kernel_times.append(profile.duration[inside].sum())
        of_graphs.append(_shares_launch(profile, inside))
        calls.append(_between_calls(profile, inside))
        queued.append(_queued_gaps(profile, inside, start, end))
        others += int(np.isin(inside, match.rows, invert=True).sum())

    def typical(times: Sequence[NDArray[np.float64]]) -> float | None:
        every = np.concatenate(times)
        return float(median(every)) * scale if len(every) else None

    each = np.stack([walls, kernel_times, [gap.sum() for gap in gaps]], axis=1) * scale
    wall, kernel_time, idle = match.reduced(each).tolist()
    return MeasuredRun(
        wall=wall,
        kernel_time=kernel_time,
        idle=idle,
        is_graph=bool(np.mean(np.concatenate(of_graphs)) > 1 / 2),
        gap=typical(gaps) or 0.0,
        interval=typical(intervals) or 0.0,
        host=typical(calls),
        queued_gap=typical(queued),
        unit=match.unit,
        sms=match.measured_sms,
        others=others,
    )


def _shares_launch(profile: KernelProfile, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Tell which kernels were launched together with another one: nodes of a CUDA graph."""
    call = np.stack([profile.filled("process")[rows], profile.filled("correlation")[rows]])
    _, member, count = np.unique(call, axis=1, return_inverse=True, return_counts=True)
    shares: NDArray[np.bool_] = (count[member.reshape(-1)] > 1) & (call[1] != UNKNOWN)
    return shares


def _between_calls(profile: KernelProfile, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the times from launch call to launch call, one for all nodes of a CUDA graph."""
    issued = profile.filled("issued")[rows]
    return np.diff(distinct(issued[issued != UNKNOWN])).astype(np.float64)


def _queued_gaps(
    profile: KernelProfile,
    rows: NDArray[np.intp],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the gaps before kernels that were launched while the one before them ran."""
    stream, correlation = profile.filled("stream"), profile.filled("correlation")
    rows = rows[np.argsort(stream[rows], kind="stable")]
    before, after = rows[:-1], rows[1:]
    issued = profile.filled("issued")[after]
    gap = start[after] - end[before]
    since_first = (issued - profile.filled("start").min()).astype(np.float64)
    ready = (issued != UNKNOWN) & (since_first < end[before]) & (gap >= 0)
    ready &= stream[before] == stream[after]
    if profile.correlation is not None:
        ready &= correlation[before] != correlation[after]
    queued: NDArray[np.float64] = gap[ready]
    return queued
