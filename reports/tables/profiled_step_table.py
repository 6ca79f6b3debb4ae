"""What a profile alone says, as a report."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from depgraph.analysis.next_steps import Step
from depgraph.analysis.profiled_step import graph_name
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    kernel_name,
    show_count,
    show_factor,
    show_number,
    show_percent,
)
from depgraph.system.ratios import ratio
from depgraph.system.text import counted, show_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from depgraph.analysis.profiled_step import ProfiledStep
    from depgraph.analysis.step_times import Spent

_CAUSES = (
    ("computing", "kernels compute"),
    ("communicating", "collectives or peer copies, nothing computes"),
    ("copying", "copies or memsets alone"),
    ("host", "idle: the host has not launched yet"),
    ("launching", "idle: launched, not started yet"),
    ("waiting", "idle: waits for another stream"),
    ("unexplained", "idle: no launch call in the profile"),
)
_WORTH_SAYING = 1.02  # a factor below it is nothing
_LITTLE = 0.005  # of the time: not worth a word
_ROWS = 6


def profiled_step_report(found: ProfiledStep, profile: Path, rows: int | None = _ROWS) -> Report:
    """Describe a profile, with so many functions at most; steps name the file that it is in."""
    spent = found.spent
    causes = [
        (key, what, value, ratio(value, spent.wall))
        for key, what in _CAUSES
        if (value := getattr(spent, key)) > 0
    ]
    where = Table(
        "time",
        "Where the time goes",
        [
            Column("cause", "cause", is_text=True),
            Column("what", "", is_text=True),
            Column("time_us", "time", "us", show_number),
            Column("share", "share", show=show_percent),
        ],
        causes,
    )
    functions = Table.of(
        "functions",
        "Kernels by time",
        [
            Column("name", "name", is_text=True, show=kernel_name),
            Column("launches", "launches", show=show_count),
            Column("time", "time", "us", show_number),
            Column("share", "share", show=show_percent),
            Column(
                "utilization", "of the SMs", show=lambda v: "-" if v is None else show_percent(v)
            ),
        ],
        found.functions,
    )
    return Report(
        "profile",
        _facts(found),
        headline=_sentences(found),
        tables=[where.at_first(len(_CAUSES)), functions.cut(rows).at_first(_ROWS)],
        csv_table=where,
        notes=found.notes,
        vital=found.vital,
        steps=_steps(found, profile),
    )


def _facts(found: ProfiledStep) -> dict[str, Any]:
    spent = found.spent
    return {
        "now_us": found.now,
        "as_graph_us": None if found.is_graph else spent.as_graph,
        "least_if_independent_us": spent.independent,
        "is_launch_bound": found.launch_bound,
        "is_cuda_graph": found.is_graph,
        "step": found.step or None,
        "n_steps": found.steps,
        "streams": found.streams,
        "gpu": found.gpu,
        "sms": found.sms,
        "wall_is_stated": found.stated_wall,
        "spent_us": asdict(spent),
    }


def _sentences(found: ProfiledStep) -> list[str]:
    spent = found.spent
    which = f" ({found.step}, one of {found.steps} steps)" if found.steps > 1 else ""
    answer = f"{show_time(found.now)} now{which}"
    if not found.is_graph:
        gain = ratio(found.now, spent.as_graph)
        faster = f", {show_factor(gain)} faster" if gain > _WORTH_SAYING else ", no gain"
        if found.launch_bound is None:
            faster = ""  # nobody knows that what it waits for would go
        # What the host launched late may not have had to wait for another stream.
        much = "at most" if found.streams > 1 and found.launch_bound else "predicted"
        answer += f"; {much} {show_time(spent.as_graph)} as a {graph_name(found.vendor)}{faster}"
    return [f"{answer}.", _idle(found), *_streams(found), *_communication(spent), *_least(found)]


def _idle(found: ProfiledStep) -> str:
    spent = found.spent
    if spent.idle <= 0:
        return "The GPU is never idle."
    parts = {
        "waiting for the host": spent.host,
        "waiting for launches to start": spent.launching,
        "for another stream": spent.waiting,
        "for reasons that the profile does not show": spent.unexplained,
    }
    shown = {what: value for what, value in parts.items() if value > _LITTLE * spent.wall}
    causes = [f"{_of(value, spent)} {what}" for what, value in shown.items()]
    idle = f"the GPU is idle for {_of(spent.idle, spent)} of the time"
    why = f": {', '.join(causes)}" if causes else ""
    if found.is_graph:
        return f"In {graph_name(found.vendor)}s {idle}{why}."
    if found.launch_bound is None:
        return (
            f"For {_of(spent.idle, spent)} of the time the GPU is idle; why is not in this profile."
        )
    return f"{'Launch-bound' if found.launch_bound else 'Not launch-bound'}: {idle}{why}."


def _streams(found: ProfiledStep) -> list[str]:
    side_by_side = found.spent.side_by_side
    if found.streams == 1 and side_by_side < _LITTLE * found.now:
        return ["One stream: kernels run one after another."]
    if side_by_side < _LITTLE * found.now:
        return [f"{found.streams} streams, but kernels run one after another."]
    share = _of(side_by_side, found.spent)
    streams = counted(found.streams, "stream")
    return [
        f"{streams[0].upper()}{streams[1:]}: several kernels run at once for {share} of the time."
    ]


def _communication(spent: Spent) -> list[str]:
    if spent.communicating <= 0:
        return []
    took = f"{show_time(spent.communicating)}, {_of(spent.communicating, spent)} of the time"
    return [f"Communication that no computation hides: {took}."]


def _least(found: ProfiledStep) -> list[str]:
    least = found.spent.independent
    reference = found.now if found.is_graph else found.spent.as_graph
    if least is None or reference < least * _WORTH_SAYING:
        return []
    limit = f"At least {show_time(least)}, if no kernel had to wait for another"
    return [f"{limit}; a profile does not show which do."]


def _of(part: float, spent: Spent) -> str:
    return show_percent(ratio(part, spent.wall))


def _command(*words: str) -> str:
    return shlex.join(["depgraph", *words])


def _steps(found: ProfiledStep, profile: Path) -> Sequence[Step]:
    steps = []
    if not found.is_graph and found.launch_bound:
        steps.append(Step("capture it: torch.cuda.graph, or torch.compile(mode='reduce-overhead')"))
    if found.spent.communicating > 0:
        steps.append(Step("see how communication overlaps:", _command("overlap", str(profile))))
    if found.vendor == "AMD":  # nothing records there
        return steps
    steps.append(
        Step(
            "find which kernels depend on which, what running them side by side would bring, and "
            "which buffers stand in the way: record the program on its GPU:",
            "depgraph record -- python PROGRAM",
        )
    )
    steps.append(
        Step("then bound it with these times:", _command("bound", "--timing", str(profile)))
    )
    return steps
