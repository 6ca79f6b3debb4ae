"""How well a profile fits a trace, and what it measured."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    common,
    kernel_name,
    shorten,
    show_value,
)
from depgraph.system.text import counted, show_number
from depgraph.timing.fit import Fit
from depgraph.timing.matched_profile import (
    GUESSED,
    MATCHED,
    UNMATCHED,
    Match,
    MemoryOperations,
    memory_operations,
)
from depgraph.timing.measured_run import MeasuredRun, measured_run
from depgraph.timing.profile import UNKNOWN, BlockProfile
from depgraph.timing.program_times import Estimates

BlockTimesOfKernels = Mapping[int, NDArray[np.float64]]

ESTIMATED = "estimated"
_NAMES_SHOWN = 5


def fit_report(fit: Fit, estimated: Estimates) -> Report:
    """Describe how well a profile fits: every kernel, and what only the profile has."""
    if isinstance(fit.profile, BlockProfile):
        return _block_report(fit.profile, fit, estimated)
    if fit.match is None:
        raise TypeError("times of kernels are matched")
    return match_report(fit.match, estimated)


def match_report(match: Match, estimated: Estimates) -> Report:
    """Describe a match: how well it fits, every kernel, and what only the profile has."""
    blocks = match.block_times
    kernels, others = _kernel_table(match, estimated, blocks), _only_in_profile(match)
    memory = memory_operations(match)
    run = measured_run(match)
    counts = Counter(match.status)
    times = _time_table(match, estimated, memory)
    return Report(
        "timing",
        {
            "profile": str(match.profile.source),
            "format": match.profile.format,
            "unit": match.unit,
            "device_name": match.device_name,
            "kernels": len(match.kernels),
            "profile_kernels": len(match.profile),
            **{status: counts[status] for status in (MATCHED, GUESSED, UNMATCHED)},
            "only_in_profile": len(others.rows),
            **{f"{s}_share_of_time": match.share_of_time(s) for s in (MATCHED, GUESSED, UNMATCHED)},
            **({"kernels_with_block_times": len(blocks)} if blocks else {}),
            "iterations": len(match.rows),
            "iteration": match.iteration,
            "kernel_time": float(np.nansum(match.duration)),
            "kernel_time_least": match.kernel_time_range[0],
            "kernel_time_most": match.kernel_time_range[1],
            "estimated_time": sum(estimated.times.values()),
            "memory_time": sum(m.time for m in memory if m.before is not None),
            "wall_time": None if run is None else run.wall,
            "launch_gap": None if run is None else run.gap,
        },
        headline=_headline(match, run, others, blocks),
        tables=[
            times,
            kernels,
            *([_memory_table(match, memory)] if memory else []),
            *([others] if others.rows else []),
        ],
        csv_table=kernels,
        notes=[*match.notes, *match.profile.notes, *estimated.notes],
        notes_title="Notes",
    )


def _kernel_table(match: Match, estimated: Estimates, blocks: BlockTimesOfKernels) -> Table:
    times = match.duration.tolist()
    total = float(np.nansum(match.duration)) + sum(estimated.times.values())
    rows = []
    for kernel, status, row, time, spread in zip(
        match.kernels, match.status, match.row.tolist(), times, match.spread.tolist(), strict=True
    ):
        name = match.profile.name[row] if row >= 0 else None
        if kernel.kernel in estimated.times:
            status, time = ESTIMATED, estimated.times[kernel.kernel]  # noqa: PLW2901
        own = blocks.get(kernel.kernel)
        of_blocks: tuple[float | None, ...] = ()
        if blocks:
            median_and_longest = (None, None) if own is None else (np.median(own), own.max())
            of_blocks = (*median_and_longest, match.resident.get(kernel.kernel))
        rows.append(
            (kernel.kernel, kernel.name, kernel.grid, status, name, time,
             *[spread] * (len(match.rows) > 1), time / total if total else 0.0,
             *of_blocks)
        )  # fmt: skip
    return Table(
        "kernels",
        "Kernels of the trace",
        [
            *common("kernel", "name", "grid", "status"),
            Column("profile_name", "in the profile", is_text=True, show=kernel_name),
            *common("duration", unit=match.unit),
            *[Column.percent("spread", "spread")] * (len(match.rows) > 1),
            *common("share"),
            *[
                Column.number("block_median", "median block", match.unit),
                Column.number("block_longest", "longest block", match.unit),
                Column.number("resident", "blocks on an SM"),
            ]
            * bool(blocks),
        ],
        rows,
    )


def _time_table(match: Match, estimated: Estimates, memory: Sequence[MemoryOperations]) -> Table:
    """Build the table of what the times add up to, by where they come from."""
    status, times = np.array(match.status), match.duration
    between = [m for m in memory if m.before is not None]
    rows = [
        (MATCHED, int((status == MATCHED).sum()), float(times[status == MATCHED].sum())),
        (GUESSED, int((status == GUESSED).sum()), float(times[status == GUESSED].sum())),
        (ESTIMATED, len(estimated.times), sum(estimated.times.values())),
        ("memsets and copies", sum(m.count for m in between), sum(m.time for m in between)),
    ]
    columns = [Column.text("what", "times"), *common("count", "time", unit=match.unit)]
    return Table("times", "Times", columns, [row for row in rows if row[1]])


def _memory_table(match: Match, memory: Sequence[MemoryOperations]) -> Table:
    columns = [
        Column.text("name", "name"),
        Column("before", "before kernel", show=show_value),
        *common("count", "time", unit=match.unit),
    ]
    return Table.of("memory_operations", "Memsets and copies of the profile", columns, memory)


def _headline(
    match: Match, run: MeasuredRun | None, others: Table, blocks: BlockTimesOfKernels
) -> list[str]:
    lines = [f"{match.summary()} (format: {match.profile.format})"]
    total = show_number(float(np.nansum(match.duration)))
    time = f"kernels take {total} {match.unit} in all"
    if run is not None:
        time += (
            f"; {show_number(run.wall)} {match.unit} passed from the first start to the last end, "
            f"the median gap between kernels is {show_number(run.gap)} {match.unit}"
        )
    lines.append(time)
    if blocks:
        lines.append(f"single blocks were measured of {counted(len(blocks), 'kernel')}")
    if others.rows:
        names = Counter(kernel_name(row[1]) for row in others.rows)
        most = [f"{shorten(name, 40)} ({n})" for name, n in names.most_common(_NAMES_SHOWN)]
        rest = len(names) - len(most)
        more = f" and {counted(rest, 'more function')}" if rest else ""
        lines.append(f"only in the profile: {', '.join(most)}{more}")
    return lines


def _only_in_profile(match: Match) -> Table:
    profile = match.profile
    return Table(
        "only_in_profile",
        "Kernels that only the profile has",
        [
            Column("row", "row"),
            *common("name", "grid"),
            Column("stream", "stream", show=show_value),
            *common("duration", unit=match.unit),
        ],
        [
            (
                row,
                profile.name[row],
                None if profile.grid is None else tuple(profile.grid[row].tolist()),
                None if profile.stream is None else int(profile.stream[row]),
                float(profile.duration[row]) * match.scale,
            )
            for row in match.unmatched_rows.tolist()
        ],
    )


def _block_report(profile: BlockProfile, fit: Fit, estimated: Estimates) -> Report:
    rows = []
    for place, kernel in enumerate(fit.kernels):
        times = profile.duration[fit.place == place]
        mean, longest = (times.mean(), times.max()) if len(times) else (np.nan, np.nan)
        status = "fits" if fit.is_measured[place] else "differs" if len(times) else UNMATCHED
        if kernel.kernel in estimated.times and not len(times):
            status, mean = ESTIMATED, estimated.times[kernel.kernel]
        rows.append(
            (kernel.kernel, kernel.name, kernel.blocks, len(times), status, float(mean),
             float(longest))
        )  # fmt: skip
    timed = sum(row[2] for row, fits in zip(rows, fit.is_measured, strict=True) if fits)
    blocks = sum(row[2] for row in rows)
    unknown = int(np.count_nonzero(fit.place == UNKNOWN))
    return Report(
        "timing",
        {
            "profile": str(profile.source),
            "format": profile.format,
            "unit": profile.unit,
            "blocks": blocks,
            "timed_blocks": timed,
            "unknown_blocks": unknown,
        },
        headline=[
            f"blocks with a time: {timed} of {blocks}; times of no block of the trace: {unknown}",
            *([fit.summary] if fit.misfit else []),
        ],
        tables=[
            Table(
                "kernels",
                "Kernels of the trace",
                [
                    *common("kernel", "name", "blocks"),
                    Column.number("timed_blocks", "with a time"),
                    *common("status"),
                    Column.number("mean", "mean", profile.unit),
                    Column.number("longest", "longest", profile.unit),
                ],
                rows,
            )
        ],
        notes=[*(() if fit.match is None else fit.match.notes), *profile.notes, *estimated.notes],
        notes_title="Notes",
    )
