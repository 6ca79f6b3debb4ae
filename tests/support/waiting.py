"""Waiting for another process or thread, with a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 120  # what only a fault takes: an idle machine needs a fraction of one


def wait_until(happened: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Return once something has happened; raise a `TimeoutError` if it does not."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"did not happen within {seconds} s")
        time.sleep(0.01)
