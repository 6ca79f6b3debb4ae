"""Reports as pieces of HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from depgraph.reports.tables.table import shorten
from depgraph.system.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from depgraph.reports.tables.table import Report, Table

_WIDTH = 60


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Lay out names and values under a title."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_text(name)}</th>"
        f"<td style='text-align:left'>{_text(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<b>{_text(title)}</b><table>{rows}</table>"


def report_html(report: Report) -> str:
    """Lay out what a report says: sentences, next steps, tables, and notes to unfold."""
    parts = [f"<p>{_text(sentence)}</p>" for sentence in report.headline]
    parts += map(_table_html, report.tables)
    parts += [
        f"<details><summary>{_text(title)}</summary><ul>"
        + "".join(f"<li>{_text(note)}</li>" for note in notes)
        + "</ul></details>"
        for title, notes in ((report.notes_title, report.notes), *report.sections)
        if notes
    ]
    return "".join(parts)


def _table_html(table: Table) -> str:
    heads = "".join(
        f"<th>{_text(c.head)}{f' ({_text(c.unit)})' if c.unit else ''}</th>" for c in table.columns
    )
    aligned = ["left" if c.is_text else "right" for c in table.columns]
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align:{side}'>{_text(shorten(c.show(value), _WIDTH))}</td>"
            for c, value, side in zip(table.columns, row, aligned, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    more = f"<p>... and {table.omitted} more</p>" if table.omitted else ""
    return (
        f"<details open><summary><b>{_text(table.title)}</b></summary>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</details>"
    )


def _text(text: str) -> str:
    """Return text that no browser takes for markup, and no notebook for a formula."""
    return escape(clean_text(text)).replace("$", "&#36;")
