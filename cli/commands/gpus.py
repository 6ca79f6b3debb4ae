"""``depgraph gpus``: the GPU models there are."""

import click

from depgraph.cli.options.shared import Command, format_option, print_report


@click.command("gpus", cls=Command)
@format_option
def command(form: str) -> None:
    """List the GPU models that --gpu takes."""
    from depgraph.gpu.model import available_gpus
    from depgraph.reports.tables.machine_tables import gpus_report

    print_report(gpus_report(available_gpus()), form)
