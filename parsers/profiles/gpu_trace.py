"""Read the table of GPU operations that both nsys and nvprof print, each in its own words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.csv_tables import Header, cells_of, header_of
from depgraph.parsers.profiles.kernel_rows import KernelRows
from depgraph.parsers.profiles.source import open_text
from depgraph.parsers.profiles.units import (
    decimal,
    exact_bytes,
    integer,
    nanoseconds,
    time_unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from depgraph.parsers.profiles.kernel_rows import Dim3
    from depgraph.timing.profile import KernelProfile

_DEVICE = re.compile(r"(?P<name>.*?)\s*\((?P<number>\d{1,9})\)")
_MEMORY = re.compile("memset|memcpy", re.IGNORECASE)
_CORRELATION_MARK = re.compile(r"\s*\[(\d{1,18})\]\Z")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a tool calls the columns, and how its table begins and ends.

    Attributes
    ----------
    kilo : int
        What K in KB stands for.
    units_below : bool
        Whether units stand in a row below the header rather than in the header.
    ends_at_text : bool
        Whether a line that is no row ends the table; else it is output of the program.
    hint : str
        The command that prints a table with kernels.
    """

    format: str
    start: str
    duration: str
    name: str
    grid: tuple[str, str, str]
    block: tuple[str, str, str]
    registers: str
    static_shared: str
    dynamic_shared: str
    device: str
    context: str
    stream: str
    correlation: str
    kilo: int
    units_below: bool
    ends_at_text: bool
    hint: str

    @property
    def launch_columns(self) -> tuple[str, ...]:
        """The columns that say how a kernel was launched, rather than when."""
        return (
            *self.grid,
            *self.block,
            self.registers,
            self.static_shared,
            self.dynamic_shared,
            self.device,
            self.context,
            self.stream,
        )

    def recognises(self, line: str) -> bool:
        """Whether a line is the header of this table."""
        columns = (self.start, self.duration, self.grid[0], self.name)
        if not all(column in line for column in columns):
            return False
        header = header_of(line)
        return all(column in header for column in columns)


def read_gpu_trace(path: Path, dialect: Dialect) -> KernelProfile:
    """Read the kernels, memsets and copies of the first such table in a file."""
    rows = KernelRows(path)
    with open_text(path) as text:
        lines = enumerate(text, 1)
        table = _find_table(path, dialect, lines)
        ended = False
        for number, line in lines:
            if dialect.recognises(line):
                raise ProfileError(
                    path, "a second table of GPU operations", "keep one per file", line=number
                )
            if ended:
                continue
            if not line.strip():
                ended = dialect.ends_at_text and table.rows_seen > 0
            elif not line.endswith("\n"):
                rows.skipped["unfinished last lines"] += 1
            else:
                ended = not table.add(rows, number, line)
    rows.notes.extend(table.notes())
    return rows.build(dialect.format, hint=dialect.hint)


def _find_table(path: Path, dialect: Dialect, lines: Iterator[tuple[int, str]]) -> _Table:
    for number, line in lines:
        if not dialect.recognises(line):
            continue
        if not line.endswith("\n"):
            break
        header = header_of(line)
        if dialect.units_below:
            _, units_line = next(lines, (0, ""))
            units = cells_of(units_line, header.delimiter)
            if len(units) != len(header.names) or not units_line.endswith("\n"):
                break
            header = Header(header.names, tuple(units), header.delimiter)
        return _Table(path, dialect, header, number)
    raise ProfileError(path, "the table of GPU operations is cut off", dialect.hint)


class _Table:
    """The header of a table, ready to read rows."""

    def __init__(self, path: Path, dialect: Dialect, header: Header, line: int) -> None:
        self.dialect = dialect
        self.header = header
        self.rows_seen = 0
        self.start_unit = self._time_unit(path, dialect.start, line)
        self.duration_unit = self._time_unit(path, dialect.duration, line)
        self.rounded: set[str] = set()
        self._launches: dict[tuple[str, ...], dict[str, Any]] = {}
        self._launch_columns = [
            header.position[column] for column in dialect.launch_columns if column in header
        ]

    def _time_unit(self, path: Path, column: str, line: int) -> str:
        unit = time_unit(self.header.unit(column))
        if unit is None:
            raise ProfileError(
                path,
                f"'{self.header.unit(column)}' is not a unit of time for {column}",
                self.dialect.hint,
                line=line,
            )
        return unit

    def notes(self) -> list[str]:
        """Say which columns were of no use."""
        return [
            f"shared memory is rounded in units of {unit}: not used"
            for unit in sorted(self.rounded)
        ]

    def add(self, rows: KernelRows, number: int, line: str) -> bool:
        """Add the operation of one line; return False where the table has ended."""
        cells = cells_of(line, self.header.delimiter)
        if len(cells) != len(self.header.names):
            if line.lstrip(' "')[:1].isdigit():
                if not rows.skipped["rows of another width"]:
                    rows.notes.append(f"line {number} has {len(cells)} columns: passed over")
                rows.skipped["rows of another width"] += 1
                return True
            return not self.dialect.ends_at_text
        self.rows_seen += 1
        self._add_operation(rows, cells)
        return True

    def _cell(self, cells: list[str], column: str) -> str:
        return self.header.cell(cells, column)

    def _integer(self, cells: list[str], column: str) -> int | None:
        return integer(self._cell(cells, column))

    def _bytes(self, cells: list[str], column: str) -> int | None:
        value, unit = decimal(self._cell(cells, column)), self.header.unit(column)
        if value is None:
            return None
        size = exact_bytes(value, unit, self.dialect.kilo)
        if size is None:
            self.rounded.add(unit)
        return size

    def _sizes(self, cells: list[str], columns: tuple[str, str, str]) -> Dim3 | None:
        x, y, z = (self._integer(cells, column) for column in columns)
        return None if x is None or y is None or z is None else (x, y, z)

    def _add_operation(self, rows: KernelRows, cells: list[str]) -> None:
        dialect = self.dialect
        duration = decimal(self._cell(cells, dialect.duration))
        start = decimal(self._cell(cells, dialect.start))
        name, mark = self._cell(cells, dialect.name), None
        if dialect.units_below and (mark := _CORRELATION_MARK.search(name)):
            name = name[: mark.start()]
        is_kernel = any(self._cell(cells, column) for column in dialect.grid)
        if not is_kernel and not _MEMORY.search(name):
            return
        measured = (
            name,
            None if duration is None else float(nanoseconds(duration, self.duration_unit)),
            None if start is None else round(nanoseconds(start, self.start_unit)),
        )
        if not is_kernel:
            rows.add_memory(*measured, **self._place(cells))
            return
        text = tuple(cells[at] for at in self._launch_columns)
        launch = self._launches.get(text)
        if launch is None:
            launch = self._launches[text] = self._launch(rows, cells)
        correlation = self._integer(cells, dialect.correlation)
        rows.add(
            *measured,
            correlation=int(mark[1]) if correlation is None and mark else correlation,
            **launch,
        )

    def _place(self, cells: list[str]) -> dict[str, Any]:
        device = _DEVICE.fullmatch(self._cell(cells, self.dialect.device))
        return {
            "device": int(device["number"]) if device else None,
            "context": self._integer(cells, self.dialect.context),
            "stream": self._integer(cells, self.dialect.stream),
        }

    def _launch(self, rows: KernelRows, cells: list[str]) -> dict[str, Any]:
        """Read the columns that are the same whenever a kernel is launched the same way."""
        dialect = self.dialect
        device = _DEVICE.fullmatch(self._cell(cells, dialect.device))
        static = self._bytes(cells, dialect.static_shared)
        dynamic = self._bytes(cells, dialect.dynamic_shared)
        if device:
            rows.device_names[int(device["number"])] = device["name"]
        return {
            "grid": self._sizes(cells, dialect.grid),
            "block": self._sizes(cells, dialect.block),
            "registers": self._integer(cells, dialect.registers),
            "static_shared_bytes": static,
            "dynamic_shared_bytes": dynamic,
            "shared_bytes": None if static is None or dynamic is None else static + dynamic,
            **self._place(cells),
        }
