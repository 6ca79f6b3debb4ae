"""What a person who waits is told: phases, progress on stderr, that a first run compiles."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import click

from depgraph.system.compiled import before_compiling, if_distrusted
from depgraph.system.workers import NOBODY, Steps

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_SECONDS_BEFORE_A_BAR = 0.5


def _is_watched(*, quiet: bool) -> bool:
    """Tell whether a person sees a bar: not if stderr is no terminal or `CI` is set."""
    return not quiet and sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def input_progress(total: int | None, *, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Yield what is told how many bytes were read; it is silent in CI and without a terminal."""
    if not _is_watched(quiet=quiet):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress("reading", *columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda n: bar.advance(task, n)


class _Bar(Steps):
    """A bar for what takes longer than a person waits for without asking."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._what, self._total, self._count = "", 0, 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._one_change = Lock()

    def begin(self, what: str, steps: int) -> None:
        with self._one_change:
            self._what, self._total, self._count = what, steps, 0
            self._show()

    def done(self) -> None:
        with self._one_change:
            self._count += 1
            self._show()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if self._bar is None:
            if time.monotonic() < self._began + _SECONDS_BEFORE_A_BAR:
                return
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("")
        if self._task is not None:
            self._bar.update(
                self._task, description=self._what, completed=self._count, total=self._total
            )


@contextmanager
def step_progress(*, quiet: bool) -> Iterator[Steps]:
    """Yield what a computation tells how far it is."""
    if not _is_watched(quiet=quiet):
        yield NOBODY
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


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


FIRST_RUN = "depgraph: compiling what no earlier run has needed (about 5 s; kept for later runs)"


def announce_first_run(*, quiet: bool) -> None:
    """Have the user told, on whatever thread, if this command has to compile something."""
    before_compiling(None if quiet else _say_once)
    if_distrusted(None if quiet else _say_distrusted)


def _say_distrusted(folder: Path) -> None:
    click.echo(
        f"depgraph: {folder}: others may write there, so that nothing is loaded from it and all is "
        "compiled anew; set NUMBA_CACHE_DIR to a folder of yours",
        err=True,
    )


@cache
def _say_once() -> None:
    click.echo(FIRST_RUN, err=True)
