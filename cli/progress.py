"""Progress by input bytes or by items, on stderr, where a person watches."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def input_progress(total: int | None, *, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Yield a function that is told how many input bytes have just been read.

    Parameters
    ----------
    total : int or None
        Size of the input, where it is known.
    quiet : bool
        Show nothing. Neither is anything shown if stderr is not a terminal or `CI` is set.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("CI"):
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


@contextmanager
def item_progress(total: int, what: str, *, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Yield a function that is told how many items have just been done.

    Parameters
    ----------
    total : int
    what : str
        What the items are, such as "programs".
    quiet : bool
        As of `input_progress`.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("CI"):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(what, *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
