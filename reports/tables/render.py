"""The forms that a report is written in: table, JSON, CSV, Markdown, and HTML for notebooks."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from depgraph.analysis.next_steps import Step
from depgraph.reports.tables.table import Column, Report, Table, plain, shorten, table_rows
from depgraph.system.text import clean_text, counted, csv_cell, show_number

JSON_SCHEMA_VERSION = 3
WIDTH = 100
SCREEN = 25
"""Lines of the first screen of a command: what does not fit is behind --details."""
_LEAST_WRAPPED = 24
_LEAST_TEXT = 12
_STEPS = "Next steps"
_MOST_STEPS = 3
_LEAST_ROWS = 3  # fewer of a longer table say nothing
_BOLD = "\x1b[1m", "\x1b[0m"
_ITEM = "  - ", "    "
_SHORT_UNITS = {"(instructions)": "(instr.)"}


def render(
    report: Report, form: str, *, color: bool = False, width: int = WIDTH, details: bool = True
) -> str:
    """Write a report in a form; as a table, `details` is all, not what fits on one screen."""
    as_text = _as_text if details else _first_screen
    return {
        "table": lambda: as_text(report.as_shown(), width, color=color),
        "json": lambda: _as_json(report),
        "csv": lambda: _as_csv(report),
        "markdown": lambda: _as_markdown(report.as_shown()),
    }[form]()


def _as_json(report: Report) -> str:
    content = {
        "schema_version": JSON_SCHEMA_VERSION,
        "report": report.name,
        **{key: plain(value) for key, value in report.facts.items()},
        **{table.key: table_rows(table) for table in report.tables},
        **report.extra,
        **({"next_steps": [step._asdict() for step in report.steps]} if report.steps else {}),
        "notes": list(report.notes),
    }
    # In ASCII: names from a trace may hold characters that steer a terminal.
    return json.dumps(content, indent=2) + "\n"


def _as_csv(report: Report) -> str:
    table = report.csv_table or (report.tables[0] if report.tables else None)
    if table is None:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([[_csv_value(v) for v in row] for row in table.rows])
    return out.getvalue()


def _csv_value(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, list):
        return csv_cell("; ".join(map(str, value)))
    return csv_cell(value) if isinstance(value, str) else plain(value)


def _head(column: Column) -> str:
    return f"{column.head} ({column.unit})" if column.unit else column.head


def _cells(table: Table) -> list[list[str]]:
    return [
        [
            clean_text(c.show(v)) if c.is_text else c.show(v)
            for c, v in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]


def escaped(text: str) -> str:
    """Return what Markdown shows as this text."""
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("`", "'")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("[", "\\[").replace("]", "\\]")
    text = text.replace("*", "\\*").replace("_", "\\_")
    return text.replace("~", "\\~").replace("@", "&#64;")  # struck out text, mentions


def _as_markdown(report: Report) -> str:
    lines: list[str] = []
    lines += [f"{escaped(clean_text(sentence))}\n" for sentence in report.headline]
    if report.steps:
        lines.append(f"**{_STEPS}**\n")
        for step in report.steps:
            lines.append(f"- {escaped(clean_text(step.text))}")
            lines += (
                ["", "  ```sh", f"  {clean_text(step.command)}", "  ```"] if step.command else []
            )
        lines.append("")
    for table in report.tables:
        lines.append(f"**{table.title}**\n")
        if not table.rows:
            lines.append("none\n")
            continue
        lines.append("| " + " | ".join(_head(c) for c in table.columns) + " |")
        lines.append(
            "|" + "|".join(" --- " if c.is_text else " ---: " for c in table.columns) + "|"
        )
        lines += ["| " + " | ".join(map(escaped, row)) + " |" for row in _cells(table)]
        lines.append("")
        if table.omitted:
            rows = "row" if table.omitted == 1 else "rows"
            lines.append(f"{show_number(table.omitted)} more {rows}{_more(table)}\n")
    for title, notes in _note_sections(report):
        lines.append(f"**{title}**\n")
        lines += [*(f"- {escaped(clean_text(note))}" for note in notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def _note_sections(report: Report) -> list[tuple[str, Sequence[str]]]:
    sections = [(report.notes_title, report.notes), *report.sections]
    return [(title, notes) for title, notes in sections if notes]


def _more(table: Table) -> str:
    return f": {table.more}" if table.more else ""


def _as_text(report: Report, width: int, *, color: bool) -> str:
    bold, plain_ = _BOLD if color else ("", "")
    lines = _paragraphs(report.headline, width)
    if report.steps:
        lines += ["", f"{bold}{_STEPS}{plain_}"]
    for step in report.steps:
        lines += _lines_of(step, width)
    for table in report.tables:
        lines += ["", f"{bold}{table.title}{plain_}"]
        lines += _text_table(table, width, bold, plain_) if table.rows else ["  none"]
        if table.omitted:
            lines.append(f"  ... and {show_number(table.omitted)} more{_more(table)}")
    for title, notes in _note_sections(report):
        lines += ["", f"{bold}{title}{plain_}", *_paragraphs(notes, width, _ITEM)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _first_screen(report: Report, width: int, *, color: bool) -> str:
    """Write the answer, what changes it, what to do, and as much of the main table as fits."""
    bold, plain_ = _BOLD if color else ("", "")
    lines = _paragraphs(report.brief or report.headline, width)
    lines += _paragraphs(report.vital, width, _ITEM)
    steps: list[str] = []
    # What to change comes before what to look at; a table that was asked for before both.
    most = 1 if any(table.first for table in report.tables) else _MOST_STEPS
    room = SCREEN - len(lines) - 4  # but for their heading, and what is hidden
    for step in sorted(report.steps, key=lambda step: bool(step.command))[:most]:
        text = _lines_of(step, width)
        steps += text if len(steps) + len(text) <= room else []
    lines += ["", f"{bold}{_STEPS}{plain_}", *steps] if steps else []
    shown = 0
    for table in report.tables:
        heads = 2 + any(column.unit for column in table.columns)
        room = SCREEN - len(lines) - heads - 4
        if not table.first or room < min(len(table.rows), _LEAST_ROWS):
            continue
        cut = table.cut(min(table.first, room)).as_shown()
        text = _text_table(cut, width, bold, plain_, pieces=1) if cut.rows else ["  none"]
        while len(text) > room + heads and len(cut.rows) > 1:  # rows that take several lines
            cut = cut.cut(len(cut.rows) - 1).as_shown()
            text = _text_table(cut, width, bold, plain_, pieces=1)
        lines += ["", f"{bold}{table.title}{plain_}", *text]
        lines += [f"  ... and {show_number(cut.omitted)} more"] * bool(cut.omitted)
        shown += not cut.omitted
    hidden = len(report.tables) - shown
    what = [counted(hidden, "more table")] * (hidden > 0)
    what += [counted(len(report.notes), "assumption")] * bool(report.notes)
    lines += ["", f"--details shows all: {' and '.join(what)}"] if what else []
    return "\n".join(lines).lstrip("\n") + "\n"


def _paragraphs(texts: Iterable[str], width: int, indents: Sequence[str] = ()) -> list[str]:
    width = min(width, WIDTH)
    return [line for text in texts for line in _wrapped(clean_text(text), *indents, width=width)]


def _lines_of(step: Step, width: int) -> list[str]:
    # The command is not wrapped: it is to be pasted.
    command = [f"      {clean_text(step.command)}"] if step.command else []
    return _paragraphs([step.text], width, _ITEM) + command


def _wrapped(text: str, first: str = "", rest: str = "", *, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False,
        break_on_hyphens=False,
    ) or [""]  # fmt: skip


def _text_table(
    table: Table, width: int, bold: str, plain_: str, pieces: int | None = None
) -> list[str]:
    """Set a table within a width; columns without room follow below, in so many pieces at most."""
    heads = [column.head for column in table.columns]
    cells = _cells(table)
    units = [f"({column.unit})" if column.unit else "" for column in table.columns]
    is_text = [column.is_text for column in table.columns]
    wraps = [column.wraps for column in table.columns]
    widths = _widths(heads, units, cells)
    if _excess(widths, width) > 0:
        units = [_SHORT_UNITS.get(unit, unit) for unit in units]
        widths = _widths(heads, units, cells)
    if _excess(widths, width) > 0:
        least = list(widths)
        for i, column in enumerate(table.columns):
            if column.wraps:
                words = (len(word) for row in cells for word in row[i].split())
                least[i] = max([_LEAST_WRAPPED, *words])
            elif column.is_text:
                least[i] = max(len(heads[i]), _LEAST_TEXT)
        widths = _narrowed(widths, least, _excess(widths, width))
    lines: list[str] = []
    for columns in _pieces(widths, cells, width)[:pieces]:

        def line(row: Sequence[str], columns: Sequence[int] = columns) -> str:
            parts = [
                shorten(row[i], max(widths[i], wraps[i] * len(row[i]))).ljust(widths[i])
                if is_text[i]
                else row[i].rjust(widths[i])
                for i in columns
            ]
            return ("  " + "  ".join(parts)).rstrip()

        lines += [] if not lines else [""]
        lines.append(f"{bold}{line(heads)}{plain_}")
        if any(units[i] for i in columns):
            lines.append(line(units))
        kept = [i in columns for i in range(len(widths))]
        lines += [line(part) for row in cells for part in _wrapped_row(row, widths, wraps, kept)]
    return lines


def _wrapped_row(
    row: Sequence[str], widths: Sequence[int], wraps: Sequence[bool], kept: Sequence[bool]
) -> Iterator[tuple[str, ...]]:
    """Yield the lines that a row takes: one where no cell that is kept is too wide."""
    cells = [
        _wrapped(cell, width=width) if wrap and keep else [cell]
        for cell, width, wrap, keep in zip(row, widths, wraps, kept, strict=True)
    ]
    return zip_longest(*cells, fillvalue="")


def _widths(
    heads: Sequence[str], units: Sequence[str], cells: Sequence[Sequence[str]]
) -> list[int]:
    return [
        max([len(head), len(unit), *(len(row[i]) for row in cells)])
        for i, (head, unit) in enumerate(zip(heads, units, strict=True))
    ]


def _excess(widths: Sequence[int], width: int) -> int:
    return sum(widths) + 2 * len(widths) - width


def _pieces(widths: Sequence[int], cells: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Split columns into groups that fit, each led by the columns that tell rows apart."""
    lead = _lead(widths, cells, width)
    pieces = [list(lead)] if widths else []
    for i in range(len(lead), len(widths)):
        if (
            len(pieces[-1]) > len(lead)
            and _excess([widths[k] for k in [*pieces[-1], i]], width) > 0
        ):
            pieces.append(list(lead))
        pieces[-1].append(i)
    return pieces


def _lead(widths: Sequence[int], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the first columns that tell rows apart, if they leave a third of the width."""
    for count in range(1, len(widths)):
        if _excess(widths[:count], 2 * width // 3) > 0:
            break
        if len({tuple(row[:count]) for row in cells}) == len(cells):
            return list(range(count))
    return [0] if widths else []


def _narrowed(widths: list[int], least: Sequence[int], excess: int) -> list[int]:
    """Take `excess` characters from the widest columns, as far as that leaves each its least."""
    while excess > 0:
        widest = max(
            (i for i, width in enumerate(widths) if width > least[i]),
            key=lambda i: widths[i],
            default=None,
        )
        if widest is None:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


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
    parts += map(_table_html, report.as_shown().tables)
    parts += [
        f"<details><summary>{_text(title)}</summary><ul>"
        + "".join(f"<li>{_text(note)}</li>" for note in notes)
        + "</ul></details>"
        for title, notes in _note_sections(report)
    ]
    return "".join(parts)


def _table_html(table: Table) -> str:
    heads = "".join(f"<th>{_text(_head(column))}</th>" for column in table.columns)
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
    from html import escape  # no terminal needs it

    return escape(clean_text(text)).replace("$", "&#36;")
