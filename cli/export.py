"""``depgraph export``: what a store holds, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.mechanism_options import mechanism_options, parse_costs, program_facts
from depgraph.cli.model import model_from, model_options
from depgraph.cli.option_types import SMS
from depgraph.cli.options import (
    Command,
    deps_option,
    force_option,
    store_argument,
    wrote,
)

if TYPE_CHECKING:
    from depgraph.cli.model import ModelOptions
    from depgraph.graph import BlockGraph
    from depgraph.model import Model
    from depgraph.schedule import Schedule
    from depgraph.store import Store

# What can be exported, and to which forms.
TARGETS = {
    "edges": ("parquet", "csv", "json"),
    "kernels": ("parquet", "csv", "json"),
    "blocks": ("parquet", "csv", "json"),
    "pairs": ("parquet", "csv", "json"),
    "schedule": ("parquet", "csv", "json"),
    "graph": ("graphml", "dot", "json"),
}


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

    edges: one row a distinct edge and kind, blocks numbered within their kernels, host copy i as
    kernel -1-i. graph: one node a kernel. Edges and tables are written as Parquet, CSV or JSON
    (one object a line), the graph as GraphML, DOT or node-link JSON.

    Names come from the trace. Beside Parquet, which keeps them as they are, they are written so that
    they steer no terminal: JSON is ASCII, elsewhere control and formatting characters are replaced.
    In CSV a text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    from depgraph import export
    from depgraph.output import refuse_existing
    from depgraph.store import Store

    form = form or output.suffix.lstrip(".").lower()
    if kinds is not None and what in {"kernels", "blocks", "pairs"}:
        raise click.UsageError("--deps goes with edges, graph and schedule")
    if form not in TARGETS[what]:
        message = f"{what} can be written as {', '.join(TARGETS[what])}, not {form!r}"
        raise click.UsageError(message)
    refuse_existing(output, force=force)
    opened = Store(store)
    if what == "edges":
        export.write_edges(opened.graph(kinds), output, form, force=force)
    elif what == "graph":
        export.write_kernel_graph(opened.graph(kinds), opened.kernels, output, form, force=force)
    elif what == "schedule":
        if sms is None:
            message = "a schedule needs --sms N"
            raise click.UsageError(message)
        chosen = model_from(opened, kinds, **model)
        graph = chosen.graph
        plan = (
            _mechanism_schedule(opened, graph, chosen, sms, mechanisms, costs)
            if mechanisms
            else _plain_schedule(graph, chosen, sms, schedule_name, priority)
        )
        export.write_schedule(plan, graph, chosen.durations.unit, output, form, force=force)
    else:
        export.write_table(opened.table(what), output, form, force=force)
    wrote(output)


def _plain_schedule(
    graph: BlockGraph, model: Model, sms: int, name: str, priority: str
) -> Schedule:
    from depgraph.schedules import dataflow, serial

    times, places = model.durations.values, model.occupancy.values
    if name == "serial":
        return serial(graph, times, places, sms, launch_gap=model.launch_gap)
    return dataflow(graph, times, places, sms, priority=priority)


def _mechanism_schedule(
    store: Store,
    graph: BlockGraph,
    model: Model,
    sms: int,
    names: tuple[str, ...],
    costs: tuple[str, ...],
) -> Schedule:
    from depgraph.comparison import charges_of, program_of, run_mechanism
    from depgraph.mechanisms import find_mechanisms

    found = find_mechanisms(names)
    if len(found) != 1:
        message = "a schedule is that of one mechanism: name one, with its parameters"
        raise click.UsageError(message)
    program = program_of(
        graph,
        sms,
        model.durations,
        model.occupancy,
        launch_gap=model.launch_gap,
        facts=program_facts(store),
    )
    charges = charges_of(
        found[0], parse_costs(costs), model.durations, model.occupancy, model.launch_gap
    )
    return run_mechanism(found[0], program, charges)[0]
