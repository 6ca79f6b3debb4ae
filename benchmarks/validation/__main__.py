"""Predict what was published and measured, and put the tables into a page.

``python benchmarks/validation --write docs/validation.md`` replaces what stands between the two
marks of the page; without ``--write`` the tables are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measured
import published
from pages import replace_tables
from rows import Row, summary

if TYPE_CHECKING:
    from collections.abc import Iterable


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


def measured_tables() -> str:
    """Return the errors by kind of program, with contention and without, and the worst cases."""
    parts = ["## Measured on an H100 and an H200"]
    for name, title in FILES.items():
        found = list(measured.predict(name, "full"))
        fixed = {each.row.case: each for each in measured.predict(name, "none")}
        groups = {f"half {half}": [m for m in found if m.half == half] for half in (0, 1)}
        for each in found:
            groups.setdefault(each.kind, []).append(each)
        lines = ["| | with contention | fixed durations |", "|---|---|---|"]
        for group, members in groups.items():
            without = summary([fixed[m.row.case].row for m in members])
            lines.append(f"| {group} | {summary([m.row for m in members])} | {without} |")
        below = [m for m in found if m.row.measured < m.bound]
        worst = sorted(found, key=lambda m: -abs(m.row.error))[:10]
        beaten = [f"{m.row.case} ({m.row.measured / m.bound - 1:+.1%})" for m in below]
        which = f": {', '.join(beaten)}" if beaten else ""
        parts += [
            f"### {title}",
            "\n".join(lines),
            f"Faster than the bound of the predictions: {len(below)} of {len(found)}{which}.",
            "The ten worst:",
            table(m.row for m in worst),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Predict as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to put the tables in")
    page = parser.parse_args().write
    made = f"{measured_tables()}\n{tables()}"
    if page:
        page.write_text(replace_tables(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
