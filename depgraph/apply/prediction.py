"""How long a graph of a recorded program should take, by the model of every other prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import in_microseconds, predicted_time
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario

if TYPE_CHECKING:
    from depgraph.apply.order import Edge
    from depgraph.apply.recorded_call import RecordedCall
    from depgraph.mechanisms.predicted_time import PredictedTime
    from depgraph.timing.profile import BlockProfile, KernelProfile


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts graphs of one recorded call."""

    operation: tuple[int | None, ...]
    scenario: Scenario

    def time(self, edges: Sequence[Edge]) -> PredictedTime | None:
        """Return the predicted time of a graph with these edges, as of any CUDA graph."""
        ends = [np.array(end, np.int32) for end in between_operations(self.operation, edges)]
        graph = CudaGraph(edges=(ends[0], ends[1]))
        return in_microseconds(predicted_time(graph, self.scenario), graph, self.scenario)


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
    """Return what predicts the only graph of a recording on a GPU; else `tell` why not."""
    store, operation = call.store, call.operation
    if store.graph().n_operations != sum(each is not None for each in operation):
        tell("nothing is predicted: there are other graphs in the recording, too")
        return None
    scenario = Scenario.of_store(store, Request(read_profile=read_profile), tell=tell).on(sms)
    if scenario.fit is None or not scenario.has_predictions:
        tell("nothing is predicted: the recording has no times")
        return None
    return Predictor(operation, scenario)
