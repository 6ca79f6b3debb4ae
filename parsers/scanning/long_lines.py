"""Lines of any length up to 64 MiB, as tracers write JSON: one may hold the code of a kernel."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depgraph.parsers.scanning.compression import TraceStream

_MOST_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 20


def lines_of(stream: TraceStream) -> Iterator[bytes]:
    """Yield the lines of a stream; of one that is too long only how it begins, and its end."""
    reader = io.BufferedReader(stream, _READ_BYTES)
    try:
        while line := reader.readline(_MOST_LINE_BYTES):
            end = line
            while end and not end.endswith(b"\n") and len(end) == _MOST_LINE_BYTES:
                end = reader.readline(_MOST_LINE_BYTES)
            yield line if end is line else line[:_READ_BYTES] + b"\n"
    finally:
        reader.detach()  # or it closes standard input
