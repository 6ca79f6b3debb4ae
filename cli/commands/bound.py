"""``depgraph bound``: store to upper bound on the speedup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.options.mechanisms import mechanism_options, parse_costs
from depgraph.cli.options.model import (
    memory_option,
    model_options,
    timed_scenario_from,
)
from depgraph.cli.options.shared import (
    Command,
    deps_option,
    format_option,
    print_report,
    store_argument,
)
from depgraph.cli.options.values import SmCounts

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.cli.options.model import ModelOptions


@click.command("bound", cls=Command)
@store_argument
@click.option(
    "--sms", type=SmCounts(), required=True,
    help="SM counts: 80, 8,16,80, 8:132, 8:132:4 or inf.",
)  # fmt: skip
@mechanism_options
@deps_option
@model_options
@memory_option
@format_option
def command(
    store: Path,
    sms: tuple[float, ...],
    mechanisms: tuple[str, ...],
    costs: tuple[str, ...],
    kinds: frozenset[str] | None,
    form: str,
    **model: Unpack[ModelOptions],
) -> None:
    """Bound the speedup over serialized launches on a GPU, and compare mechanisms.

    Prints the serial time, critical path, work, the lower bound on the makespan, the upper bound on
    the speedup, and what block-level dataflow schedules reach: with all dependences, and with RAW
    only, as if every buffer were renamed.

    With --mechanism it compares synchronisation mechanisms instead, one row each: makespan,
    speedup, share of the bound, slot utilization, and what was assumed.
    """
    if mechanisms:
        _compare(store, sms, mechanisms, costs, kinds, form, model)
        return
    if costs:
        message = "--cost needs --mechanism"
        raise click.UsageError(message)
    from depgraph.analysis.bound import bound
    from depgraph.reports.tables.bound_table import bound_report
    from depgraph.store.store import Store

    table = bound(timed_scenario_from(Store(store), kinds, **model), sms)
    print_report(bound_report(table), form)


def _compare(
    path: Path,
    sms: tuple[float, ...],
    mechanisms: tuple[str, ...],
    costs: tuple[str, ...],
    kinds: frozenset[str] | None,
    form: str,
    model: ModelOptions,
) -> None:
    from depgraph.analysis.compare_mechanisms import compare_mechanisms
    from depgraph.mechanisms import find_mechanisms
    from depgraph.reports.tables.mechanism_tables import comparison_report
    from depgraph.store.store import Store

    found = find_mechanisms(mechanisms)
    scenario = timed_scenario_from(Store(path), kinds, **model)
    comparison = compare_mechanisms(scenario, sms, found, costs=parse_costs(costs))
    print_report(comparison_report(comparison), form)
