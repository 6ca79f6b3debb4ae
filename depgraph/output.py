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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise `OutputExistsError` if `path` exists and may not be replaced.

    Commands call this before they begin their work, so that hours are not spent for nothing.
    """
    if not force and os.path.lexists(path):
        raise OutputExistsError(path)


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
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            temporary.chmod(0o666 & ~_umask())
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


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
    refuse_existing(path, force=force)
    with _one_line_errors(path):
        if os.path.lexists(path) and not (
            path.is_dir() and not path.is_symlink() and (is_ours(path) or not any(path.iterdir()))
        ):
            raise OutputError(
                path, "exists and was not written by depgraph", "remove it or name another path"
            )
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            if os.path.lexists(path):
                replaced = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
                path.rename(replaced / path.name)
                temporary.rename(path)
                shutil.rmtree(replaced)
            else:
                temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


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
