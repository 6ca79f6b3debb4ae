"""Whose files are: what somebody else may have written is not run."""

import errno
import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ROOT = 0
_MOST_LINKS = 40  # as Linux follows


def is_ours(path: Path) -> bool:
    """Tell whether only the user, root and this package's owner may write a file or folder.

    Nor may anybody else put another in its place: all folders on the way, and links, are theirs.
    """
    # What is not there is nobody's.
    if not hasattr(os, "getuid"):
        return True
    try:
        *way, last = _on_the_way_to(path)
    except OSError:
        return False
    return all(map(_keeps_its_entries, way)) and _is_written_by_us(last)


def read_ours(path: Path) -> bytes:
    """Read a file that is ours; raise `PermissionError` of another's."""
    # What is read is what was looked at, even if another file is there by now.
    with path.open("rb") as file:
        if not is_ours(path.parent) or not _is_written_by_us(os.fstat(file.fileno())):
            raise PermissionError(errno.EACCES, "others may write there", str(path))
        return file.read()


def _on_the_way_to(path: Path) -> Iterator[os.stat_result]:
    """Yield what stands at each step from the root to a file, links and where they lead."""
    left = list(reversed(path.absolute().parts))
    at, links = Path(), 0
    while left:
        part = left.pop()
        at = at.parent if part == ".." else at / part  # an absolute part begins anew
        status = at.lstat()
        yield status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            left += reversed(at.readlink().parts)
            at = at.parent


def _keeps_its_entries(status: os.stat_result) -> bool:
    """Tell whether nobody else may rename our entries of a folder, or lead a link elsewhere."""
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:  # such as /tmp
        return _is_owned(status)
    return _is_written_by_us(status)


def _is_written_by_us(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    if not _is_owned(status) or status.st_mode & stat.S_IWOTH:
        return False
    # A group named as the user, without other members, is the user's own.
    return not status.st_mode & stat.S_IWGRP or _is_own(status.st_gid)


def _is_owned(status: os.stat_result) -> bool:
    return status.st_uid in {_ROOT, os.getuid(), _owner_of_package()}


@cache
def _owner_of_package() -> int:
    return Path(__file__).stat().st_uid


@cache
def _is_own(group: int) -> bool:
    """Tell whether a group is root's, or one that was made for the user alone."""
    import grp
    import pwd

    try:
        found = grp.getgrgid(group)
        user = "root" if group == _ROOT else pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return group == _ROOT
    return found.gr_name == user and set(found.gr_mem) <= {user, "root"}
