"""What came of running a program with only its real edges: predicted beside measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    show_bytes,
    show_factor,
    show_number,
)
from depgraph.system.ratios import ratio
from depgraph.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.apply.applied import Applied, Tried


def _time(value: float | None) -> str:
    return "" if value is None else show_number(value)


def _factor(value: float | None) -> str:
    return "" if value is None else show_factor(value)


def apply_report(found: Sequence[Applied]) -> Report:
    """Show every graph that was tried, and what memory of their own brought."""
    rows = [(each, tried) for each in found for tried in each.tried]
    bought = [(each, one) for each in found for one in each.bought]
    return Report(
        "apply",
        {"programs": [each.row() for each in found]},
        headline=[_headline(each) for each in found],
        tables=[
            Table.of("graphs", "Graphs that were tried", _GRAPHS, rows),
            *([Table.of("buffers", "Buffers of their own", _BUFFERS, bought)] if bought else []),
        ],
        notes=[note for each in found for note in _notes(each)],
    )


def _headline(found: Applied) -> str:
    before, after = found.before, found.after
    if after is before:
        time = show_number(before.measured)
        return f"{found.name}: nothing to be gained; it runs as it was captured, in {time} us"
    expected = found.predicted_speedup
    beside = "" if expected is None else f", predicted {show_factor(expected)}"
    return (
        f"{found.name}: {show_number(after.measured)} us instead of "
        f"{show_number(before.measured)} us, {show_factor(found.speedup)} faster{beside}"
    )


def _notes(found: Applied) -> list[str]:
    name = found.name
    said = [f"{name}: {note}" for note in found.notes]
    said += [
        f"{name}: the graph {each.name!r} is not used: {each.refused}"
        for each in found.tried
        if each.refused
    ]
    if found.inputs:
        how = "bit by bit"
        if not found.is_reproducible:
            how = (
                "but for what differs between runs of the graph as it was captured: what it "
                f"returns may differ by {found.tolerance:.3g}"
            )
        said.append(f"{name}: results compared on {counted(found.inputs, 'input')}, {how}")
    if found.kernel_us is not None:
        said.append(
            f"{name}: {counted(found.kernels, 'kernel')} take {show_number(found.kernel_us)} us "
            "one after another, launches left out"
        )
    said += [
        f"{name}: {counted(number, 'node')} in place ({reason})"
        for reason, number in found.fixed.items()
    ]
    return said


def _of(name: str) -> Any:
    def value(pair: tuple[Applied, Any]) -> Any:
        return getattr(pair[1], name)

    return value


def _speedup(pair: tuple[Applied, Tried]) -> float:
    return ratio(pair[0].before.measured, pair[1].measured)


def _verdict(pair: tuple[Applied, Tried]) -> str:
    found, tried = pair
    if tried.name == found.chosen:
        return "used"
    return "refused" if tried.refused else ""


_PROGRAM = Column("program", "program", is_text=True, get=lambda pair: pair[0].name)
_GRAPHS = [
    _PROGRAM,
    Column("graph", "graph", is_text=True, get=_of("name")),
    Column("edges", "edges", get=_of("edges")),
    Column("predicted", "predicted", "us", _time, get=_of("predicted")),
    Column("measured", "measured", "us", _time, get=_of("measured")),
    Column("speedup", "speedup", "", _factor, get=_speedup),
    Column("verdict", "", is_text=True, get=_verdict),
]
_BUFFERS = [
    _PROGRAM,
    Column("address", "address when recorded", is_text=True, get=lambda p: f"{p[1].start:#x}"),
    Column("values", "values apart", get=_of("values")),
    Column("kernels", "nodes that use them", get=lambda pair: len(pair[1].nodes)),
    Column("more_bytes", "more memory", "bytes", show_bytes, get=_of("more_bytes")),
    Column("saved", "brings about", "us", _time, get=_of("saved")),
]
