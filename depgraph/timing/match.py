"""Match a profile to the kernels of a store: which measured launch is which traced one."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError
from depgraph.graph.program import Kernel
from depgraph.system.text import (
    LARGEST_ID,
    counted,
    nor_more,
    read_whole_number,
    show_number,
    show_percent,
)
from depgraph.timing.align import UNPAIRED, Level, align
from depgraph.timing.matched_profile import PICKS, Match
from depgraph.timing.profile import UNKNOWN, KernelProfile, Where
from depgraph.timing.program_times import median
from depgraph.trace.names import base_name, demangle

_LISTED = 5
_SAME_SPELLING = 0.9
_WHOLE_ITERATION = 0.9
_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|long long|short|char|bool)\)(?=-?\w)")


def match_profile(
    profile: KernelProfile, kernels: Sequence[Kernel], where: Where | None = None
) -> Match:
    """Find the measured launch of every kernel; `kernels` stand in launch order.

    Launches are aligned in order, by function name, grid and block; what only one side has is
    left out (longest common subsequence). Between pairs that agree, launches are paired that
    differ in the grid or in the name alone; these count as guessed. A profile of several
    iterations is aligned with as many repetitions of the trace. A profile of several devices,
    processes or contexts is refused unless one is chosen.

    O(n * m / 64) time for n and m launches, O(n + m) memory.
    """
    if not kernels:
        raise ProfileError(profile.source, "cannot be matched: the store has no kernel")
    where = where or Where()
    profile = profile.only(
        device=where.device, process=where.process, context=where.context, stream=where.stream
    )
    _refuse_mixtures(profile, kernels)
    numbered = _by_number(profile, kernels)
    if numbered is not None:
        rows, guessed, notes = numbered
    else:
        rows, guessed, notes = _by_alignment(profile, kernels)
    if not (rows >= 0).any():
        raise ProfileError(
            profile.source,
            f"none of its kernels is in the store: it has {_some_names(profile.name)}, the "
            f"store {_some_names(tuple(k.name for k in kernels))}",
            "profile the program that was traced",
        )
    rows, guessed, dropped = _whole_iterations(rows, guessed)
    if dropped:
        notes.append(f"incomplete iterations of the profile left out: {dropped}")
    iteration = where.iteration
    picked = _picked(profile, iteration, len(rows))
    found = Match(profile, kernels, rows, guessed, iteration, picked)
    notes += _stream_notes(found)
    if len(rows) > 1:
        what = {
            "median": "the median of each kernel",
            "mean": "the mean of each kernel",
            "min": "the shortest time of each kernel",
        }.get(iteration, f"number {found.picked[0]}")
        low, high = (show_number(time) for time in found.kernel_time_range)
        known = found.spread[~np.isnan(found.spread)]
        spread = show_percent(float(median(known)) if len(known) else 0.0)
        notes.append(
            f"iterations of the profile: {len(rows)}, {what} is taken (--iteration); together the "
            f"kernels take {low} to {high} {found.unit} an iteration; from its shortest to its "
            f"longest time a kernel differs by {spread} of its median, in the median"
        )
    return replace(found, notes=tuple(notes))


def _refuse_mixtures(profile: KernelProfile, kernels: Sequence[Kernel]) -> None:
    """Refuse a profile of several programs; a trace of several contexts may be of as many GPUs."""
    contexts = len({kernel.context for kernel in kernels})
    for what, choices, column in (
        ("device", profile.devices, profile.device),
        ("process", profile.processes, profile.process),
        ("context", profile.contexts, profile.context),
    ):
        if column is None or len(choices) <= contexts:
            continue
        plural = f"{what}es" if what.endswith("s") else f"{what}s"
        listed = ", ".join(
            f"{c} ({counted(int((column == c).sum()), 'kernel')})" for c in choices[:_LISTED]
        )
        more = f" and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
        found = f"has kernels of {len(choices)} {plural}: {listed}{more}"
        raise ProfileError(profile.source, found, f"pick one with --{what} N")


Found = tuple["NDArray[np.int64]", "NDArray[np.bool_]", list[str]]


def _by_number(profile: KernelProfile, kernels: Sequence[Kernel]) -> Found | None:
    """Take the launch numbers that the file states; None if it states none that fit."""
    if profile.kernel is None or (profile.kernel == UNKNOWN).any():
        return None
    at = {kernel.kernel: i for i, kernel in enumerate(kernels)}
    place = np.array([at.get(number, UNPAIRED) for number in profile.kernel.tolist()], np.int64)
    inside = np.flatnonzero(place >= 0)
    launches, stated = _launches(profile, kernels)
    differs = np.array(
        [
            any(
                mine is not None and theirs is not None and mine != theirs
                for mine, theirs in zip(launches[place[row]], stated[row], strict=True)
            )
            for row in inside
        ],
        np.bool_,
    )
    is_own_table = profile.format.startswith("kernels-")
    if is_own_table:
        unknown = np.flatnonzero(place < 0)
        if len(unknown):
            which = f"kernel {profile.kernel[unknown[0]]}"
            found = f"{which} is not in the store{nor_more(len(unknown), 'are')}"
            hint = f"the store has kernels {kernels[0].kernel} to {kernels[-1].kernel}"
            raise ProfileError(profile.source, found, hint)
    elif differs.any():
        return None
    rows = np.full((1, len(kernels)), UNPAIRED, np.int64)
    guessed = np.zeros(rows.shape, np.bool_)
    rows[0, place[inside]] = inside
    guessed[0, place[inside]] = differs
    return rows, guessed, ["kernels were matched by the launch numbers that the profile states"]


def _by_alignment(profile: KernelProfile, kernels: Sequence[Kernel]) -> Found:
    launches, measured = _launches(profile, kernels)
    has_grid, has_name = profile.grid is not None, any(profile.name)
    notes: list[str] = []
    if not has_grid and not has_name:
        return _by_order_alone(profile, kernels)
    if not has_grid:
        notes.append("the profile has no grids: kernels were matched by name and order only")
    if not has_name:
        notes.append("the profile has no names: kernels were matched by grid, block and order")
    # (what is compared, whether agreement is a match or a guess)
    choices = [((1, 2, 3), False), ((1,), True), ((2, 3), True)]
    if _spelled_alike(launches, measured):
        choices.insert(0, ((0, 2, 3), False))
    choices = [
        (fields, is_guess)
        for fields, is_guess in choices
        if (has_name or not {0, 1} & set(fields)) and (has_grid or fields != (2, 3))
    ]

    def key(launch: tuple[Hashable, ...], fields: tuple[int, ...]) -> tuple[Hashable, ...] | None:
        wanted = tuple(launch[field] for field in fields if has_grid or field <= 1)
        return None if None in wanted else wanted

    keys = [
        ([key(launch, fields) for launch in launches], [key(launch, fields) for launch in measured])
        for fields, _ in choices
    ]
    repeats = _count_iterations(keys)
    partner, level = align([(traced * repeats, stated) for traced, stated in keys])
    is_guess = np.array([guess for _, guess in choices] + [False])
    shape = (repeats, len(kernels))
    return partner.reshape(shape), is_guess[level].reshape(shape), notes


def _by_order_alone(profile: KernelProfile, kernels: Sequence[Kernel]) -> Found:
    repeats, rest = divmod(len(profile), len(kernels))
    if rest or not repeats:
        raise ProfileError(
            profile.source,
            f"has neither names nor grids, and {counted(len(profile), 'kernel')} where the store "
            f"has {len(kernels)}",
            "give a profile that names its kernels, or a table of kernel,duration_us",
        )
    rows = np.arange(len(profile)).reshape(repeats, len(kernels))
    note = "the profile has neither names nor grids: kernels were paired by order only"
    return rows, np.ones(rows.shape, np.bool_), [note]


Launch = tuple["str | None", "str | None", "Hashable", "Hashable"]


def _launches(
    profile: KernelProfile, kernels: Sequence[Kernel]
) -> tuple[list[Launch], list[Launch]]:
    """Return (full name, base name, grid, block) of each launch of the store and the profile."""
    has_blocks = profile.block is not None
    launches: list[Launch] = [
        (_full_name(k.name), base_name(k.name), k.grid, k.block if has_blocks else ())
        for k in kernels
    ]
    n = len(profile)
    grids = [None] * n if profile.grid is None else map(tuple, profile.grid.tolist())
    blocks = [()] * n if profile.block is None else map(tuple, profile.block.tolist())
    measured: list[Launch] = [
        (_full_name(name) if name else None, base_name(name) if name else None, grid, block)
        for name, grid, block in zip(profile.name, grids, blocks, strict=True)
    ]
    return launches, measured


@lru_cache(maxsize=4096)
def _full_name(name: str) -> str:
    """Return a name with its template arguments, without what tools spell in different ways."""
    text = demangle(name.strip())
    text = text.replace("<unnamed>", "(anonymous namespace)")
    return _CAST.sub("", text).removeprefix("void ").replace(" ", "")


def _spelled_alike(launches: Sequence[Launch], measured: Sequence[Launch]) -> bool:
    """Tell whether names agree in full wherever they agree in what all tools agree on."""
    full = {launch[0] for launch in measured}
    base = {launch[1] for launch in measured}
    shared = [launch for launch in launches if launch[1] in base]
    alike = sum(launch[0] in full for launch in shared)
    return bool(shared) and alike >= _SAME_SPELLING * len(shared)


def _count_iterations(keys: Sequence[Level]) -> int:
    """Return how often the profile repeats the trace: as often as half of the launches occur."""
    for traced, stated in keys:
        in_trace, in_profile = Counter(traced), Counter(stated)
        if in_trace.keys() & in_profile.keys():
            break
    ratios = [in_profile[key] / count for key, count in in_trace.items()]
    typical = float(median(np.repeat(ratios, list(in_trace.values()))))
    most = -(-len(stated) // len(traced))
    return max(1, min(math.ceil(typical - 0.5), most))


def _whole_iterations(
    rows: NDArray[np.int64], guessed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], int]:
    """Leave out iterations that lack kernels which another one has."""
    found = (rows >= 0).sum(axis=1)
    whole = found >= _WHOLE_ITERATION * found.max()
    return rows[whole], guessed[whole], int((~whole).sum())


def _picked(profile: KernelProfile, iteration: str, n_iterations: int) -> NDArray[np.int64]:
    if iteration in {"median", "mean", "min"}:
        return np.arange(n_iterations)
    if iteration == "last":
        return np.array([n_iterations - 1])
    number = read_whole_number(iteration, 0, LARGEST_ID)
    if number is None:
        found, hint = f"iteration {iteration!r} cannot be taken", f"give {', '.join(PICKS)}"
        raise ProfileError(profile.source, found, f"{hint} or a number from 0")
    if number >= n_iterations:
        hint = f"it has {n_iterations}, numbered from 0"
        raise ProfileError(profile.source, f"has no iteration {iteration}", hint)
    return np.array([number])


def _stream_notes(match: Match) -> list[str]:
    streams = match.profile.streams
    if len(streams) <= 1 or match.profile.stream is None:
        return []
    notes = []
    if match.profile.correlation is None:
        notes.append(
            f"the profile has {len(streams)} streams and no launch order: its kernels stand in "
            "the order in which they ran"
        )
    row = match.row
    pairs = {
        (kernel.stream, int(match.profile.stream[r]))
        for kernel, r in zip(match.kernels, row.tolist(), strict=True)
        if r >= 0
    }
    traced = {mine for mine, _ in pairs}
    if len(traced) > 1 and len(pairs) > max(len(traced), len({theirs for _, theirs in pairs})):
        notes.append("streams of the profile and of the trace do not correspond one to one")
    if len(match.unmatched_rows) and len(streams) > len(traced):
        listed = ", ".join(map(str, streams[:_LISTED]))
        notes.append(
            f"the profile has kernels of streams {listed}"
            + (" and more" if len(streams) > _LISTED else "")
            + ": --stream N picks one"
        )
    return notes


def _some_names(names: tuple[str, ...]) -> str:
    distinct = list(dict.fromkeys(base_name(name) for name in names if name))
    if not distinct:
        return f"{counted(len(names), 'kernel')} without names"
    more = f" and {len(distinct) - 2} more" if len(distinct) > 2 else ""  # noqa: PLR2004
    return ", ".join(distinct[:2]) + more
