"""Whose files are: what somebody else may have written is not run."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

_ROOT = 0


def is_ours(path: Path) -> bool:
    """Tell whether only the user, root and this package's owner may write a file or folder."""
    # Links are followed; what is not there is nobody's. A group named as the user, without
    # other members, is the user's own.
    if not hasattr(os, "getuid"):
        return True
    try:
        status = path.stat()
        owners = {_ROOT, os.getuid(), Path(__file__).stat().st_uid}
    except OSError:
        return False
    if status.st_uid not in owners or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or _is_own(status.st_gid)


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
