"""``depgraph gpus``: the GPU models there are."""

import click

from depgraph.cli.options import shared


@click.command("gpus", cls=shared.Command)
@shared.format_option
def command() -> None:
    """List the GPU models that --gpu takes."""
    from depgraph.gpu.model import available_gpus
    from depgraph.reports.tables.machine_tables import gpus_report

    shared.print_report(gpus_report(available_gpus()))
