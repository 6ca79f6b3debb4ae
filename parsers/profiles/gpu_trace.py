"""Read the table of GPU operations that nsys and nvprof print, each in its own words.

They are those of ``nsys stats --report cuda_gpu_trace --format csv`` (once ``gputrace``) and of
``nvprof --print-gpu-trace --csv``; what stands around a table is passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.csv_tables import Header, cells_of, header_of
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.parsers.profiles.source import open_text
from depgraph.parsers.profiles.units import decimal, exact_bytes, integer, nanoseconds, time_unit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal
    from pathlib import Path

    from depgraph.timing.profile import KernelProfile

_DEVICE = re.compile(r"(?P<name>.*?)\s*\((?P<number>\d{1,9})\)")
_MEMORY = re.compile("memset|memcpy", re.IGNORECASE)
_CORRELATION_MARK = re.compile(r"\s*\[(\d{1,18})\]\Z")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a tool calls the columns, and how its table begins and ends."""

    format: str
    hint: str  # the command that prints a table with kernels
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
    kilo: int  # what K in KB stands for
    units_below: bool  # in a row of their own rather than in the header
    ends_at_text: bool  # at a line that is no row; else that is output of the program

    @property
    def launch_columns(self) -> tuple[str, ...]:
        """The columns that say how a kernel was launched, rather than when."""
        shared = self.static_shared, self.dynamic_shared
        place = self.device, self.context, self.stream
        return (*self.grid, *self.block, self.registers, *shared, *place)

    def recognises(self, line: str) -> bool:
        """Whether a line is the header of this table."""
        columns = (self.start, self.duration, self.grid[0], self.name)
        if not all(column in line for column in columns):
            return False
        header = header_of(line)
        return all(column in header for column in columns)

    def read(self, path: Path) -> KernelProfile:
        """Read the kernels, memsets and copies of the first such table in a file."""
        columns = KernelColumns(path)
        with open_text(path) as text:
            lines = enumerate(text, 1)
            table = _find_table(path, self, lines, columns)
            ended = False
            for number, line in lines:
                if self.recognises(line):
                    found = "a second table of GPU operations"
                    raise ProfileError(path, found, "keep one per file", line=number)
                if ended:
                    continue
                if not line.strip():
                    ended = self.ends_at_text and table.rows_seen > 0
                elif not line.endswith("\n"):
                    columns.skipped["unfinished last lines"] += 1
                else:
                    ended = not table.add(number, line)
        columns.notes += [
            f"shared memory is rounded in units of {unit}: not used"
            for unit in sorted(table.rounded)
        ]
        return columns.profile(self.format, hint=self.hint)


NSYS = Dialect(
    format="nsys-csv",
    hint="write it with: nsys stats --report cuda_gpu_trace --format csv REPORT.nsys-rep",
    start="Start",
    duration="Duration",
    name="Name",
    grid=("GrdX", "GrdY", "GrdZ"),
    block=("BlkX", "BlkY", "BlkZ"),
    registers="Reg/Trd",
    static_shared="StcSMem",
    dynamic_shared="DymSMem",
    device="Device",
    context="Ctx",
    stream="Strm",
    correlation="CorrId",
    kilo=1000,
    units_below=False,
    ends_at_text=True,
)
NVPROF = Dialect(
    format="nvprof",
    hint="write it with: nvprof --print-gpu-trace --csv --log-file times.csv PROGRAM",
    start="Start",
    duration="Duration",
    name="Name",
    grid=("Grid X", "Grid Y", "Grid Z"),
    block=("Block X", "Block Y", "Block Z"),
    registers="Registers Per Thread",
    static_shared="Static SMem",
    dynamic_shared="Dynamic SMem",
    device="Device",
    context="Context",
    stream="Stream",
    correlation="Correlation_ID",
    kilo=1024,
    units_below=True,
    ends_at_text=False,
)


def _find_table(
    path: Path, dialect: Dialect, lines: Iterator[tuple[int, str]], columns: KernelColumns
) -> _Table:
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
        for column in (dialect.start, dialect.duration):
            if time_unit(header.unit(column)) is None:
                found = f"'{header.unit(column)}' is not a unit of time for {column}"
                raise ProfileError(path, found, dialect.hint, line=number)
        return _Table(dialect, header, columns)
    raise ProfileError(path, "the table of GPU operations is cut off", dialect.hint)


class _Table:
    """The header of a table, ready to read rows."""

    def __init__(self, dialect: Dialect, header: Header, columns: KernelColumns) -> None:
        self.rows_seen = 0
        self.rounded: set[str] = set()
        self._dialect = dialect
        self._header = header
        self._columns = columns
        self._launches: dict[tuple[str, ...], dict[str, Any]] = {}
        self._launch_columns = [
            header.position[column] for column in dialect.launch_columns if column in header
        ]

    def add(self, number: int, line: str) -> bool:
        """Add the operation of one line; return False where the table has ended."""
        columns, cells = self._columns, cells_of(line, self._header.delimiter)
        if len(cells) == len(self._header.names):
            self.rows_seen += 1
            self._add_operation(cells)
            return True
        if not line.lstrip(' "')[:1].isdigit():
            return not self._dialect.ends_at_text
        if not columns.skipped["rows of another width"]:
            columns.notes.append(f"line {number} has {len(cells)} columns: passed over")
        columns.skipped["rows of another width"] += 1
        return True

    def _cell(self, cells: list[str], column: str) -> str:
        return self._header.cell(cells, column)

    def _integer(self, cells: list[str], column: str) -> int | None:
        return integer(self._cell(cells, column))

    def _time(self, cells: list[str], column: str) -> Decimal | None:
        value, unit = decimal(self._cell(cells, column)), time_unit(self._header.unit(column))
        return None if value is None or unit is None else nanoseconds(value, unit)

    def _bytes(self, cells: list[str], column: str) -> int | None:
        value, unit = decimal(self._cell(cells, column)), self._header.unit(column)
        if value is None:
            return None
        size = exact_bytes(value, unit, self._dialect.kilo)
        if size is None:
            self.rounded.add(unit)
        return size

    def _add_operation(self, cells: list[str]) -> None:
        dialect = self._dialect
        duration, start = self._time(cells, dialect.duration), self._time(cells, dialect.start)
        measured = (
            None if duration is None else float(duration),
            None if start is None else round(start),
        )
        name, mark = self._cell(cells, dialect.name), None
        if dialect.units_below and (mark := _CORRELATION_MARK.search(name)):
            name = name[: mark.start()]
        if any(self._cell(cells, column) for column in dialect.grid):
            text = tuple(cells[at] for at in self._launch_columns)
            if text not in self._launches:
                self._launches[text] = self._launch(cells)
            correlation = self._integer(cells, dialect.correlation)
            if correlation is None and mark:
                correlation = int(mark[1])
            launch = self._launches[text]
            self._columns.add(name, *measured, correlation=correlation, **launch)
        elif _MEMORY.search(name):
            self._columns.memory.add(name, *measured, **self._place(cells))

    def _place(self, cells: list[str]) -> dict[str, Any]:
        device = _DEVICE.fullmatch(self._cell(cells, self._dialect.device))
        return {
            "device": int(device["number"]) if device else None,
            "context": self._integer(cells, self._dialect.context),
            "stream": self._integer(cells, self._dialect.stream),
        }

    def _launch(self, cells: list[str]) -> dict[str, Any]:
        """Read the columns that are the same whenever a kernel is launched the same way."""
        dialect = self._dialect
        if device := _DEVICE.fullmatch(self._cell(cells, dialect.device)):
            self._columns.device_names[int(device["number"])] = device["name"]
        return {
            "grid": [self._integer(cells, column) for column in dialect.grid],
            "block": [self._integer(cells, column) for column in dialect.block],
            "registers": self._integer(cells, dialect.registers),
            "static_shared_bytes": self._bytes(cells, dialect.static_shared),
            "dynamic_shared_bytes": self._bytes(cells, dialect.dynamic_shared),
            **self._place(cells),
        }
