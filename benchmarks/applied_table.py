"""The table of programs that `parallelize` was measured on, from lines of `apply_programs.py`.

``python benchmarks/applied_table.py samples/validation/measured/h200-applied.jsonl --write
docs/validation.md`` replaces what stands between the marks of the page.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pages

_HEADS = (
    "program", "kernels", "replay as captured, us", "replay, us", "faster", "call as captured, us",
    "call, us", "faster", "graph",
)  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table and what it comes to."""
    cells = [
        (
            row["program"], row["kernels"], f"{row['captured_measured_us']:.1f}",
            f"{row['applied_measured_us']:.1f}", f"{_of_replays(row):.2f}x",
            f"{row['plain_call_us']:.1f}", f"{row['call_us']:.1f}", f"{row['speedup']:.2f}x",
            row["graph"],
        )
        for row in sorted(rows, key=lambda r: -_of_replays(r))
    ]  # fmt: skip
    return "\n".join([*_summary(rows), "", pages.table(_HEADS, "lrrrrrrrl", cells), ""])


def _of_replays(row: dict[str, Any]) -> float:
    return float(row["captured_measured_us"] / row["applied_measured_us"])


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    replays = geometric_mean(map(_of_replays, rows))
    calls = geometric_mean(row["speedup"] for row in rows)
    drawn, noticed = (sum(row[f"edges_{kind}"] for row in rows) for kind in ("drawn", "noticed"))
    return [
        f"{len(rows)} programs on an {rows[0]['gpu']}: replays {replays:.2f} times as fast in the",
        f"geometric mean, calls {calls:.2f} times. Of {drawn} edges that were drawn and taken",
        f"away, one at a time, the comparison with the function noticed {noticed}.",
    ]


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what apply_programs.py --add-to wrote")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace its table")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
    if arguments.write is None:
        print(table(rows))
    else:
        pages.write_tables(arguments.write, {"applied": table(rows)})


if __name__ == "__main__":
    main()
