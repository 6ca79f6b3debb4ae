"""A profile matched to the kernels of a store: times, resources, and copies between kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError
from depgraph.graph.block_graph import BlockGraph, Resources
from depgraph.graph.program import Kernel
from depgraph.system.arrays import distinct
from depgraph.system.text import counted, show_number
from depgraph.timing.durations import scaled_durations
from depgraph.timing.profile import UNKNOWN, KernelProfile, Site
from depgraph.timing.program_times import Durations, median
from depgraph.trace.block_spans import BlockSpans

MATCHED, GUESSED, UNMATCHED = "matched", "guessed", "unmatched"
PICKS = ("median", "mean", "min", "last")

_MOST_REGISTERS = 255


class AluUse(NamedTuple):
    """How busy the arithmetic was while kernels were measured or simulated."""

    counter: str  # what says so, as the profile calls it
    of_kernel: Mapping[int, float]  # 0 to 1


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Which row of a profile is which kernel of a store."""

    profile: KernelProfile  # filtered: kernels of one device, process and context
    kernels: Sequence[Kernel]
    rows: NDArray[np.int64]  # [n_iterations, n_kernels]; `UNPAIRED` where there is none
    guessed: NDArray[np.bool_]  # the same: paired by order although the name or the grid differs
    iteration: str  # what is taken of several: "median", "mean", "min", "last" or a number
    picked: NDArray[np.int64]  # the iterations that are taken
    notes: tuple[str, ...] = ()  # how it was matched, as far as there is something to say

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
        return self.reduced(self._times(self.picked))

    def _times(self, iterations: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the times of all kernels in some iterations, NaN where there is none."""
        rows = self.rows[iterations]
        return np.where(rows >= 0, self.profile.duration[rows], np.nan) * self.scale

    def reduced(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take of times of several iterations, a line each, what was asked for; NaN is none."""
        result = np.full(times.shape[1], np.nan)
        some = ~np.isnan(times).all(axis=0)
        if some.any():
            take: Any = {"min": np.nanmin, "mean": np.nanmean}.get(self.iteration)
            known = times[:, some]
            result[some] = median(known) if take is None else take(known, axis=0)
        return result

    @property
    def spread(self) -> NDArray[np.float64]:
        """From the shortest to the longest time of each kernel over the median; NaN for none."""
        times = self._times(slice(None))
        result = np.full(times.shape[1], np.nan)
        some = np.nanmax(times, axis=0, initial=-1.0) > 0
        if some.any():
            known = times[:, some]
            apart = np.nanmax(known, axis=0) - np.nanmin(known, axis=0)
            result[some] = apart / median(known)
        return result

    @property
    def kernel_time_range(self) -> tuple[float, float]:
        """Time that the kernels take together in the shortest and in the longest iteration."""
        together = np.nansum(self._times(slice(None)), axis=1)
        return float(together.min()), float(together.max())

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
        from depgraph.timing.align import UNPAIRED

        result = np.full(len(self.kernels), UNPAIRED, np.int64)
        for rows in self.rows[self.picked]:
            result[rows >= 0] = rows[rows >= 0]
        return result

    @property
    def row_of_kernel(self) -> dict[int, int]:
        """The `row` of each kernel that has one, by its number."""
        rows = zip(self.kernels, self.row.tolist(), strict=True)
        return {kernel.kernel: row for kernel, row in rows if row >= 0}

    @property
    def block_times(self) -> dict[int, NDArray[np.float64]]:
        """Median times of the blocks of kernels, in `unit`, by number; not of guessed ones."""
        return {
            kernel: np.median([each.alone for each in measured], axis=0) * self.scale
            for kernel, measured in self._block_spans().items()
        }

    @property
    def resident(self) -> dict[int, int]:
        """The most blocks that one SM was seen to hold of each kernel of `block_times`."""
        return {
            kernel: max(each.resident for each in measured)
            for kernel, measured in self._block_spans().items()
        }

    def _block_spans(self) -> dict[int, list[BlockSpans]]:
        from depgraph.timing.align import UNPAIRED

        spans = self.profile.block_spans
        found: dict[int, list[BlockSpans]] = {}
        if spans is None:
            return found
        sure = np.where(self.guessed, UNPAIRED, self.rows)[self.picked]
        for place, kernel in enumerate(self.kernels):
            measured = [spans[row] for row in sure[:, place] if row >= 0]
            usable = [s for s in measured if s is not UNKNOWN and len(s.sm) == kernel.blocks]
            if usable:
                found[kernel.kernel] = usable
        return found

    @property
    def sites(self) -> dict[int, Site]:
        """Where in the code kernels were launched, by kernel number; empty where unknown."""
        site, sites = self.profile.site, self.profile.sites
        if site is None:
            return {}
        return {kernel: sites[site[row]] for kernel, row in self.row_of_kernel.items()}

    @property
    def alu(self) -> AluUse | None:
        """How busy the arithmetic was; None where the profile does not say."""
        column = self.profile.filled("alu_utilization")
        shares = {
            kernel: column[row] / 10_000
            for kernel, row in self.row_of_kernel.items()
            if column[row] != UNKNOWN
        }
        return AluUse(self.profile.alu_counter, shares) if shares else None

    @property
    def is_eager(self) -> bool:
        """Whether the profile's kernels were launched one by one."""
        return self.profile.is_eager

    @property
    def unmatched_rows(self) -> NDArray[np.int64]:
        """Rows of the profile that are no kernel of the store."""
        is_left = np.ones(len(self.profile), np.bool_)
        is_left[self.rows[self.rows >= 0]] = False
        return np.flatnonzero(is_left)

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
        """SMs of the GPU that was measured, if the profile says; GPUs of two sizes are refused."""
        stated = {n for n in self.profile.filled("measured_sms").tolist() if n > 0}
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

    def memory_node_times(self, nodes: int) -> NDArray[np.float64] | None:
        """Return times of memsets and copies: float64[nodes]; None if as many are not known."""
        memory = self.profile.memory
        if memory is None or memory.start is None or len(memory) != nodes:
            return None
        times: NDArray[np.float64] = memory.duration[np.argsort(memory.start, kind="stable")]
        return times * self.scale


def fill_resources(match: Match, resources: Resources) -> tuple[Resources, tuple[str, ...]]:
    """Take from the profile what the trace does not say of the kernels' resources; say what.

    Registers where the trace has none, or more than a thread can have. Shared memory where
    the trace has none or a negative number, and where it knows no registers either: tracers
    ask a function that is not loaded yet for both, and get 0 for the static part. Streams
    where the trace has one alone.
    """
    profile = match.profile
    operation = np.array([kernel.operation for kernel in match.kernels])
    row = match.row
    has_row = row >= 0

    def measured(column: str) -> NDArray[np.int64]:
        values = np.full(len(resources.threads), UNKNOWN, np.int64)
        values[operation[has_row]] = profile.filled(column)[row[has_row]]
        return values

    registers, shared = measured("registers"), measured("block_shared_bytes")
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
    streams = measured("stream")
    if len(distinct(stream[operation])) == 1 and len(distinct(streams[streams >= 0])) > 1:
        stream = np.where(streams >= 0, streams, stream)
        notes.append("streams taken from the profile: the trace has only one")
    return (
        resources._replace(
            registers=np.where(lacks_registers, registers, resources.registers),
            shared_bytes=np.where(lacks_shared, shared, resources.shared_bytes),
            stream=stream,
        ),
        tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class MemoryOperations:
    """Memsets or copies of one sort, at one place in the program."""

    name: str  # as the file spells it
    before: int | None  # the kernel of the trace that is next to start; None if no such is known
    count: int  # in an iteration; where `before` is None, in the whole profile
    time: float  # the same, in the unit of the match


def memory_operations(match: Match) -> list[MemoryOperations]:
    """Return memsets and copies in the order of kernels; iterations are picked as of kernels."""
    memory = match.profile.memory
    if memory is None:
        return []
    iteration, place = _next_kernels(match)
    duration = memory.duration * match.scale
    found = []
    picked = {int(number): line for line, number in enumerate(match.picked)}
    groups: dict[tuple[int, str], list[int]] = {}
    for row, name in enumerate(memory.name):
        groups.setdefault((int(place[row]), name), []).append(row)
    for (at, name), rows in sorted(groups.items(), key=lambda item: (item[0][0] < 0, item[0])):
        if at < 0:
            found.append(MemoryOperations(name, None, len(rows), float(duration[rows].sum())))
            continue
        each = np.zeros((len(picked), 2))
        for row in rows:
            line = picked.get(int(iteration[row]))
            if line is not None:
                each[line] += 1, duration[row]
        count, time = match.reduced(each).tolist()
        if count:
            number = match.kernels[at].kernel
            found.append(MemoryOperations(name, number, round(count), time))
    return found


def _next_kernels(match: Match) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return iteration and place of the matched kernel that starts next, -1 where none does."""
    profile, memory = match.profile, match.profile.memory
    if memory is None or memory.start is None or profile.start is None:
        none = np.full(0 if memory is None else len(memory), -1)
        return none, none
    place = np.full((2, len(profile) + 1), -1)
    line, column = np.nonzero(match.rows >= 0)
    place[:, match.rows[line, column]] = line, column
    order = np.argsort(profile.start, kind="stable")
    after = np.searchsorted(profile.start[order], memory.start, side="left")
    next_row = np.append(order, len(profile))[after]
    return place[0, next_row], place[1, next_row]


def matched_durations(
    graph: BlockGraph, match: Match, occupancy: NDArray[np.int64], sms: int
) -> Durations:
    """Turn measured times of matched kernels into those of blocks; `occupancy` is blocks per SM."""
    latency = match.profile.launch_latency * match.scale
    times = np.maximum(match.duration - latency, 0.0)
    block_times = match.block_times
    also = " and block times" if block_times else ""
    durations = scaled_durations(
        graph,
        {
            kernel.kernel: time
            for kernel, time in zip(match.kernels, times.tolist(), strict=True)
            if time >= 0
        },
        occupancy * sms,
        unit=match.unit,
        source=f"kernel times{also} of {match.profile.source.name}",
        sms=sms,
        kernels=match.kernels,
        block_times=block_times,
    )
    notes = [f"profile and trace: {match.summary()}", *match.notes, *match.profile.notes]
    memory = [m for m in memory_operations(match) if m.before is not None]
    if memory:
        time = show_number(sum(m.time for m in memory))
        count = sum(m.count for m in memory)
        copies = int((graph.kernel < 0).sum())
        who = "predictions have" if match.memory_node_times(copies) is not None else "nothing has"
        notes.append(
            f"memsets and copies between kernels of the profile: {count}, {time} {match.unit} in "
            f"all; {who} them"
        )
    if latency:
        notes.append(f"the launch latency of {latency:g} {match.unit} is left out of kernel times")
    return replace(durations, assumptions=(*notes, *durations.assumptions))
