"""The files of a store: what they are called, what they hold, and what else a folder may be.

The checksums stand in a file that ``sha256sum -c`` reads as well::

    # depgraph store 5f0c...           the id, which the metadata of every file holds, too
    9d2e...  blocks.parquet
    ...
    # 41aa...                          SHA-256 of the lines above
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Self

from depgraph.store.schema import STORED_TABLES
from depgraph.system.output import stranger_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from _typeshed import ReadableBuffer


CHECKSUMS = "SHA256SUMS"

_BEGINNING = "# depgraph store "
_FIRST_LINE = re.compile(rf"{_BEGINNING}([0-9a-f]{{32}})")
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z]+\.parquet)")


@dataclass(frozen=True, slots=True)
class Checksums:
    """What the files of a store are."""

    identity: str  # of the extraction; equal for equal results of equal inputs and options
    digests: Mapping[str, str]  # SHA-256 of each file, in hexadecimal, by its name

    def write(self, folder: Path) -> None:
        """Write the file of checksums into a folder."""
        (folder / CHECKSUMS).write_text(self._text(), encoding="ascii", newline="\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of checksums of a folder; `ValueError` if it is damaged."""
        text = (folder / CHECKSUMS).read_text(encoding="ascii")
        first, *lines = text.split("\n")[:-2]
        about = _FIRST_LINE.fullmatch(first)
        found = [_LINE.fullmatch(line) for line in lines]
        if about is not None:
            checksums = cls(about[1], {line[2]: line[1] for line in found if line})
            if checksums._text() == text:
                return checksums
        raise ValueError("its own checksum is wrong")

    def _text(self) -> str:
        lines = [f"{digest}  {name}\n" for name, digest in sorted(self.digests.items())]
        above = "".join([f"{_BEGINNING}{self.identity}\n", *lines])
        return f"{above}# {hashlib.sha256(above.encode()).hexdigest()}\n"


def has_checksums(folder: Path) -> bool:
    """Tell whether a folder has a file of checksums that depgraph wrote."""
    try:
        with (folder / CHECKSUMS).open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING.encode()
    except OSError:
        return False


class HashingFile(FileIO):
    """A new file whose checksum is at hand as it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self._digest = hashlib.sha256()

    def write(self, data: ReadableBuffer) -> int:
        """Append all of it, as only a file with a buffer does by itself."""
        view = memoryview(data)
        self._digest.update(view)
        written = 0
        while written < len(view):
            written += super().write(view[written:]) or 0
        return written

    def hexdigest(self) -> str:
        """Return the SHA-256 of what has been written so far."""
        return self._digest.hexdigest()


METADATA_KEY = b"depgraph"
IDENTITY_KEY = b"depgraph_store"
_SUFFIX = ".parquet"


def file_name(table: str) -> str:
    """Return the name of the file that holds a table."""
    return f"{table}{_SUFFIX}"


FILES = (*map(file_name, STORED_TABLES), CHECKSUMS)


def is_store(path: Path) -> bool:
    """Tell whether a folder looks like a store, of whatever version, whole or not."""
    if (path / file_name("kernels")).is_file() and (path / file_name("joins")).is_file():
        return True
    return has_checksums(path)


def not_a_store(path: Path) -> str:
    """Say what keeps a folder from being a store and nothing else, "" if nothing does."""
    if not is_store(path):
        return "was not written by depgraph"
    return stranger_in(path, lambda entry: entry.name in FILES and _is_plain(entry))


def _is_plain(entry: Path) -> bool:
    return entry.is_file() and not entry.is_symlink()
