"""How long a graph of a recorded program should take, by the model of every other prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.costs import Charges
from depgraph.mechanisms.cuda_graph import graph_rules
from depgraph.scenario.contention import run_contended
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.timing.launch_model import LaunchTime, parse_launch
from depgraph.timing.profile import KernelProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from depgraph.apply.order import Edge
    from depgraph.apply.recorded_call import RecordedCall
    from depgraph.store.store import Store
    from depgraph.timing.profile import BlockProfile

_MEMORY_NODE_US = 1.43
"""What a memset or copy of a CUDA graph takes beyond its profiled time: least squares over the
chains of the 26 programs of `samples/validation/applied.py` on an H100."""
_JOIN_US = 1.5
"""What a kernel that waits for several nodes needs beyond one that waits for one: the best, in
steps of a quarter, for the graphs that every other of these programs is run as."""
_MOST_BLOCKS = 100_000  # beyond it, predicting takes longer than measuring is worth


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts graphs of one recorded call."""

    operation: tuple[int | None, ...]
    scenario: Scenario

    def time(self, edges: Sequence[Edge]) -> float:
        """Return the predicted makespan in microseconds, a CUDA graph's own costs included."""
        contended = self.scenario.contended
        source, target = between_operations(self.operation, edges)
        charges = Charges((), unit=contended.unit, launches=contended.launch)
        ends = np.array(source, np.int32), np.array(target, np.int32)
        rules = graph_rules(contended, charges, *ends)
        waits_for = np.bincount(ends[1], minlength=contended.graph.n_operations)
        joins = contended.is_kernel & (waits_for > 1)
        rules = replace(rules, launch=rules.launch + joins * _JOIN_US)
        return run_contended("applied", rules, contended).makespan


def between_operations(
    operation: Sequence[int | None], edges: Sequence[Edge]
) -> tuple[list[int], list[int]]:
    """Return edges between the operations of a recording; other nodes only hand on order."""
    sources: list[set[int]] = [set() for _ in operation]
    for source, target in sorted(edges, key=lambda e: e[1]):
        own = operation[source]
        sources[target] |= sources[source] if own is None else {own}
    found = [
        (source, target)
        for node, target in enumerate(operation)
        if target is not None
        for source in sources[node]
    ]
    return [s for s, _ in found], [t for _, t in found]


def make_predictor(
    call: RecordedCall,
    sms: int,
    read_profile: Callable[[Path], KernelProfile | BlockProfile],
    tell: Callable[[str], None],
) -> Predictor | None:
    """Return what predicts the only graph of a recording on a GPU; None where that cannot be said.

    No times may be known, or the program may be too large.
    """
    store, operation = call.store, call.operation
    graph = store.graph()
    if graph.n_blocks > _MOST_BLOCKS:
        return None
    if graph.n_operations != sum(each is not None for each in operation):
        return None  # other graphs are in the recording, too
    request = Request(read_profile=read_profile, launch=parse_launch("gpu"))
    scenario = Scenario.of_store(store, request, tell=tell).on(sms)
    if scenario.fit is None or not isinstance(scenario.fit.profile, KernelProfile):
        return None
    scenario = _with_memory_nodes(scenario, store, scenario.fit.profile)
    # Kernels were timed as nodes of a chain, one right behind the other: their times hold what a
    # node needs after the one that it waits for.
    nothing = LaunchTime()
    scenario = scenario.with_launch(replace(scenario.launch, path=nothing, fork=nothing))
    return Predictor(operation, scenario) if scenario.has_predictions else None


def _with_memory_nodes(scenario: Scenario, store: Store, profile: KernelProfile) -> Scenario:
    """Let memsets and copies take the time that they took, if those of the profile are they."""
    memory, copies = profile.memory, store.copies
    if memory is None or memory.start is None or len(memory) != len(copies):
        return scenario
    durations = scenario.durations.copy()
    in_order = np.argsort(memory.start, kind="stable")
    durations[[copy.block for copy in copies]] = memory.duration[in_order] / 1000 + _MEMORY_NODE_US
    return scenario.with_durations(durations)
