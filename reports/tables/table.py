"""Reports as plain data, the columns that tables share, and how values are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from depgraph.system.text import clean_text, show_bytes, show_factor, show_number, show_percent
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from depgraph.analysis.next_steps import Step
    from depgraph.graph.program import Kernel

    Get = Callable[[Any], Any] | None


class Column(NamedTuple):
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
    get: Get = None

    @classmethod
    def number(cls, key: str, head: str, unit: str = "", get: Get = None) -> Column:
        """Return a column of numbers."""
        return cls(key, head, unit, show_number, get=get)

    @classmethod
    def factor(cls, key: str, head: str, get: Get = None) -> Column:
        """Return a column of speedups."""
        return cls(key, head, show=show_factor, get=get)

    @classmethod
    def percent(cls, key: str, head: str, get: Get = None) -> Column:
        """Return a column of shares."""
        return cls(key, head, show=show_percent, get=get)

    @classmethod
    def text(cls, key: str, head: str, get: Get = None, *, wraps: bool = False) -> Column:
        """Return a column of text."""
        return cls(key, head, is_text=True, wraps=wraps, get=get)


def whole_sms(sms: float) -> float:
    """Return a number of SMs as an integer, or infinity: the same in every table."""
    return sms if math.isinf(sms) else int(sms)


def row_of(columns: Iterable[Column], item: Any) -> tuple[Any, ...]:
    """Return the values of the columns for what a row is about."""
    return tuple(getattr(item, c.key) if c.get is None else c.get(item) for c in columns)


class _Rows(Sequence[Sequence[Any]]):
    """Rows that are made when they are asked for: of a hundred thousand people see a few."""

    def __init__(self, columns: Sequence[Column], items: Sequence[Any]) -> None:
        self._columns = columns
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return (row_of(self._columns, item) for item in self._items)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [row_of(self._columns, item) for item in self._items[place]]
        return row_of(self._columns, self._items[place])


class Table(NamedTuple):
    """Rows under columns."""

    key: str  # name in JSON
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # plain values, one a column
    omitted: int = 0  # further rows, that are not in `rows`
    more: str = ""  # how to see the omitted ones
    first: int = 0  # rows that the first screen of a command shows at most; 0 for none of the table
    shown: int | None = None  # rows that people see at most; JSON and CSV have all

    @classmethod
    def of(
        cls, key: str, title: str, columns: Sequence[Column], items: Iterable[Any], more: str = ""
    ) -> Table:
        """Make a table with a row for each item."""
        return cls(key, title, columns, _Rows(columns, list(items)), more=more)

    @classmethod
    def if_any(
        cls, key: str, title: str, columns: Sequence[Column], items: Iterable[Any]
    ) -> list[Table]:
        """Make a table with a row for each item, none where there is no item."""
        found = cls.of(key, title, columns, items)
        return [found] if found.rows else []

    def at_first(self, rows: int) -> Table:
        """Return the table with so many rows at most on the first screen of a command."""
        return self._replace(first=rows)

    def cut(self, top: int | None) -> Table:
        """Return the table with so many rows at most for people; None for no fewer than now."""
        least = [rows for rows in (top, self.shown) if rows is not None]
        return self._replace(shown=min(least, default=None))

    def as_shown(self) -> Table:
        """Return the table with no other rows than people see."""
        rows = self.rows[: self.shown]
        omitted = self.omitted + len(self.rows) - len(rows)
        return self._replace(rows=rows, omitted=omitted, shown=None)


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
        """Return the report with so many rows a table at most for people."""
        return replace(self, tables=[table.cut(top) for table in self.tables])

    def as_shown(self) -> Report:
        """Return the report with no other rows than people see."""
        return replace(self, tables=[table.as_shown() for table in self.tables])


def shorten(text: str, width: int) -> str:
    """Cut text to `width` characters, leaving its beginning and its end."""
    if len(text) <= width:
        return text
    kept = width - 1
    return text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]


def kernel_name(name: str | None) -> str:
    """Return what a table calls a kernel: its name without namespaces, templates, arguments."""
    return "-" if name is None else clean_text(base_name(name))


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


def facts_of(item: Any, *names: str) -> dict[str, Any]:
    """Return attributes of something by name."""
    return {name: getattr(item, name) for name in names}


def table_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries of plain values."""
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, map(plain, row), strict=True)) for row in table.rows]


_TIMES = {
    "critical_path": "critical path",
    "duration": "time",
    "lower_bound": "lower bound",
    "makespan": "makespan",
    "memory": "memory",
    "serial": "serial",
    "time": "time",
    "work": "work",
}
_FACTORS = {"speedup": "speedup", "upper_bound": "upper bound"}
_SHARES = {"share": "share", "share_of_bound": "share of bound", "utilization": "utilization"}
_COUNTS = {
    "accesses": "accesses",
    "blocks": "blocks",
    "count": "count",
    "edges": "edges",
    "kernels": "kernels",
    "lookups": "look-ups",
    "missed": "missed",
    "raw": "RAW",
    "reuse": "reuse",
    "war": "WAR",
    "waw": "WAW",
}
_TEXTS = {
    "against": "compared with",
    "availability": "availability",
    "meaning": "meaning",
    "program": "program",
    "rank": "rank",
    "source_name": "name",
    "status": "match",
    "target_name": "name",
}
_COLUMNS = {
    **{key: Column.number(key, head) for key, head in (_TIMES | _COUNTS).items()},
    **{key: Column.factor(key, head) for key, head in _FACTORS.items()},
    **{key: Column.percent(key, head) for key, head in _SHARES.items()},
    **{key: Column.text(key, head) for key, head in _TEXTS.items()},
    "grid": Column("grid", "grid", show=show_dimensions),
    "kernel": Column("kernel", "kernel"),
    "mechanism": Column.text("mechanism", "mechanism", wraps=True),
    "name": Column("name", "name", is_text=True, show=kernel_name),
    "read_bytes": Column("read_bytes", "reads", show=show_bytes),
    "sms": Column("sms", "SMs", show=show_count, get=lambda item: whole_sms(item.sms)),
    "source": Column("source", "waits for"),
    "target": Column("target", "kernel"),
    "written_bytes": Column("written_bytes", "writes", show=show_bytes),
}


def common(*keys: str, unit: str = "", **get: Callable[[Any], Any]) -> list[Column]:
    """Return columns by key: those of times in the unit; a keyword says how to get one's values."""
    found = (_COLUMNS[key] for key in keys)
    return [
        c._replace(unit=unit if c.key in _TIMES else "", get=get.get(c.key, c.get)) for c in found
    ]


def columns_of_pairs(name: Callable[[int], str]) -> list[Column]:
    """Return columns of who waits for whom, where `name` is that of a kernel number."""
    keys = "target", "target_name", "source", "source_name"
    return common(*keys, target_name=lambda p: name(p.target), source_name=lambda p: name(p.source))
