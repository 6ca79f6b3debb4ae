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


def main() -> None:
    """Predict as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to put the tables in")
    page = parser.parse_args().write
    made = tables()
    if page:
        page.write_text(replace_tables(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
