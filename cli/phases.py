"""Tell the user which phase a command is in, and how long each took."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger("depgraph")


class PhaseClock:
    """Called with the name of each phase as it begins; logs the time of the one before."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._began = 0.0

    def __call__(self, name: str | None) -> None:
        """Begin a phase; None ends the last one."""
        now = time.perf_counter()
        if self._name is not None:
            _log.info("%s: %.2f s", self._name, now - self._began)
        self._name, self._began = name, now
