"""Reports as plain data, and how their values are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from depgraph.system.text import clean_text, show_bytes, show_factor, show_number, show_percent
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from depgraph.analysis.next_steps import Step
    from depgraph.graph.program import Kernel

__all__ = [
    "Column",
    "Report",
    "Table",
    "kernel_name",
    "kernel_names",
    "plain",
    "row_of",
    "shorten",
    "show_bytes",
    "show_count",
    "show_dimensions",
    "show_factor",
    "show_number",
    "show_percent",
    "show_value",
    "show_whole_percent",
    "sms_column",
    "table_rows",
    "whole_sms",
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    key: str  # name in JSON and CSV
    head: str  # name in a terminal and in Markdown
    unit: str = ""
    show: Callable[[Any], str] = str  # turns a value into text for a terminal and Markdown
    # Text is set to the left and truncated in the middle, numbers to the right.
    is_text: bool = False
    # Text goes on in further lines instead of being truncated, as what a user must read does.
    wraps: bool = False
    # Returns the value from what a row is about; default its attribute `key`.
    get: Callable[[Any], Any] | None = None


def whole_sms(sms: float) -> float:
    """Return a number of SMs as an integer, or infinity: the same in every table."""
    return sms if math.isinf(sms) else int(sms)


def sms_column() -> Column:
    """Return the column of the number of SMs that a row is about."""
    return Column("sms", "SMs", show=show_count, get=lambda item: whole_sms(item.sms))


def row_of(columns: Iterable[Column], item: Any) -> tuple[Any, ...]:
    """Return the values of the columns for what a row is about."""
    return tuple(getattr(item, c.key) if c.get is None else c.get(item) for c in columns)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns."""

    key: str  # name in JSON
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # plain values, one a column
    omitted: int = 0  # rows that were left out of `rows`
    more: str = ""  # how to see the omitted ones
    first: int = 0  # rows that the first screen of a command shows at most; 0 for none of the table

    @classmethod
    def of(
        cls, key: str, title: str, columns: Sequence[Column], items: Iterable[Any], more: str = ""
    ) -> Table:
        """Make a table with a row for each item."""
        return cls(key, title, columns, [row_of(columns, item) for item in items], more=more)

    def at_first(self, rows: int) -> Table:
        """Return the table with so many rows at most on the first screen of a command."""
        return replace(self, first=rows)

    def cut(self, top: int | None) -> Table:
        """Return the table with so many rows at most; None for all."""
        rows = self.rows[:top]
        return replace(self, rows=rows, omitted=self.omitted + len(self.rows) - len(rows))


@dataclass(frozen=True, slots=True)
class Report:
    """What a command says."""

    name: str  # the command
    facts: dict[str, Any]  # plain values for JSON
    headline: Sequence[str] = ()  # the answer in sentences
    tables: Sequence[Table] = ()  # in CSV the one called `csv_table` is written
    notes: Sequence[str] = ()  # assumptions, and what could not be seen
    csv_table: Table | None = None
    notes_title: str = "Assumptions"
    extra: dict[str, Any] = field(default_factory=dict)  # more for JSON
    # More notes under titles of their own, for people; JSON has them in `extra`.
    sections: Sequence[tuple[str, Sequence[str]]] = ()
    steps: Sequence[Step] = ()  # what to do next
    brief: Sequence[str] = ()  # the headline of the first screen, where it is another one
    # Those of the notes that change the answer, in one line each: for the first screen.
    vital: Sequence[str] = ()

    def cut(self, top: int | None) -> Report:
        """Return the report with so many rows a table at most; None for all."""
        return replace(self, tables=[table.cut(top) for table in self.tables])


def shorten(text: str, width: int) -> str:
    """Cut text to `width` characters, leaving its beginning and its end."""
    if len(text) <= width:
        return text
    kept = width - 1
    return text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]


def kernel_name(name: str) -> str:
    """Return what a table calls a kernel: its name without namespaces, templates, arguments."""
    return clean_text(base_name(name))


def kernel_names(kernels: Iterable[Kernel], copies: Mapping[int, str]) -> Callable[[int], str]:
    """Return what a table calls the kernel of a number, or the copy or memset."""
    known = {k.kernel: k.name for k in kernels}
    return lambda number: copies[number] if number in copies else kernel_name(known[number])


def show_count(value: float | None) -> str:
    """Show a whole number, "inf", or a dash for none."""
    if value is None:
        return "-"
    return "inf" if math.isinf(value) else show_number(int(value))


def show_whole_percent(value: float | None) -> str:
    """Show a share of one as whole percent."""
    return "-" if value is None else f"{100 * value:.0f} %"


def show_dimensions(value: Sequence[int] | None) -> str:
    """Show a grid or a block."""
    return "-" if value is None else ",".join(map(str, value))


def show_value(value: object) -> str:
    """Show what may be missing."""
    return "-" if value is None else str(value)


def plain(value: Any) -> Any:
    """Return what JSON can hold for a value: infinities become the string "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else None
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "item"):
        return value.item()
    return value


def table_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries of plain values."""
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, map(plain, row), strict=True)) for row in table.rows]
