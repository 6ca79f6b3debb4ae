"""Times that users write themselves: a table of kernels or of thread blocks, CSV or Parquet."""

from __future__ import annotations

import csv
import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.kernel_rows import KernelRows
from depgraph.parsers.profiles.source import open_text
from depgraph.system.limits import LONGEST_TIME, MOST_SMS
from depgraph.timing.profile import BlockProfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from pyarrow.parquet import ParquetFile

    from depgraph.timing.profile import KernelProfile

HINT = (
    "write columns kernel,duration_us for kernels, or kernel,block,duration_us[,start_us] for "
    "thread blocks; kernels and blocks count from 0, units are ns, us, ms, s or cycles"
)
_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "cycles": 1.0}
_NANOSECONDS = 1e3
_TIME = re.compile(r"(?P<what>duration|dur|time|start)(?:_(?P<unit>ns|us|ms|s|cycles))?|cycles")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column of a table holds what."""

    kernel: int
    block: int | None
    duration: int
    duration_unit: str | None
    start: int | None
    start_unit: str | None
    sms: int | None
    name: int | None


@dataclass(slots=True)
class _Table:
    """The columns of a table as they stand in the file, and where each row stands."""

    kernel: NDArray[np.int64]
    duration: NDArray[np.float64]
    block: NDArray[np.int64] | None = None
    start: NDArray[np.float64] | None = None
    sms: NDArray[np.int64] | None = None
    name: Sequence[str] | None = None
    line: NDArray[np.int64] | None = None  # 1-based; None in a Parquet file
    cut: bool = False


def layout_of(headings: Sequence[str]) -> Layout | None:
    """Find the columns by their headings; None if kernel and duration are not both there."""
    plain = [re.sub(r"[\s(]+", "_", heading.strip().lower()).rstrip(")") for heading in headings]
    times = [(at, match) for at, text in enumerate(plain) if (match := _TIME.fullmatch(text))]
    durations = [(at, match) for at, match in times if match["what"] != "start"]
    starts = [(at, match) for at, match in times if match["what"] == "start"]
    if plain.count("kernel") != 1 or len(durations) != 1:
        return None
    duration, match = durations[0]
    return Layout(
        kernel=plain.index("kernel"),
        block=plain.index("block") if "block" in plain else None,
        duration=duration,
        duration_unit="cycles" if match["what"] is None else match["unit"],
        start=starts[0][0] if starts else None,
        start_unit=starts[0][1]["unit"] if starts else None,
        sms=plain.index("sms") if "sms" in plain else None,
        name=plain.index("name") if "name" in plain else None,
    )


def read_csv_table(path: Path) -> KernelProfile | BlockProfile:
    """Read a table of kernels, or of thread blocks if it has a column `block`."""
    with open_text(path) as text:
        rows = _Rows(text)
        try:
            headings = next(iter(rows), [])
            layout = layout_of(headings)
            if layout is None:
                raise ProfileError(path, "no header that is understood", HINT, line=1)
            table = _read_csv(path, rows, layout, len(headings))
        except csv.Error as error:
            raise ProfileError(path, str(error), HINT, line=rows.line) from None
    return _profile(path, layout, table, "csv")


def read_parquet_table(path: Path) -> KernelProfile | BlockProfile:
    """Read a table of kernels, or of thread blocks if it has a column `block`."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        headings = list(parquet.read_schema(path).names)
        layout = layout_of(headings)
        if layout is None:
            raise ProfileError(path, f"its columns are {', '.join(headings)}", HINT)
        with parquet.ParquetFile(path) as file:
            table = _read_parquet(file, headings, layout)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        message = str(error).partition("\n")[0]
        raise ProfileError(path, f"Parquet cannot be read ({message})", HINT) from None
    return _profile(path, layout, table, "parquet")


class _Rows:
    """The rows of a CSV file, less comments and blank lines."""

    def __init__(self, text: Iterator[str]) -> None:
        self._text = text
        self._last = "\n"
        self._reader = csv.reader(self._lines())

    @property
    def line(self) -> int:
        """Where the last row stands, from 1."""
        return self._reader.line_num

    @property
    def cut(self) -> bool:
        """Whether the last line so far has no line end."""
        return not self._last.endswith("\n")

    def _lines(self) -> Iterator[str]:
        for line in self._text:
            self._last = line
            yield line

    def __iter__(self) -> Iterator[list[str]]:
        for cells in self._reader:
            if any(cells) and not cells[0].startswith("#"):
                yield cells


def _read_csv(path: Path, rows: _Rows, layout: Layout, width: int) -> _Table:
    kernels, blocks, sms, lines = array("q"), array("q"), array("q"), array("q")
    durations, starts = array("d"), array("d")
    names: list[str] = []
    for cells in rows:
        if len(cells) != width:
            raise ProfileError(
                path, f"{len(cells)} columns instead of {width}", HINT, line=rows.line
            )
        try:
            kernels.append(_whole(cells[layout.kernel]))
            durations.append(float(cells[layout.duration]))
            if layout.block is not None:
                blocks.append(_whole(cells[layout.block]))
            if layout.start is not None:
                starts.append(float(cells[layout.start]))
            if layout.sms is not None:
                sms.append(_whole(cells[layout.sms]))
        except (ValueError, OverflowError) as error:
            raise ProfileError(path, f"no number: {error}", HINT, line=rows.line) from None
        if layout.name is not None:
            names.append(cells[layout.name])
        lines.append(rows.line)
    return _Table(
        kernel=np.array(kernels, np.int64),
        duration=np.array(durations, np.float64),
        block=None if layout.block is None else np.array(blocks, np.int64),
        start=None if layout.start is None else np.array(starts, np.float64),
        sms=None if layout.sms is None else np.array(sms, np.int64),
        name=None if layout.name is None else names,
        line=np.array(lines, np.int64),
        cut=rows.cut,
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = float(text)  # pandas writes whole numbers as 3.0 beside missing ones
        if not value.is_integer():
            raise
        return int(value)


def _read_parquet(file: ParquetFile, headings: list[str], layout: Layout) -> _Table:
    import pyarrow as pa

    def column(at: int, kind: pa.DataType) -> pa.Array:
        values = file.read(columns=[headings[at]]).column(0).combine_chunks()
        if values.null_count:
            raise ValueError(f"column {headings[at]} has missing values")
        return values.cast(kind)

    def numbers(at: int | None, kind: pa.DataType) -> NDArray[Any] | None:
        return None if at is None else column(at, kind).to_numpy(zero_copy_only=False)

    return _Table(
        kernel=column(layout.kernel, pa.int64()).to_numpy(zero_copy_only=False),
        duration=column(layout.duration, pa.float64()).to_numpy(zero_copy_only=False),
        block=numbers(layout.block, pa.int64()),
        start=numbers(layout.start, pa.float64()),
        sms=numbers(layout.sms, pa.int64()),
        name=None if layout.name is None else column(layout.name, pa.string()).to_pylist(),
    )


def _profile(
    path: Path, layout: Layout, table: _Table, file_kind: str
) -> KernelProfile | BlockProfile:
    columns = (table.kernel, table.duration, table.block, table.start, table.sms, table.name)
    rows = {len(column) for column in columns if column is not None}
    if rows == {0}:
        raise ProfileError(path, "the table has no rows", HINT)
    if len(rows) > 1:
        raise ProfileError(path, "the table is damaged: its columns differ in length")
    _refuse(path, table, ~np.isfinite(table.duration), "the duration is not finite")
    _refuse(path, table, table.duration < 0, "the duration is negative")
    longest = LONGEST_TIME if layout.duration_unit != "s" else LONGEST_TIME / 1e6
    _refuse(path, table, table.duration > longest, f"the duration is above {longest:g}")
    if table.sms is not None:
        possible = f"the number of SMs is not from 1 to {MOST_SMS}"
        _refuse(path, table, (table.sms < 1) | (table.sms > MOST_SMS), possible)
    _refuse(path, table, table.kernel < 0, "the kernel is negative")
    if table.start is not None:
        _refuse(path, table, ~np.isfinite(table.start), "the start is not finite")
    unit = layout.duration_unit or "us"
    start_unit = layout.start_unit or unit
    if (unit == "cycles") != (start_unit == "cycles"):
        raise ProfileError(path, f"durations are in {unit}, starts in {start_unit}", HINT)
    notes = [f"the file gives durations in {unit}"]
    if layout.duration_unit is None:
        notes[0] += ", assumed: the heading names no unit"
    if table.cut:
        notes.append("the last line has no line end: the file may be cut off")
    table.duration = table.duration * _MICROSECONDS[unit]
    if table.start is not None:
        table.start = table.start * _MICROSECONDS[start_unit]
    if table.block is None:
        return _kernels(path, table, unit, notes, f"kernels-{file_kind}")
    return _blocks(path, table, table.block, unit, notes, f"blocks-{file_kind}")


def _refuse(path: Path, table: _Table, wrong: NDArray[np.bool_], found: str) -> None:
    if not wrong.any():
        return
    row = int(np.flatnonzero(wrong)[0])
    if table.line is None:
        raise ProfileError(path, f"row {row}: {found}", HINT)
    raise ProfileError(path, found, HINT, line=int(table.line[row]))


def _kernels(
    path: Path, table: _Table, unit: str, notes: list[str], format_name: str
) -> KernelProfile:
    _refuse(path, table, _repeated(table.kernel), "the kernel has a time already")
    rows = KernelRows(path)
    rows.notes.extend(notes)
    factor = 1.0 if unit == "cycles" else _NANOSECONDS
    starts = None if table.start is None else np.rint(table.start * factor)
    for row, kernel in enumerate(table.kernel):
        rows.add(
            "" if table.name is None else table.name[row],
            float(table.duration[row]) * factor,
            None if starts is None else int(starts[row]),
            kernel=int(kernel),
            measured_sms=None if table.sms is None else int(table.sms[row]),
        )
    return rows.build(format_name, unit="cycles" if unit == "cycles" else "ns", hint=HINT)


def _blocks(
    path: Path,
    table: _Table,
    block: NDArray[np.int64],
    unit: str,
    notes: list[str],
    format_name: str,
) -> BlockProfile:
    _refuse(path, table, block < 0, "the block is negative")
    order = np.lexsort((block, table.kernel))
    same = (np.diff(table.kernel[order]) == 0) & (np.diff(block[order]) == 0)
    repeated = np.zeros(len(order), np.bool_)
    repeated[order[1:][same]] = True
    _refuse(path, table, repeated, "the block has a time already")
    sms = None if table.sms is None else np.unique(table.sms)
    return BlockProfile(
        source=path,
        format=format_name,
        unit="cycles" if unit == "cycles" else "us",
        kernel=table.kernel[order],
        block=block[order],
        duration=table.duration[order],
        start=None if table.start is None else table.start[order],
        measured_sms=int(sms[0]) if sms is not None and len(sms) == 1 else None,
        notes=tuple(notes),
    )


def _repeated(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    _, first = np.unique(values, return_index=True)
    repeated = np.ones(len(values), np.bool_)
    repeated[first] = False
    return repeated
