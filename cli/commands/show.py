"""``depgraph show``: look inside a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from depgraph.cli.options.model import (
    OF_PROFILE,
    invocation_of,
    model_options,
    on_size,
    refuse_given,
    refuse_others,
    scenario_from,
    timed_scenario_from,
)
from depgraph.cli.options.shared import (
    DEFAULT_STORE,
    STORE_VARIABLE,
    Command,
    deps_option,
    format_option,
    group_option,
    print_report,
)
from depgraph.cli.options.values import SMS
from depgraph.system.text import did_you_mean, in_short

if TYPE_CHECKING:
    from depgraph.cli.options.model import ModelOptions
    from depgraph.reports.tables.table import Report
    from depgraph.store.store import Store

_BUFFERS_SHOWN = 20
_GROUPED = ("kernels", "pairs")
_PLACE = re.compile(r"-?\d{1,18}:-?\d{1,18}")
_SUBJECTS = ("kernels", "pairs", "path", "buffers", "block")


@click.command("show", cls=Command)
@click.argument(
    "words", nargs=-1, required=True,
    metavar="[STORE] kernels|pairs|path|buffers|block K:B",
)  # fmt: skip
@click.option(
    "--cusync", is_flag=True,
    help="With pairs: the cheapest correct cuSync policy of each, and its speedup.",
)  # fmt: skip
@click.option(
    "--sms", type=SMS, metavar="N",
    help="With --cusync and buffers: SM count [default: the GPU model's].",
)  # fmt: skip
@group_option(None)
@deps_option
@model_options
@format_option
def command(
    words: tuple[str, ...],
    cusync: bool,
    sms: int | None,
    group_by: str | None,
    kinds: frozenset[str] | None,
    form: str,
    **model: Unpack[ModelOptions],
) -> None:
    """Look inside a store: kernels, pairs, the critical path, buffers, a block.

    kernels: launches with grid, resources and traffic. pairs: which kernels depend on which, in
    what pattern. path: the critical path, and where its time goes. buffers: memory that is used
    again, the WAR and WAW dependences that rest on it, and what renaming it would bring. block
    K:B: what block B of kernel K touches, what it waits for, what waits for it, and why. The store
    may stand before or after them.
    """
    from depgraph.graph.queries import critical_path
    from depgraph.reports.tables import show_tables
    from depgraph.store.companions import recorded_times
    from depgraph.store.store import Store

    path, subject, block = _split(words)
    store = Store(path)
    if cusync and subject != "pairs":
        message = "--cusync needs pairs"
        raise click.UsageError(message)
    if sms is not None and not cusync and subject != "buffers":
        message = "--sms needs buffers or pairs --cusync"
        raise click.UsageError(message)
    if group_by is not None and (cusync or subject not in _GROUPED):
        message = "--group-by needs kernels or pairs"
        raise click.UsageError(message)
    if subject == "kernels":
        refuse_others("kernels", "what_ifs", *OF_PROFILE)
        if model["what_ifs"] and (model["timing"] or recorded_times(store)):
            message = "--what-if does not go with kernels that have times: they are as measured"
            raise click.UsageError(message)
        report = _kernels(store, kinds, group_by, model)
    elif cusync:
        report = _policies(store, kinds, sms, model)
    elif subject == "pairs":
        refuse_others("pairs", "what_ifs", "kinds", *OF_PROFILE * (group_by is not None))
        report = _pairs(store, kinds, group_by, model)
    elif subject == "path":
        refuse_given({"launch"}, "does not go with path")
        scenario = scenario_from(store, kinds, **model)
        report = show_tables.path_report(
            critical_path(scenario.bound_graph, scenario.least_durations),
            scenario.kernels,
            scenario.graph.copies,
            scenario.timing,
        )
    elif subject == "buffers":
        refuse_given({"launch"}, "does not go with buffers")
        report = _buffers(store, kinds, sms, model, is_whole=form in {"json", "csv"})
    else:
        refuse_others("block", "kinds")
        report = show_tables.block_report(
            store.graph(kinds), store.footprints(), store.kernels, *block,
            is_whole=form in {"json", "csv"},
        )  # fmt: skip
    print_report(report, form)


def _kernels(
    store: Store, kinds: frozenset[str] | None, group_by: str | None, model: ModelOptions
) -> Report:
    from depgraph.analysis.kernel_groups import group_kernels, kernel_times
    from depgraph.reports.tables import group_tables, show_tables
    from depgraph.store.companions import recorded_times

    is_timed = model["timing"] is not None or recorded_times(store) is not None
    if group_by is None and not model["what_ifs"] and not is_timed:
        return show_tables.kernels_report(store.kernels)
    scenario = scenario_from(store, kinds, **model)
    if group_by is not None:
        groups = group_kernels(scenario, group_by)
        return group_tables.groups_report(groups, group_by, scenario.unit)
    return show_tables.kernels_report(
        scenario.kernels, scenario.sites, kernel_times(scenario), scenario.unit
    )


def _pairs(
    store: Store, kinds: frozenset[str] | None, group_by: str | None, model: ModelOptions
) -> Report:
    from depgraph.analysis.kernel_groups import group_names, group_pairs
    from depgraph.reports.tables import group_tables, show_tables

    if group_by is None and kinds is None and not model["what_ifs"]:
        return show_tables.pairs_report(
            store.pairs, store.kernels, {c.number: c.what for c in store.copies}
        )
    scenario = scenario_from(store, kinds, **model)
    pairs = scenario.graph.pairs()
    if group_by is None:
        return show_tables.pairs_report(pairs, scenario.kernels, scenario.graph.copies)
    groups = group_pairs(pairs, {**group_names(scenario, group_by), **scenario.graph.copies})
    return group_tables.pair_groups_report(groups, group_by)


def _policies(
    store: Store, kinds: frozenset[str] | None, sms: int | None, model: ModelOptions
) -> Report:
    from depgraph.analysis.cusync_policies import cheapest_policies
    from depgraph.reports.tables.mechanism_tables import policies_report

    scenario = on_size(timed_scenario_from(store, kinds, **model), sms)
    return policies_report(cheapest_policies(scenario), scenario)


def _buffers(
    store: Store, kinds: frozenset[str] | None, sms: int | None, model: ModelOptions, *,
    is_whole: bool,
) -> Report:  # fmt: skip
    from depgraph.analysis.renaming import renaming_steps, study_renaming
    from depgraph.reports.tables.buffer_table import buffers_report

    scenario = on_size(timed_scenario_from(store, kinds, **model), sms)
    found = study_renaming(scenario)
    steps = renaming_steps(found, invocation_of(store.path))
    return buffers_report(found, scenario, steps, top=None if is_whole else _BUFFERS_SHOWN)


def _split(words: tuple[str, ...]) -> tuple[Path, str, tuple[int, int]]:
    """Tell the store from what is to be shown of it, in whichever order they stand."""
    rest = list(words)
    at = [i for i, word in enumerate(rest) if word in _SUBJECTS]
    if not at:
        hints = filter(None, (did_you_mean(word, _SUBJECTS) for word in rest))
        listed = f"; give one of {', '.join(_SUBJECTS)}"
        message = f"nothing to show{next(hints, listed)}"
        raise click.UsageError(message)
    subject = rest.pop(at[-1])  # a store may be called like one
    place = next((word for word in rest if _PLACE.fullmatch(word)), None)
    if subject == "block":
        if place is None:
            message = "give one block as K:B, such as 3:17"
            raise click.UsageError(message)
        rest.remove(place)
    if len(rest) > 1:
        message = f"unexpected argument {in_short(rest[1])!r}"
        raise click.UsageError(message)
    path = Path(rest[0] if rest else os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)
    kernel, block = map(int, place.split(":")) if subject == "block" and place else (0, 0)
    return path, subject, (kernel, block)
