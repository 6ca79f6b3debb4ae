"""What the page's timeline draws: blocks in slots of SMs, packed as typed arrays in base64."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.study import Study
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES
from depgraph.graph.program import DeviceLaunches
from depgraph.mechanisms import Against
from depgraph.reports.tables.table import kernel_name, shorten
from depgraph.schedule.policy import Schedule, running_part, slots_on_sm
from depgraph.system.text import clean_text, show_number
from depgraph.timing.profile import NOWHERE

MOST_BLOCKS = 100_000
MOST_BARS = 600_000
MOST_NUMBERS = 2_000_000
_TICKS = 2**32 - 1
NAME_WIDTH = 40
_FULL_NAME_WIDTH = 400


def timeline_data(study: Study) -> tuple[dict[str, Any], list[str]]:
    """Pack blocks and dependences in 32 bits; say what a browser could not cope with."""
    graph, launches = study.graph, study.launches
    cuts = []
    n_blocks = graph.n_blocks + (0 if launches is None else int(launches.child_grid.sum()))
    shown = min(n_blocks, MOST_BLOCKS)
    if shown < n_blocks:
        cuts.append(
            f"the timeline draws the first {show_number(shown)} of {show_number(n_blocks)} blocks "
            f"in launch order{', those of children last' * (launches is not None)}; "
            "timeline.json.gz has all"
        )
    most = max(2, MOST_BARS // max(1, shown))
    schedules = study.schedules[:most]
    if len(schedules) < len(study.schedules):
        cuts.append(
            f"the timeline has {len(schedules)} of {len(study.schedules)} schedules; "
            "timeline.json.gz has all"
        )
    dependences, note = _packed_graph(graph)
    cuts += note
    times = study.durations
    longest = max((s.makespan for s in schedules), default=0.0) or 1.0
    return {
        "unit": study.unit,
        "longest": longest,
        "sms": study.sms,
        "blocks": shown,
        "operations": [*_operations(study), *_children(study)],
        "opens": _best(study, schedules),
        "schedules": [_packed_schedule(s, launches, shown, longest, times) for s in schedules],
        "graph": dependences,
        "kinds": list(KIND_NAMES),
    }, cuts


def _best(study: Study, schedules: Sequence[Schedule]) -> int:
    """Return which schedule is the shortest of those that the upper bound holds for."""
    outcomes = () if study.comparison is None else study.comparison.outcomes
    others = {o.mechanism for o in outcomes if o.against != Against.BLOCK.value}
    comparable = [i for i, s in enumerate(schedules) if s.name not in others]
    # Of equal ones the first, but rather another than serial, which is listed before all.
    return min(comparable, key=lambda i: (schedules[i].makespan, i == 0), default=0)


def _operations(study: Study) -> list[dict[str, Any]]:
    names = {k.kernel: clean_text(k.name) for k in study.kernels}
    operations = []
    for kernel, first in zip(
        study.graph.kernel.tolist(), study.graph.first_block[:-1].tolist(), strict=True
    ):
        full = names.get(kernel, "")
        name = kernel_name(full) if kernel >= 0 else study.graph.copy_name(kernel)
        operations.append(
            {
                "kernel": kernel,
                "name": shorten(name, NAME_WIDTH),
                "full": shorten(full, _FULL_NAME_WIDTH),
                "place": shorten(_place(study, kernel), _FULL_NAME_WIDTH),
                "first": first,
            }
        )
    return operations


def _place(study: Study, kernel: int) -> str:
    """Say where in the code a kernel was launched, the innermost first."""
    site = study.sites.get(kernel, NOWHERE)
    known = (clean_text(text) for text in (site.op, site.line, site.module, site.range) if text)
    return ", in ".join(known)


def _children(study: Study) -> list[dict[str, Any]]:
    """Return an entry for the children of each kernel that launches any, after all kernels."""
    graph, launches = study.graph, study.launches
    if launches is None:
        return []
    names = {k.kernel: clean_text(k.name) for k in study.kernels}
    parents = graph.operation_of_block[launches.block[launches.child_blocks[0]]]
    found, first = np.unique(parents, return_index=True)
    rows = zip(graph.kernel[found].tolist(), first.tolist(), strict=True)
    return [
        {
            "kernel": len(study.kernels) + i,
            "name": shorten(f"children of {kernel_name(names.get(kernel, ''))}", NAME_WIDTH),
            "full": "",
            "place": f"launched by blocks of kernel {kernel}",
            "first": graph.n_blocks + low,
        }
        for i, (kernel, low) in enumerate(rows)
    ]


def _packed_schedule(
    schedule: Schedule,
    launches: DeviceLaunches | None,
    shown: int,
    longest: float,
    durations: NDArray[np.float64],
) -> dict[str, Any]:
    running = running_part(schedule, durations).unfolded(launches) if schedule.waiting > 0 else None
    schedule = schedule.unfolded(launches)
    scale = _TICKS / longest
    return {
        "name": schedule.name,
        "makespan": schedule.makespan,
        "start": _base64((schedule.start[:shown] * scale).astype("<u4")),
        "run": running and _base64((running.start[:shown] * scale).astype("<u4")),
        "end": _base64((schedule.end[:shown] * scale).astype("<u4")),
        "sm": _base64(schedule.sm[:shown].astype("<i4")),
        "slot": _base64(slots_on_sm(schedule)[:shown].astype("<u2")),
    }


def _packed_graph(graph: BlockGraph) -> tuple[dict[str, str] | None, list[str]]:
    size = len(graph.set_blocks) + len(graph.sources) + len(graph.targets)
    if size > MOST_NUMBERS:
        note = (
            f"dependences between blocks are not on this page ({show_number(size)} numbers); "
            "`depgraph show block K:B` prints those of a block"
        )
        return None, [note]
    return {
        "setSizes": _base64(np.diff(graph.set_offsets).astype("<u4")),
        "setBlocks": _base64(graph.set_blocks.astype("<u4")),
        "kind": _base64(graph.join_kind.astype("<u1")),
        "sourceSizes": _base64(np.diff(graph.source_offsets).astype("<u4")),
        "sources": _base64(graph.sources.astype("<u4")),
        "targetSizes": _base64(np.diff(graph.target_offsets).astype("<u4")),
        "targets": _base64(graph.targets.astype("<u4")),
    }, []


def _base64(array: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
