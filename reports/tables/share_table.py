"""Two programs on one GPU, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    show_factor,
    show_number,
    sms_column,
)
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.analysis.share import Shared, Sharing, Times


def share_report(sharing: Sharing) -> Report:
    """Describe what two programs side by side take, and how much longer each of them."""
    fixed = _table(sharing, "share", "Fixed durations", sharing.unit, lambda row: row.times)
    rows = [row for row in sharing.rows if row.predicted_us is not None]
    predicted = _table(
        sharing, "predicted_share", "Predicted, with contention and launches", "us",
        lambda row: row.predicted_us, rows,
    )  # fmt: skip
    return Report(
        "share",
        {"programs": list(sharing.names), "unit": sharing.unit},
        headline=_headline(sharing),
        brief=_headline(sharing),
        tables=[table.at_first(len(table.rows)) for table in (fixed, predicted) if table.rows],
        notes=[
            (
                "in turn: all kernels of the first program, then all of the second; takes: time "
                "beside the other program over time alone, launched in the same way (streams, "
                "partition: one kernel after another on all SMs; blocks: dataflow)"
            ),
            *sharing.assumptions,
        ],
        csv_table=fixed,
    )


def _headline(sharing: Sharing) -> list[str]:
    found = []
    for sms in dict.fromkeys(row.sms for row in sharing.rows):
        best = min(
            (row for row in sharing.rows if row.sms == sms),
            key=lambda row: (row.predicted_us or row.times).makespan,
        )
        is_predicted = best.predicted_us is not None
        times = best.predicted_us or best.times
        names = zip(sharing.names, (times.first, times.second), strict=True)
        slower = " and ".join(f"{name} {show_factor(side.slowdown)}" for name, side in names)
        found.append(
            f"{size_text(sms)}: {'predicted ' * is_predicted}{show_factor(times.speedup)} over "
            f"running in turn, by {best.how}; beside the other {slower} as long as alone"
        )
    return found


def _table(
    sharing: Sharing, key: str, title: str, unit: str, times: Callable[[Shared], Any],
    rows: list[Shared] | None = None,
) -> Table:  # fmt: skip
    def of(get: Callable[[Times], float]) -> Callable[[Shared], float]:
        return lambda row: get(times(row))

    first, second = sharing.names
    columns = [
        sms_column(),
        Column("how", "share", is_text=True),
        Column("makespan", "makespan", unit, show_number, get=of(lambda t: t.makespan)),
        Column("in_turn", "in turn", unit, show_number, get=of(lambda t: t.in_turn)),
        Column("speedup", "speedup", show=show_factor, get=of(lambda t: t.speedup)),
        Column("first_slowdown", f"{first} takes", show=show_factor,
               get=of(lambda t: t.first.slowdown)),
        Column("second_slowdown", f"{second} takes", show=show_factor,
               get=of(lambda t: t.second.slowdown)),
        Column("first", f"end of {first}", unit, show_number, get=of(lambda t: t.first.shared)),
        Column("second", f"end of {second}", unit, show_number, get=of(lambda t: t.second.shared)),
    ]  # fmt: skip
    return Table.of(key, title, columns, sharing.rows if rows is None else rows)
