"""Times that users write themselves: a table of kernels or of thread blocks, CSV or Parquet."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.kernel_columns import KernelColumns
from depgraph.parsers.profiles.source import Text, open_text
from depgraph.system.text import LONGEST_TIME, MICROSECONDS, MOST_SMS
from depgraph.timing.profile import BlockProfile, KernelProfile

if TYPE_CHECKING:
    from _csv import Reader

    from pyarrow.parquet import ParquetFile


HINT = (
    "write columns kernel,duration_us for kernels, or kernel,block,duration_us[,start_us] for "
    "thread blocks; kernels and blocks count from 0, units are ns, us, ms, s or cycles"
)
_NANOSECONDS = 1e3
_TIME = re.compile(r"(?P<what>duration|dur|time|start)(?:_(?P<unit>ns|us|ms|s|cycles))?|cycles")


class Layout(NamedTuple):
    """Which column of a table holds what, and in which units times are."""

    place: dict[str, int]  # of kernel, duration, and of block, start, sms and name if there are any
    unit: str | None  # of durations
    start_unit: str | None


@dataclass(slots=True)
class _Table:
    """The columns of a table by what they hold, and where each row stands."""

    path: Path
    layout: Layout
    columns: dict[str, Any]  # arrays; a list of the names
    line: NDArray[np.int64] | None = None  # from 1; None in a Parquet file
    is_cut: bool = False

    def refuse(self, wrong: NDArray[np.bool_], found: str) -> None:
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        if self.line is None:
            raise ProfileError(self.path, f"row {row}: {found}", HINT)
        raise ProfileError(self.path, found, HINT, line=int(self.line[row]))


def layout_of(headings: Sequence[str]) -> Layout | None:
    """Find the columns by their headings; None if kernel and duration are not both there."""
    plain = [re.sub(r"[\s(]+", "_", heading.strip().lower()).rstrip(")") for heading in headings]
    times = [(at, match) for at, text in enumerate(plain) if (match := _TIME.fullmatch(text))]
    durations = [(at, match) for at, match in times if match["what"] != "start"]
    starts = [(at, match) for at, match in times if match["what"] == "start"]
    if plain.count("kernel") != 1 or len(durations) != 1:
        return None
    at, match = durations[0]
    others = ("kernel", "block", "sms", "name")
    place = {"duration": at} | {name: plain.index(name) for name in others if name in plain}
    unit = "cycles" if match["what"] is None else match["unit"]
    if not starts:
        return Layout(place, unit, None)
    return Layout(place | {"start": starts[0][0]}, unit, starts[0][1]["unit"])


def read_csv_table(path: Path) -> KernelProfile | BlockProfile:
    """Read a table of kernels, or of thread blocks if it has a column `block`."""
    with open_text(path) as text:
        lines = csv.reader(text)
        try:
            return _profile(_read_csv(path, text, lines), "csv")
        except csv.Error as error:
            raise ProfileError(path, str(error), HINT, line=lines.line_num) from None


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
            table = _Table(path, layout, _read_parquet(file, headings, layout))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        message = str(error).partition("\n")[0]
        raise ProfileError(path, f"Parquet cannot be read ({message})", HINT) from None
    return _profile(table, "parquet")


def _read_csv(path: Path, text: Text, lines: Reader) -> _Table:
    rows = (cells for cells in lines if any(cells) and not cells[0].startswith("#"))
    headings = next(rows, [])
    layout = layout_of(headings)
    if layout is None:
        raise ProfileError(path, "no header that is understood", HINT, line=1)
    read = {name: read for name, read in _READ.items() if name in layout.place}
    columns = {name: array(_CODES[read]) if read in _CODES else [] for name, read in read.items()}
    line = array("q")
    for cells in rows:
        if len(cells) != len(headings):
            found = f"{len(cells)} columns instead of {len(headings)}"
            raise ProfileError(path, found, HINT, line=lines.line_num)
        try:
            for name, column in columns.items():
                column.append(read[name](cells[layout.place[name]]))
        except (ValueError, OverflowError) as error:
            raise ProfileError(path, f"no number: {error}", HINT, line=lines.line_num) from None
        line.append(lines.line_num)
    known = {n: np.array(c) if isinstance(c, array) else c for n, c in columns.items()}
    return _Table(path, layout, known, np.array(line), is_cut=text.is_cut)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = float(text)  # pandas writes whole numbers as 3.0 beside missing ones
        if not value.is_integer():
            raise
        return int(value)


_READ: dict[str, Callable[[str], Any]] = {
    "kernel": _whole,
    "duration": float,
    "block": _whole,
    "start": float,
    "sms": _whole,
    "name": str,
}
_CODES = {_whole: "q", float: "d"}  # of arrays


def _read_parquet(file: ParquetFile, headings: list[str], layout: Layout) -> dict[str, Any]:
    import pyarrow as pa

    kinds = {_whole: pa.int64(), float: pa.float64(), str: pa.string()}
    columns: dict[str, Any] = {}
    for name, read in _READ.items():
        if name not in layout.place:
            continue
        heading = headings[layout.place[name]]
        values = file.read(columns=[heading]).column(0).combine_chunks()
        if values.null_count:
            raise ValueError(f"column {heading} has missing values")
        values = values.cast(kinds[read])
        columns[name] = values.to_pylist() if read is str else values.to_numpy(zero_copy_only=False)
    return columns


def _profile(table: _Table, file_kind: str) -> KernelProfile | BlockProfile:
    path, layout, columns = table.path, table.layout, table.columns
    rows = {len(column) for column in columns.values()}
    if rows == {0}:
        raise ProfileError(path, "the table has no rows", HINT)
    if len(rows) > 1:
        raise ProfileError(path, "the table is damaged: its columns differ in length")
    duration, start, sms = columns["duration"], columns.get("start"), columns.get("sms")
    table.refuse(~np.isfinite(duration), "the duration is not finite")
    table.refuse(duration < 0, "the duration is negative")
    longest = LONGEST_TIME if layout.unit != "s" else LONGEST_TIME / 1e6
    table.refuse(duration > longest, f"the duration is above {longest:g}")
    if sms is not None:
        table.refuse((sms < 1) | (sms > MOST_SMS), f"the number of SMs is not from 1 to {MOST_SMS}")
    table.refuse(columns["kernel"] < 0, "the kernel is negative")
    if start is not None:
        table.refuse(~np.isfinite(start), "the start is not finite")
    unit = layout.unit or "us"
    start_unit = layout.start_unit or unit
    if (unit == "cycles") != (start_unit == "cycles"):
        raise ProfileError(path, f"durations are in {unit}, starts in {start_unit}", HINT)
    notes = [f"the file gives durations in {unit}"]
    if layout.unit is None:
        notes[0] += ", assumed: the heading names no unit"
    if table.is_cut:
        notes.append("the last line has no line end: the file may be cut off")
    columns["duration"] = duration * MICROSECONDS.get(unit, 1.0)
    if start is not None:
        columns["start"] = start * MICROSECONDS.get(start_unit, 1.0)
    if "block" in columns:
        return _blocks(table, unit, notes, f"blocks-{file_kind}")
    return _kernels(table, unit, notes, f"kernels-{file_kind}")


def _kernels(table: _Table, unit: str, notes: list[str], format_name: str) -> KernelProfile:
    kernel = table.columns["kernel"]
    start, sms = table.columns.get("start"), table.columns.get("sms")
    table.refuse(_repeated(kernel), "the kernel has a time already")
    factor = 1.0 if unit == "cycles" else _NANOSECONDS
    columns = KernelColumns(table.path)
    columns.notes += notes
    columns.extend(
        name=table.columns.get("name") or [""] * len(kernel),
        duration=table.columns["duration"] * factor,
        start=None if start is None else [int(time) for time in np.rint(start * factor)],
        kernel=kernel.tolist(),
        measured_sms=None if sms is None else sms.tolist(),
    )
    return columns.profile(format_name, unit="cycles" if unit == "cycles" else "ns", hint=HINT)


def _blocks(table: _Table, unit: str, notes: list[str], format_name: str) -> BlockProfile:
    kernel, block = table.columns["kernel"], table.columns["block"]
    start, sms = table.columns.get("start"), table.columns.get("sms")
    table.refuse(block < 0, "the block is negative")
    table.refuse(_repeated(kernel, block), "the block has a time already")
    order = np.lexsort((block, kernel))
    return BlockProfile(
        source=table.path,
        format=format_name,
        unit="cycles" if unit == "cycles" else "us",
        kernel=kernel[order],
        block=block[order],
        duration=table.columns["duration"][order],
        start=None if start is None else start[order],
        measured_sms=None if sms is None or len(np.unique(sms)) > 1 else int(sms[0]),
        notes=tuple(notes),
    )


def _repeated(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell of each row whether one before it has the same values."""
    order = np.lexsort(columns)  # pandas would take longer to load than the table to read
    repeated = np.zeros(len(order), np.bool_)
    repeated[order[1:]] = np.logical_and.reduce([np.diff(c[order]) == 0 for c in columns])
    return repeated
