"""Tell the user that a first run takes longer than later ones."""

from __future__ import annotations

from functools import cache

import click

from depgraph.system.compiled import before_compiling

FIRST_RUN = "depgraph: compiling what no earlier run has needed (about 5 s; kept for later runs)"


def announce_first_run(*, quiet: bool) -> None:
    """Have the user told, on whatever thread, if this command has to compile something."""
    before_compiling(None if quiet else _say_once)


@cache
def _say_once() -> None:
    click.echo(FIRST_RUN, err=True)
