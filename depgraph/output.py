"""Writing results: under a temporary name, put in place at the end, nothing left half-written."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.errors import OutputError, OutputExistsError
from depgraph.interrupts import interrupts_held, remove_scratch, scratch_file, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def refuse_existing(
    path: Path, *, force: bool, is_ours: Callable[[Path], bool] | None = None
) -> None:
    """Raise an error if `path` may not be replaced or cannot be made.

    Commands call this before they begin their work, so that hours are not spent for nothing.

    Parameters
    ----------
    path : Path
    force : bool
        Whether an existing `path` may be replaced.
    is_ours : callable, optional
        For a folder: tells whether an existing one was written by this tool.

    Raises
    ------
    OutputExistsError, OutputError
    """
    if os.path.lexists(path):
        if not force:
            raise OutputExistsError(path)
        if is_ours is not None and not _is_replaceable(path, is_ours):
            raise OutputError(
                path, "exists and was not written by depgraph", "remove it or name another path"
            )
    if not path.parent.is_dir():
        raise OutputError(path, f"there is no folder {path.parent}", "make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(path, "its folder may not be written", "name another path")
    try:
        str(path).encode()
    except UnicodeEncodeError:  # Arrow opens files by names in UTF-8
        raise OutputError(path, "is no name in UTF-8", "name another path") from None


def _is_replaceable(folder: Path, is_ours: Callable[[Path], bool]) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    return is_ours(folder) or not any(folder.iterdir())


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` once the body is done.

    Raises
    ------
    OutputExistsError
        If `path` exists and `force` is not given.
    OutputError
        If the disk is full, the folder is missing, or may not be written.
    """
    refuse_existing(path, force=force)
    with _one_line_errors(path):
        if path.is_dir():
            raise OutputError(path, "is a folder", "give a file name")
        if path.exists() and not path.is_file():
            raise OutputError(path, "is no plain file", "give a file name")
        temporary = scratch_file(path.parent, f".{path.name}.")
        try:
            temporary.chmod(0o666 & ~_umask())
            yield temporary
            temporary.replace(path)
        finally:
            remove_scratch(temporary)


@contextmanager
def new_folder(
    path: Path, *, force: bool = False, is_ours: Callable[[Path], bool] = lambda _: False
) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, and rename it to `path` once the body is done.

    Parameters
    ----------
    path : Path
    force : bool
        Replace an existing folder, provided that it is empty or `is_ours` says so.
    is_ours : callable
        Tells whether an existing folder was written by this tool.

    Raises
    ------
    OutputExistsError
        If `path` exists and `force` is not given.
    OutputError
        If an existing `path` is something else, the disk is full, or may not be written.
    """
    with _one_line_errors(path):
        refuse_existing(path, force=force, is_ours=is_ours)
        temporary = scratch_folder(path.parent, f".{path.name}.")
        try:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            if os.path.lexists(path):
                with interrupts_held():
                    _replace(path, temporary)
            else:
                temporary.rename(path)
        finally:
            remove_scratch(temporary)


def _replace(path: Path, new: Path) -> None:
    """Put a folder in the place of another, which stays if that fails."""
    parking = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    old = parking / "old"
    try:
        path.rename(old)
        new.rename(path)
    except BaseException:
        if old.exists() and not os.path.lexists(path):
            old.rename(path)
        raise
    finally:
        if os.path.lexists(path):
            shutil.rmtree(parking, ignore_errors=True)


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OutputError(path, "no space is left on the disk", "free some") from None
        if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
            raise OutputError(path, f"there is no folder {path.parent}", "make it first") from None
        raise OutputError(path, f"cannot be written ({error.strerror or error})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def folder_bytes(path: Path) -> int:
    """Return the size of all files below a folder, in bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
