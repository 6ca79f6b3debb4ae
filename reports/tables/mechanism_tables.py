"""Mechanisms beside each other, and what each of them is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from depgraph.analysis.compare_mechanisms import OTHER_SCALES, Comparison
from depgraph.mechanisms import Availability, Mechanism
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    columns_of_pairs,
    common,
    facts_of,
    kernel_names,
    plain,
    row_of,
    show_whole_percent,
    whole_sms,
)
from depgraph.system.arrays import grouped
from depgraph.system.text import show_factor, show_number, size_text

if TYPE_CHECKING:
    from depgraph.analysis.bound import Outcome
    from depgraph.analysis.cusync_policies import Policy
    from depgraph.scenario.scenario import Scenario

_FIXED = (
    "bounds and speedups hold for fixed durations: measured overlap has beaten them by up to 15 % "
    "on an A100 where caches were reused better"
)


def _show_makespan(value: float | None) -> str:
    return "deadlock" if value is None else show_number(value)


def _if_it_ends(name: str) -> Callable[[Outcome], float | None]:
    """Return what takes a number from an outcome, but from a deadlock none."""
    return lambda outcome: None if outcome.deadlock else getattr(outcome, name)


def comparison_report(comparison: Comparison) -> Report:
    """Describe what mechanisms reach: the bounds, a row each, what each assumed."""
    basis = comparison.basis
    unit, dependences = basis.unit, basis.dependences
    mechanisms = _mechanism_table(comparison)
    known = {column.key for column in mechanisms.columns}
    flat = Table.of(
        "mechanisms",
        "",
        [
            *mechanisms.columns,
            *(column for column in _PREDICTED_TIMES if column.key not in known),
            Column("predicted_serial_us", "one after another", "us"),
            Column("lower_bound", "lower bound", unit),
            Column("availability", "availability"),
            Column("launch_speedup", "launches"),
            Column("overlap_speedup", "overlap"),
            Column("dependences", "dependences", get=lambda _: dependences),
            Column("unit", "unit", get=lambda _: unit),
            Column("assumptions", "assumptions", get=lambda o: "; ".join(o.assumptions)),
        ],
        comparison.outcomes,
    )
    return Report(
        "mechanisms",
        facts_of(basis, "unit", "durations", "gpu", "dependences"),
        headline=_answers(comparison),
        brief=_answers(comparison),
        vital=[
            *(note for note in comparison.notes if ": deadlock: " in note),
            *_hypothetical(comparison),
        ],
        tables=[
            _bound_table(comparison),
            *_intra_block_bounds(comparison),
            mechanisms.at_first(len(mechanisms.rows)),
            *prediction_table(comparison),
            *child_kernel_table(comparison),
            *_filter_table(comparison),
            *_speedup_parts(comparison),
        ],
        notes=[
            (
                f"durations: {basis.durations} ({unit}); dependences: {dependences}; slot "
                "utilization: busy counts blocks at work, held also blocks that wait in their "
                "slots; waiting: their time, summed"
            ),
            *comparison.notes, *basis.assumptions, *basis.uncertain, _FIXED,
        ],
        csv_table=flat,
        extra={
            "details": [
                {
                    "sms": plain(whole_sms(o.sms)),
                    **facts_of(o, "mechanism", "availability", "lower_bound"),
                    "deadlock": o.deadlock or None,
                    "assumptions": list(o.assumptions),
                    **facts_of(o, *_PREDICTED, "predicted_serial_us"),
                    "predicted_family": o.family or None,
                }
                for o in comparison.outcomes
            ],
            "left_out": comparison.left_out,
        },
    )  # fmt: skip


def _hypothetical(comparison: Comparison) -> list[str]:
    lacking = {o.mechanism: o.lacking for o in comparison.outcomes if o.lacking}
    reasons = set(lacking.values())
    why = next(iter(reasons)) if len(reasons) == 1 else "--details says what each lacks"
    return [f"Hypothetical: {', '.join(lacking)} ({why})."] if lacking else []


def _bound_table(comparison: Comparison) -> Table:
    unit, launched = comparison.basis.unit, comparison.basis.launches_cost
    with_memory = any(b.memory for b in comparison.limits)
    columns = [
        *common("sms", "serial", unit=unit),
        *[Column.number("launched_serial", "with launches", unit)] * launched,
        *common("critical_path", "work", unit=unit),
        *common("memory", unit=unit) * with_memory,
        *common("lower_bound", "upper_bound", unit=unit),
    ]
    if comparison.basis.has_contention:
        columns.append(Column.factor("contended_upper_bound", "of predictions"))
    return Table.of("bounds", "Bounds", columns, comparison.limits)


def _intra_block_bounds(comparison: Comparison) -> list[Table]:
    """Lay out the bounds of mechanisms whose blocks wait inside, where positions are known."""
    known = [b for b in comparison.limits if b.intra_block_path is not None]
    unit = comparison.basis.unit
    get = {
        "critical_path": attrgetter("intra_block_path"),
        "lower_bound": attrgetter("intra_block_bound"),
        "upper_bound": attrgetter("intra_block_upper_bound"),
    }
    columns = common("sms", *get, unit=unit, **get)
    title = "Intra-block bounds (blocks may wait inside)"
    return Table.if_any("intra_block_bounds", title, columns, known)


def _mechanism_table(comparison: Comparison) -> Table:
    unit = comparison.basis.unit
    columns = [
        *common("sms", "mechanism"),
        Column("makespan", "makespan", unit, _show_makespan, get=_if_it_ends("makespan")),
        *common("speedup", speedup=_if_it_ends("speedup")),
        *_predictions(comparison),
        *_shares(comparison),
        Column.percent("utilization", "busy"),
        Column.percent("held", "held"),
        Column.number("waiting", "waiting", unit, _if_it_ends("waiting")),
    ]
    return Table.of("mechanisms", "Mechanisms", columns, _best_first(comparison))


def _best_first(comparison: Comparison) -> list[Outcome]:
    """Sort rows of each size: what can be used here, what cannot, other scales; by time."""
    sizes = [limits.sms for limits in comparison.limits]

    def rank(outcome: Outcome) -> tuple[int, bool, bool, float]:
        time = outcome.predicted
        if time is None:
            time = math.inf if outcome.deadlock else outcome.makespan
        proposed = outcome.availability == Availability.HARDWARE.value or outcome.lacking != ""
        other_scale = outcome.against in OTHER_SCALES
        return sizes.index(outcome.sms), other_scale, proposed, time

    return sorted(comparison.outcomes, key=rank)


def _shares(comparison: Comparison) -> list[Column]:
    """Return what rows are of the ideal and of the bound of all, what else of, and how much."""
    has_ideal = any(o.share_of_ideal is not None for o in comparison.outcomes)
    return [
        *[Column.percent("share_of_ideal", "of ideal")] * has_ideal,
        Column.percent("share_of_upper_bound", "of bound"),
        *common("against"),
        Column.percent("share_of_bound", "of its own"),
    ]


def _predictions(comparison: Comparison) -> list[Column]:
    """Return what hardware is expected to show: a time, and the factor that it makes."""
    if all(outcome.predicted_us is None for outcome in comparison.outcomes):
        return []
    return [
        Column.number("predicted_us", "predicted", "us"),
        Column.factor("predicted_speedup", "over a chain"),
    ]


def prediction_table(comparison: Comparison) -> list[Table]:
    """Lay out predicted times with their ranges, and how far such predictions were off."""

    def error(name: str, head: str) -> Column:
        return Column.percent(name, head, lambda o: getattr(o.errors, name, None))

    rows = [o for o in _best_first(comparison) if o.predicted_us is not None]
    columns = [
        *common("sms", "mechanism"),
        *_PREDICTED_TIMES,
        Column.number("predicted_serial_us", "one after another", "us"),
        Column.factor("predicted_speedup", "over a chain"),
        Column.text("family", "measured programs like it", _family),
        error("mean", "mean error"),
        error("nine_of_ten", "nine of ten"),
        error("worst", "worst"),
        error("direction", "direction right"),
    ]
    title = "Predicted times, and how far off measured programs of the same family were"
    return Table.if_any("predictions", title, columns, rows)


def _family(outcome: Outcome) -> str:
    if outcome.errors is not None:
        return f"{outcome.errors.programs} {outcome.family}"
    return f"not validated ({outcome.family})" if outcome.family else "not validated"


_PREDICTED = ("predicted_us", "predicted_low_us", "predicted_high_us")
_PREDICTED_TIMES = [
    Column.number(key, head, "us")
    for key, head in zip(_PREDICTED, ("predicted", "from", "to"), strict=True)
]


def ranked_table(comparison: Comparison) -> Table:
    """Build the table of mechanisms on one GPU size, best first."""
    unit, launched = comparison.basis.unit, comparison.basis.launches_cost
    overlap = Column.factor("overlap_speedup", "by overlap", _if_it_ends("overlap_speedup"))
    columns = [
        *common("mechanism", "availability"),
        Column("makespan", "makespan", unit, _show_makespan, get=_if_it_ends("makespan")),
        *common("speedup", speedup=_if_it_ends("speedup")),
        *[overlap] * launched,
        *_predictions(comparison),
        *common("upper_bound"),
        *_shares(comparison),
        Column("utilization", "busy", show=show_whole_percent, get=lambda o: o.utilization or None),
        Column("held", "held", show=show_whole_percent, get=lambda o: o.held or None),
    ]
    size = size_text(comparison.limits[0].sms)
    title = f"Synchronisation mechanisms on {size}, best first"
    return Table.of("mechanisms", title, columns, _best_first(comparison))


def child_kernel_table(comparison: Comparison) -> list[Table]:
    """Lay out what mechanisms make of launches from the device, where there are any."""
    unit = comparison.basis.unit
    columns = [
        *common("sms", "mechanism"),
        Column.number("makespan", "time", unit),
        Column.factor("over_flat", "over flat", lambda o: o.speedup),
        Column.factor("over_cdp", "over cdp", lambda o: o.launching.over_cdp or None),
        Column.number("launches", "launches", get=lambda o: o.launching.made),
        Column.number("possible_launches", "of", get=lambda o: o.launching.possible),
        Column.number("launch_overhead", "launch overhead", unit, lambda o: o.launching.overhead),
        Column.number("queueing", "queueing", unit, lambda o: o.launching.queueing),
        Column.percent("child_share", "work of children", lambda o: o.launching.child_share),
        Column.percent("utilization", "slot utilization"),
    ]
    rows = [o for o in comparison.outcomes if o.launching is not None]
    title = "Child kernels: overhead and queueing are summed over warps and child blocks"
    return Table.if_any("child_kernels", title, columns, rows)


def _filter_table(comparison: Comparison) -> list[Table]:
    def figure(name: str, key: str, head: str) -> Column:
        return Column.number(key, head, get=lambda outcome: outcome.figures.get(name))

    columns = [
        *common("sms", "mechanism", "makespan", unit=comparison.basis.unit),
        figure("bits", "filter_bits", "bits in all"),
        figure("lookups", "lookups", "look-ups"),
        figure("true", "true_waits", "true waits"),
        figure("by_grain", "false_by_grain", "false by grain"),
        figure("by_filter", "false_by_filter", "false by filter"),
        figure("missed", "missed", "missed"),
    ]
    rows = [o for o in comparison.outcomes if "lookups" in o.figures and not o.deadlock]
    title = "Filters over hints: waits of a block for a kernel that was unfinished at its look-up"
    return Table.if_any("filters", title, columns, rows)


def _speedup_parts(comparison: Comparison) -> list[Table]:
    columns = [
        *common("sms", "mechanism", "speedup"),
        Column.factor("launch_speedup", "by launches"),
        Column.factor("overlap_speedup", "by overlap"),
    ]
    ended = [o for o in comparison.outcomes if not o.deadlock]
    parts = Table.of("parts", "Speedups by cause", columns, ended)
    return [parts] if comparison.basis.launches_cost else []


def _answers(comparison: Comparison) -> list[str]:
    sentences = []
    for limits in comparison.limits:
        best = comparison.best(limits.sms)
        without = comparison.best(limits.sms, without_hardware=True)
        if best is None:
            continue
        factors = _factors(best, comparison)
        text = f"{size_text(limits.sms)}: {factors} by {best.mechanism} ({best.availability})"
        if without is not None and without is not best:
            text += f"; without new hardware {_factors(without, comparison)} by {without.mechanism}"
        sentences.append(text)
    return sentences


def _factors(outcome: Outcome, comparison: Comparison) -> str:
    speedup = show_factor(outcome.speedup)
    if not comparison.basis.launches_cost:
        return speedup
    launch, overlap = show_factor(outcome.launch_speedup), show_factor(outcome.overlap_speedup)
    return f"{speedup} (launches {launch} times overlap {overlap})"


def mechanisms_report(mechanisms: Iterable[type[Mechanism]]) -> Report:
    """Describe mechanisms by what it takes to use them today: rule, cost, source."""
    kinds = by_availability(mechanisms)
    columns = [
        Column.text("name", "name", lambda k: k.signature or k.name),
        Column.text("rule", "rule"),
        Column.text("cost", "cost"),
        *common("availability", availability=lambda k: k.availability.value),
        Column.text("needs", "needs", lambda k: k.needs()),
        Column.text("source", "source"),
    ]
    cost_columns = [
        Column("default", "default", show=lambda v: f"{v:g}"),
        Column.text("unit", "unit"),
        *common("meaning"),
        Column.text("source", "source"),
    ]
    costs = Table(
        "costs",
        "Costs (--cost NAME=VALUE)",
        [Column.text("name", "name"), *cost_columns],
        [(f"{k.name}.{c.name}", *row_of(cost_columns, c)) for k in kinds for c in k.costs],
    )
    return Report(
        "mechanism_list", {}, tables=[Table.of("mechanisms", "Mechanisms", columns, kinds), costs]
    )


def mechanisms_text(mechanisms: Iterable[type[Mechanism]]) -> str:
    """Describe mechanisms for a terminal, by what it takes to use them, with costs."""
    lines: list[str] = []
    heading = ""
    for kind in by_availability(mechanisms):
        if kind.availability.heading != heading:
            heading = kind.availability.heading
            lines += [heading, "=" * len(heading), ""]
        head = f"{kind.signature or kind.name}: {kind.rule}"
        lines += textwrap.wrap(head, 98, subsequent_indent="    ")
        needs = f"; needs {kind.needs()}" if kind.needs() else ""
        tail = f"{kind.availability.value}{needs}; cost: {kind.cost}; {kind.source}"
        lines += textwrap.wrap(tail, 98, initial_indent="    ", subsequent_indent="    ")
        for cost in kind.costs:
            text = f"{kind.name}.{cost.name} = {_amount(cost.default, cost.unit)}: {cost.meaning}"
            lines += textwrap.wrap(
                f"{text} ({cost.source})", 98, initial_indent="      --cost ",
                subsequent_indent="        ",
            )  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def mechanism_names(mechanisms: Iterable[type[Mechanism]]) -> str:
    """Name the mechanisms, below what it takes to use them today."""
    lines = []
    groups = grouped(by_availability(mechanisms), lambda kind: kind.availability.heading)
    for heading, kinds in groups.items():
        lines.append(heading)
        lines += textwrap.wrap(
            ", ".join(kind.name for kind in kinds), 78, initial_indent="  ",
            subsequent_indent="  ", break_on_hyphens=False,
        )  # fmt: skip
    lines += ["", "depgraph bound --mechanism all compares them on your program."]
    return "\n".join([*lines, "--details gives the rule, the costs and the sources of each.", ""])


def by_availability(mechanisms: Iterable[type[Mechanism]]) -> list[type[Mechanism]]:
    """Sort mechanisms by what it takes to use them today, else as they come."""
    order = list(Availability)
    return sorted(mechanisms, key=lambda kind: order.index(kind.availability))


def _amount(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:g} %"
    if unit == "launches":
        return f"{value:g} launches"
    return f"{value:g}" if unit == "count" else f"{value:g}{unit}"


def _speedups(key: str, title: str, of: str, *, with_prediction: bool) -> list[Column]:
    """Return the columns of an outcome that a policy has; without one it is serial."""

    def get(name: str) -> Callable[[Policy], float | None]:
        def value(policy: Policy) -> float | None:
            outcome = getattr(policy, of)
            return 1.0 if outcome is None else getattr(outcome, name)

        return value

    columns = [Column.factor(f"{key}speedup", title, get("speedup"))]
    if with_prediction:
        shown = get("predicted_speedup")
        columns.append(Column.factor(f"{key}predicted_speedup", "predicted", shown))
    return columns


def policies_report(policies: Iterable[Policy], scenario: Scenario) -> Report:
    """Build the table of cuSync policies, a pair of kernels each."""
    sms, is_timed = int(scenario.sms), scenario.is_timed
    name = kernel_names(scenario.kernels, scenario.graph.copies)
    columns = [
        *columns_of_pairs(name),
        Column.text("policy", "policy"),
        Column.number("semaphores", "semaphores"),
        Column.number("waits", "waits"),
        *_speedups("", "speedup", "reached", with_prediction=is_timed),
        *_speedups("tile_", "by tile", "by_tile", with_prediction=is_timed),
    ]
    pairs = Table.of("pairs", "Cheapest correct cuSync policy of each pair", columns, policies)
    return Report(
        "cusync",
        {"sms": sms, "unit": scenario.unit, "n_pairs": len(pairs.rows)},
        tables=[pairs],
        notes=[
            (
                f"speedup: of these two kernels alone over serialized launches, on {sms} SMs "
                "(--sms), as bound --mechanism works it out, the cost of synchronising included"
            ),
            "row: blocks with equal y and z; policy none: some block needs blocks of several rows",
            "tile, where a convolution waits: conv2d(R,S), one wait in R * S steps",
            (
                "by tile: one wait for each block, at the step that needs it; at even steps of a "
                "row where the store has no positions"
            ),
        ],
    )
