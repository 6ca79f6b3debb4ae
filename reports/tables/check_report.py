"""What ``depgraph check`` says of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.graph.program import kernel_remarks
from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import Column, Report, Table, show_number
from depgraph.reports.tables.untraced import skipped_table
from depgraph.system.text import COPIES, counted, size_read

if TYPE_CHECKING:
    from depgraph.extraction.check import Checkup

_KERNELS_SHOWN = 40


def check_report(checkup: Checkup, *, verdict: str, shown: int | None = _KERNELS_SHOWN) -> Report:
    """Describe a checkup: the verdict, problems, kernels, what was left out."""
    problem_columns = [
        Column("severity", "", is_text=True, get=lambda p: "error" if p.is_error else "warning"),
        *common("count"),
        Column("found", "what was found", is_text=True, wraps=True),
        Column("place", "where", is_text=True, wraps=True),
    ]
    kernel_columns = [
        *common("kernel", "name", "blocks"),
        Column("active_blocks", "with code", show=show_number),
        *common("accesses"),
        Column("remarks", "remarks", is_text=True, show="; ".join, wraps=True, get=kernel_remarks),
    ]
    more = "--format json lists all"
    kernels = Table.of("kernels", "Kernels", kernel_columns, checkup.kernels, more)
    tables = [
        Table.of("problems", "Problems", problem_columns, checkup.problems),
        kernels.cut(shown),
        skipped_table(checkup.skipped),
    ]
    blocks = sum(k.blocks for k in checkup.kernels)
    return Report(
        "check",
        {
            "trace": checkup.trace,
            "format": checkup.format,
            "verdict": verdict,
            "errors": checkup.errors,
            "warnings": checkup.warnings,
            "n_kernels": len(checkup.kernels),
            "n_copies": checkup.copies,
            "n_blocks": blocks,
            "lines": checkup.lines,
            "input_bytes": checkup.bytes,
            "text_bytes": checkup.text_bytes,
        },
        headline=[
            (
                f"{checkup.trace}: {verdict} ({checkup.format}; "
                f"{counted(checkup.errors, 'error')}, {counted(checkup.warnings, 'warning')})"
            ),
            (
                f"{counted(len(checkup.kernels), 'kernel')}, {counted(blocks, 'block')}, "
                f"{counted(checkup.copies, *COPIES)}, "
                f"{counted(checkup.lines, 'line')}, {size_read(checkup.bytes, checkup.text_bytes)}"
            ),
        ],
        tables=tables,
        notes=checkup.blind_spots,
        notes_title="What no trace of this format shows",
    )
