"""An answer as a report: the verdict, how the program runs today, what to do next, the tables."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from depgraph.analysis.answer import Answer, Conclusion
from depgraph.analysis.bound import Basis, BoundTable
from depgraph.analysis.compare_mechanisms import Comparison
from depgraph.analysis.findings import AsLaunched
from depgraph.analysis.next_steps import PROFILER_SLOWS, Step
from depgraph.analysis.run_times import Times
from depgraph.mechanisms.predicted_time import PredictedTime
from depgraph.reports.tables.bound_table import bound_report
from depgraph.reports.tables.mechanism_tables import comparison_report
from depgraph.reports.tables.table import Report
from depgraph.system.text import (
    TIMES,
    counted,
    ratio,
    show_factor,
    show_number,
    show_percent,
    show_time,
    size_text,
)

_WORTH_SAYING = 1.005
_OF_A_PREDICTION = ("us", "low_us", "high_us", "family")
_NAME_STREAMS = {"already-overlapped", "ships-today"}  # rules that say what streams reach


def with_verdict(
    report: Report, basis: Basis, conclusion: Conclusion, more: Sequence[Step] = ()
) -> Report:
    """Put the times and the verdict in front of a report, and more to do next behind both."""
    verdict = conclusion.verdict
    return replace(
        report,
        facts={
            "times": None if conclusion.times is None else times_facts(conclusion.times),
            "verdict": verdict.text,
            "verdict_rules": list(verdict.rules),
            "as_launched": launched_facts(conclusion.launched),
            "trust": prediction_facts(basis),
            **report.facts,
        },
        headline=[
            first_line(conclusion),
            *verdict.sentences,
            *launched_lines(conclusion),
            *report.headline,
        ],
        brief=[first_line(conclusion), *_verdict_in_short(conclusion, report), *report.brief],
        notes=[*profiled_lines(conclusion.launched), *report.notes],
        steps=[*verdict.steps, *more],
        vital=[
            *report.vital,
            *[PROFILER_SLOWS] * conclusion.launched.is_doubtful,
            *_assumed(basis, conclusion.launched),
            *basis.uncertain,
        ],
    )


def _verdict_in_short(conclusion: Conclusion, report: Report) -> Sequence[str]:
    """Return what the first screen says of the verdict: nothing where a table was asked for."""
    if any(table.first for table in report.tables):
        return ()
    verdict = conclusion.verdict
    if conclusion.launched.streams == 1 or _NAME_STREAMS & {*verdict.rules}:
        return verdict.sentences
    return *verdict.sentences, *launched_lines(conclusion)


def first_line(conclusion: Conclusion) -> str:
    """Say the answer in times; in ratios where durations are no times."""
    times = conclusion.times
    if times is None:
        bound, renamed = conclusion.bound, conclusion.renamed.upper_bound
        text = (
            f"Upper bound {show_factor(bound.upper_bound)} on {size_text(conclusion.sms)} "
            f"({bound.limited_by})"
        )
        if bound.schedules:
            text += f", {show_factor(bound.reached.speedup)} reached"
        if renamed > bound.upper_bound * _WORTH_SAYING:
            text += f"; {show_factor(renamed)} with every buffer separate"
        return f"{text}."
    elsewhere = "" if times.now_sms is None else f" on {size_text(times.now_sms)}"
    parts = [] if times.now_us is None else [f"{show_time(times.now_us)} now{elsewhere}"]
    here = "" if times.now_sms is None else f"on {size_text(conclusion.sms)} "
    parts.append(f"{here}{_predicted(times.as_graph)} as a {times.graph}")
    if times.changed is not None:
        parts.append(f"{_predicted(times.changed)} {times.change}")
    if times.speedup is not None:
        parts[-1] += f", {show_factor(times.speedup)} faster"
    parts.append(f"at least {show_time(times.least_us)}")
    return f"{'; '.join(parts)}."


def _predicted(time: PredictedTime) -> str:
    if time.low_us is None or time.high_us is None:
        return f"{show_time(time.us)} (not validated)"
    low, high = show_time(time.low_us), show_time(time.high_us)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{show_time(time.us)} ({low} to {high})"


def times_facts(times: Times) -> dict[str, Any]:
    """Return the times as plain values; ranges hold nine of ten measured times."""
    return {
        "now_us": times.now_us,
        "now_sms": times.now_sms,
        **{f"as_graph_{name}": getattr(times.as_graph, name) for name in _OF_A_PREDICTION},
        "change": times.change or None,
        **{f"changed_{name}": getattr(times.changed, name, None) for name in _OF_A_PREDICTION},
        "least_us": times.least_us,
        "speedup": times.speedup,
    }


def _assumed(basis: Basis, launched: AsLaunched) -> list[str]:
    """Say what the user has not said and what changes the answer."""
    lines = []
    if launched.run is not None and launched.run.others:
        lacking = counted(launched.run.others, "kernel")
        lines.append(f"The wall time includes {lacking} that the trace lacks; predictions do not.")
    if basis.unit not in TIMES:
        lines.append(
            f"Durations are {basis.unit}, so only ratios count: --timing FILE gives times."
        )
    if basis.gpu_is_assumed:
        lines.append(f"No GPU is named: the limits of {basis.gpu} are assumed (--gpu).")
    if basis.has_collectives:
        lines.append(
            "Graphs are predicted as if links had no limit: the rows c3 of bound --mechanism all "
            "count them."
        )
    return lines


def profiled_lines(launched: AsLaunched) -> list[str]:
    """Say how busy the GPU was when the program was profiled."""
    run = launched.run
    if run is None:
        return []
    unit = launched.unit
    share = show_percent(ratio(run.kernel_time, run.wall))
    idle = f"{show_number(run.idle)} {unit} ({show_percent(launched.idle_share)})"
    when = "without a profiler" if run.is_stated else "as profiled"
    return [
        (
            f"{when}: wall time {show_number(run.wall)} {unit}; kernels "
            f"{show_number(run.kernel_time)} {unit} ({share}), no kernel running {idle}"
        )
    ]


def launched_lines(conclusion: Conclusion) -> list[str]:
    """Say what the program's streams reach, and what they leave."""
    launched = conclusion.launched
    if launched.streams <= 1 and launched.run is None:
        return []
    today = (
        "One stream"
        if launched.streams <= 1
        else f"{counted(launched.streams, 'stream')}, {show_factor(launched.speedup)} over one "
        "after another"
    )
    if launched.run is not None and launched.run.is_graph:
        today += ", in CUDA graphs"
    return [f"{today}. {_left(conclusion)}"]


def _left(conclusion: Conclusion) -> str:
    remaining = conclusion.launched.remaining
    if remaining >= _WORTH_SAYING:
        return f"At most {show_factor(remaining)} more, ignoring launches."
    while_reused = " while these buffers are reused" if conclusion.verdict.names_buffers else ""
    return f"Nothing more to gain from overlap{while_reused}."


def prediction_facts(basis: Basis) -> dict[str, Any] | None:
    """Return how far predictions can be trusted as plain values; None where there are no times."""
    trust = basis.trust
    if trust is None:
        return None
    return {
        "is_calibrated": trust.constants_of == trust.gpu,
        "constants_of": trust.constants_of,
        "contention": trust.contention,
        "errors": [errors._asdict() for errors in trust.errors],
    }


def launched_facts(launched: AsLaunched) -> dict[str, float | int | bool | None]:
    """Return the same as plain values."""
    run = launched.run
    return {
        "streams": launched.streams,
        "makespan": launched.makespan,
        "speedup": launched.speedup,
        "remaining_upper_bound": launched.remaining,
        **{name: getattr(run, name, None) for name in ("wall", "kernel_time", "idle")},
        "is_cuda_graph": None if run is None else run.is_graph,
        "wall_is_stated": run is not None and run.is_stated,
    }


def answer_report(
    answer: Answer[BoundTable] | Answer[Comparison], more: Sequence[Step] = ()
) -> Report:
    """Describe an answer; `more` is to be done next behind what the verdict says."""
    table = answer.table
    if isinstance(table, BoundTable):
        return with_verdict(bound_report(table), table.basis, answer.conclusion, more)

    report = with_verdict(comparison_report(table), table.basis, answer.conclusion, more)
    # Who looks at mechanisms need not be told to.
    return replace(report, steps=[s for s in report.steps if "--mechanism" not in s.command])
