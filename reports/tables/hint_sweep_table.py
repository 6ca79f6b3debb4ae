"""What a kilobyte of filter buys, as tables."""

from depgraph.analysis.hint_sweep import HintSweep
from depgraph.mechanisms.dataflow_hints import DataflowHints
from depgraph.reports.tables.table import Column, Report, Table, common


def hint_sweep_report(sweep: HintSweep) -> Report:
    """Describe a sweep: three sentences, speedups by size, what else there is, all points."""
    columns = [
        *common("program", "sms"),
        Column.text("mechanism", "mechanism"),
        Column.number("kib", "KiB"),
        *common("speedup", "lookups"),
        Column.number("false_waits", "false waits"),
        *common("missed"),
    ]
    points = Table.of("points", "Each program on each number of SMs", columns, sweep.points)
    left_out = [f"{name} left out: {reason}" for name, reason in sweep.left_out.items()]
    return Report(
        "sweep_hints",
        {"worth_it": sweep.worth_it and sweep.worth_it.name, "sentences": sweep.sentences},
        headline=sweep.sentences,
        brief=sweep.sentences,
        tables=[
            *(t.at_first(len(t.rows)) for t in (by_size_table(sweep), knee_table(sweep))),
            points,
        ],
        notes=[
            (
                "speedups over serialized launches, geometric means over numbers of SMs and the "
                "programs that have hints at each grain; dataflow-bloom: two filters for each "
                "block of the program; what others take to find dependences is not known"
            ),
            *left_out,
        ],
        vital=[text for text in left_out if DataflowHints.name in text.partition(" left")[0]],
        csv_table=points,
    )


def by_size_table(sweep: HintSweep) -> Table:
    """Build a row for each size of filter, and a speedup for each grain."""
    sizes = dict.fromkeys(kib for curve in sweep.curves for kib in curve.kib)
    columns = [
        Column("kib", "KiB", show=lambda kib: "no filter" if kib is None else f"{kib:.3g}"),
        *(Column.factor(curve.name, curve.name) for curve in sweep.curves),
    ]
    found = [dict(zip(curve.kib, curve.speedup, strict=True)) for curve in sweep.curves]
    rows = [(kib, *(by_size.get(kib) for by_size in found)) for kib in sizes]
    return Table("by_size", "Speedup by kilobytes of filter, by grain of hints", columns, rows)


def knee_table(sweep: HintSweep) -> Table:
    """Build a row for each grain and each other mechanism."""
    columns = [
        Column.text("name", "dependences by"),
        Column.factor("most", "speedup"),
        Column("knee", "from KiB on", show=lambda kib: "-" if kib is None else f"{kib:.3g}"),
        Column("programs", "programs"),
    ]
    rows = [
        *((f"hints: {c.name}", c.most, c.knee, c.programs) for c in sweep.curves),
        *((c.name, c.most, None, c.programs) for c in sweep.others),
    ]
    return Table("knees", "What hints and other mechanisms reach", columns, rows)
