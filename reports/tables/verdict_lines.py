"""The first lines of a report: the verdict, how the program runs today, what to do next."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import show_factor, show_number, show_percent
from depgraph.system.ratios import ratio
from depgraph.system.text import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.answer import Conclusion
    from depgraph.analysis.as_launched import AsLaunched
    from depgraph.analysis.basis import Basis
    from depgraph.analysis.next_steps import Step
    from depgraph.reports.tables.table import Report


def with_verdict(
    report: Report, basis: Basis, found: Conclusion, more: Sequence[Step] = ()
) -> Report:
    """Put the verdict in front of a report, and more to do next behind what it says."""
    verdict = found.verdict
    return replace(
        report,
        facts={
            "verdict": verdict.text,
            "verdict_rules": list(verdict.rules),
            "as_launched": launched_facts(found.launched),
            "predictions": prediction_facts(basis),
            **report.facts,
        },
        headline=[*verdict.sentences, *launched_lines(found), *report.headline],
        steps=[*verdict.steps, *more],
    )


def launched_lines(found: Conclusion) -> list[str]:
    """Say how busy the GPU was when the program was profiled, and what its streams leave."""
    launched = found.launched
    run = launched.run
    lines = []
    if run is not None:
        unit = launched.unit
        share = show_percent(ratio(run.kernel_time, run.wall))
        lines.append(
            f"as profiled: wall time {show_number(run.wall)} {unit}; kernels "
            f"{show_number(run.kernel_time)} {unit} ({share}), no kernel "
            f"running {show_number(run.idle)} {unit} ({show_percent(launched.idle_share)})"
        )
    today = (
        "one stream, serial"
        if launched.streams <= 1
        else f"{counted(launched.streams, 'stream')}, {show_factor(launched.speedup)} over serial"
    )
    if run is not None and run.is_graph:
        today += ", in CUDA graphs"
    lines.append(
        f"as launched: {today}; upper bound on what is left {show_factor(launched.remaining)} on "
        f"{size_text(found.sms)}, launch costs aside"
    )
    return lines


def prediction_facts(basis: Basis) -> dict[str, Any] | None:
    """Return how far predictions can be trusted as plain values; None where there are no times."""
    trust = basis.trust
    if trust is None:
        return None
    return {
        "is_calibrated": trust.constants_of == trust.gpu,
        "constants_of": trust.constants_of,
        "contention": trust.contention,
        "errors": None if trust.errors is None else asdict(trust.errors),
    }


def launched_facts(launched: AsLaunched) -> dict[str, float | int | bool | None]:
    """Return the same as plain values."""
    run = launched.run
    return {
        "streams": launched.streams,
        "makespan": launched.makespan,
        "speedup": launched.speedup,
        "remaining_upper_bound": launched.remaining,
        "wall": None if run is None else run.wall,
        "kernel_time": None if run is None else run.kernel_time,
        "idle": None if run is None else run.idle,
        "is_cuda_graph": None if run is None else run.is_graph,
    }
