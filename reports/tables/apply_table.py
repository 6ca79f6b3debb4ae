"""What came of running a program with only its real edges: predicted beside measured."""

from collections.abc import Sequence
from typing import Any

from depgraph.apply.applied import Applied, Tried
from depgraph.apply.plan import EdgeReason
from depgraph.reports.tables.table import Column, Report, Table
from depgraph.system.text import counted, show_factor, show_number


def _time(value: float | None) -> str:
    return "" if value is None else show_number(value)


def apply_report(functions: Sequence[Applied]) -> Report:
    """Show what came of each function, every graph that was tried, what keeps kernels in order."""
    rows = [(each, tried) for each in functions for tried in each.tried]
    reasons = [(each, reason) for each in functions for reason in each.edges]
    has_range = any(tried.predicted_low is not None for _, tried in rows)
    columns = [*_GRAPHS, *_RANGE] if has_range else _GRAPHS
    tables = [Table.of("graphs", "Graphs that were tried", columns, rows)]
    if reasons:
        tables.append(Table.of("edges", "What keeps kernels in order", _REASONS, reasons))
    return Report(
        "apply",
        {"programs": [each.row() for each in functions]},
        headline=[_headline(each) for each in functions],
        tables=tables,
        notes=[note for each in functions for note in _notes(each)],
        vital=[note for each in functions for note in (*_refusals(each), *_slowest(each))],
    )


def _headline(applied: Applied) -> str:
    if applied.is_plain:
        return f"{applied.name}: {show_number(applied.call_us)} us a call: nothing to gain"
    calls = (
        f"{show_number(applied.call_us)} us a call instead of {show_number(applied.plain_call_us)}"
    )
    expected = applied.predicted_speedup
    beside = "" if expected is None else f", predicted {show_factor(expected)}"
    return f"{applied.name}: {calls} us: {show_factor(applied.speedup)}{beside}"


def _refusals(applied: Applied) -> list[str]:
    refused = {each.name: each.refused for each in applied.tried if each.refused}
    return [
        *(f"{applied.name}: {note}" for note in applied.notes),
        *(
            f"{applied.name}: the graph {name!r} is not used: {why}"
            for name, why in refused.items()
        ),
    ]


def _slowest(applied: Applied) -> list[str]:
    if not applied.edges or applied.edges[0].costs_us <= 0:
        return []
    most = applied.edges[0]
    costs = f"about {show_number(most.costs_us)} us"
    return [f"{applied.name}: most of what keeps kernels in order: {most.reason}, {costs}"]


def _notes(applied: Applied) -> list[str]:
    name = applied.name
    notes = _refusals(applied)
    if applied.inputs:
        how = ", in which it varies from run to run" if applied.varies else ""
        notes.append(
            f"{name}: compared with the function on {counted(applied.inputs, 'input')}{how}, in "
            f"{counted(applied.after.orders, 'order')} of its kernels"
        )
    notes += [
        f"{name}: {counted(number, 'node')} in place ({reason})"
        for reason, number in (applied.fixed or {}).items()
    ]
    return notes


def _of(name: str) -> Any:
    """Return what takes an attribute of what belongs to a function: a graph, or a reason."""
    return lambda pair: getattr(pair[1], name)


def _verdict(pair: tuple[Applied, Tried]) -> str:
    found, tried = pair
    if tried.name == found.chosen:
        return "used"
    return "refused" if tried.refused else ""


def _first_example(reason: EdgeReason) -> str:
    return "; ".join(f"{source} before {target}" for source, target in reason.examples[:1])


_PROGRAM = Column.text("program", "program", lambda pair: pair[0].name)
_GRAPHS = [
    _PROGRAM,
    Column.text("graph", "graph", _of("name"), wraps=True),
    Column("edges", "edges", get=_of("edges")),
    Column("predicted_us", "predicted", "us", _time, get=_of("predicted")),
    Column("measured", "replay", "us", _time, get=_of("measured")),
    Column("orders", "orders", get=_of("orders")),
    Column.text("verdict", "", _verdict),
]
_RANGE = [
    Column("predicted_low_us", "predicted from", "us", _time, get=_of("predicted_low")),
    Column("predicted_high_us", "to", "us", _time, get=_of("predicted_high")),
]
_REASONS = [
    _PROGRAM,
    Column.text("reason", "what keeps kernels in order", _of("reason"), wraps=True),
    Column("edges", "edges", get=_of("edges")),
    Column("costs_us", "costs about", "us", _time, get=_of("costs_us")),
    Column.text("examples", "such as", lambda pair: _first_example(pair[1])),
]
