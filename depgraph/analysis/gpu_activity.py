"""The timeline of a profile: what ran on one GPU, in which steps, how much of the GPU it filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from depgraph.analysis.communication_overlap import kernels_that_communicate, step_of_launches
from depgraph.errors import ProfileError
from depgraph.gpu.occupancy import occupancy
from depgraph.system.text import counted
from depgraph.timing.profile import UNKNOWN

if TYPE_CHECKING:
    import re

    from numpy.typing import NDArray

    from depgraph.gpu.model import Gpu
    from depgraph.timing.profile import KernelProfile

COMPUTE, TALK, COPY = range(3)
TIMELINE = "give a timeline: a torch.profiler trace, or an Nsight Systems export"
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """All that ran on one GPU for one process, by start: times in nanoseconds from the first."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    kind: NDArray[np.int64]
    stream: NDArray[np.int64]
    issued: NDArray[np.float64]  # NaN where the profile has no launch call
    utilization: NDArray[np.float64]  # of the SMs; NaN where it is not known
    step: NDArray[np.int64]  # -1 outside all steps
    steps: tuple[str, ...]

    @property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Which of it are kernels, not copies or memsets."""
        kernels: NDArray[np.bool_] = self.kind != COPY
        return kernels


class Window(NamedTuple):
    """The part of a timeline that is one step; times as in `Activity`."""

    rows: NDArray[np.intp]  # that ran in it, some of which began before
    begin: float
    end: float


def of_one_gpu(profile: KernelProfile, notes: list[str]) -> KernelProfile:
    """Return the part of that process and device whose kernels took longest; note the choice."""
    if profile.start is None:
        raise ProfileError(profile.source, "does not say when its kernels ran", TIMELINE)
    if profile.unit != "ns":
        raise ProfileError(profile.source, "is of a simulator", "give measured times")
    if not len(profile):
        raise ProfileError(profile.source, "has no kernels", TIMELINE)
    parts = [
        (f"process {process}, device {device}", part)
        for process in profile.processes or (None,)
        for device in profile.devices or (None,)
        if (part := _part(profile, process, device)) is not None
    ]
    longest = max(range(len(parts)), key=lambda at: float(parts[at][1].duration.sum()))
    if len(parts) > 1:
        notes.append(
            f"of {counted(len(parts), 'process', 'processes')} or devices {parts[longest][0]} "
            "counts, whose kernels took longest (--process, --device)"
        )
    return parts[longest][1]


def _part(profile: KernelProfile, process: int | None, device: int | None) -> KernelProfile | None:
    try:
        return profile.only(process=process, device=device)
    except ProfileError:
        return None  # this process has nothing on this device


def activity_of(profile: KernelProfile, utilization: NDArray[np.float64]) -> Activity:
    """Put kernels, copies and memsets into one order; `utilization` as `utilization_of` has it."""
    pattern = kernels_that_communicate()
    parts = [_columns(profile, COMPUTE, pattern)]
    if profile.memory is not None and profile.memory.start is not None:
        parts.append(_columns(profile.memory, COPY, pattern))
    starts, duration, kind, stream, issued = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    # Relative to the first, so that nanoseconds since 1970 keep their last digits.
    origin = starts.min()
    start = (starts - origin).astype(np.float64)
    unknown = np.full(len(starts) - len(profile), np.nan)
    steps, step = step_of_launches(profile.steps, np.where(issued == UNKNOWN, starts, issued))
    return Activity(
        start=start[order],
        end=(start + duration)[order],
        kind=kind[order],
        stream=stream[order],
        issued=np.where(issued == UNKNOWN, np.nan, issued - origin)[order],
        utilization=np.append(utilization, unknown)[order],
        step=step[order],
        steps=steps,
    )


def _columns(
    profile: KernelProfile, otherwise: int, communicates: re.Pattern[str]
) -> tuple[NDArray[Any], ...]:
    """Return start, duration, kind, stream and time of the launch call of each row."""
    if profile.start is None:
        raise TypeError("profiles without starts are refused before")
    unknown = np.full(len(profile), UNKNOWN)
    return (
        profile.start,
        profile.duration,
        np.array(
            [TALK if communicates.match(name) else otherwise for name in profile.name], np.int64
        ),
        unknown if profile.stream is None else profile.stream,
        unknown if profile.issued is None else profile.issued,
    )


def utilization_of(
    profile: KernelProfile, gpu: Gpu, sms: int, notes: list[str]
) -> NDArray[np.float64]:
    """Return the share of the SMs that each kernel's blocks hold on average, 0 to 1, else NaN."""
    if profile.grid is None or profile.block is None:
        return np.full(len(profile), np.nan)
    blocks = profile.grid.astype(np.int64).prod(axis=1)
    threads = profile.block.astype(np.int64).prod(axis=1)
    none = np.full(len(profile), UNKNOWN)
    registers = none if profile.registers is None else profile.registers
    shared = none if profile.block_shared_bytes is None else profile.block_shared_bytes
    usable = (profile.grid > 0).all(axis=1) & (threads > 0) & (threads <= _MOST_THREADS)
    launches = np.stack([threads, registers, shared], axis=1)
    kinds, of_kind = np.unique(launches, axis=0, return_inverse=True)
    held = np.ones(len(kinds), np.int64)
    for at, (n_threads, n_registers, n_bytes) in enumerate(kinds.tolist()):
        if 0 < n_threads <= _MOST_THREADS:
            held[at] = occupancy(
                gpu,
                threads=n_threads,
                registers=n_registers if n_registers > 0 else None,
                shared_bytes=n_bytes if n_bytes >= 0 else None,
            ).blocks_per_sm
    slots = held[of_kind.reshape(-1)] * sms
    if profile.registers is None:
        notes.append("registers are not in the profile: they limit no SM")
    return np.where(usable, blocks / (-(-blocks // slots) * slots), np.nan)


def windows_of(activity: Activity) -> list[Window]:
    """Return the steps that were measured: each ends where the next one's work begins."""
    firsts = []
    for step in range(len(activity.steps)):
        rows = np.flatnonzero(activity.step == step)
        if len(rows):
            firsts.append((float(activity.start[rows].min()), float(activity.end[rows].max())))
    firsts = firsts or [(float(activity.start[0]), float(activity.end.max()))]
    begins = sorted(first for first, _ in firsts)
    ends = [*begins[1:], max(last for _, last in firsts)]
    found = [
        Window(np.flatnonzero((activity.start < end) & (activity.end > begin)), begin, end)
        for begin, end in zip(begins, ends, strict=True)
        if end > begin
    ]
    return [window for window in found if len(window.rows)]
