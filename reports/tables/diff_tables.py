"""What changed between two stores, as sentences and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    kernel_name,
    show_factor,
    show_number,
    show_percent,
)
from depgraph.system.text import counted, size_text

if TYPE_CHECKING:
    from depgraph.analysis.compare_stores import StoreDiff

_MEANING = {
    "upper_bound": "upper bound on the speedup",
    "speedup": "speedup reached",
    "utilization": "slot utilization of serial",
    "untraced": "share of kernels with untraced accesses",
    "edges": "edges between blocks",
    "serial": "serial time",
    "launched_serial": "serial time with launches",
    "critical_path": "critical path",
}


def diff_report(diff: StoreDiff, *, sms: int, unit: str, top: int | None = None) -> Report:
    """Describe what changed.

    Parameters
    ----------
    diff : StoreDiff
    sms : int
    unit : str
        Of the times.
    top : int, optional
        Rows of each table at most; default all.
    """
    changed = [k for k in diff.kernels if k.change != "same"]
    counts = {
        "kernels_same": len(diff.kernels) - len(changed),
        "kernels_changed": sum(k.change not in {"added", "removed"} for k in changed),
        "kernels_added": sum(k.change == "added" for k in changed),
        "kernels_removed": sum(k.change == "removed" for k in changed),
        "pairs_changed": len(diff.pairs),
    }
    bound, used = diff.metrics["upper_bound"], diff.metrics["utilization"]
    return Report(
        "compare",
        {"sms": sms, "unit": unit, **counts},
        headline=[
            (
                f"kernels: {counts['kernels_same']} same, {counts['kernels_changed']} changed, "
                f"{counts['kernels_added']} added, {counts['kernels_removed']} removed; "
                f"dependences differ for {counted(counts['pairs_changed'], 'pair')} of kernels"
            ),
            (
                f"on {size_text(sms)} the upper bound on the speedup goes from "
                f"{show_factor(bound[0])} to {show_factor(bound[1])}, slot utilization of serial "
                f"from {show_percent(used[0])} to {show_percent(used[1])}"
            ),
        ],
        tables=[
            _metric_table(diff, unit),
            _kernel_table(diff, unit, top),
            _pair_table(diff, top),
        ],
        notes=diff.notes,
    )


def _metric_table(diff: StoreDiff, unit: str) -> Table:
    def change(values: tuple[float, float]) -> float | None:
        return values[1] / values[0] - 1 if values[0] else None

    times = {"serial", "launched_serial", "critical_path"}
    rows = [
        (
            name,
            _MEANING[name] + (f" ({unit})" if name in times else ""),
            *values,
            change(values),
        )
        for name, values in diff.metrics.items()
    ]
    return Table(
        "metrics",
        "Metrics",
        [
            Column("metric", "metric", is_text=True),
            Column("meaning", "meaning", is_text=True),
            Column("base", "base", show=show_number),
            Column("new", "new", show=show_number),
            Column("change", "change", show=_signed_percent),
        ],
        rows,
    )


def _signed_percent(value: float | None) -> str:
    if value is None:
        return "-"
    return "0 %" if value == 0 else f"{100 * value:+.1f} %"


def _kernel_table(diff: StoreDiff, unit: str, top: int | None) -> Table:
    rows = [
        (k.base, k.new, k.name, k.change, k.base_time, k.new_time)
        for k in diff.kernels
        if k.change != "same" or k.base_time != k.new_time
    ]
    return _topped(
        Table(
            "kernels",
            "Kernels that differ",
            [
                Column("base", "base", show=_or_dash),
                Column("new", "new", show=_or_dash),
                Column("name", "name", is_text=True, show=kernel_name),
                Column("change", "change", is_text=True),
                Column("base_time", "base", unit, show_number),
                Column("new_time", "new", unit, show_number),
            ],
            rows,
        ),
        top,
    )


def _pair_table(diff: StoreDiff, top: int | None) -> Table:
    return _topped(
        Table(
            "pairs",
            "Pairs of kernels whose dependences differ",
            [
                Column("target", "kernel"),
                Column("source", "waits for"),
                Column("side", "numbered in", is_text=True),
                Column("base_pattern", "base", is_text=True, show=_or_dash),
                Column("new_pattern", "new", is_text=True, show=_or_dash),
                Column("base_edges", "base edges", show=show_number),
                Column("new_edges", "new edges", show=show_number),
            ],
            [
                (p.target, p.source, p.side, p.base_pattern, p.new_pattern, p.base_edges,
                 p.new_edges)
                for p in diff.pairs
            ],
        ),
        top,
    )  # fmt: skip


def _topped(table: Table, top: int | None) -> Table:
    from dataclasses import replace

    if top is None or len(table.rows) <= top:
        return table
    return replace(table, rows=table.rows[:top], omitted=len(table.rows) - top)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
