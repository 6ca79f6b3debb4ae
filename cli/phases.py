"""Tell the user which phase a command is in, and how long each took."""

from __future__ import annotations

import logging
import time

from depgraph.cli.options import say

_log = logging.getLogger("depgraph")

FIRST_RUN = "depgraph: compiling, as this is the first run after an installation (some seconds)"


def say_if_schedules_compile() -> None:
    """Tell the user that making a schedule takes longer this time, if it does."""
    from depgraph.warm import schedules_are_compiled

    if not schedules_are_compiled():
        say(FIRST_RUN)


class PhaseClock:
    """Called with the name of each phase as it begins; logs the time of the one before."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._began = 0.0

    def __call__(self, name: str | None) -> None:
        """Begin a phase; None ends the last one."""
        if name == "compile":
            say(FIRST_RUN)
            return
        now = time.perf_counter()
        if self._name is not None:
            _log.info("%s: %.2f s", self._name, now - self._began)
        self._name, self._began = name, now
