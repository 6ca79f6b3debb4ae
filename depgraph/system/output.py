"""Writing results: made aside, put in place when whole, over nothing but what they may replace.

What is unfinished lies in a folder beside the result, locked while in use and never left behind.
Who ends in good order removes it. What a killed process left is removed by the next one that works
in the same place: the lock of a folder tells whether its process lives.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from depgraph.errors import OutputError, OutputExistsError
from depgraph.system.interrupts import interrupts_held, keep, remove_on_interrupt, remove_tree

NotOurs = Callable[[Path], str]

_MARK = ".depgraph-"
_NAME_LENGTH = 40
_LEFT_BY_SYSTEMS = (".DS_Store", ".nfs")
_STRANGE = "was not written by depgraph"
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
# What a kernel, a C library or a file system says that lacks an operation.
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM}


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


def refuse_existing(path: Path, *, force: bool, not_ours: NotOurs | None = None) -> None:
    """Raise an error if `path` may not be replaced or cannot be made.

    What a killed run took away from there is brought back first. Commands call this before they
    begin their work, so that hours are not spent for nothing.
    """
    path = stable_path(path)
    recover(path)
    if os.path.lexists(path):
        if not force:
            raise OutputExistsError(path)
        if path.is_symlink():
            raise OutputError(path, "is a link", "remove it or name what it points to")
        if not_ours is not None and (reason := _irreplaceable(path, not_ours)):
            raise OutputError(path, f"exists and {reason}", "remove it or name another path")
    if not path.parent.is_dir():
        raise OutputError(path, f"there is no folder {path.parent}", "make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(path, "its folder may not be written", "name another path")
    try:
        str(path).encode()
    except UnicodeEncodeError:  # Arrow opens files by names in UTF-8
        raise OutputError(path, "is not a UTF-8 name", "name another path") from None


def foreign_file_in(folder: Path, is_known: Callable[[Path], bool]) -> str:
    """Name something in a folder that is not ours, nor what systems leave there; "" for nothing."""
    for entry in sorted(folder.iterdir()):
        if not is_known(entry) and not entry.name.startswith(_LEFT_BY_SYSTEMS):
            return f"holds {entry.name}, which depgraph did not write"
    return ""


def _irreplaceable(folder: Path, not_ours: NotOurs) -> str:
    if folder.is_symlink() or not folder.is_dir():
        return _STRANGE
    return not_ours(folder) if any(folder.iterdir()) else ""


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a path to write to, and put it in the place of `path`, or beside what came there."""
    refuse_existing(path, force=force)
    path = stable_path(path)
    with one_line_errors(path), work_folder(path.parent, path.name) as folder:
        _refuse_special(path)
        new, target = folder / path.name, _place_of(path)
        yield new
        with interrupts_held():
            if place(new, target):
                return
            if force and _is_plain(target):
                new.replace(target)
                return
            raise _place_taken(new, path, target)


def _refuse_special(path: Path) -> None:
    if path.is_dir():
        raise OutputError(path, "is a folder", "give a file name")
    if os.path.lexists(path) and not _is_plain(path):
        raise OutputError(path, "is not a plain file", "give a file name")


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def new_folder(
    path: Path,
    *,
    force: bool = False,
    not_ours: NotOurs = lambda _: _STRANGE,
    place_checked: bool = False,
) -> Iterator[Path]:
    """Yield a folder to write to, and put it in the place of `path` at the end.

    With `force` it replaces a folder that is empty or a result of ours. With `place_checked` long
    work came after `refuse_existing`: what is there now must not cost the result.
    """
    if not place_checked:
        refuse_existing(path, force=force, not_ours=not_ours)
    path = stable_path(path)
    with one_line_errors(path), work_folder(path.parent, path.name) as folder:
        new, target = folder / path.name, _place_of(path)
        new.mkdir()
        yield new
        with interrupts_held():
            if not place(new, target) and not (force and _replace(target, new, not_ours)):
                raise _place_taken(new, path, target)


def _replace(path: Path, new: Path, not_ours: NotOurs) -> bool:
    """Let a new folder change places with an earlier result, if that is one."""
    if _irreplaceable(path, not_ours):
        return False
    exchange(new, path)
    if _irreplaceable(new, not_ours):  # it was put there in this very moment
        exchange(new, path)
        return False
    return True


def _place_taken(new: Path, path: Path, target: Path) -> OutputError:
    beside = path.with_name(place_numbered(new, target).name)
    return OutputError(
        path,
        "was made by something else while this ran, and is left as it is",
        f"the result is {beside}",
    )


def stable_path(path: Path) -> Path:
    """Return a path that still leads to a result which replaced the folder one stands in."""
    absolute = _place_of(path)
    here = Path.cwd()
    is_within = absolute == here or absolute in here.parents
    return absolute if is_within or path.name in {"", ".."} else path


def _place_of(path: Path) -> Path:
    is_named = path.name not in {"", ".."}
    return path.parent.resolve() / path.name if is_named else path.resolve()


def folder_bytes(path: Path) -> int:
    """Return the size of all files below a folder, in bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def place(new: Path, path: Path) -> bool:
    """Rename a file or folder to `path`, on the same file system, if nothing is there."""
    try:
        if _renameat2(new, path, _NOREPLACE):
            return True
        return _place_folder(new, path) if new.is_dir() else _place_file(new, path)
    except FileExistsError:
        return False


def _place_folder(new: Path, path: Path) -> bool:
    """Claim the name with an empty folder, which a rename replaces as long as it is empty."""
    path.mkdir()
    try:
        new.rename(path)
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            return False
        raise
    return True


def _place_file(new: Path, path: Path) -> bool:
    """Give the file a second name, which fails if there is something, and take the first away."""
    try:
        path.hardlink_to(new)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        path.touch(exist_ok=False)
        new.replace(path)
        return True
    new.unlink()
    return True


def exchange(new: Path, path: Path) -> None:
    """Let two folders change places, in one step where the system can; `new` is removed later.

    Where it cannot, a process that is killed between two renames leaves nothing at `path`, and
    what was there beside it; `recover` brings that back.
    """
    if _renameat2(new, path, _EXCHANGE):
        return
    aside = _aside(path)
    if aside.is_dir():  # a process was killed once the new one was in place
        place_numbered(aside, new)
    path.rename(aside)
    try:
        new.rename(path)
    except BaseException:
        aside.rename(path)
        raise
    aside.rename(new)


def recover(path: Path) -> None:
    """Bring back what a killed process took away from `path` and had not replaced yet."""
    if not os.path.lexists(path) and os.path.isdir(_aside(path)):  # noqa: PTH112 - of any length
        with suppress(OSError):
            place(_aside(path), path)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.depgraph-replaced")


def place_numbered(new: Path, path: Path) -> Path:
    """Rename `new` to the first of ``path.1``, ``path.2``, ... that is free, and return that."""
    for number in count(1):
        beside = path.with_name(f"{path.name}.{number}")
        if place(new, beside):
            return beside
    raise AssertionError


def _renameat2(old: Path, new: Path, flags: int) -> bool:
    """Rename with flags (renameat2(2), Linux 3.15); return False where that is not supported."""
    function = _renameat2_function()
    if function is None:
        return False
    result = function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags)
    if result == 0:
        return True
    error = ctypes.get_errno()
    if error in _UNSUPPORTED:
        return False
    raise OSError(error, os.strerror(error), str(old), None, str(new))


@cache
def _renameat2_function() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint,
    ]  # fmt: skip
    function.restype = ctypes.c_int
    return function


def tool_version() -> str:
    """Return the version of the installed package, or "unknown" in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version  # slow to load

    try:
        return version("depgraph")
    except PackageNotFoundError:
        return "unknown"
