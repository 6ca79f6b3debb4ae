"""What a machine has, and lacks, for recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.tables.table import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.recorder.toolkit import Requirement


def doctor_report(found: Sequence[Requirement], helpers: Sequence[Requirement]) -> Report:
    """List what recording needs, and is worse without; how to get what is missing."""
    columns = [
        Column("name", "needed", is_text=True),
        Column("what", "found", is_text=True, get=lambda each: each.what or "missing"),
    ]
    missing, lacking = (
        [f"{each.name}: {each.hint}" for each in some if not each.what] for some in (found, helpers)
    )
    return Report(
        "doctor",
        {"can_record": not missing},
        headline=["recording can work here" if not missing else "recording cannot work here yet"],
        tables=[Table.of("needs", "What recording needs", columns, [*found, *helpers])],
        notes=[*missing, *lacking],
        notes_title="What to do",
    )
