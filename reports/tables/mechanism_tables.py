"""Mechanisms beside each other, and what each of them is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    kernel_name,
    show_factor,
    show_number,
    show_percent,
)
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.analysis.cusync_policies import Policy
    from depgraph.analysis.outcome import Outcome
    from depgraph.graph.program import Kernel
    from depgraph.mechanisms import Mechanism

_FIXED = (
    "bounds and speedups hold for fixed durations: measured overlap has beaten them by up to 15 % "
    "on an A100 where caches were reused better"
)


def _show_share(value: float | None) -> str:
    return "-" if value is None else show_percent(round(value, 6) + 0.0)


def _show_sms(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.0f}"


def _show_limit(value: float | None) -> str:
    return "-" if value is None else show_number(value)


def comparison_report(comparison: Comparison) -> Report:
    """Describe what mechanisms reach: the bounds, a row each, what each assumed."""
    unit = comparison.unit
    with_memory = any(b.memory for b in comparison.limits)
    launched = not comparison.launch.is_off
    limits = Table(
        "bounds",
        "Bounds",
        [
            Column("sms", "SMs", show=_show_sms),
            Column("serial", "serial", unit, show_number),
            *[Column("launched_serial", "with launches", unit, show_number)] * launched,
            Column("critical_path", "critical path", unit, show_number),
            Column("work", "work", unit, show_number),
            *[Column("memory", "memory", unit, show_number)] * with_memory,
            Column("lower_bound", "lower bound", unit, show_number),
            Column("upper_bound", "upper bound", show=_show_speedup),
        ],
        [
            (b.sms, b.serial, *[b.launched_serial] * launched, b.critical_path, b.work,
             *[b.memory] * with_memory, b.lower_bound, b.upper_bound)
            for b in comparison.limits
        ],
    )  # fmt: skip
    columns = [
        Column("sms", "SMs", show=_show_sms),
        Column("mechanism", "mechanism", is_text=True),
        Column("makespan", "makespan", unit, _show_makespan),
        Column("speedup", "speedup", show=_show_speedup),
        Column("share_of_bound", "of bound", show=_show_share),
        Column("utilization", "busy", show=show_percent),
        Column("held", "held", show=show_percent),
        Column("waiting", "waiting", unit, _show_limit),
        Column("against", "compared with", is_text=True),
    ]
    rows = [
        (
            o.sms,
            o.mechanism,
            None if o.deadlock else o.makespan,
            None if o.deadlock else o.speedup,
            o.share_of_bound,
            o.utilization,
            o.held,
            None if o.deadlock else o.waiting,
            o.against,
        )
        for o in comparison.outcomes
    ]
    flat = Table(
        "mechanisms",
        "",
        [
            *columns,
            Column("lower_bound", "lower bound", unit),
            Column("availability", "availability"),
            Column("launch_speedup", "launches"),
            Column("overlap_speedup", "overlap"),
            Column("dependences", "dependences"),
            Column("unit", "unit"),
            Column("assumptions", "assumptions"),
        ],
        [
            (
                *row,
                o.lower_bound,
                o.availability,
                o.launch_speedup,
                o.overlap_speedup,
                comparison.dependences,
                unit,
                "; ".join(o.assumptions),
            )
            for row, o in zip(rows, comparison.outcomes, strict=True)
        ],
    )
    return Report(
        "mechanisms",
        {
            "unit": unit,
            "durations": comparison.durations,
            "gpu": comparison.gpu,
            "dependences": comparison.dependences,
        },
        headline=[
            *_answers(comparison),
            (
                f"durations: {comparison.durations} ({unit}); dependences: "
                f"{comparison.dependences}; slot utilization: busy counts blocks at work, "
                "held also blocks that wait in their slots; waiting: their time, summed"
            ),
        ],
        tables=[
            limits,
            *_intra_block_bounds(comparison),
            Table("mechanisms", "Mechanisms", columns, rows),
            *_speedup_parts(comparison),
        ],
        notes=[*_assumed(comparison), *comparison.assumptions, _FIXED],
        csv_table=flat,
        extra={
            "details": [
                {
                    "sms": "inf" if math.isinf(o.sms) else o.sms,
                    "mechanism": o.mechanism,
                    "availability": o.availability,
                    "lower_bound": o.lower_bound,
                    "deadlock": o.deadlock or None,
                    "assumptions": list(o.assumptions),
                }
                for o in comparison.outcomes
            ],
            "left_out": comparison.left_out,
        },
    )


def _intra_block_bounds(comparison: Comparison) -> list[Table]:
    """Lay out the bounds of mechanisms whose blocks wait inside, where positions are known."""
    known = [b for b in comparison.limits if b.intra_block_path is not None]
    if not known:
        return []
    columns = [
        Column("sms", "SMs", show=_show_sms),
        Column("critical_path", "critical path", comparison.unit, _show_limit),
        Column("lower_bound", "lower bound", comparison.unit, _show_limit),
        Column("upper_bound", "upper bound", show=_show_speedup),
    ]
    rows = [
        (b.sms, b.intra_block_path, b.intra_block_bound, b.intra_block_upper_bound) for b in known
    ]
    title = "Intra-block bounds (blocks may wait inside)"
    return [Table("intra_block_bounds", title, columns, rows)]


def _speedup_parts(comparison: Comparison) -> list[Table]:
    """Split each speedup into its two factors, where launches cost anything."""
    if comparison.launch.is_off:
        return []
    columns = [
        Column("sms", "SMs", show=_show_sms),
        Column("mechanism", "mechanism", is_text=True),
        Column("speedup", "speedup", show=show_factor),
        Column("launch_speedup", "by launches", show=show_factor),
        Column("overlap_speedup", "by overlap", show=show_factor),
    ]
    rows = [
        (o.sms, o.mechanism, o.speedup, o.launch_speedup, o.overlap_speedup)
        for o in comparison.outcomes
        if not o.deadlock
    ]
    return [Table("parts", "Speedups by cause", columns, rows)]


def _show_makespan(value: float | None) -> str:
    return "deadlock" if value is None else show_number(value)


def _show_speedup(value: float | None) -> str:
    return "-" if value is None else show_factor(value)


def _answers(comparison: Comparison) -> list[str]:
    sentences = []
    for limits in comparison.limits:
        real = [
            o
            for o in comparison.outcomes
            if o.sms == limits.sms
            and not o.availability.startswith("a limit")
            and o.against == "block"  # others cut blocks up, or wait inside them
            and not o.deadlock
        ]
        if not real:
            continue
        size = size_text(limits.sms)
        best = max(real, key=lambda o: o.speedup)
        text = f"{size}: {_factors(best, comparison)} by {best.mechanism} ({best.availability})"
        today = [o for o in real if o.availability != "needs hardware"]
        without = max(today, key=lambda o: o.speedup, default=None)
        if without is not None and without is not best:
            text += f"; without new hardware {_factors(without, comparison)} by {without.mechanism}"
        sentences.append(text)
    return sentences


def _factors(outcome: Outcome, comparison: Comparison) -> str:
    """Show a speedup, and its two factors."""
    speedup = show_factor(outcome.speedup)
    if comparison.launch.is_off:
        return speedup
    launch, overlap = show_factor(outcome.launch_speedup), show_factor(outcome.overlap_speedup)
    return f"{speedup} (launches {launch} times overlap {overlap})"


def _assumed(comparison: Comparison) -> list[str]:
    """Return what each mechanism assumed, one line for all that assumed the same."""
    notes: dict[str, list[str]] = {}
    for outcome in comparison.outcomes:
        if outcome.assumptions:
            text = "; ".join(outcome.assumptions)
            names = notes.setdefault(text, [])
            if outcome.mechanism not in names:
                names.append(outcome.mechanism)
    lines = [f"{', '.join(names)}: {text}" for text, names in notes.items()]
    lines += [f"{name} is left out: {reason}" for name, reason in comparison.left_out.items()]
    return lines


def mechanisms_report(mechanisms: Iterable[type[Mechanism]]) -> Report:
    """Describe mechanisms: rule, cost, what it takes to use each, source."""
    kinds = list(mechanisms)
    columns = [
        Column("name", "name", is_text=True),
        Column("rule", "rule", is_text=True),
        Column("cost", "cost", is_text=True),
        Column("availability", "availability", is_text=True),
        Column("source", "source", is_text=True),
    ]
    rows = [(k.signature or k.name, k.rule, k.cost, k.availability.value, k.source) for k in kinds]
    costs: list[tuple[Any, ...]] = [
        (f"{k.name}.{c.name}", c.default, c.unit, c.meaning, c.source)
        for k in kinds
        for c in k.costs
    ]
    cost_table = Table(
        "costs",
        "Costs (--cost NAME=VALUE)",
        [
            Column("name", "name", is_text=True),
            Column("default", "default", show=lambda v: f"{v:g}"),
            Column("unit", "unit", is_text=True),
            Column("meaning", "meaning", is_text=True),
            Column("source", "source", is_text=True),
        ],
        costs,
    )
    return Report(
        "mechanism_list",
        {},
        tables=[Table("mechanisms", "Mechanisms", columns, rows), cost_table],
    )


def mechanisms_text(mechanisms: Iterable[type[Mechanism]]) -> str:
    """Describe mechanisms for a terminal: two lines each, wrapped, and their costs."""
    import textwrap

    lines: list[str] = []
    for kind in mechanisms:
        head = f"{kind.signature or kind.name}: {kind.rule}"
        lines += textwrap.wrap(head, 98, subsequent_indent="    ")
        tail = f"{kind.availability.value}; cost: {kind.cost}; {kind.source}"
        lines += textwrap.wrap(tail, 98, initial_indent="    ", subsequent_indent="    ")
        for cost in kind.costs:
            text = f"{kind.name}.{cost.name} = {_amount(cost.default, cost.unit)}: {cost.meaning}"
            lines += textwrap.wrap(
                f"{text} ({cost.source})", 98, initial_indent="      --cost ",
                subsequent_indent="        ",
            )  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def _amount(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:g} %"
    if unit == "launches":
        return f"{value:g} launches"
    return f"{value:g}" if unit == "count" else f"{value:g}{unit}"


def policies_report(
    policies: Iterable[Policy], kernels: Sequence[Kernel], *, sms: int, unit: str
) -> Report:
    """Build the table of cuSync policies, a pair of kernels each."""
    names = {k.kernel: kernel_name(k.name) for k in kernels}
    columns = [
        Column("target", "kernel"),
        Column("target_name", "name", is_text=True),
        Column("source", "waits for"),
        Column("source_name", "name", is_text=True),
        Column("policy", "policy", is_text=True),
        Column("semaphores", "semaphores", show=show_number),
        Column("waits", "waits", show=show_number),
        Column("speedup", "speedup", show=show_factor),
        Column("tile_speedup", "by tile", show=show_factor),
    ]
    rows = [
        (p.target, names[p.target], p.source, names[p.source], p.policy, p.semaphores, p.waits,
         p.speedup, p.tile_speedup)
        for p in policies
    ]  # fmt: skip
    return Report(
        "cusync",
        {"sms": sms, "unit": unit, "n_pairs": len(rows)},
        tables=[Table("pairs", "Cheapest correct cuSync policy of each pair", columns, rows)],
        notes=[
            (
                f"speedup: of these two kernels over serialized launches, on {sms} SMs (--sms), "
                "without the cost of synchronising (published: 2 to 3 % of the kernel that waits)"
            ),
            "row: blocks with equal y and z; policy none: some block needs blocks of several rows",
            "tile, where a convolution waits: conv2d(R,S), one wait in R * S steps",
            "by tile: one wait for each block of the row, at even steps",
        ],
    )
