"""The file of a recording: a line, then a zip archive of a list of events and the tables of each.

``docs/formats/recording.md`` describes it.
"""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT_VERSION = 1
MARK = b"depgraph recording\n"
_ABOUT = "about.json"
_EVENTS = "events.jsonl"

SECTORS = np.dtype(
    [
        ("number", "<u8"), ("block", "<u4"), ("launch", "<u4"), ("read", "<u4"),
        ("written", "<u4"), ("synchronised", "<u4"), ("accesses", "<u4"),
    ]
)  # fmt: skip
TILES = np.dtype(
    [
        ("map", "<u8"), ("block", "<u4"), ("launch", "<u4"), ("at", "<i4", 5),
        ("multicast", "<u4"), ("mode", "<u4"), ("offsets", "<u4"),
    ]
)  # fmt: skip
MAPS = np.dtype(
    [("key", "<u8"), ("at", "<u8"), ("words", "<u8", 16), ("launch", "<u4"), ("is_whole", "<u4")]
)
TABLES = {"sectors": SECTORS, "tiles": TILES, "maps": MAPS}


def is_recording(head: bytes) -> bool:
    """Tell whether a file begins as a recording does."""
    return head.startswith(MARK)


class Archive:
    """An opened recording.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    about : dict
        Which process of which program was recorded, and how.

    Raises
    ------
    TraceError
        If the file is no recording, is damaged, or is of a later version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip = self._opened()
        self.about: dict[str, Any] = self._object(self._read(_ABOUT), 1)
        if self.about.get("format") != FORMAT_VERSION:
            found = self.about.get("format")
            raise TraceError(
                path,
                f"is a recording of version {found!r}; this depgraph reads {FORMAT_VERSION}",
                "record the program again, or update depgraph",
            )

    def _opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self._path)
        except OSError as error:
            raise TraceError(self._path, error.strerror or "cannot be read") from None
        except zipfile.BadZipFile as error:
            raise self._damaged(error) from None

    def _damaged(self, error: object) -> TraceError:
        return TraceError(
            self._path, f"is a damaged recording ({error})", "record the program again"
        )

    def _read(self, member: str) -> bytes:
        try:
            return self._zip.read(member)
        except KeyError:
            raise self._damaged(f"{member} is missing") from None
        except (OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
            raise self._damaged(f"{member}: {error}") from None

    def _object(self, text: bytes, line: int) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise self._damaged(f"{_EVENTS} line {line}: {error}") from None
        if not isinstance(found, dict):
            raise self._damaged(f"{_EVENTS} line {line} is no object")
        return found

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in order."""
        for line, text in enumerate(self._read(_EVENTS).splitlines(), 1):
            yield self._object(text, line)

    def table(self, name: str, launch: int) -> NDArray[Any]:
        """Return a table of a launch; empty where it has none.

        Parameters
        ----------
        name : str
            Key of `TABLES`.
        launch : int
        """
        member = member_of(name, launch)
        if member not in self._zip.NameToInfo:
            return np.empty(0, TABLES[name])
        content = self._read(member)
        if len(content) % TABLES[name].itemsize:
            raise self._damaged(f"{member} is cut")
        return np.frombuffer(content, TABLES[name])

    def bytes_of(self, launch: int) -> int:
        """Return what the tables of a launch take unpacked."""
        members = (member_of(name, launch) for name in TABLES)
        return sum(self._zip.NameToInfo[m].file_size for m in members if m in self._zip.NameToInfo)

    def close(self) -> None:
        """Close the file."""
        self._zip.close()


def member_of(table: str, launch: int) -> str:
    """Return the name of a table of a launch within the archive."""
    return f"{table}/{launch:07d}"


def pack(
    path: Path,
    about: dict[str, Any],
    events: Sequence[dict[str, Any]],
    raw: NDArray[np.uint8],
    *,
    compress: bool = True,
) -> None:
    """Write a recording from what the recorder of one process has left.

    Parameters
    ----------
    path : Path
        Of the new file.
    about : dict
    events : sequence of dict
        As the recorder wrote them: those of kernels say where in `raw` their tables are.
    raw : uint8[n]
    compress : bool
        False for a file that is soon read and removed: it takes a tenth of the time.
    """
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    path.write_bytes(MARK)
    with zipfile.ZipFile(path, "a", method, compresslevel=1) as archive:
        archive.writestr(_ABOUT, json.dumps({"format": FORMAT_VERSION, **about}))
        lines = []
        for event in events:
            places = {name: (event.pop(f"{name}_at", 0), event.pop(name, 0)) for name in TABLES}
            lines.append(json.dumps(event))
            for name, (at, n) in places.items():
                rows = raw[at : at + n * TABLES[name].itemsize].view(TABLES[name])
                rows = rows[rows["launch"] == event.get("grid_id", 0)]
                if compress and name == "sectors":  # in order they take half as much
                    rows = rows[np.lexsort([rows["number"], rows["block"]])]
                if len(rows):
                    archive.writestr(member_of(name, event["number"]), rows.tobytes())
        archive.writestr(_EVENTS, "\n".join(lines))
