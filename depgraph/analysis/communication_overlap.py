"""Overlap of computation and communication, from profiles alone: how much, and what it gained."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.activity import (
    ALL,
    COPY,
    Activity,
    activity_of,
    kernels_that_communicate,
    starts_of,
)
from depgraph.errors import ModelError
from depgraph.system.arrays import grouped
from depgraph.system.text import counted, share_of_gain
from depgraph.timing.profile import UNKNOWN, KernelProfile

_MICROSECOND = 1000.0  # ns
_NAMED = 3
_OF_THE_SAME_KERNEL = (
    "times alone of kernels that ran beside communication: those of the same kernel and grid where "
    "none ran; collectives as they were measured (--isolated gives better ones)"
)
# What makes two launches the same kernel: its name, and its blocks.
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Iteration:
    """What ran in one step of one rank; times in microseconds."""

    rank: str
    name: str
    computation: float  # time in which it ran, as if alone
    communication: float  # the same
    time: float  # in which anything ran
    idle: float  # from the first start to the last end, in which nothing ran
    exposed: float  # in which communication ran and no computation did
    sms: float | None  # that collectives took, on average over their time; None without grids

    @property
    def serial(self) -> float:
        """Computation and communication one after the other."""
        return self.computation + self.communication

    @property
    def ideal(self) -> float:
        """Time if neither slowed the other."""
        return max(self.computation, self.communication)

    @property
    def speedup(self) -> float | None:
        """Serial over time; None where nothing ran."""
        return self.serial / self.time if self.time > 0 else None

    @property
    def ideal_speedup(self) -> float | None:
        """Serial over ideal; None where nothing ran."""
        return self.serial / self.ideal if self.ideal > 0 else None

    @property
    def share(self) -> float | None:
        """Share of the ideal gain, neither below 0 nor above 1 cut off; None if there is none."""
        if self.speedup is None or self.ideal_speedup is None:
            return None
        return share_of_gain(self.speedup, self.ideal_speedup)


@dataclass(frozen=True, slots=True)
class CommunicationKernel:
    """A collective or a peer copy of one rank, over all its iterations; time in microseconds."""

    rank: str
    name: str
    count: int
    time: float
    blocks: int | None


@dataclass(frozen=True, slots=True)
class Overlapped:
    """What profiles show of computation beside communication."""

    iterations: tuple[Iteration, ...]  # by rank and time
    ranks: tuple[Iteration, ...]  # of each rank the iteration of median time
    kernels: tuple[CommunicationKernel, ...]
    sms: int | None  # of the GPU; None where no profile says
    notes: tuple[str, ...]  # what was assumed


def overlapped(
    profiles: Sequence[KernelProfile],
    isolated: Sequence[KernelProfile] = (),
    *,
    communication: str | None = None,
) -> Overlapped:
    """Say how much of communication ran beside computation, and what that gained."""
    # There is a profile a rank, or one that holds several processes or devices. Isolated ones are
    # of the same program, where neither ran beside the other: one for all ranks, or one each. The
    # expression is of how names of further kernels that communicate begin, with or without what
    # stands before them (``void``, namespaces).
    pattern = kernels_that_communicate(communication)
    ranks = _by_rank(profiles)
    alone = [_work(profile, pattern) for _, profile in _by_rank(isolated)]
    if len(alone) not in (0, 1, len(ranks)):
        message = f"{counted(len(ranks), 'rank')}, but {len(alone)} isolated: give one, or one each"
        raise ModelError(message)
    stated = [p.measured_sms.max() for p in profiles if p.measured_sms is not None]
    sms = int(max(stated)) if stated else None
    notes: list[str] = []
    iterations: list[Iteration] = []
    kernels: list[CommunicationKernel] = []
    for i, (rank, profile) in enumerate(ranks):
        work = _work(profile, pattern)
        reference = alone[i if len(alone) > 1 else 0] if alone else None
        times, own_notes = _alone(work, reference)
        notes += [note for note in own_notes if note not in notes]
        for step, name in enumerate(work.steps):
            rows = np.flatnonzero(work.step == step)
            if len(rows):
                iterations.append(_iteration(rank, name, work, rows, times[rows], sms))
        kernels += _kernels(rank, work)
    medians = [
        _median([each for each in iterations if each.rank == rank])
        for rank in dict.fromkeys(each.rank for each in iterations)
    ]
    notes += _notes(iterations, kernels, len(ranks))
    return Overlapped(tuple(iterations), tuple(medians), tuple(kernels), sms, tuple(notes))


def _by_rank(profiles: Iterable[KernelProfile]) -> list[tuple[str, KernelProfile]]:
    """Split profiles by process and device, and name each part."""
    parts: list[tuple[str, KernelProfile]] = []
    for profile in profiles:
        starts_of(profile)
        own = [f"rank {profile.rank}"] if profile.rank is not None else [profile.source.name]
        for process in profile.processes or (None,):
            of_process = profile if process is None else profile.only(process=process)
            for device in of_process.devices or (None,):
                part = of_process if device is None else of_process.only(device=device)
                place = [f"process {process}"] * (len(profile.processes) > 1)
                place += [f"device {device}"] * (len(of_process.devices) > 1)
                kept = tuple(s for s in part.steps if s.process in (UNKNOWN, process))
                parts.append((", ".join(own + place), replace(part, steps=kept)))
    names = [name for name, _ in parts]
    return [
        (name if names.count(name) == 1 else f"{name} ({number})", part)
        for number, (name, part) in enumerate(parts)
    ]


def _work(profile: KernelProfile, pattern: re.Pattern[str]) -> Activity:
    """Return kernels and peer copies together."""
    activity = activity_of(profile, pattern)
    return activity.take(activity.kind != COPY)


def _alone(work: Activity, reference: Activity | None) -> tuple[NDArray[np.float64], list[str]]:
    """Return how long each kernel takes with nothing of the other side beside it, and why so."""
    if reference is not None:
        return _from_isolated(work, reference)
    is_free = _time_overlapped(work) == 0
    free = _rows_of(work, np.flatnonzero(~work.communicates & is_free))
    known = {key: float(np.median(work.duration[rows])) for key, rows in free.items()}
    times = work.duration.copy()
    guessed = 0
    for key, rows in _rows_of(work, np.flatnonzero(~work.communicates & ~is_free)).items():
        if key in known:
            times[rows] = np.minimum(times[rows], known[key])
        else:
            guessed += len(rows)
    notes = [_OF_THE_SAME_KERNEL]
    if guessed:
        notes.append(
            f"{counted(guessed, 'launch', 'launches')} of kernels that never ran without "
            "communication: taken as measured, so that speedup and share are too high"
        )
    return times, notes


def _time_overlapped(work: Activity) -> NDArray[np.float64]:
    """Return for how long something of the other side ran beside each kernel."""
    times = np.zeros(len(work.duration))
    end = work.start + work.duration
    for rows in (~work.communicates, work.communicates):
        others = ~rows
        covered = _Cover(work.start[others], end[others])
        times[rows] = covered.before(end[rows]) - covered.before(work.start[rows])
    return times


def _from_isolated(work: Activity, reference: Activity) -> tuple[NDArray[np.float64], list[str]]:
    """Take the time of each kernel from an isolated run: by its turn in the step, else by name."""
    times = work.duration.copy()
    known = _rows_by_turn(reference)
    missing = other_counts = 0
    for key, turns in _rows_by_turn(work).items():
        of_reference = known.get(key, [])
        for turn, rows in enumerate(turns):
            if len(of_reference) == len(turns):
                times[rows] = np.median(reference.duration[of_reference[turn]])
            elif of_reference:
                times[rows] = np.median(reference.duration[np.concatenate(of_reference)])
                other_counts += len(rows)
            else:
                missing += len(rows)
    notes = ["times alone: from the isolated profile, by kernel, grid and turn in the step"]
    if other_counts:
        notes.append(
            f"{counted(other_counts, 'launch', 'launches')} of kernels that the isolated profile "
            "has another number of: the median of all of theirs"
        )
    if missing:
        notes.append(
            f"{counted(missing, 'launch', 'launches')} of kernels that the isolated profile lacks: "
            "taken as measured beside others"
        )
    return times, notes


def _rows_by_turn(work: Activity) -> dict[_Key, list[NDArray[np.intp]]]:
    """Return for each kernel the rows of its first launch in each step, of its second, ..."""
    turns: dict[_Key, list[NDArray[np.intp]]] = {}
    for key, rows in _rows_in_steps(work).items():
        step = work.step[rows]
        turn = np.arange(len(rows)) - np.searchsorted(step, step)
        turns[key] = [rows[turn == each] for each in range(int(turn.max()) + 1)]
    return turns


def _rows_in_steps(work: Activity) -> dict[_Key, NDArray[np.intp]]:
    """Return the rows of each kernel in steps, by step and time."""
    by_step = np.argsort(work.step, kind="stable")
    return _rows_of(work, by_step[work.step[by_step] >= 0])


def _rows_of(work: Activity, rows: NDArray[np.intp]) -> dict[_Key, NDArray[np.intp]]:
    """Return those of some rows that are of each kernel, in the same order."""
    keys = list(zip(work.name.tolist(), work.blocks.tolist(), strict=True))
    members = grouped(rows.tolist(), keys.__getitem__)
    return {key: np.array(of_key) for key, of_key in members.items()}


class _Cover:
    """The union of intervals."""

    def __init__(self, start: NDArray[np.float64], end: NDArray[np.float64]) -> None:
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        is_new = np.ones(len(start), np.bool_)
        is_new[1:] = start[1:] > reach[:-1]
        self.start = start[is_new]
        last = np.append(np.flatnonzero(is_new)[1:] - 1, len(start) - 1)[: len(self.start)]
        self.end = reach[last]
        self._sum = np.concatenate([[0.0], np.cumsum(self.end - self.start)])

    @property
    def length(self) -> float:
        """How much is covered."""
        return float(self._sum[-1])

    def before(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how much is covered before each time."""
        at = np.searchsorted(self.start, times, side="right")
        past: NDArray[np.float64] = self._sum[at]
        if len(self.start):
            past = past - np.maximum(0.0, self.end[np.maximum(at - 1, 0)] - times) * (at > 0)
        return past


def _iteration(
    rank: str,
    name: str,
    work: Activity,
    rows: NDArray[np.intp],
    alone: NDArray[np.float64],
    sms: int | None,
) -> Iteration:
    """Measure one step. Kernels of one side that overlap one another keep doing so in `alone`."""
    start, duration, communicates = work.start[rows], work.duration[rows], work.communicates[rows]
    end = start + duration
    sides = []
    for side in (~communicates, communicates):
        ran, taken = _Cover(start[side], end[side]).length, float(duration[side].sum())
        sides.append(ran * float(alone[side].sum()) / taken if taken > 0 else 0.0)
    time = _Cover(start, end).length
    computing = _Cover(start[~communicates], end[~communicates]).length
    blocks = work.blocks[rows][communicates]
    known, weights = blocks >= 0, duration[communicates]
    taken_sms = None
    if known.any() and weights[known].sum() > 0:
        held = np.minimum(blocks[known], sms or np.inf)
        taken_sms = float(np.average(held, weights=weights[known]))
    return Iteration(
        rank=rank,
        name=name,
        computation=sides[0] / _MICROSECOND,
        communication=sides[1] / _MICROSECOND,
        time=time / _MICROSECOND,
        idle=max(0.0, float(end.max() - start.min()) - time) / _MICROSECOND,
        exposed=(time - computing) / _MICROSECOND,
        sms=taken_sms,
    )


def _median(iterations: Sequence[Iteration]) -> Iteration:
    """Return what is typical of a rank: its iteration of median time."""
    ordered = sorted(iterations, key=lambda each: each.time)
    return ordered[(len(ordered) - 1) // 2]


def _kernels(rank: str, work: Activity) -> list[CommunicationKernel]:
    kernels = []
    for (name, blocks), rows in _rows_in_steps(work).items():
        if work.communicates[rows[0]]:
            time = float(work.duration[rows].sum()) / _MICROSECOND
            of_grid = None if blocks < 0 else blocks
            kernels.append(CommunicationKernel(rank, name, len(rows), time, of_grid))
    return sorted(kernels, key=lambda kernel: -kernel.time)


def _notes(
    iterations: Sequence[Iteration], kernels: Sequence[CommunicationKernel], ranks: int
) -> list[str]:
    notes = ["a collective's kernel also waits for the other ranks: its time includes that"]
    if not kernels:
        notes = ["no kernel communicates: give --communication REGEX if some do"]
    above = [each for each in iterations if each.share is not None and each.share > 1]
    if above:
        which = ", ".join(f"{each.rank} {each.name}" for each in above[:_NAMED])
        more = f" and {len(above) - _NAMED} more" if len(above) > _NAMED else ""
        notes.append(f"above 100 %: the collective itself changed ({which}{more})")
    if all(each.name == ALL for each in iterations):
        notes.append("no steps are marked: all that the profile shows counts as one iteration")
    if ranks == 1:
        notes.append("one rank: give the profiles of the others to see who waits for whom")
    return notes
