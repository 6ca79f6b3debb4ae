"""``depgraph export``: what a store holds, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.options.mechanisms import mechanism_options, parse_costs
from depgraph.cli.options.model import (
    OF_PROFILE,
    model_options,
    refuse_given,
    refuse_others,
    scenario_from,
)
from depgraph.cli.options.shared import (
    Command,
    deps_option,
    force_option,
    store_argument,
    wrote,
)
from depgraph.cli.options.values import SMS

if TYPE_CHECKING:
    from depgraph.cli.options.model import ModelOptions
    from depgraph.scenario.scenario import Scenario
    from depgraph.schedule.schedule import Schedule

# What can be exported, and to which forms.
TARGETS = {
    "edges": ("parquet", "csv", "json"),
    "kernels": ("parquet", "csv", "json"),
    "blocks": ("parquet", "csv", "json"),
    "pairs": ("parquet", "csv", "json"),
    "schedule": ("parquet", "csv", "json"),
    "graph": ("graphml", "dot", "json"),
}
_GRAPHS = ("edges", "graph")


@click.command("export", cls=Command)
@store_argument
@click.option("--what", type=click.Choice(list(TARGETS)), required=True, help="What to write.")
@click.option(
    "--to", "form", type=click.Choice(["parquet", "csv", "json", "graphml", "dot"]),
    help="Form [default: by the name of the file].",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="File to write."
)
@click.option("--sms", type=SMS, help="SM count, for a schedule.")
@click.option(
    "--schedule", "schedule_name", default="dataflow", show_default=True,
    type=click.Choice(["serial", "dataflow"]), help="Which schedule.",
)  # fmt: skip
@click.option(
    "--priority", default="oldest-first", show_default=True, help="Priority of a dataflow schedule."
)
@mechanism_options
@deps_option
@model_options
@force_option
def command(
    store: Path,
    what: str,
    form: str | None,
    output: Path,
    sms: int | None,
    schedule_name: str,
    priority: str,
    mechanisms: tuple[str, ...],
    costs: tuple[str, ...],
    kinds: frozenset[str] | None,
    force: bool,
    **model: Unpack[ModelOptions],
) -> None:
    """Write edges, kernels, blocks, pairs, graph or schedule for other tools.

    edges: one row per distinct edge and kind, blocks numbered within their kernels, host copy i as
    kernel -1-i. graph: one node per kernel. Edges and tables are written as Parquet, CSV or JSON
    (one object per line), the graph as GraphML, DOT or node-link JSON.

    Names come from the trace. Parquet keeps them as they are; elsewhere they steer no terminal:
    JSON is ASCII, in other forms control and formatting characters are replaced. In CSV a text that
    a spreadsheet would take for a formula begins with an apostrophe.
    """
    from depgraph.mechanisms.serial import serial
    from depgraph.reports.export import tables
    from depgraph.store.store import Store
    from depgraph.system.output import refuse_existing

    form = form or output.suffix.lstrip(".").lower()
    _refuse_unused(what, schedule_name, mechanisms)
    if form not in TARGETS[what]:
        message = f"{what} can be written as {', '.join(TARGETS[what])}, not {form!r}"
        raise click.UsageError(message)
    if what == "schedule" and sms is None:
        message = "a schedule needs --sms N"
        raise click.UsageError(message)
    refuse_existing(output, force=force)
    opened = Store(store)
    if what in {"kernels", "blocks", "pairs"}:
        tables.write_table(opened.table(what), output, form, force=force)
    else:
        scenario = scenario_from(opened, kinds, **model)
        graph = scenario.graph
        if what == "edges":
            tables.write_edges(graph, output, form, force=force)
        elif what == "graph":
            tables.write_kernel_graph(scenario, output, form, force=force)
        else:
            plan = (
                serial(scenario.on(sms or 1))
                if schedule_name == "serial" and not mechanisms
                else _schedule(
                    scenario.on(sms or 1), mechanisms or (f"dataflow({priority})",), costs
                )
            )
            tables.write_schedule(plan, graph, scenario.unit, output, form, force=force)
    wrote(output)


def _refuse_unused(what: str, schedule_name: str, mechanisms: tuple[str, ...]) -> None:
    """Refuse options that would not change what is written."""
    if what != "schedule":
        used = ("what_ifs", "kinds") if what in _GRAPHS else ()
        refuse_others(f"--what {what}", *used, *OF_PROFILE * (what == "graph"))
        names = {"sms", "schedule_name", "priority", "mechanisms", "costs"}
        refuse_given(names, f"does not go with --what {what}")
    elif mechanisms:
        refuse_given({"schedule_name", "priority"}, "does not go with --mechanism")
    else:
        refuse_given({"costs"}, "needs --mechanism")
        if schedule_name == "serial":
            refuse_given({"priority"}, "needs a dataflow schedule")


def _schedule(scenario: Scenario, names: tuple[str, ...], costs: tuple[str, ...]) -> Schedule:
    from depgraph.analysis.compare_mechanisms import charges_of, run_mechanism
    from depgraph.mechanisms import find_mechanisms

    found = find_mechanisms(names)
    if len(found) != 1:
        message = "a schedule needs one mechanism: name one, with its parameters"
        raise click.UsageError(message)
    charges = charges_of(found[0], parse_costs(costs), scenario)
    return run_mechanism(found[0], scenario, charges)[0]
