"""How well a profile fits a trace, and what it measured."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    kernel_name,
    shorten,
    show_dimensions,
    show_number,
    show_percent,
    show_value,
)
from depgraph.system.text import counted
from depgraph.timing.matched_profile import GUESSED, MATCHED, UNMATCHED
from depgraph.timing.measured_run import measured_run
from depgraph.timing.profile import UNKNOWN, BlockProfile

if TYPE_CHECKING:
    from depgraph.timing.fit import Fit
    from depgraph.timing.matched_profile import Match


_NAMES_SHOWN = 5


def fit_report(fit: Fit) -> Report:
    """Describe how well a profile fits: every kernel, and what only the profile has."""
    if isinstance(fit.profile, BlockProfile):
        return _block_report(fit.profile, fit)
    if fit.match is None:
        raise TypeError("times of kernels are matched")
    return match_report(fit.match)


def match_report(match: Match) -> Report:
    """Describe a match: how well it fits, every kernel, and what only the profile has."""
    unit = match.unit
    total = float(np.nansum(match.duration))
    kernels = Table(
        "kernels",
        "Kernels of the trace",
        [
            Column("kernel", "kernel"),
            Column("name", "name", is_text=True, show=kernel_name),
            Column("grid", "grid", show=show_dimensions),
            Column("status", "match", is_text=True),
            Column("profile_name", "in the profile", is_text=True, show=_profile_name),
            Column("duration", "time", unit, show_number),
            Column("share", "share", show=show_percent),
        ],
        [
            (kernel.kernel, kernel.name, kernel.grid, status,
             match.profile.name[row] if row >= 0 else None, time, time / total if total else 0.0)
            for kernel, status, row, time in zip(
                match.kernels, match.status, match.row.tolist(), match.duration.tolist(),
                strict=True,
            )
        ],
    )  # fmt: skip
    others = _only_in_profile(match)
    run = measured_run(match)
    counts = Counter(match.status)
    return Report(
        "timing",
        {
            "profile": str(match.profile.source),
            "format": match.profile.format,
            "unit": unit,
            "device_name": match.device_name,
            "kernels": len(match.kernels),
            "profile_kernels": len(match.profile),
            **{status: counts[status] for status in (MATCHED, GUESSED, UNMATCHED)},
            "only_in_profile": len(others.rows),
            **{f"{s}_share_of_time": match.share_of_time(s) for s in (MATCHED, GUESSED, UNMATCHED)},
            "iterations": len(match.rows),
            "iteration": match.iteration,
            "kernel_time": total,
            "wall_time": None if run is None else run.wall,
            "launch_gap": None if run is None else run.gap,
        },
        headline=_headline(match, total, others),
        tables=[kernels, *([others] if others.rows else [])],
        notes=[*match.notes, *match.profile.notes],
        notes_title="Notes",
    )


def _headline(match: Match, total: float, others: Table) -> list[str]:
    lines = [f"{match.summary()} (format: {match.profile.format})"]
    time = f"kernels take {show_number(total)} {match.unit} in all"
    run = measured_run(match)
    if run is not None:
        time += (
            f"; {show_number(run.wall)} {match.unit} passed from the first start to the last end, "
            f"the median gap between kernels is {show_number(run.gap)} {match.unit}"
        )
    lines.append(time)
    if others.rows:
        names = Counter(kernel_name(row[1]) for row in others.rows)
        most = [f"{shorten(name, 40)} ({n})" for name, n in names.most_common(_NAMES_SHOWN)]
        more = (
            f" and {counted(len(names) - len(most), 'more function')}"
            if len(names) > len(most)
            else ""
        )
        lines.append(f"only in the profile: {', '.join(most)}{more}")
    return lines


def _only_in_profile(match: Match) -> Table:
    profile = match.profile
    return Table(
        "only_in_profile",
        "Kernels that only the profile has",
        [
            Column("row", "row"),
            Column("name", "name", is_text=True, show=kernel_name),
            Column("grid", "grid", show=show_dimensions),
            Column("stream", "stream", show=show_value),
            Column("duration", "time", match.unit, show_number),
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


def _block_report(profile: BlockProfile, fit: Fit) -> Report:
    """Describe block times: how many blocks of each kernel have one."""
    rows = []
    for place, kernel in enumerate(fit.kernels):
        times = profile.duration[fit.place == place]
        some = bool(len(times))
        rows.append(
            (kernel.kernel, kernel.name, kernel.blocks, len(times),
             "fits" if fit.is_measured[place] else "differs" if some else UNMATCHED,
             float(times.mean()) if some else None, float(times.max()) if some else None)
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
                    Column("kernel", "kernel"),
                    Column("name", "name", is_text=True, show=kernel_name),
                    Column("blocks", "blocks", show=show_number),
                    Column("timed_blocks", "with a time", show=show_number),
                    Column("status", "match", is_text=True),
                    Column("mean", "mean", profile.unit, show_number),
                    Column("longest", "longest", profile.unit, show_number),
                ],
                rows,
            )
        ],
        notes=[*(() if fit.match is None else fit.match.notes), *profile.notes],
        notes_title="Notes",
    )


def _profile_name(value: str | None) -> str:
    return "-" if value is None else kernel_name(value)
