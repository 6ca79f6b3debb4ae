"""Kernels: how each, alone, fills the SMs wave by wave, and what those of one group add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.dependences import PairSummary
from depgraph.graph.queries import PathStep
from depgraph.scenario.scenario import Scenario
from depgraph.system.arrays import grouped
from depgraph.system.text import share_of
from depgraph.timing.profile import NOWHERE, SITE_COLUMNS
from depgraph.timing.program_times import kernel_makespans
from depgraph.trace.names import base_name


@dataclass(slots=True)  # as `Kernel`, never changed
class KernelLoad:
    """How a kernel, alone on the GPU, fills the SMs."""

    kernel: int
    blocks: int
    slots: int  # blocks that run at once: SMs times occupancy
    time: float  # from the kernel's start to its end, in the unit of the durations
    # share of the SMs that its blocks hold, 0 to 1, of the resource that sets its work
    utilization: float

    @property
    def waves(self) -> float:
        """How often its blocks fill every slot."""
        return self.blocks / self.slots

    @property
    def full_waves(self) -> int:
        """Waves that fill every slot."""
        return self.blocks // self.slots

    @property
    def tail_blocks(self) -> int:
        """Blocks of the last wave, if it does not fill every slot."""
        return self.blocks % self.slots

    @property
    def tail_utilization(self) -> float:
        """Share of the slots that the last wave fills; 1 where every wave is full."""
        return self.tail_blocks / self.slots if self.tail_blocks else 1.0

    @property
    def tail_cost(self) -> float:
        """Time that a last wave costs beside full ones, with blocks of equal length."""
        if not self.full_waves or not self.tail_blocks:
            return 0.0
        share = (1 - self.tail_utilization) / (self.full_waves + 1)
        return self.time * min(share, 1 - self.utilization)


def kernel_loads(scenario: Scenario, *, uneven: bool = False) -> list[KernelLoad]:
    """Say how each kernel, alone, fills the SMs, in launch order, without copies and memsets.

    `uneven` leaves out those whose waves are all full, or none is.
    """
    graph, resources = scenario.graph, scenario.resources
    slots = resources.occupancy * int(scenario.sms)
    times = kernel_makespans(graph, scenario.durations, slots)
    busy = np.bincount(
        graph.operation_of_block, weights=scenario.durations, minlength=graph.n_operations
    )
    work = busy * resources.largest_shares / scenario.sms
    blocks = np.diff(graph.first_block)
    used = np.divide(work, times, out=np.zeros_like(times), where=times > 0)
    columns = (graph.kernel, blocks, slots, times, np.minimum(used, 1.0))
    meant = scenario.is_kernel
    if uneven:
        meant = meant & (blocks > slots) & (blocks % slots > 0)
    return list(map(KernelLoad, *(values[meant].tolist() for values in columns)))


NAME = "name"
GROUPINGS = (NAME, *SITE_COLUMNS)
UNKNOWN_GROUP = "unknown"


class KernelGroup(NamedTuple):
    """Kernels of one function, operator, module, line or range."""

    group: str
    kernels: int
    blocks: int
    time: float | None  # measured times of the kernels, added up; None without a profile
    accesses: int
    read_bytes: int
    written_bytes: int


class PairGroup(NamedTuple):
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
    result = [
        KernelGroup(
            group=group,
            kernels=len(own),
            time=sum(times.get(k.kernel, 0.0) for k in own) if times else None,
            **_sums(own, "blocks", "accesses", "read_bytes", "written_bytes"),
        )
        for group, own in grouped(scenario.kernels, lambda k: groups[k.kernel]).items()
    ]
    return sorted(result, key=lambda g: (-(g.time or 0.0), -g.kernels, g.group))


def kernel_times(scenario: Scenario) -> dict[int, float]:
    """Return the measured time of each kernel that has one, in the unit of the durations."""
    match = None if scenario.fit is None else scenario.fit.match
    if match is None:
        return {}
    times = zip(match.kernels, match.duration.tolist(), strict=True)
    return {kernel.kernel: time for kernel, time in times if not np.isnan(time)}


def group_pairs(pairs: Sequence[PairSummary], groups: Mapping[int, str]) -> list[PairGroup]:
    """Put pairs of kernels together, those with most edges first."""
    pairs_of = grouped(pairs, lambda pair: (groups[pair.source], groups[pair.target]))
    result = [
        PairGroup(
            source, target, pairs=len(own), **_sums(own, "edges", "raw", "war", "waw", "reuse")
        )
        for (source, target), own in pairs_of.items()
    ]
    return sorted(result, key=lambda g: (-g.edges, g.source, g.target))


def _sums(items: Sequence[object], *names: str) -> dict[str, int]:
    return {name: sum(getattr(item, name) for item in items) for name in names}


class FunctionLoad(NamedTuple):
    """All launches of one function, operator, module, line or range."""

    name: str
    kernels: int
    time: float  # of the kernels alone, summed
    utilization: float  # share of the SMs that their blocks hold in that time, 0 to 1
    on_path: float  # time of the critical path


def loads_by_group(
    loads: Sequence[KernelLoad], names: Mapping[int, str], path: Sequence[PathStep]
) -> tuple[FunctionLoad, ...]:
    """Add kernels up by their group, those of the longest first."""
    time_on_path = {step.kernel: step.duration for step in path}
    functions = []
    for name, own in grouped(loads, lambda load: names[load.kernel]).items():
        time = sum(load.time for load in own)
        busy = sum(load.time * load.utilization for load in own)
        on_path = sum(time_on_path.get(load.kernel, 0.0) for load in own)
        functions.append(FunctionLoad(name, len(own), time, share_of(busy, time), on_path))
    return tuple(sorted(functions, key=lambda f: (-f.time, f.name)))
