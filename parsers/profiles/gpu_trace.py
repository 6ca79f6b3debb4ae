"""Read the table of GPU operations that nsys and nvprof print, each in its own words.

They are those of ``nsys stats --report cuda_gpu_trace --format csv`` (once ``gputrace``) and of
``nvprof --print-gpu-trace --csv``; what stands around a table is passed over.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import source
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.timing.profile import KernelProfile

_DEVICE = re.compile(r"(?P<name>.*?)\s*\((?P<number>\d{1,9})\)")
_MEMORY = re.compile("memset|memcpy", re.IGNORECASE)
_CORRELATION_MARK = re.compile(r"\s*\[(\d{1,18})\]\Z")


class Dialect(NamedTuple):
    """What a tool calls the columns, and how its table begins and ends."""

    format: str
    hint: str  # the command that prints a table with kernels
    kilo: int  # what K in KB stands for
    units_below: bool  # in a row of their own rather than in the header
    ends_at_text: bool  # at a line that is no row; else that is output of the program
    headings: dict[str, str]  # of the columns of a profile

    def recognises(self, line: str) -> bool:
        """Whether a line is the header of this table."""
        needed = [self.headings[column] for column in ("start", "duration", "grid x", "name")]
        is_near = all(heading in line for heading in needed)  # most lines are not
        return is_near and {*needed} <= {*source.header_of(line).names}

    def read(self, path: Path) -> KernelProfile:
        """Read the kernels, memsets and copies of the first such table in a file."""
        columns = KernelColumns(path)
        with source.open_text(path) as text:
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
        for unit in sorted(table.rounded):
            columns.notes.append(f"shared memory is rounded in units of {unit}: not used")
        return columns.profile(self.format, hint=self.hint)


# Of each column of a profile what nsys and nvprof call it; sizes by their dimension.
_HEADINGS = {
    "start": ("Start", "Start"),
    "duration": ("Duration", "Duration"),
    "name": ("Name", "Name"),
    "grid x": ("GrdX", "Grid X"),
    "grid y": ("GrdY", "Grid Y"),
    "grid z": ("GrdZ", "Grid Z"),
    "block x": ("BlkX", "Block X"),
    "block y": ("BlkY", "Block Y"),
    "block z": ("BlkZ", "Block Z"),
    "registers": ("Reg/Trd", "Registers Per Thread"),
    "static_shared_bytes": ("StcSMem", "Static SMem"),
    "dynamic_shared_bytes": ("DymSMem", "Dynamic SMem"),
    "device": ("Device", "Device"),
    "context": ("Ctx", "Context"),
    "stream": ("Strm", "Stream"),
    "correlation": ("CorrId", "Correlation_ID"),
}
NSYS = Dialect(
    format="nsys-csv",
    hint="write it with: nsys stats --report cuda_gpu_trace --format csv REPORT.nsys-rep",
    kilo=1000,
    units_below=False,
    ends_at_text=True,
    headings={column: heading for column, (heading, _) in _HEADINGS.items()},
)
NVPROF = Dialect(
    format="nvprof",
    hint="write it with: nvprof --print-gpu-trace --csv --log-file times.csv PROGRAM",
    kilo=1024,
    units_below=True,
    ends_at_text=False,
    headings={column: heading for column, (_, heading) in _HEADINGS.items()},
)
_GRID, _BLOCK = ("grid x", "grid y", "grid z"), ("block x", "block y", "block z")
_OF_EACH_LAUNCH = ("start", "duration", "name", "correlation")  # others are the same for many


def _find_table(
    path: Path, dialect: Dialect, lines: Iterator[tuple[int, str]], columns: KernelColumns
) -> "_Table":
    for number, line in lines:
        if not dialect.recognises(line):
            continue
        if not line.endswith("\n"):
            break
        header = source.header_of(line)
        if dialect.units_below:
            _, units_line = next(lines, (0, ""))
            units = source.cells_of(units_line, header.delimiter)
            if len(units) != len(header.names) or not units_line.endswith("\n"):
                break
            header = source.Header(header.names, tuple(units), header.delimiter)
        for heading in (dialect.headings["start"], dialect.headings["duration"]):
            if source.nanoseconds_in(header.unit(heading)) is None:
                found = f"'{header.unit(heading)}' is not a unit of time for {heading}"
                raise ProfileError(path, found, dialect.hint, line=number)
        return _Table(dialect, header, columns)
    raise ProfileError(path, "the table of GPU operations is cut off", dialect.hint)


class _Table:
    def __init__(self, dialect: Dialect, header: source.Header, columns: KernelColumns) -> None:
        self.rows_seen = 0
        self.rounded: set[str] = set()
        self._dialect = dialect
        self._header = header
        self._columns = columns
        self._launches: dict[tuple[str, ...], dict[str, Any]] = {}
        self._launch_columns = [
            header.position[heading]
            for column, heading in dialect.headings.items()
            if column not in _OF_EACH_LAUNCH and heading in header
        ]

    def add(self, number: int, line: str) -> bool:
        """Add the operation of one line; return False where the table has ended."""
        columns, cells = self._columns, source.cells_of(line, self._header.delimiter)
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
        return self._header.cell(cells, self._dialect.headings[column])

    def _number(self, cells: list[str], column: str) -> tuple[Decimal | None, str]:
        heading = self._dialect.headings[column]
        return source.decimal(self._header.cell(cells, heading)), self._header.unit(heading)

    def _integer(self, cells: list[str], column: str) -> int | None:
        return source.integer(self._cell(cells, column))

    def _time(self, cells: list[str], column: str) -> Decimal | None:
        return source.time_in(*self._number(cells, column))

    def _bytes(self, cells: list[str], column: str) -> int | None:
        value, unit = self._number(cells, column)
        size = None if value is None else source.exact_bytes(value, unit, self._dialect.kilo)
        if value is not None and size is None:
            self.rounded.add(unit)
        return size

    def _add_operation(self, cells: list[str]) -> None:
        time, start = self._time(cells, "duration"), self._time(cells, "start")
        measured = None if time is None else float(time), None if start is None else round(start)
        name, mark = self._cell(cells, "name"), None
        if self._dialect.units_below and (mark := _CORRELATION_MARK.search(name)):
            name = name[: mark.start()]
        if any(self._cell(cells, column) for column in _GRID):
            text = tuple(cells[at] for at in self._launch_columns)
            if text not in self._launches:
                self._launches[text] = self._launch(cells)
            correlation = self._integer(cells, "correlation")
            if correlation is None and mark:
                correlation = int(mark[1])
            self._columns.add(name, *measured, correlation=correlation, **self._launches[text])
        elif _MEMORY.search(name):
            self._columns.memory.add(name, *measured, **self._place(cells))

    def _place(self, cells: list[str]) -> dict[str, Any]:
        device = _DEVICE.fullmatch(self._cell(cells, "device"))
        return {
            "device": int(device["number"]) if device else None,
            "context": self._integer(cells, "context"),
            "stream": self._integer(cells, "stream"),
        }

    def _launch(self, cells: list[str]) -> dict[str, Any]:
        if device := _DEVICE.fullmatch(self._cell(cells, "device")):
            self._columns.device_names[int(device["number"])] = device["name"]
        return {
            "grid": [self._integer(cells, column) for column in _GRID],
            "block": [self._integer(cells, column) for column in _BLOCK],
            "registers": self._integer(cells, "registers"),
            "static_shared_bytes": self._bytes(cells, "static_shared_bytes"),
            "dynamic_shared_bytes": self._bytes(cells, "dynamic_shared_bytes"),
            **self._place(cells),
        }
