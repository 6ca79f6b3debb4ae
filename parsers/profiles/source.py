"""Open a file of times as text, whatever it is compressed with and however it is encoded."""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
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
