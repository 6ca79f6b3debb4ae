"""``depgraph reproduce``: published figures, computed anew from packaged programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from depgraph.cli.options import shared, values

if TYPE_CHECKING:
    from depgraph.reproduce.figures import Inputs, Reproduction

_PICTURES = (".png", ".svg")


@click.command("reproduce", cls=shared.Command)
@click.argument("name", required=False)
@click.option(
    "--plot", "picture", type=values.PATH, metavar="FILE",
    help="Draw ours over the paper's too, as FILE.png or FILE.svg.",
)  # fmt: skip
@shared.format_option
@shared.force_option
def command(name: str | None, picture: Path | None, *, force: bool) -> None:
    """Compute what papers published, from packaged programs, and show both.

    NAME is one of those that are listed without it. Each figure is computed when the command runs,
    by the mechanisms that bound uses: the paper's, ours, the difference, and why they differ.
    Nothing is downloaded, and no GPU is needed.
    """
    from depgraph.reports.tables.reproduced_table import experiments_report, reproduction_report
    from depgraph.reproduce.figures import read_published
    from depgraph.reproduce.papers import reproduce
    from depgraph.system.output import refuse_existing

    if picture is not None and name is None:
        raise click.UsageError("--plot needs the NAME of what to draw")
    if picture is not None and picture.suffix not in _PICTURES:
        message = f"--plot writes {' or '.join(_PICTURES)}, not {picture.suffix or picture.name!r}"
        raise click.UsageError(message)
    if name is None:
        shared.print_report(experiments_report(read_published(packaged())))
        return
    if picture is not None:
        refuse_existing(picture, force=force)
    found = reproduce(name, packaged())
    shared.print_report(reproduction_report(found))
    if picture is not None:
        _draw(found, picture, force=force)


def packaged() -> Inputs:
    """Return where the packaged programs lie, and what reads them."""
    from depgraph.cli.options.model import read_times
    from depgraph.parsers.workload import read_workload
    from depgraph.reproduce.figures import Inputs
    from depgraph.samples import sample_path

    return Inputs(sample_path, read_workload, read_times)


def _draw(reproduction: Reproduction, file: Path, *, force: bool) -> None:
    from depgraph.reports.plots import reproduced
    from depgraph.reports.plots.style import house_style, save
    from depgraph.system.output import new_file

    with new_file(file, force=force) as temporary:
        with house_style():
            plot = reproduced.plot(reproduction)
            save(plot, temporary.parent, png=file.suffix == ".png")
        (temporary.parent / plot.name).with_suffix(file.suffix).replace(temporary)
    shared.wrote(file)
