"""``depgraph mechanisms``: what each mechanism is."""

import click

from depgraph.cli.options import shared


@click.command("mechanisms", cls=shared.Command)
@shared.details_option
@shared.format_option
def command() -> None:
    """List the synchronisation mechanisms that bound and export know.

    They are grouped by what it takes to use them: hardware and its driver today, a library or
    kernels written anew, research hardware or a simulator. For each its rule, what it costs, and
    where that comes from. Use them with: depgraph bound --sms N --mechanism all
    """
    from depgraph.mechanisms.registry import known_mechanisms
    from depgraph.reports.tables.mechanism_tables import (
        mechanism_names,
        mechanisms_report,
        mechanisms_text,
    )

    known = known_mechanisms()
    if shared.chosen_form() == "table":
        describe = mechanisms_text if shared.wants_details() else mechanism_names
        click.echo(describe(known), nl=False)
    else:
        shared.print_report(mechanisms_report(known))
