"""Readers of trace and profile files, one module a format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depgraph.records import Trace


def open_trace(path: str | Path) -> Trace:
    """Open a trace of any known format, told by its content; ``-`` is standard input."""
    from depgraph.parsers.traces.nvbit import NvbitTrace

    return NvbitTrace(None if str(path) == "-" else Path(path))
