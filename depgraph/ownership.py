"""Whose files are: what somebody else may have written is not run."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ROOT = 0


def is_ours(path: Path) -> bool:
    """Tell whether a file or folder belongs to the user or root, and nobody else may write there.

    A group that has no member but the user is the user, as on systems that make one for each.

    Parameters
    ----------
    path : Path
        Links are followed; what is not there is nobody's.
    """
    if not hasattr(os, "getuid"):
        return True
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_uid not in {_ROOT, os.getuid()} or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or _is_alone_in(status.st_gid)


def _is_alone_in(group: int) -> bool:
    """Tell whether a group has no member but the user, or is root's."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.getuid())
        members = {*grp.getgrgid(group).gr_mem}
        others = {each.pw_name for each in pwd.getpwall() if each.pw_gid == group}
    except KeyError:
        return False
    return members | others <= {user.pw_name, "root"}
