"""What ran on a GPU, as a profile shows it: kernels, copies and memsets, and what communicates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError, ProfileError
from depgraph.system.text import in_short
from depgraph.timing.profile import UNKNOWN, KernelProfile, Step

# Kernels of NCCL, RCCL, MSCCL and NVSHMEM, and of the libraries that have collectives of their own
# (vLLM, TensorRT-LLM, PyTorch's symmetric memory).
COMMUNICATION = (
    r"nccl|rccl|msccl|nvshmem|"
    r"cross_device_reduce|(?:one|two)_?shot_?all_?reduce|multimem_(?:all|one)|AllReduceKernel"
)
# What stands before the name of a template's kernel, or of one in a namespace.
_BEFORE_NAME = r"(?:void )?(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)*"
_PEER_COPY = re.compile(r"\bP(?:eer)?toP(?:eer)?\b|\bp2p\b", re.IGNORECASE)
ALL = "all"
TIMELINE = "give a timeline: a torch.profiler trace, or an Nsight Systems export"
COMPUTE, COMMUNICATE, COPY = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """All that ran on one GPU for one process, by start: times in nanoseconds from the first."""

    name: NDArray[np.object_]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    kind: NDArray[np.int64]  # `COMMUNICATE` of collectives and peer copies, `COPY` of memsets, too
    row: NDArray[np.int64]  # of the profile; -1 of copies and memsets
    stream: NDArray[np.int64]
    issued: NDArray[np.float64]  # NaN where the profile has no launch call
    blocks: NDArray[np.int64]  # of the grid, -1 where it is not known; 0 of copies and memsets
    step: NDArray[np.int64]  # -1 outside all steps
    steps: tuple[str, ...]

    @property
    def end(self) -> NDArray[np.float64]:
        """When each ended."""
        return self.start + self.duration

    @property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Which of it are kernels, not copies or memsets."""
        kernels: NDArray[np.bool_] = self.row >= 0
        return kernels

    @property
    def communicates(self) -> NDArray[np.bool_]:
        """What of it communicates."""
        communicates: NDArray[np.bool_] = self.kind == COMMUNICATE
        return communicates

    def take(self, rows: NDArray[np.bool_ | np.integer[Any]]) -> Activity:
        """Return what a mask or an array of indices picks, in that order."""
        columns = (field.name for field in fields(self) if field.name != "steps")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})


def activity_of(profile: KernelProfile, pattern: re.Pattern[str] | None = None) -> Activity:
    """Put kernels, copies and memsets into one order; by default collectives as they are known."""
    pattern = pattern or kernels_that_communicate()
    communicates = [pattern.match(name) is not None for name in profile.name]
    blocks = np.full(len(profile), UNKNOWN)
    if profile.grid is not None:
        blocks = np.where(profile.grid[:, 0] > 0, profile.grid.astype(np.int64).prod(axis=1), -1)
    parts, memory = [profile], profile.memory
    if memory is not None and memory.start is not None:
        parts.append(memory)
        communicates += [_PEER_COPY.search(name) is not None for name in memory.name]
        blocks = np.append(blocks, np.zeros(len(memory), np.int64))
    starts, duration, stream, issued, name = map(
        np.concatenate, zip(*map(_columns, parts), strict=True)
    )
    row = np.where(np.arange(len(starts)) < len(profile), np.arange(len(starts)), -1)
    # Relative to the first, so that nanoseconds since 1970 keep their last digits.
    origin = starts.min()
    steps, step = step_of_launches(profile.steps, np.where(issued == UNKNOWN, starts, issued))
    return Activity(
        name=name,
        start=(starts - origin).astype(np.float64),
        duration=duration,
        kind=np.where(communicates, COMMUNICATE, np.where(row >= 0, COMPUTE, COPY)),
        row=row,
        stream=stream,
        issued=np.where(issued == UNKNOWN, np.nan, issued - origin),
        blocks=blocks,
        step=step,
        steps=steps,
    ).take(np.argsort(starts, kind="stable"))


def _columns(part: KernelProfile) -> tuple[NDArray[Any], ...]:
    """Return start, duration, stream, time of the launch call and name of each row."""
    names = np.array(part.name, np.object_)
    return starts_of(part), part.duration, part.filled("stream"), part.filled("issued"), names


def kernels_that_communicate(more: str | None = None) -> re.Pattern[str]:
    """Return what matches the names of collectives, and of the kernels that `more` names."""
    try:
        re.compile(more or "")
        names = "|".join(filter(None, [COMMUNICATION, more]))
        return re.compile(f"{_BEFORE_NAME}(?:{names})", re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        message = f"--communication {in_short(more or '')!r} is no regular expression: {error}"
        raise ModelError(message) from None


def starts_of(profile: KernelProfile) -> NDArray[np.int64]:
    """Return when kernels started; refuse a profile that does not say, or is of a simulator."""
    if profile.start is None:
        raise ProfileError(profile.source, "does not say when its kernels ran", TIMELINE)
    if profile.unit != "ns":
        raise ProfileError(profile.source, "is of a simulator", "give measured times")
    return profile.start


def step_of_launches(
    marked: Sequence[Step], issued: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the outermost steps, and that in which each kernel was launched; -1 for none."""
    outer: list[Step] = []
    for step in sorted(marked, key=lambda s: (s.start, -s.end)):
        if not outer or step.start >= outer[-1].end:
            outer.append(step)
    if not outer:
        return (ALL,), np.zeros(len(issued), np.int64)
    starts = np.array([step.start for step in outer])
    at = np.searchsorted(starts, issued, side="right") - 1
    inside = (at >= 0) & (issued <= np.array([step.end for step in outer])[np.maximum(at, 0)])
    return tuple(step.name for step in outer), np.where(inside, at, -1)
