"""Kernels and pairs put together by function, operator, module, line or range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.timing.launch_sites import NOWHERE, SITE_COLUMNS
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.graph.pairs import PairSummary
    from depgraph.scenario.scenario import Scenario

NAME = "name"
GROUPINGS = (NAME, *SITE_COLUMNS)
UNKNOWN_GROUP = "unknown"


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels of one function, operator, module, line or range."""

    group: str
    kernels: int
    blocks: int
    time: float | None  # measured times of the kernels, added up; None without a profile
    accesses: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class PairGroup:
    """Dependences of the kernels of one group on those of another."""

    source: str
    target: str
    pairs: int  # pairs of kernels
    # edges, raw, war, waw, reuse: added up over the pairs
    edges: int
    raw: int
    war: int
    waw: int
    reuse: int


def group_names(scenario: Scenario, by: str) -> dict[int, str]:
    """Return the group of each kernel by one of `GROUPINGS`, if the profile tells."""
    if by not in GROUPINGS:
        raise ModelError(f"kernels can be grouped by {', '.join(GROUPINGS)}, not {by!r}")
    if by == NAME:
        return {k.kernel: base_name(k.name) for k in scenario.kernels}
    sites = {k.kernel: scenario.sites.get(k.kernel, NOWHERE) for k in scenario.kernels}
    groups = {kernel: getattr(site, by) or UNKNOWN_GROUP for kernel, site in sites.items()}
    if set(groups.values()) <= {UNKNOWN_GROUP}:
        raise ModelError(f"no profile says the {by} of a kernel: {_HINTS[by]}")
    return groups


_HINTS = {
    "op": "pass --timing with a PyTorch profile with ProfilerActivity.CPU",
    "module": "pass --timing with a PyTorch profile made with with_stack=True",
    "line": "pass --timing with a PyTorch profile made with with_stack=True",
    "range": "pass --timing with a PyTorch profile with record_function, or an nsys SQLite export "
    "with NVTX ranges",
}


def group_kernels(scenario: Scenario, by: str) -> list[KernelGroup]:
    """Put kernels together; those that take longest first, else those of most kernels.

    Raises
    ------
    ModelError
        If the profile, or its lack, does not tell.
    """
    groups = group_names(scenario, by)
    times = kernel_times(scenario)
    found: dict[str, list[int]] = {}
    for at, kernel in enumerate(scenario.kernels):
        found.setdefault(groups[kernel.kernel], []).append(at)
    result = []
    for group, members in found.items():
        own = [scenario.kernels[at] for at in members]
        result.append(
            KernelGroup(
                group=group,
                kernels=len(own),
                blocks=sum(k.blocks for k in own),
                time=sum(times.get(k.kernel, 0.0) for k in own) if times else None,
                accesses=sum(k.accesses for k in own),
                read_bytes=sum(k.read_bytes for k in own),
                written_bytes=sum(k.written_bytes for k in own),
            )
        )
    return sorted(result, key=lambda g: (-(g.time or 0.0), -g.kernels, g.group))


def kernel_times(scenario: Scenario) -> dict[int, float]:
    """Return the measured time of each kernel that has one, in the unit of the durations."""
    match = None if scenario.fit is None else scenario.fit.match
    if match is None:
        return {}
    return {
        kernel.kernel: time
        for kernel, time in zip(match.kernels, match.duration.tolist(), strict=True)
        if not np.isnan(time)
    }


def group_pairs(pairs: Sequence[PairSummary], groups: Mapping[int, str]) -> list[PairGroup]:
    """Put pairs of kernels together, those with most edges first."""
    found: dict[tuple[str, str], list[PairSummary]] = {}
    for pair in pairs:
        source, target = groups[pair.source], groups[pair.target]
        found.setdefault((source, target), []).append(pair)
    result = [
        PairGroup(
            source=source,
            target=target,
            pairs=len(own),
            edges=sum(p.edges for p in own),
            raw=sum(p.raw for p in own),
            war=sum(p.war for p in own),
            waw=sum(p.waw for p in own),
            reuse=sum(p.reuse for p in own),
        )
        for (source, target), own in found.items()
    ]
    return sorted(result, key=lambda g: (-g.edges, g.source, g.target))
