"""A profile matched to the kernels of a store: times, gaps, and what else it knows of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ProfileError
from depgraph.system.text import counted
from depgraph.timing.align import UNPAIRED
from depgraph.timing.profile import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import Resources
    from depgraph.graph.program import Kernel
    from depgraph.timing.launch_sites import Site
    from depgraph.timing.profile import KernelProfile

MATCHED, GUESSED, UNMATCHED = "matched", "guessed", "unmatched"
PICKS = ("mean", "min", "last")

_MOST_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """How the program ran when it was profiled.

    Attributes
    ----------
    wall : float
        From the start of the first matched kernel to the end of the last one; the mean over the
        iterations picked.
    kernel_time : float
        Durations of all kernels that ran in that time, added up.
    idle : float
        The part of that time in which none ran; copies may have.
    is_graph : bool
        Whether most of the kernels were launched as CUDA graphs.
    gap : float
        Median time between the end of the kernels before and the start of the next one, 0 where
        they overlap; kernels that the trace lacks count as well.
    interval : float
        Median time between the start of a kernel and that of the next.
    host : float or None
        Median time between two launch calls of the host, where the profile has them.
    queued_gap : float or None
        As `gap`, of kernels alone that were launched before the kernel before them in their stream
        had ended: what the GPU needs between two kernels. None where there are none.
    unit : str
    sms : int or None
        SMs of the GPU, where the profile says.
    others : int
        Kernels that ran in that time and are not in the trace.
    """

    wall: float
    kernel_time: float
    idle: float
    is_graph: bool
    gap: float
    interval: float
    host: float | None
    queued_gap: float | None
    unit: str
    sms: int | None
    others: int


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Which row of a profile is which kernel of a store.

    Attributes
    ----------
    profile : KernelProfile
        Filtered: kernels of one device, process and context.
    kernels : sequence of Kernel
    rows : int64[n_iterations, n_kernels]
        Rows of the profile, an iteration a line; `UNPAIRED` where there is none.
    guessed : bool[n_iterations, n_kernels]
        Paired by order although the name or the grid differs.
    iteration : str
        What is taken of several iterations: "mean", "min", "last" or a number.
    picked : int64[n_picked]
        The iterations that are taken.
    notes : tuple of str
        How it was matched, as far as there is something to say.
    """

    profile: KernelProfile
    kernels: Sequence[Kernel]
    rows: NDArray[np.int64]
    guessed: NDArray[np.bool_]
    iteration: str
    picked: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """Unit of times: "us" or "cycles"."""
        return "us" if self.profile.unit == "ns" else self.profile.unit

    @property
    def scale(self) -> float:
        """What turns times of the profile into `unit`."""
        return 1e-3 if self.profile.unit == "ns" else 1.0

    @property
    def duration(self) -> NDArray[np.float64]:
        """Measured time of each kernel, in `unit`; NaN where there is none."""
        rows = self.rows[self.picked]
        times = np.where(rows >= 0, self.profile.duration[rows], np.nan) * self.scale
        result = np.full(len(self.kernels), np.nan)
        some = (rows >= 0).any(axis=0)
        if some.any():
            take = np.nanmin if self.iteration == "min" else np.nanmean
            result[some] = take(times[:, some], axis=0)
        return result

    @property
    def status(self) -> list[str]:
        """`MATCHED`, `GUESSED` or `UNMATCHED`, for each kernel."""
        rows = self.rows[self.picked]
        some = np.any(rows >= 0, axis=0)
        sure = np.any((rows >= 0) & ~self.guessed[self.picked], axis=0)
        return [
            MATCHED if s else GUESSED if o else UNMATCHED for s, o in zip(sure, some, strict=True)
        ]

    @property
    def row(self) -> NDArray[np.int64]:
        """A row of the profile for each kernel, that of the last iteration picked that has one."""
        result = np.full(len(self.kernels), UNPAIRED, np.int64)
        for rows in self.rows[self.picked]:
            result[rows >= 0] = rows[rows >= 0]
        return result

    @property
    def sites(self) -> dict[int, Site]:
        """Where in the code kernels were launched, by kernel number; empty where unknown."""
        profile, row = self.profile, self.row
        if profile.site is None:
            return {}
        return {
            kernel.kernel: profile.sites[profile.site[at]]
            for kernel, at in zip(self.kernels, row.tolist(), strict=True)
            if at >= 0
        }

    @property
    def unmatched_rows(self) -> NDArray[np.int64]:
        """Rows of the profile that are no kernel of the store."""
        return np.setdiff1d(np.arange(len(self.profile)), self.rows[self.rows >= 0])

    def share_of_time(self, status: str) -> float:
        """Return the share of the profile's time that kernels of one status take."""
        total = float(self.profile.duration.sum())
        if status == UNMATCHED:
            rows = self.unmatched_rows
        else:
            rows = self.rows[(self.rows >= 0) & (self.guessed == (status == GUESSED))]
        part = float(self.profile.duration[rows].sum())
        return part / total if total > 0 else len(rows) / max(1, len(self.profile))

    def summary(self) -> str:
        """Say in one line how well the two fit."""
        counts = Counter(self.status)
        parts = [f"{counts[MATCHED]} of {counted(len(self.kernels), 'kernel')} matched"]
        if counts[GUESSED]:
            parts.append(f"{counts[GUESSED]} guessed")
        if counts[UNMATCHED]:
            parts.append(f"{counts[UNMATCHED]} without a measurement")
        extra = len(self.unmatched_rows)
        parts.append(f"{extra} of {len(self.profile)} profile kernels not in the trace")
        parts.append(f"{100 * (1 - self.share_of_time(UNMATCHED)):.1f} % of the profile's time")
        return ", ".join(parts)

    @property
    def measured_sms(self) -> int | None:
        """SMs of the GPU that was measured; None if the profile does not say.

        Raises
        ------
        ProfileError
            If kernels were measured on GPUs of different size.
        """
        if self.profile.measured_sms is None:
            return None
        stated = {int(n) for n in self.profile.measured_sms if n > 0}
        if len(stated) > 1:
            raise ProfileError(
                self.profile.source,
                f"kernels were measured on {', '.join(map(str, sorted(stated)))} SMs",
                "pass --measured-sms N",
            )
        return next(iter(stated), None)

    @property
    def device_name(self) -> str | None:
        """Name of the GPU that was measured; None if the profile does not say."""
        names = self.profile.device_names
        devices = self.profile.devices or tuple(names)
        return next((names[d] for d in devices if names.get(d)), None)

    def measured_run(self) -> MeasuredRun | None:
        """Return wall time and gaps of the iterations picked; None without start times."""
        if self.profile.start is None:
            return None
        # Relative to the first, so that nanoseconds since 1970 keep their last digits.
        start = (self.profile.start - self.profile.start.min()).astype(np.float64)
        end = start + self.profile.duration
        walls, kernel_times, gaps, intervals, others = [], [], [], [], 0
        of_graphs: list[NDArray[np.bool_]] = []
        calls, queued = [np.empty(0)], [np.empty(0)]
        for line in self.rows[self.picked]:
            rows = line[line >= 0]
            first, last = start[rows].min(), end[rows].max()
            walls.append(last - first)
            inside = np.flatnonzero((start >= first) & (start <= last) & (end <= last))
            inside = inside[np.argsort(start[inside], kind="stable")]
            ended = np.maximum.accumulate(end[inside])
            gaps.append(np.maximum(0.0, start[inside][1:] - ended[:-1]))
            intervals.append(np.diff(start[inside]))
            kernel_times.append(self.profile.duration[inside].sum())
            of_graphs.append(self._shares_launch(inside))
            calls.append(self._between_calls(inside))
            queued.append(self._queued_gaps(inside, end))
            others += len(np.setdiff1d(inside, self.rows))
        return MeasuredRun(
            wall=float(np.mean(walls)) * self.scale,
            kernel_time=float(np.mean(kernel_times)) * self.scale,
            idle=float(np.mean([each.sum() for each in gaps])) * self.scale,
            is_graph=bool(np.mean(np.concatenate(of_graphs)) > 1 / 2),
            gap=self._median(gaps) or 0.0,
            interval=self._median(intervals) or 0.0,
            host=self._median(calls),
            queued_gap=self._median(queued),
            unit=self.unit,
            sms=None if self.profile.measured_sms is None else self.measured_sms,
            others=others,
        )

    def _median(self, times: Sequence[NDArray[np.float64]]) -> float | None:
        every = np.concatenate(times)
        return float(np.median(every)) * self.scale if len(every) else None

    def _shares_launch(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell which kernels were launched together with another one: nodes of a CUDA graph."""
        profile = self.profile
        if profile.correlation is None:
            return np.zeros(len(rows), np.bool_)
        process = np.zeros(len(rows)) if profile.process is None else profile.process[rows]
        call = np.stack([process, profile.correlation[rows]])
        _, member, count = np.unique(call, axis=1, return_inverse=True, return_counts=True)
        shares: NDArray[np.bool_] = (count[member.reshape(-1)] > 1) & (call[1] != UNKNOWN)
        return shares

    def _between_calls(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the times from launch call to launch call, one for all nodes of a CUDA graph."""
        if self.profile.issued is None:
            return np.empty(0)
        issued = self.profile.issued[rows]
        issued = np.unique(issued[issued != UNKNOWN])
        return np.diff(issued).astype(np.float64)

    def _queued_gaps(self, rows: NDArray[np.intp], end: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gaps before kernels that were launched while the one before them ran."""
        profile = self.profile
        if profile.issued is None or profile.start is None:
            return np.empty(0)
        if profile.stream is not None:
            rows = rows[np.argsort(profile.stream[rows], kind="stable")]
        before, after = rows[:-1], rows[1:]
        origin = profile.start.min()
        issued = (profile.issued[after] - origin).astype(np.float64)
        gap = (profile.start[after] - origin).astype(np.float64) - end[before]
        ready = (profile.issued[after] != UNKNOWN) & (issued < end[before]) & (gap >= 0)
        if profile.stream is not None:
            ready &= profile.stream[before] == profile.stream[after]
        if profile.correlation is not None:
            ready &= profile.correlation[before] != profile.correlation[after]
        queued: NDArray[np.float64] = gap[ready]
        return queued

    def fill_resources(self, resources: Resources) -> tuple[Resources, tuple[str, ...]]:
        """Take from the profile what the trace does not say of the kernels' resources.

        Registers where the trace has none, or more than a thread can have. Shared memory where
        the trace has none or a negative number, and where it knows no registers either: tracers
        ask a function that is not loaded yet for both, and get 0 for the static part. Streams
        where the trace has one alone.

        Parameters
        ----------
        resources : Resources

        Returns
        -------
        resources : Resources
        notes : tuple of str
            What was taken.
        """
        operation = np.array([kernel.operation for kernel in self.kernels])
        row = self.row
        has_row = row >= 0

        def measured(column: NDArray[np.int64] | None) -> NDArray[np.int64]:
            values = np.full(len(resources.threads), UNKNOWN, np.int64)
            if column is not None:
                values[operation[has_row]] = column[row[has_row]]
            return values

        registers, shared = measured(self.profile.registers), measured(self._shared_bytes())
        unusable = (resources.registers <= 0) | (resources.registers > _MOST_REGISTERS)
        lacks_registers = (registers > 0) & unusable
        lacks_shared = (shared >= 0) & (
            (resources.shared_bytes < 0) | (unusable & (shared > resources.shared_bytes))
        )
        notes = []
        for what, lacking in (("registers", lacks_registers), ("shared memory", lacks_shared)):
            if lacking.any():
                notes.append(
                    f"{what} of {counted(int(lacking.sum()), 'kernel')} taken from the "
                    "profile: the trace does not have them"
                )
        stream = resources.stream
        streams = measured(self.profile.stream)
        if len(np.unique(stream[operation])) == 1 and len(np.unique(streams[streams >= 0])) > 1:
            stream = np.where(streams >= 0, streams, stream)
            notes.append("streams taken from the profile: the trace has only one")
        return (
            replace(
                resources,
                registers=np.where(lacks_registers, registers, resources.registers),
                shared_bytes=np.where(lacks_shared, shared, resources.shared_bytes),
                stream=stream,
            ),
            tuple(notes),
        )

    def _shared_bytes(self) -> NDArray[np.int64] | None:
        profile = self.profile
        if profile.shared_bytes is not None:
            return profile.shared_bytes
        static, dynamic = profile.static_shared_bytes, profile.dynamic_shared_bytes
        if static is None or dynamic is None:
            return static if dynamic is None else dynamic
        known = (static >= 0) & (dynamic >= 0)
        return np.where(known, static + dynamic, UNKNOWN)
