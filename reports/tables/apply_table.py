"""What came of running a program with only its real edges: predicted beside measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import Column, Report, Table, show_factor, show_number
from depgraph.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.apply.applied import Applied, Tried
    from depgraph.apply.plan import EdgeReason


def _time(value: float | None) -> str:
    return "" if value is None else show_number(value)


def apply_report(found: Sequence[Applied]) -> Report:
    """Show what came of each function, every graph that was tried, what keeps kernels in order."""
    rows = [(each, tried) for each in found for tried in each.tried]
    reasons = [(each, reason) for each in found for reason in each.edges]
    has_range = any(tried.predicted_low is not None for _, tried in rows)
    columns = [*_GRAPHS, *_RANGE] if has_range else _GRAPHS
    tables = [Table.of("graphs", "Graphs that were tried", columns, rows)]
    if reasons:
        tables.append(Table.of("edges", "What keeps kernels in order", _REASONS, reasons))
    return Report(
        "apply",
        {"programs": [each.row() for each in found]},
        headline=[_headline(each) for each in found],
        tables=tables,
        notes=[note for each in found for note in _notes(each)],
        vital=[note for each in found for note in (*_refusals(each), *_slowest(each))],
    )


def _headline(found: Applied) -> str:
    if found.is_plain:
        return f"{found.name}: {show_number(found.call_us)} us a call: nothing to gain"
    calls = f"{show_number(found.call_us)} us a call instead of {show_number(found.plain_call_us)}"
    expected = found.predicted_speedup
    beside = "" if expected is None else f", predicted {show_factor(expected)}"
    return f"{found.name}: {calls} us: {show_factor(found.speedup)}{beside}"


def _refusals(found: Applied) -> list[str]:
    """Say what was noted on the way, and why graphs are not used."""
    refused = [each for each in found.tried if each.refused]
    return [
        *(f"{found.name}: {note}" for note in found.notes),
        *(f"{found.name}: the graph {each.name!r} is not used: {each.refused}" for each in refused),
    ]


def _slowest(found: Applied) -> list[str]:
    """Say what keeps most kernels in order."""
    if not found.edges or found.edges[0].costs_us <= 0:
        return []
    most = found.edges[0]
    costs = f"about {show_number(most.costs_us)} us"
    return [f"{found.name}: most of what keeps kernels in order: {most.reason}, {costs}"]


def _notes(found: Applied) -> list[str]:
    name = found.name
    said = _refusals(found)
    if found.inputs:
        how = ", in which it varies from run to run" if found.varies else ""
        said.append(
            f"{name}: compared with the function on {counted(found.inputs, 'input')}{how}, in "
            f"{counted(found.after.orders, 'order')} of its kernels"
        )
    said += [
        f"{name}: {counted(number, 'node')} in place ({reason})"
        for reason, number in (found.fixed or {}).items()
    ]
    return said


def _of(name: str) -> Any:
    def value(pair: tuple[Applied, Any]) -> Any:
        return getattr(pair[1], name)

    return value


def _verdict(pair: tuple[Applied, Tried]) -> str:
    found, tried = pair
    if tried.name == found.chosen:
        return "used"
    return "refused" if tried.refused else ""


def _examples(reason: EdgeReason) -> str:
    return "; ".join(f"{source} before {target}" for source, target in reason.examples[:1])


_PROGRAM = Column("program", "program", is_text=True, get=lambda pair: pair[0].name)
_GRAPHS = [
    _PROGRAM,
    Column("graph", "graph", is_text=True, wraps=True, get=_of("name")),
    Column("edges", "edges", get=_of("edges")),
    Column("predicted_us", "predicted", "us", _time, get=_of("predicted")),
    Column("measured", "replay", "us", _time, get=_of("measured")),
    Column("orders", "orders", get=_of("orders")),
    Column("verdict", "", is_text=True, get=_verdict),
]
_RANGE = [
    Column("predicted_low_us", "predicted from", "us", _time, get=_of("predicted_low")),
    Column("predicted_high_us", "to", "us", _time, get=_of("predicted_high")),
]
_REASONS = [
    _PROGRAM,
    Column("reason", "what keeps kernels in order", is_text=True, wraps=True, get=_of("reason")),
    Column("edges", "edges", get=_of("edges")),
    Column("costs_us", "costs about", "us", _time, get=_of("costs_us")),
    Column("examples", "such as", is_text=True, get=lambda pair: _examples(pair[1])),
]
