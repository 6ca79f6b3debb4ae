"""The files of a store: what they are called, and how a folder of them is told from others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.store.checksums import CHECKSUMS, has_checksums
from depgraph.store.schema import STORED_TABLES
from depgraph.system.output import stranger_in

if TYPE_CHECKING:
    from pathlib import Path

METADATA_KEY = b"depgraph"
IDENTITY_KEY = b"depgraph_store"
_SUFFIX = ".parquet"


def file_name(table: str) -> str:
    """Return the name of the file that holds a table."""
    return f"{table}{_SUFFIX}"


FILES = (*map(file_name, STORED_TABLES), CHECKSUMS)


def is_store(path: Path) -> bool:
    """Tell whether a folder looks like a store, of whatever version, whole or not."""
    if (path / file_name("kernels")).is_file() and (path / file_name("joins")).is_file():
        return True
    return has_checksums(path)


def not_a_store(path: Path) -> str:
    """Say what keeps a folder from being a store and nothing else, "" if nothing does."""
    if not is_store(path):
        return "was not written by depgraph"
    return stranger_in(path, lambda entry: entry.name in FILES and _is_plain(entry))


def _is_plain(entry: Path) -> bool:
    return entry.is_file() and not entry.is_symlink()
