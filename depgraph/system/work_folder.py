"""Folders for unfinished work: beside the result, locked while in use, and never left behind.

Who ends in good order removes its folder. What a killed process left is removed by the next one
that works in the same place: the lock of a folder tells whether its process lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import threading
import weakref
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.errors import OutputError
from depgraph.system.interrupts import interrupts_held, keep, remove_on_interrupt, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = ".depgraph-"
_NAME_LENGTH = 40


class WorkFolder:
    """A folder that this process alone uses; its hidden name holds `name`."""

    def __init__(self, parent: Path, name: str) -> None:
        with interrupts_held():
            remove_abandoned(parent)
            self.path, lock = _make(parent.absolute(), name)
            remove_on_interrupt(self.path)
            # Runs at the end of the process, too, once all its threads have ended.
            self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Delete the folder and all that is in it."""
        with interrupts_held():
            self._remove()


class Scratch:
    """A folder for intermediate files, made when it is first needed (default: in /tmp)."""

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self._folder: WorkFolder | None = None
        self._locks: list[int] = []
        self._files = 0
        self._lock = threading.Lock()

    def new_file(self, name: str) -> Path:
        """Return the path of a file that does not exist yet; any thread may ask."""
        with self._lock:
            if self._folder is None:
                with one_line_errors(self._parent):
                    self._folder = WorkFolder(self._parent, "scratch")
            self._files += 1
            return self._folder.path / f"{name}-{self._files}.parquet"

    def keep_open(self, descriptor: int | None) -> None:
        """Close a descriptor, such as that of a lock, once the folder is removed and not before."""
        if descriptor is not None:
            self._locks.append(descriptor)

    def remove(self) -> None:
        """Delete the folder, if it was made."""
        while self._locks:
            os.close(self._locks.pop())
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


@contextmanager
def work_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield the path of a `WorkFolder`, and remove it at the end."""
    work = WorkFolder(parent, name)
    try:
        yield work.path
    finally:
        work.remove()


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Raise what the system says against writing as an `OutputError` about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise OutputError(path, "no space is left on the disk", "free some") from None
        if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
            raise OutputError(path, f"there is no folder {path.parent}", "make it first") from None
        raise OutputError(path, f"cannot be written ({error.strerror or error})") from None


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes of this user have left in a folder."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(".") and _host_mark() in entry.name:
                _remove_if_abandoned(Path(entry.path))


def lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed; None where the file system knows no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _host_mark() -> str:
    """Return what names of folders made on this machine hold; others' locks may be unknown here."""
    return f"{_MARK}{zlib.crc32(os.uname().nodename.encode()):08x}-"


def _make(parent: Path, name: str) -> tuple[Path, int | None]:
    while True:
        prefix = f".{name[:_NAME_LENGTH]}{_host_mark()}"
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Another process may take the folder for abandoned before it is locked.
        with suppress(BlockingIOError, FileNotFoundError):
            descriptor = lock(path)
            if path.exists():
                return path, descriptor
            _close(descriptor)


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError):
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            return
        descriptor = lock(path)
        if descriptor is not None:
            shutil.rmtree(path, ignore_errors=True)
            _close(descriptor)


def _remove(path: Path, descriptor: int | None, owner: int) -> None:
    if os.getpid() != owner:
        return
    remove_tree(path)
    keep(path)
    _close(descriptor)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
