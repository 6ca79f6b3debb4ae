"""Tell the user that a first run takes longer than later ones."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import click

from depgraph.system.compiled import before_compiling, if_distrusted

if TYPE_CHECKING:
    from pathlib import Path

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
