"""One line for what a framework raises where the GPU has no memory left."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from depgraph.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Iterator

_RAISED = "OutOfMemoryError"  # by PyTorch, which need not be there
_HOW_MUCH = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)


@contextmanager
def memory_told() -> Iterator[None]:
    """Raise an `ApplyError` that says what to do where PyTorch gets no memory."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != _RAISED:
            raise
        found = _HOW_MUCH.search(str(error))
        said = f": tried to allocate {found[1]}" if found else ""
        raise ApplyError(f"out of GPU memory{said}", "lower max_extra_memory") from None
