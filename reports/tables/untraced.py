"""What a trace does not show, and what of it was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.dependence.possible import uncertainty
from depgraph.extraction.workload import FORMAT as WORKLOAD
from depgraph.graph.program import remarks
from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import Column, Table, show_number
from depgraph.system.text import kernels_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel


def untraced_notes(
    kernels: Sequence[Kernel], pairs: Sequence[PairSummary], metadata: Mapping[str, Any]
) -> list[str]:
    """List warnings, kernels with hidden accesses or inner order, and the format's blind spots."""
    notes = warnings_of(metadata)
    is_traced = metadata.get("format") != WORKLOAD
    for reason, numbers in remarks(kernels, is_traced=is_traced).items():
        notes.append(f"{kernels_text(numbers)}: {reason}")
    shared = [k.kernel for k in kernels if k.shared_written_bytes and k.waits_inside is None]
    if shared:
        notes.append(
            f"{kernels_text(shared)}: blocks write bytes that other blocks of the same kernel "
            "touch; the graph has no order inside a kernel"
        )
    notes += uncertainty(kernels, pairs).notes
    return [*notes, *metadata.get("blind_spots", [])]


def warnings_of(metadata: Mapping[str, Any]) -> list[str]:
    """List what was wrong with the input, and how often."""
    warnings = metadata.get("warnings", {})
    return [f"{warning}: {show_number(count)}" for warning, count in warnings.items()]


def skipped_table(skipped: Mapping[str, int]) -> Table:
    """Build the table of what was left out, and how often."""
    columns = [
        Column("reason", "reason", is_text=True, wraps=True),
        *common("count"),
    ]
    return Table("skipped", "Left out", columns, list(skipped.items()))
