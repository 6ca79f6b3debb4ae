"""Tell the user which phase a command is in, and how long each took."""

from __future__ import annotations

import logging
import time
from functools import cache

from depgraph.cli.options import say

_log = logging.getLogger("depgraph")

FIRST_RUN = "depgraph: compiling, as this is the first run after an installation (some seconds)"


@cache
def say_first_run() -> None:
    """Tell the user, once, that this run takes longer than later ones."""
    say(FIRST_RUN)


class PhaseClock:
    """Called with the name of each phase as it begins; logs the time of the one before."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._began = 0.0

    def __call__(self, name: str | None) -> None:
        """Begin a phase; None ends the last one."""
        if name == "compile":
            say_first_run()
            return
        now = time.perf_counter()
        if self._name is not None:
            _log.info("%s: %.2f s", self._name, now - self._began)
        self._name, self._began = name, now
