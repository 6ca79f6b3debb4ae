"""Predict what was published and measured, and put the tables into a page.

``python benchmarks/validation --write docs/validation.md`` replaces what stands between the two
marks of the page, and the table of errors in the files of the GPUs that were measured, which every
report quotes; without ``--write`` the tables are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measured
import published
from overlapped import overlap_tables
from pages import replace_tables
from rows import Row, summary

from depgraph.gpu.model_file import MeasuredErrors, with_errors

if TYPE_CHECKING:
    from collections.abc import Iterable


GPUS = Path(__file__).resolve().parents[2] / "depgraph" / "gpu" / "models"


ON_STREAMS = """\
The same programs issued by PyTorch on as many streams as there are branches, predicted by the
policy `streams`. *Host ahead*: a long kernel lets the host run ahead of the GPU, so that launching
costs it nothing. *As issued*: each launch takes the host what it was measured to take in that
program, Python included. To fork into many streams and to join them by events took up to 5 us a
stream, which the policy does not count: fans of 16 and more short branches are predicted far too
short."""
PROGRAMMATIC = """\
Chains of 20 dependent kernels that spin (`samples/validation/hardware.cu`), 128 threads a block,
the host ahead of the GPU. A kernel takes what it took launched as usual, less the gap. What the
GPU needs after a trigger and after the wait was measured on other chains
(`benchmarks/block_placement.cu`, on an H200). With eight blocks an SM and more these kernels take
two and three times as long launched as usual, and blocks of the next kernel fill that time, which
one wave of longer blocks does not show."""


def table(rows: Iterable[Row]) -> str:
    """Return cases as a Markdown table, times in microseconds."""
    lines = [
        "| case | policy | serial | predicted | measured | error |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.case} | {row.policy} | {row.serial:.1f} | {row.predicted:.1f} | "
        f"{row.measured:.1f} | {row.error:+.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


def tables() -> str:
    """Return all tables, each with its errors, and what is in none."""
    parts = ["## Published measurements"]
    for title, cases in published.TABLES_OF.items():
        groups = defaultdict(list)
        for row in cases():
            groups[row.source, row.policy].append(row)
        for (source, policy), rows in groups.items():
            parts += [
                f"### {title}: {source}, {policy}",
                f"Predicted: {summary(rows)}.",
                table(rows),
            ]
    parts.append("### What cannot be expressed")
    parts.append("\n".join(f"- {what}: {why}." for what, why in published.NOT_EXPRESSED.items()))
    return "\n\n".join(parts) + "\n"


FILES = {
    "h100": "H100, 209 programs; those of half 0 were used to fit the model",
    "h100-unseen": "H100, 120 programs of other sizes",
    "h200": "H200, 209 programs",
}


def quoted_errors() -> str:
    """Return what reports say of predictions: errors for programs that nothing was fitted to."""
    names = [each.name for each in fields(MeasuredErrors)]
    lines = [f"| {' | '.join(names)} |", "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for model in measured.NOT_FITTED:
        values = astuple(measured.errors(model))
        shown = [f"{v:.1%}" if isinstance(v, float) else str(v) for v in values]
        lines.append(f"| {' | '.join(shown)} |")
    return "What every report quotes:\n\n" + "\n".join(lines)


def measured_tables() -> str:
    """Return the errors by kind of program, with contention and without, and the worst cases."""
    parts = ["## Measured on an H100 and an H200", quoted_errors()]
    for name, title in FILES.items():
        found = measured.predict(name, "full")
        row = {p.program.name: measured.row_of(name, p) for p in found}
        fixed = {p.program.name: measured.row_of(name, p) for p in measured.predict(name, "none")}
        groups = {f"half {h}": [p for p in found if p.program.half == h] for h in (0, 1)}
        for each in found:
            groups.setdefault(each.program.kind, []).append(each)
        lines = ["| | with contention | fixed durations |", "|---|---|---|"]
        for group, members in groups.items():
            with_it, without = (
                summary([of[p.program.name] for p in members]) for of in (row, fixed)
            )
            lines.append(f"| {group} | {with_it} | {without} |")
        below = [p for p in found if p.program.parallel < p.bound]
        worst = sorted(found, key=lambda p: -abs(p.error))[:10]
        beaten = [f"{p.program.name} ({p.program.parallel / p.bound - 1:+.1%})" for p in below]
        which = f"{len(below)} of {len(found)}" + (f": {', '.join(beaten)}" if beaten else "")
        parts += [
            f"### {title}",
            "\n".join(lines),
            f"Hardware was faster than the bound of the predictions in {which}.",
            "The ten worst:",
            table(row[p.program.name] for p in worst),
        ]
    return "\n\n".join(parts) + "\n"


def stream_tables() -> str:
    """Return errors for the same programs on streams, and for programmatic dependent launch."""
    parts = ["### On streams, without a graph", ON_STREAMS]
    lines = ["| | host ahead | as issued |", "|---|---|---|"]
    for name in ("h100", "h200"):
        rows = [measured.predict_streams(name, ahead=ahead) for ahead in (True, False)]
        lines.append(f"| {FILES[name].split(';')[0]} | {' | '.join(map(summary, rows))} |")
    worst = sorted(measured.predict_streams("h100", ahead=True), key=lambda row: -abs(row.error))
    parts += ["\n".join(lines), "The ten worst, host ahead:", table(worst[:10])]
    parts += ["### Programmatic dependent launch", PROGRAMMATIC]
    for name in ("h100", "h200"):
        rows = measured.pdl(name)
        parts.append(f"{FILES[name].partition(',')[0]}: {summary(rows)}.")
    return "\n\n".join([*parts, table(measured.pdl("h100"))]) + "\n"


def main() -> None:
    """Predict as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to put the tables in")
    page = parser.parse_args().write
    made = f"{measured_tables()}\n{stream_tables()}\n{overlap_tables()}\n{tables()}"
    if page:
        page.write_text(replace_tables(page.read_text(encoding="utf-8"), made), encoding="utf-8")
        for model in measured.NOT_FITTED:
            file = GPUS / f"{model}.toml"
            text = with_errors(file.read_text(encoding="utf-8"), measured.errors(model))
            file.write_text(text, encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
