"""Published figures beside those computed here, as a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import Column, Report, Table, show_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from depgraph.reproduce.figures import Figure, Reproduction

_NOTICED = 5e-5


def reproduction_report(found: Reproduction) -> Report:
    """List the figures of one publication: the paper's, ours, the difference, and why."""
    shown = [
        Column("what", "what", is_text=True, wraps=True, get=_with_unit),
        Column("paper", "paper", show=show_figure),
        Column("ours", "ours", show=show_figure),
        Column("difference", "differ", show=show_difference),
        Column("why", "why they differ", is_text=True, wraps=True),
    ]
    plain = [
        Column("what", "what"), Column("unit", "unit"), *shown[1:], Column("source", "source"),
    ]  # fmt: skip
    whole = Table.of("figures", "", plain, found.figures)
    keys = [column.key for column in plain]
    same = sum(is_same(figure) for figure in found.figures)
    return Report(
        "reproduce",
        {"name": found.name, "paper": found.paper, "programs": found.programs},
        extra={"figures": [dict(zip(keys, row, strict=True)) for row in whole.rows]},
        csv_table=whole,
        headline=[
            f"{found.name}: {found.about}.",
            f"Paper: {found.paper}.",
            f"Here: {found.programs}.",
            f"{same} of {len(found.figures)} figures are the same, the others differ as said.",
        ],
        tables=[Table.of("rows", "Figures", shown, found.figures)],
        notes=found.notes,
        notes_title="To know",
    )


def experiments_report(published: Mapping[str, Mapping[str, Any]]) -> Report:
    """List what can be reproduced, a line each."""
    columns = [
        Column("name", "name", is_text=True),
        Column("about", "what it says", is_text=True, wraps=True),
        Column("paper", "paper", is_text=True, wraps=True),
    ]
    rows = [(name, table["about"], table["paper"]) for name, table in published.items()]
    return Report(
        "reproduce",
        {"experiments": list(published)},
        tables=[Table("experiments", "What can be reproduced", columns, rows)],
        notes=["depgraph reproduce NAME computes its figures and puts them beside the paper's"],
        notes_title="Use",
    )


def _with_unit(figure: Figure) -> str:
    return figure.what if figure.unit == "x" else f"{figure.what} ({figure.unit})"


def is_same(figure: Figure) -> bool:
    """Tell whether nothing is seen of a difference in four digits."""
    return figure.difference is not None and abs(figure.difference) < _NOTICED


def show_figure(value: float) -> str:
    """Show a figure in four digits, a count in all of its own."""
    return f"{value:.0f}" if value.is_integer() else show_number(value)


def show_difference(share: float | None) -> str:
    """Show how much larger ours is, with as many digits as tell it from none."""
    if share is None:
        return "-"
    if abs(share) < _NOTICED:
        return "none"
    digits = 0 if abs(share) >= 0.1 else 1 if abs(share) >= 0.01 else 2  # noqa: PLR2004
    return f"{share:+.{digits}%}"
