"""A file of times as text, however it is packed and encoded; its lines as rows of a table."""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from depgraph.errors import ProfileError
from depgraph.parsers.scanning.compression import TraceStream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


HEAD_BYTES = 1 << 20
LONGEST_LINE = 1 << 24
_CHUNK_CHARACTERS = 1 << 22


@dataclass(frozen=True, slots=True)
class Head:
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


def open_text(path: Path) -> Text:
    """Open a file for reading lines; every kind of line end becomes a newline."""
    encoding = _encoding_of(read_head(path).raw[:4])
    stream = io.BufferedReader(TraceStream(path), HEAD_BYTES)
    return Text(path, stream, encoding)


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
