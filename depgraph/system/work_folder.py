"""Folders for unfinished work: beside the result, locked while in use, and never left behind.

Who ends in good order removes its folder. What a killed process left is removed by the next one
that works in the same place: the lock of a folder tells whether its process lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.system.interrupts import interrupts_held, keep, remove_on_interrupt, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = ".depgraph-"
_NAME_LENGTH = 40


class WorkFolder:
    """A folder that this process alone uses.

    Parameters
    ----------
    parent : Path
        Where to make it.
    name : str
        What it is for; its own name is hidden and holds this one.

    Attributes
    ----------
    path : Path
    """

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


@contextmanager
def work_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield the path of a `WorkFolder`, and remove it at the end."""
    work = WorkFolder(parent, name)
    try:
        yield work.path
    finally:
        work.remove()


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes of this user have left in a folder."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(".") and _host_mark() in entry.name:
                _remove_if_abandoned(Path(entry.path))


def lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor returned is closed, or the process ends.

    Returns
    -------
    int or None
        None where the file system knows no locks on folders.

    Raises
    ------
    BlockingIOError
        If another process has the lock.
    OSError
        If there is no such folder, or it may not be opened.
    """
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
