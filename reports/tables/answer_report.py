"""An answer as a report: the verdict, then the bounds or the mechanisms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from depgraph.analysis.bound import BoundTable
from depgraph.reports.tables.bound_table import bound_report
from depgraph.reports.tables.mechanism_tables import comparison_report
from depgraph.reports.tables.verdict_lines import with_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.answer import Answer
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.next_steps import Step
    from depgraph.reports.tables.table import Report


def answer_report(
    found: Answer[BoundTable] | Answer[Comparison], more: Sequence[Step] = ()
) -> Report:
    """Describe an answer; `more` is to be done next behind what the verdict says."""
    table = found.table
    if isinstance(table, BoundTable):
        return with_verdict(bound_report(table), table.basis, found.conclusion, more)
    report = with_verdict(comparison_report(table), table.basis, found.conclusion, more)
    # Who looks at mechanisms need not be told to.
    return replace(report, steps=[s for s in report.steps if "--mechanism" not in s.command])
