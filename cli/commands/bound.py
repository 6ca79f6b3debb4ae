"""``depgraph bound``: store to upper bound on the speedup."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.options.mechanisms import mechanism_options, parse_costs
from depgraph.cli.options.model import (
    asked_from,
    contention_option,
    memory_option,
    model_options,
    timed_scenario_from,
)
from depgraph.cli.options.shared import (
    Command,
    deps_option,
    format_option,
    is_quiet,
    print_report,
    store_argument,
)
from depgraph.cli.options.values import SmCounts
from depgraph.cli.progress import step_progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from depgraph.analysis.findings import Findings
    from depgraph.analysis.next_steps import Step
    from depgraph.analysis.outcome import Bound
    from depgraph.cli.options.model import ModelOptions
    from depgraph.scenario.scenario import Scenario


@click.command("bound", cls=Command)
@store_argument
@click.option(
    "--sms", type=SmCounts(), required=True,
    help="SM counts: 80, 8,16,80, 8:132, 8:132:4 or inf.",
)  # fmt: skip
@mechanism_options
@deps_option
@model_options
@contention_option
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
    from depgraph.reports.tables.verdict_lines import with_verdict
    from depgraph.store.store import Store

    scenario = timed_scenario_from(Store(store), kinds, **model)
    with step_progress(quiet=is_quiet()) as steps:
        table = bound(scenario, sms, steps=steps)
        steps.begin("verdict", 1)
        found = _findings(scenario, sms, store, table.bounds)
        report = with_verdict(bound_report(table), found, more=_page_step(found))
    print_report(report, form)


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
    from depgraph.reports.tables.verdict_lines import with_verdict
    from depgraph.store.store import Store

    found = find_mechanisms(mechanisms)
    scenario = timed_scenario_from(Store(path), kinds, **model)
    with step_progress(quiet=is_quiet()) as steps:
        comparison = compare_mechanisms(scenario, sms, found, costs=parse_costs(costs), steps=steps)
        steps.begin("verdict", 1)
        findings = _findings(scenario, sms, path, comparison.limits)
        report = with_verdict(comparison_report(comparison), findings)
    print_report(report, form)


def _page_step(found: Findings) -> list[Step]:
    from depgraph.analysis.next_steps import Step

    sms = found.scenario.sms
    if math.isinf(sms):
        return []
    return [Step("see it on a page:", found.asked.command("report", "--sms", f"{sms:g}"))]


def _findings(
    scenario: Scenario, sizes: Sequence[float], store: Path, known: Sequence[Bound]
) -> Findings:
    """Find what the verdict needs: of several sizes on that of the GPU, else on the last one."""
    from depgraph.analysis.findings import Findings

    whole = scenario.resources.gpu.sms
    size = whole if whole in sizes else sizes[-1]
    return Findings(scenario.on(size), asked_from(store), known)
