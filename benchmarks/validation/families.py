"""Errors of predictions by family, from programs that nothing was fitted to.

Which those are is a rule: half 1 of each file, by the last bit of the CRC-32 of a program's name
(``samples/validation/programs.py``), and what no constant was ever fitted to (`measured.LATER`).
Collectives are in no family: those that were measured began 20 us after what ran beside them, and
nobody's do.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

import children
import measured
import pages
from rows import Row

from depgraph.analysis.measured_programs import errors_of
from depgraph.gpu.model import EARLY

if TYPE_CHECKING:
    from depgraph.gpu.model import MeasuredErrors

FILES = {
    "h100_sxm": ("h100", "h100-unseen", "h100-later", "h100-fresh"),
    "h200": ("h200", "h200-unseen", "h200-later", "h200-fresh", "h200-newest"),
}
"""GPU model to files of programs that were measured on it."""

CHAINS = {"h100_sxm": ("h100-hardware", "h100-pdl"), "h200": ("h200-hardware", "h200-pdl")}
"""GPU model to files of chains that were launched programmatically on it."""

BETWEEN = ", between two empty kernels"
EXPERTS = ("re-edged graphs", "chains")
"""Families of which mixtures of experts are shown apart."""


def rows(model: str) -> list[Row]:
    """Return all that was measured on a GPU beside what is predicted, of both halves."""
    found = []
    for name in FILES[model]:
        found += [*measured.graphs(name), *measured.rooted(name), *measured.streams(name)]
    for name in CHAINS[model]:
        found += measured.programmatic(name)
    for name in FILES[model]:
        found += measured.launched_alone(name)
    if model == "h100_sxm":
        runs = [*children.runs(), *children.searches()]
        found += [
            Row("h100-children", f"{r.name}, from {r.threshold}", "cdp", r.flat, r.predicted,
                r.measured, "device launches")
            for r in runs if r.launches
        ]  # fmt: skip
    return found


def errors(model: str, half: int = 1) -> list[MeasuredErrors]:
    """Return the errors of each family, of one half."""
    return by_family(model, (row for row in rows(model) if row.half == half))


def by_family(model: str, of: Iterable[Row], among: str = "") -> list[MeasuredErrors]:
    """Return the errors of each family of rows, which are all `among` something."""
    groups: dict[str, list[Row]] = {}
    for row in of:
        groups.setdefault(f"{row.family}{among}", []).append(row)
    gpu = measured.measurements(FILES[model][0]).gpu
    return [
        errors_of(
            family, gpu, [r.predicted for r in own], [r.measured for r in own],
            [r.serial for r in own],
        )
        for family, own in sorted(groups.items())
    ]  # fmt: skip


def table() -> str:
    """Return the errors that reports print, as Markdown."""
    heads = (
        "GPU", "family", "programs", "mean", "nine of ten", "worst", "faster or slower right",
        "range",
    )  # fmt: skip
    found = []
    for model in FILES:
        own = [row for row in rows(model) if row.half == 1]
        early = [row for row in own if row.family in EARLY and not row.by_clock]
        rooted = [row for row in own if row.is_rooted]
        families = {row.family for row in rooted}
        alone = [row for row in own if row.family in families and not row.is_rooted]
        experts = [
            row
            for row in own
            if row.case.startswith("moe-") and row.family in EXPERTS and not row.is_rooted
        ]
        found += [
            (e.gpu, e.family, e.programs, f"{e.mean:.2%}", f"{e.nine_of_ten:.1%}",
             f"{e.worst:.1%}", f"{e.direction:.0%}", f"{e.low:.2f} to {e.high:.2f}")
            for e in (
                *errors(model),
                *by_family(model, early, ", but for kernels that wait for a clock"),
                *by_family(model, experts, ", mixtures of experts, as they are"),
                *by_family(model, alone, ", as they are"),
                *by_family(model, rooted, BETWEEN),
            )
        ]  # fmt: skip
    return pages.table(heads, "llrrrrrl", found)


def as_csv() -> str:
    """Return every program beside what is predicted for it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["source", "family", "half", "case", "policy", "serial_us", "predicted_us", "measured_us"]
    )
    for model in FILES:
        writer.writerows(
            [r.source, r.family, r.half, f"{r.case}{BETWEEN * r.is_rooted}", r.policy]
            + [f"{time:.2f}" for time in (r.serial, r.predicted, r.measured)]
            for r in rows(model)
        )
    return out.getvalue()
