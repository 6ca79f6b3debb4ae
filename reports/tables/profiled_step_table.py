"""What a profile alone says, as a report."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depgraph.analysis.next_steps import Step
from depgraph.analysis.profiled_step import ProfiledStep, Spent
from depgraph.reports.tables.table import Column, Report, Table, common, show_count
from depgraph.system.text import counted, ratio, show_factor, show_percent, show_time

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


def profiled_step_report(profiled: ProfiledStep, profile: Path) -> Report:
    """Describe a profile; steps name the file that it is in."""
    spent = profiled.spent
    causes = [
        (key, what, value, ratio(value, spent.wall))
        for key, what in _CAUSES
        if (value := getattr(spent, key)) > 0
    ]
    of_causes = [
        Column.text("cause", "cause"),
        Column.text("what", ""),
        Column.number("time_us", "time", "us"),
        *common("share"),
    ]
    where = Table("time", "Where the time goes", of_causes, causes)
    columns = [
        *common("name"),
        Column("launches", "launches", show=show_count),
        *common("time", "share", unit="us"),
        Column.percent("utilization", "of the SMs"),
    ]
    functions = Table.of("functions", "Kernels by time", columns, profiled.functions)
    return Report(
        "profile",
        _facts(profiled),
        headline=_sentences(profiled),
        tables=[where.at_first(len(_CAUSES)), functions.cut(_ROWS).at_first(_ROWS)],
        csv_table=where,
        notes=profiled.notes,
        vital=profiled.vital,
        steps=_steps(profiled, profile),
    )


def _facts(profiled: ProfiledStep) -> dict[str, Any]:
    spent = profiled.spent
    return {
        "now_us": profiled.now,
        "as_graph_us": None if profiled.is_graph else spent.as_graph,
        "least_if_independent_us": spent.independent,
        "is_launch_bound": profiled.launch_bound,
        "is_cuda_graph": profiled.is_graph,
        "step": profiled.step or None,
        "n_steps": profiled.steps,
        "streams": profiled.streams,
        "gpu": profiled.gpu,
        "sms": profiled.sms,
        "wall_is_stated": profiled.stated_wall,
        "spent_us": asdict(spent),
    }


def _sentences(profiled: ProfiledStep) -> list[str]:
    spent = profiled.spent
    which = f" ({profiled.step}, one of {profiled.steps} steps)" if profiled.steps > 1 else ""
    answer = f"{show_time(profiled.now)} now{which}"
    if not profiled.is_graph:
        gain = ratio(profiled.now, spent.as_graph)
        faster = f", {show_factor(gain)} faster" if gain > _WORTH_SAYING else ", no gain"
        if profiled.launch_bound is None:
            faster = ""  # nobody knows that what it waits for would go
        # What the host launched late may not have had to wait for another stream.
        much = "at most" if profiled.streams > 1 and profiled.launch_bound else "predicted"
        answer += f"; {much} {show_time(spent.as_graph)} as a {profiled.graph}{faster}"
    return [
        f"{answer}.",
        _idle(profiled),
        *_streams(profiled),
        *_communication(spent),
        *_least(profiled),
    ]


def _idle(profiled: ProfiledStep) -> str:
    spent = profiled.spent
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
    if profiled.is_graph:
        return f"In {profiled.graph}s {idle}{why}."
    if profiled.launch_bound is None:
        return (
            f"For {_of(spent.idle, spent)} of the time the GPU is idle; why is not in this profile."
        )
    return f"{'Launch-bound' if profiled.launch_bound else 'Not launch-bound'}: {idle}{why}."


def _streams(profiled: ProfiledStep) -> list[str]:
    side_by_side = profiled.spent.side_by_side
    if profiled.streams == 1 and side_by_side < _LITTLE * profiled.now:
        return ["One stream: kernels run one after another."]
    if side_by_side < _LITTLE * profiled.now:
        return [f"{profiled.streams} streams, but kernels run one after another."]
    share = _of(side_by_side, profiled.spent)
    streams = counted(profiled.streams, "stream")
    return [
        f"{streams[0].upper()}{streams[1:]}: several kernels run at once for {share} of the time."
    ]


def _communication(spent: Spent) -> list[str]:
    if spent.communicating <= 0:
        return []
    took = f"{show_time(spent.communicating)}, {_of(spent.communicating, spent)} of the time"
    return [f"Communication that no computation hides: {took}."]


def _least(profiled: ProfiledStep) -> list[str]:
    least = profiled.spent.independent
    reference = profiled.now if profiled.is_graph else profiled.spent.as_graph
    if least is None or reference < least * _WORTH_SAYING:
        return []
    limit = f"At least {show_time(least)}, if no kernel had to wait for another"
    return [f"{limit}; a profile does not show which do."]


def _of(part: float, spent: Spent) -> str:
    return show_percent(ratio(part, spent.wall))


def _steps(profiled: ProfiledStep, profile: Path) -> Sequence[Step]:
    steps, file = [], shlex.quote(str(profile))
    if not profiled.is_graph and profiled.launch_bound:
        steps.append(Step("capture it: torch.cuda.graph, or torch.compile(mode='reduce-overhead')"))
    if profiled.spent.communicating > 0:
        steps.append(Step("see how communication overlaps:", f"depgraph overlap {file}"))
    if profiled.vendor == "AMD":  # nothing records there
        return steps
    steps.append(
        Step(
            "find which kernels depend on which, what running them side by side would bring, and "
            "which buffers stand in the way: record the program on its GPU:",
            "depgraph record -- python PROGRAM",
        )
    )
    steps.append(Step("then bound it with these times:", f"depgraph bound --timing {file}"))
    return steps
