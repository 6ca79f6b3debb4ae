"""Errors of predictions by family, from programs that nothing was fitted to.

Which those are is a rule: half 1 of each file, by the last bit of the CRC-32 of a program's name
(``samples/validation/programs.py``), and what no constant was ever fitted to (`measured.LATER`).
Collectives are in no family: those that were measured began 15 us after what ran beside them, and
nobody's do.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import children
import measured
import pages
from rows import Row

from depgraph.analysis.measured_programs import errors_of

if TYPE_CHECKING:
    from depgraph.gpu.model import MeasuredErrors

FILES = {
    "h100_sxm": ("h100", "h100-unseen", "h100-later", "h100-fresh"),
    "h200": ("h200", "h200-unseen", "h200-later"),
}
"""GPU model to files of programs that were measured on it."""

CHAINS = {"h100_sxm": ("h100-hardware", "h100-pdl"), "h200": ("h200-hardware", "h200-pdl")}
"""GPU model to files of chains that were launched programmatically on it."""

EXPERTS = {
    "re-edged graphs": "mixtures of experts, re-edged",
    "chains": "mixtures of experts, as chains",
}
"""Families to what mixtures of experts are called among them."""


def rows(model: str) -> list[Row]:
    """Return all that was measured on a GPU beside what is predicted, of both halves."""
    found = []
    for name in FILES[model]:
        found += [*measured.graphs(name), *measured.streams(name)]
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


def errors(model: str, half: int = 1, kind: str = "") -> list[MeasuredErrors]:
    """Return the errors of each family, of one half; of programs whose names begin with `kind`."""
    groups: dict[str, list[Row]] = {}
    for row in rows(model):
        if row.half == half and row.case.startswith(kind):
            groups.setdefault(row.family, []).append(row)
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
    rows = []
    for model in FILES:
        experts = [
            e._replace(family=EXPERTS[e.family])
            for e in errors(model, kind="moe-")
            if e.family in EXPERTS
        ]
        rows += [
            (e.gpu, e.family, e.programs, f"{e.mean:.2%}", f"{e.nine_of_ten:.1%}",
             f"{e.worst:.1%}", f"{e.direction:.0%}", f"{e.low:.2f} to {e.high:.2f}")
            for e in (*errors(model), *experts)
        ]  # fmt: skip
    return pages.table(heads, "llrrrrrl", rows)


def as_csv() -> str:
    """Return every program beside what is predicted for it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["source", "family", "half", "case", "policy", "serial_us", "predicted_us", "measured_us"]
    )
    for model in FILES:
        writer.writerows(
            [r.source, r.family, r.half, r.case, r.policy]
            + [f"{time:.2f}" for time in (r.serial, r.predicted, r.measured)]
            for r in rows(model)
        )
    return out.getvalue()
