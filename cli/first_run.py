"""Tell the user that a first run takes longer than later ones."""

from __future__ import annotations

from functools import partial

import click

from depgraph.jit.compiled import before_compiling

FIRST_RUN = "depgraph: compiling what no earlier run has needed (about 5 s; kept for later runs)"


def announce_first_run(*, quiet: bool) -> None:
    """Have the user told once if this command has to compile something, on whatever thread."""
    before_compiling(None if quiet else partial(click.echo, FIRST_RUN, err=True))
