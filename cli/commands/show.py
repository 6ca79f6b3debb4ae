"""``depgraph show``: look inside a store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options import model, shared, values
from depgraph.system.text import did_you_mean, in_short

if TYPE_CHECKING:
    from depgraph.reports.tables.table import Report
    from depgraph.store.store import Store

_GROUPED = ("kernels", "pairs")
_PLACE = re.compile(r"-?\d{1,18}:-?\d{1,18}")
_SUBJECTS = ("kernels", "pairs", "path", "buffers", "block")


@click.command("show", cls=shared.Command)
@click.argument(
    "words", nargs=-1, required=True,
    metavar="[STORE] kernels|pairs|path|buffers|block K:B",
)  # fmt: skip
@click.option(
    "--cusync", is_flag=True,
    help="With pairs: the cheapest correct cuSync policy of each, and its speedup.",
)  # fmt: skip
@click.option(
    "--sms", type=values.SMS, metavar="N",
    help="With --cusync and buffers: SM count [default: the GPU model's].",
)  # fmt: skip
@shared.group_option(None)
@model.model_options
@shared.format_option
def command(words: tuple[str, ...], cusync: bool, group_by: str | None, **options: Any) -> None:
    """Look inside a store: kernels, pairs, the critical path, buffers, a block.

    kernels: launches with grid, resources and traffic. pairs: which kernels depend on which, in
    what pattern. path: the critical path, and where its time goes. buffers: memory that is used
    again, the WAR and WAW dependences that rest on it, and what renaming it would bring. block
    K:B: what block B of kernel K touches, what it waits for, what waits for it, and why. The store
    may stand before or after them.
    """
    from depgraph.analysis.cusync_policies import cheapest_policies
    from depgraph.analysis.renaming import renaming_steps, study_renaming
    from depgraph.graph.queries import critical_path
    from depgraph.reports.tables import show_tables
    from depgraph.reports.tables.buffer_table import buffers_report
    from depgraph.reports.tables.mechanism_tables import policies_report
    from depgraph.store.companions import recorded_times
    from depgraph.store.store import Store

    path, subject, block = _split(words)
    store = Store(path)
    if cusync and subject != "pairs":
        raise click.UsageError("--cusync needs pairs")
    if options["sms"] is not None and not cusync and subject != "buffers":
        raise click.UsageError("--sms needs buffers or pairs --cusync")
    if group_by is not None and (cusync or subject not in _GROUPED):
        raise click.UsageError("--group-by needs kernels or pairs")
    if subject == "kernels":
        model.refuse_others("kernels", "what_ifs", *model.OF_PROFILE)
        if options["what_ifs"] and (options["timing"] or recorded_times(store)):
            message = "--what-if does not go with kernels that have times: they are as measured"
            raise click.UsageError(message)
        report = _kernels(store, group_by, options)
    elif cusync:
        scenario = model.sized_scenario_of(store, options)
        report = policies_report(cheapest_policies(scenario), scenario)
    elif subject == "pairs":
        model.refuse_others(
            "pairs", "what_ifs", "kinds", *model.OF_PROFILE * (group_by is not None)
        )
        report = _pairs(store, group_by, options)
    elif subject == "path":
        model.refuse_given({"launch"}, "does not go with path")
        scenario = model.scenario_of(store, options)
        report = show_tables.path_report(
            critical_path(scenario.bound_graph, scenario.least_durations),
            scenario.kernels,
            scenario.graph.copies,
            scenario.timing,
        )
    elif subject == "buffers":
        model.refuse_given({"launch"}, "does not go with buffers")
        scenario = model.sized_scenario_of(store, options)
        found = study_renaming(scenario)
        steps = renaming_steps(found, model.invocation_of(path))
        report = buffers_report(found, scenario, steps)
    else:
        model.refuse_others("block", "kinds")
        graph, footprints = store.graph(options["kinds"]), store.footprints()
        is_whole = shared.chosen_form() in {"json", "csv"}
        report = show_tables.block_report(
            graph, footprints, store.kernels, *block, is_whole=is_whole
        )
    shared.print_report(report)


def _kernels(store: Store, group_by: str | None, options: Mapping[str, Any]) -> Report:
    from depgraph.analysis.kernel_groups import group_kernels, kernel_times
    from depgraph.reports.tables import show_tables
    from depgraph.store.companions import recorded_times

    is_timed = options["timing"] is not None or recorded_times(store) is not None
    if group_by is None and not options["what_ifs"] and not is_timed:
        return show_tables.kernels_report(store.kernels)
    scenario = model.scenario_of(store, options)
    if group_by is not None:
        groups = group_kernels(scenario, group_by)
        return show_tables.groups_report(groups, group_by, scenario.unit)
    return show_tables.kernels_report(
        scenario.kernels, scenario.sites, kernel_times(scenario), scenario.unit
    )


def _pairs(store: Store, group_by: str | None, options: Mapping[str, Any]) -> Report:
    from depgraph.analysis.kernel_groups import group_names, group_pairs
    from depgraph.reports.tables import show_tables

    if group_by is None and options["kinds"] is None and not options["what_ifs"]:
        return show_tables.pairs_report(
            store.pairs, store.kernels, {c.number: c.what for c in store.copies}
        )
    scenario = model.scenario_of(store, options)
    pairs = scenario.graph.pairs()
    if group_by is None:
        return show_tables.pairs_report(pairs, scenario.kernels, scenario.graph.copies)
    groups = group_pairs(pairs, {**group_names(scenario, group_by), **scenario.graph.copies})
    return show_tables.pair_groups_report(groups, group_by)


def _split(words: tuple[str, ...]) -> tuple[Path, str, tuple[int, int]]:
    """Tell the store from what is to be shown of it, in whichever order they stand."""
    rest = list(words)
    at = [i for i, word in enumerate(rest) if word in _SUBJECTS]
    if not at:
        hints = filter(None, (did_you_mean(word, _SUBJECTS) for word in rest))
        listed = f"; give one of {', '.join(_SUBJECTS)}"
        raise click.UsageError(f"nothing to show{next(hints, listed)}")
    subject = rest.pop(at[-1])  # a store may be called like one
    place = next((word for word in rest if _PLACE.fullmatch(word)), None)
    if subject == "block":
        if place is None:
            raise click.UsageError("give one block as K:B, such as 3:17")
        rest.remove(place)
    if len(rest) > 1:
        raise click.UsageError(f"unexpected argument {in_short(rest[1])!r}")
    path = Path(rest[0] if rest else os.environ.get(shared.STORE_VARIABLE) or shared.DEFAULT_STORE)
    kernel, block = map(int, place.split(":")) if subject == "block" and place else (0, 0)
    return path, subject, (kernel, block)
