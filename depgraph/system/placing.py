"""Putting what was made in its place, without ever overwriting what has come there meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
# What a kernel, a C library or a file system says that lacks an operation.
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM}


def place(new: Path, path: Path) -> bool:
    """Rename `new` to `path` if nothing is there.

    Parameters
    ----------
    new : Path
        A file or a folder.
    path : Path
        On the same file system.

    Returns
    -------
    bool
        False if `path` is taken; then nothing has changed.
    """
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
    """Let two folders change places, in one step where the system can.

    Where it cannot, a process that is killed between two renames leaves nothing at `path`, and
    what was there beside it; `recover` brings that back.

    Parameters
    ----------
    new : Path
        In a folder that is removed afterwards.
    """
    if _renameat2(new, path, _EXCHANGE):
        return
    aside = _aside(path)
    if aside.is_dir():  # a process was killed once the new one was in place
        place_beside(aside, new)
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


def place_beside(new: Path, path: Path) -> Path:
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
