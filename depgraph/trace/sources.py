"""The files that a trace is read from, as they were at first: a change while reading is noticed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells that a file is still the same."""

    size: int  # bytes
    changed: int  # time of the last change, in ns
    inode: int  # of another file that was put in its place this differs

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Return the present state of a file."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)

    def verify(self, path: Path) -> None:
        """Refuse a file that is not in this state any more."""
        try:
            now = FileState.of(path)
        except OSError:
            now = None
        if now == self:
            return
        if now is None:
            found = "is gone, which was there when reading began"
        elif now.size != self.size:
            found = f"changed while it was read, from {self.size} to {now.size} bytes"
        else:
            found = "changed while it was read"
        raise TraceError(path, found, "read it again once nothing writes to it any more")


class SourceFiles:
    """The files of a trace, each with its state when it was first looked at."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._states: dict[Path, FileState] = {}
        for path in paths:
            self.add(path)

    def add(self, path: Path, state: FileState | None = None) -> FileState:
        """Take another file, as it is now or was; return its state."""
        if path not in self._states:
            try:
                self._states[path] = state or FileState.of(path)
            except OSError as error:
                raise unreadable(path, error) from None
        return self._states[path]

    @property
    def paths(self) -> list[Path]:
        """The files, in the order in which they were added."""
        return list(self._states)

    @property
    def bytes(self) -> int:
        """Size of all files together, packed as they are."""
        return sum(state.size for state in self._states.values())

    def verify(self) -> None:
        """Refuse files that have changed since."""
        for path, state in self._states.items():
            state.verify(path)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse, at the end, files that have changed; this comes before any other fault found."""
        try:
            yield
        except Exception:
            self.verify()
            raise
        self.verify()


def unreadable(path: str | Path, error: OSError) -> TraceError:
    """Put an operating-system error about `path` in one line."""
    if isinstance(error, FileNotFoundError):
        return TraceError(path, "no such file")
    if isinstance(error, IsADirectoryError):
        return TraceError(path, "is a folder", "name the trace file inside it")
    return TraceError(path, f"cannot be read ({error.strerror or error})")
