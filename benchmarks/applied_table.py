"""The table of programs that `depgraph apply` was measured on, from the lines that it has added.

``python benchmarks/applied_table.py samples/validation/measured/h100-applied.jsonl --write
docs/validation.md`` replaces what stands between the marks of the page.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from pages import replace_tables

_ACS = "1.56 on average and 2.19 at most"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table and what it comes to."""
    heads = (
        "program", "kernels", "captured, us", "predicted", "applied, us", "predicted", "speedup",
        "graph", "more memory", "same bits",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|---:|---:|---:|---|---:|---|"]
    for row in sorted(rows, key=lambda r: -r["speedup"]):
        times = (
            _time(row[key])
            for key in (
                "captured_measured_us", "captured_predicted_us", "applied_measured_us",
                "applied_predicted_us",
            )
        )  # fmt: skip
        memory = f"{row['more_bytes'] / 1024:.0f} KiB" if row["more_bytes"] else ""
        same = "yes" if row["bit_equal"] else "the captured graph's differ, too"
        lines.append(
            f"| {row['program']} | {row['kernels']} | {' | '.join(times)} | "
            f"{row['speedup']:.2f}x | {row['graph']} | {memory} | {same} |"
        )
    return "\n".join([*_summary(rows), "", *lines, ""])


def _time(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    speedups = [row["speedup"] for row in rows]
    errors = [
        abs(row["applied_predicted_us"] / row["applied_measured_us"] - 1)
        for row in rows
        if row["applied_predicted_us"]
    ]
    captured = [row for row in rows if row["graph"] == "as captured"]
    no_faster = sorted(row["program"] for row in captured if row["bit_equal"])
    varying = sorted(row["program"] for row in captured if not row["bit_equal"])
    times = f"{geometric_mean(speedups):.2f} times as fast in the geometric mean"
    worst = f"{max(speedups):.2f} at most, {min(speedups):.2f} at least"
    wrong = f"{fmean(errors):.0%} wrong on average, {max(errors):.0%} at most"
    return [
        f"{len(rows)} programs on an {rows[0]['gpu']}: {times}, {fmean(speedups):.2f} in the",
        f"arithmetic one, {worst} (ACS reports {_ACS}, over",
        f"other programs and another baseline). Applied times were predicted {wrong}.",
        *["", f"As captured, because no other graph was faster: {', '.join(no_faster)}."][
            : 2 * bool(no_faster)
        ],
        *["", f"As captured, because two runs of it differ: {', '.join(varying)}."][
            : 2 * bool(varying)
        ],
    ]


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what depgraph apply --add-to wrote")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace its table")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
    text = table(rows)
    if arguments.write is None:
        print(text)
        return
    page = arguments.write.read_text(encoding="utf-8")
    arguments.write.write_text(replace_tables(page, text, "applied"), encoding="utf-8")


if __name__ == "__main__":
    main()
