"""Predict what was published and measured, and put the tables into a page.

``python benchmarks/validation --write docs/validation.md`` replaces what stands between the two
marks of the page, the errors by family in the files of the GPUs that were measured, which every
prediction quotes, and ``samples/validation/measured/predicted.csv``, which has every program;
without ``--write`` the tables are printed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))

import families
import published
from overlapped import overlap_tables
from pages import print_or_write
from pages import table as markdown
from rows import Row, summary

from depgraph.gpu.model import with_errors
from depgraph.scenario.contention import EAGER

if TYPE_CHECKING:
    from collections.abc import Iterable


ROOT = Path(__file__).resolve().parents[2]
GPUS = ROOT / "depgraph" / "gpu" / "models"
EACH = ROOT / "samples" / "validation" / "measured" / "predicted.csv"
SHOWN = 8


def table(rows: Iterable[Row]) -> str:
    """Return cases as a Markdown table, times in microseconds."""
    heads = "case", "family", "serial", "predicted", "measured", "error"
    cells = (
        (row.case, row.family, *(f"{t:.1f}" for t in (row.serial, row.predicted, row.measured)),
         f"{row.error:+.1%}")
        for row in rows
    )  # fmt: skip
    return markdown(heads, "llrrrr", cells)


def published_table() -> str:
    """Return the errors for what was published, and is not computed by ``depgraph reproduce``."""
    groups = defaultdict(list)
    for row in published.flux():
        groups[row.source, row.policy].append(row)
    cells = ((f"{source}, {policy}", summary(r)) for (source, policy), r in groups.items())
    return f"## Flux\n\n{markdown(('GPU and mechanism', 'errors'), 'll', cells)}\n"


def measured_tables() -> str:
    """Return the errors by family, and the worst of the H100."""
    rows = [
        row
        for row in families.rows("h100_sxm")
        if row.half and row.family not in {"streams", EAGER}
    ]
    worst = sorted(rows, key=lambda row: -abs(row.error))[:SHOWN]
    parts = ["## Errors by family", families.table(), "The worst on the H100:", table(worst)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Predict as the command line says."""
    made = print_or_write(
        __doc__.partition("\n")[0],
        lambda: f"{measured_tables()}\n{overlap_tables()}\n{published_table()}",
    )
    if made is not None:
        EACH.write_text(families.as_csv(), encoding="utf-8")
        for model in families.FILES:
            file = GPUS / f"{model}.toml"
            text = with_errors(file.read_text(encoding="utf-8"), families.errors(model))
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
