"""What profilers write: text, however packed and encoded, its rows, numbers and units."""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from depgraph.errors import ProfileError
from depgraph.parsers.scanning.inputs import TraceStream

HEAD_BYTES = 1 << 20
LONGEST_LINE = 1 << 24
_CHUNK_CHARACTERS = 1 << 22


class Head(NamedTuple):
    """The beginning of a file, decompressed: enough to tell its format."""

    path: Path
    raw: bytes
    compression: str | None

    @property
    def text(self) -> str:
        """The bytes as text; what is no text becomes replacement characters."""
        return self.raw.decode(_encoding_of(self.raw), "replace")


def read_head(path: Path) -> Head:
    """Read the first `HEAD_BYTES` decompressed bytes of a file."""
    with TraceStream(path) as stream:
        return Head(path, stream.read(HEAD_BYTES) or b"", stream.compression)


def open_text(path: Path) -> "Text":
    """Open a file for reading lines; every kind of line end becomes a newline."""
    encoding = _encoding_of(read_head(path).raw[:4])
    return Text(path, io.BufferedReader(TraceStream(path), HEAD_BYTES), encoding)


class Text(io.TextIOWrapper):
    """A text whose lines are of limited length, so that none fills the memory."""

    def __init__(self, path: Path, stream: Any, encoding: str) -> None:
        super().__init__(stream, encoding, errors="replace", newline=None)
        self._path = path
        self._lines = 0
        self.is_cut = False  # whether the last line so far has no line end

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline(LONGEST_LINE)
        if not line:
            raise StopIteration
        self._lines += 1
        self.is_cut = not line.endswith("\n")
        if len(line) == LONGEST_LINE and self.is_cut:
            found = f"a line of more than {LONGEST_LINE >> 20} million characters"
            raise ProfileError(self._path, found, "no profiler writes one", line=self._lines)
        return line


def text_chunks(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces of a few million characters."""
    with open_text(path) as text:
        while chunk := text.read(_CHUNK_CHARACTERS):
            yield chunk


def _encoding_of(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # what PowerShell writes when output is redirected
    return "utf-8-sig"


_HEADING = re.compile(r"(?P<name>.*?)\s*\((?P<unit>[^()]*)\)")


@dataclass(frozen=True)
class Header:
    """The columns of a table by name, less the unit that follows some in parentheses."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    delimiter: str

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each column stands; the first of several with one name."""
        return {name: at for at, name in reversed(list(enumerate(self.names)))}

    def __contains__(self, name: str) -> bool:
        return name in self.position

    def cell(self, cells: list[str], name: str) -> str:
        """Return the cell of a row in a column, nothing where table or row do not have it."""
        at = self.position.get(name)
        return "" if at is None or at >= len(cells) else cells[at].strip()

    def unit(self, name: str) -> str:
        """Return the unit in the heading of a column, or nothing."""
        at = self.position.get(name)
        return "" if at is None else self.units[at]


def header_of(line: str) -> Header:
    """Read a line as the header of a table with commas or tabs between its columns."""
    delimiter = "\t" if "\t" in line and "," not in line else ","
    names, units = [], []
    for cell in cells_of(line, delimiter):
        heading = _HEADING.fullmatch(cell.strip())
        names.append(heading["name"] if heading else cell.strip())
        units.append(heading["unit"] if heading else "")
    return Header(tuple(names), tuple(units), delimiter)


def cells_of(line: str, delimiter: str = ",") -> list[str]:
    """Split one line; an unbalanced quote does not reach beyond it."""
    try:
        return next(csv.reader([line.rstrip("\n")], delimiter=delimiter), [])
    except csv.Error:
        return []


_NANOSECONDS = {
    **dict.fromkeys(("ns", "nsec", "nsecond", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "usec", "usecond", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "msec", "msecond", "millisecond", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 10**9),
}
_PLAIN = re.compile(r"[0-9]{1,18}")
_BYTE_UNIT = re.compile(r"(?P<prefix>[KM]?)(?:B|bytes?)(?:/block)?", re.IGNORECASE)
_INT64_LIMIT = 2**63
_LARGEST_EXPONENT = 30
_ROUNDED = Decimal("1.5")  # bytes between two values that can be told apart
_DIGIT_GROUP = 3


def nanoseconds_in(unit: str) -> int | None:
    """Return how many nanoseconds a unit of time has, however it is spelled; None for others."""
    return _NANOSECONDS.get(unit.strip().lower())


def time_in(value: Decimal | None, unit: str) -> Decimal | None:
    """Return a time in ns; None where there is none, or its unit is not one of time."""
    factor = nanoseconds_in(unit)
    return None if value is None or factor is None else value * factor


def exact_bytes(value: Decimal, unit: str, kilo: int) -> int | None:
    """Return a size in bytes, K being `kilo`; None if rounded to more or in another unit."""
    match = _BYTE_UNIT.fullmatch(unit.strip())
    exponent = value.as_tuple().exponent
    if match is None or not isinstance(exponent, int):
        return None
    scale = kilo ** " KM".index(match["prefix"].upper() or " ")
    return round(value * scale) if scale * Decimal(10) ** min(exponent, 0) < _ROUNDED else None


def decimal(text: str) -> Decimal | None:
    """Read a finite number, None where the text is none."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() and value.adjusted() < _LARGEST_EXPONENT else None


def integer(text: str) -> int | None:
    """Read a whole number that fits 64 bits, None where the text is none."""
    if _PLAIN.fullmatch(text):
        return int(text)
    value = decimal(text)
    if value is None or abs(value) >= _INT64_LIMIT or value != value.to_integral_value():
        return None
    return int(value)


_SPACES = re.compile("[\u00a0\u202f\u2009' ]")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:([.,])[0-9]{3})(?:\1[0-9]{3})*")


class NumberFormat:
    """Which of ``.`` and ``,`` is the decimal mark in a file: as most numbers say, or English."""

    def __init__(self) -> None:
        self.evidence = {".": 0, ",": 0}
        self.ambiguous = 0

    @property
    def mark(self) -> str:
        """The decimal mark that the numbers so far speak for."""
        return "," if self.evidence[","] > self.evidence["."] else "."

    @property
    def uncertain(self) -> bool:
        """Whether the numbers contradict one another, or could all be read either way."""
        found = self.evidence.values()
        return all(found) or (self.ambiguous > 0 and not any(found))

    def learn(self, text: str, *, whole: bool = False) -> None:
        """Note what one number says about the marks; `whole` numbers have no decimal mark."""
        text = _SPACES.sub("", text.strip())
        at = max(text.rfind("."), text.rfind(","))
        if at < 0:
            return
        last, other = (".", ",") if text[at] == "." else (",", ".")
        three_digits_after = len(text) - 1 - at == _DIGIT_GROUP
        if text.count(last) > 1:
            self.evidence[other] += 1
        elif text.count(other) or not three_digits_after or text.lstrip("+-")[0] == "0":
            self.evidence[last] += 1
        elif whole:
            self.evidence[other] += 1
        else:
            self.ambiguous += 1

    def decimal(self, text: str) -> Decimal | None:
        """Read a finite number, None where the text is none."""
        text = _SPACES.sub("", text.strip())
        group = "," if self.mark == "." else "."
        whole, mark, fraction = text.partition(self.mark)
        if group in whole:
            if not _GROUPED.fullmatch(whole):
                return None
            whole = whole.replace(group, "")
        return decimal(f"{whole}{'.' if mark else ''}{fraction}")
