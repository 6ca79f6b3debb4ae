"""A folder for intermediate files, made when it is first needed and never left behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from tempfile import gettempdir

from depgraph.system.output import one_line_errors
from depgraph.system.work_folder import WorkFolder


class Scratch:
    """A folder for intermediate files, made when it is first needed.

    Parameters
    ----------
    parent : Path or None
        Where to make it; None for the system's folder for temporary files.
    """

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent or Path(gettempdir())
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
