"""Published figures beside those computed here, as a report."""

from collections.abc import Mapping
from typing import Any

from depgraph.reports.tables.table import Column, Report, Table
from depgraph.reproduce.figures import Figure, Reproduction
from depgraph.system.text import show_number

_NOTICED = 5e-5


def reproduction_report(reproduction: Reproduction) -> Report:
    """List the figures of one publication: the paper's, ours, the difference, and why."""
    shown = [
        Column.text("what", "what", _with_unit, wraps=True),
        Column("paper", "paper", show=show_figure),
        Column("ours", "ours", show=show_figure),
        Column("difference", "differ", show=show_difference),
        Column.text("why", "why they differ", wraps=True),
    ]
    plain = [
        Column("what", "what"), Column("unit", "unit"), *shown[1:], Column("source", "source"),
    ]  # fmt: skip
    whole = Table.of("figures", "", plain, reproduction.figures)
    keys = [column.key for column in plain]
    n, same = len(reproduction.figures), sum(map(is_same, reproduction.figures))
    return Report(
        "reproduce",
        {"name": reproduction.name, "paper": reproduction.paper, "programs": reproduction.programs},
        extra={"figures": [dict(zip(keys, row, strict=True)) for row in whole.rows]},
        csv_table=whole,
        headline=[
            f"{reproduction.name}: {reproduction.about}.",
            f"Paper: {reproduction.paper}.",
            f"Here: {reproduction.programs}.",
            f"{same} of {n} figures are the same, the others differ as said.",
        ],
        tables=[Table.of("rows", "Figures", shown, reproduction.figures)],
        notes=reproduction.notes,
        notes_title="To know",
    )


def experiments_report(published: Mapping[str, Mapping[str, Any]]) -> Report:
    """List what can be reproduced, a line each."""
    columns = [
        Column.text("name", "name"),
        Column.text("about", "what it says", wraps=True),
        Column.text("paper", "paper", wraps=True),
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
