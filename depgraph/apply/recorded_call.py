"""What a recording shows of one call of `depgraph.torch.parallelize`, and lets predict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from depgraph.apply.captured import Captured, read_captures
from depgraph.apply.matching import match_nodes, operations_of, refuse_other_nodes
from depgraph.apply.order import Edge
from depgraph.apply.plan import Recorded
from depgraph.errors import ApplyError
from depgraph.graph.block_graph import dependent_operations
from depgraph.mechanisms.cuda_graph import CudaGraph
from depgraph.mechanisms.predicted_time import PredictedTime, in_microseconds, predicted_time
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.companions import captures_of
from depgraph.store.store import Store
from depgraph.timing.profile import BlockProfile, KernelProfile


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of `depgraph.torch.parallelize` in a recording."""

    store: Store
    captured: Captured  # as it was recorded
    operation: tuple[int | None, ...]  # of the recording, for each node

    def shown(self) -> Recorded:
        """Return the dependences between nodes that the recording shows."""
        node_of = {place: node for node, place in enumerate(self.operation) if place is not None}
        source, target = dependent_operations(self.store.graph())
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        edges = tuple((node_of[a], node_of[b]) for a, b in pairs if a in node_of and b in node_of)
        opaque = {kernel.operation for kernel in self.store.kernels if kernel.untraced}
        unseen = (n for n, place in enumerate(self.operation) if place is None or place in opaque)
        return Recorded(edges, frozenset(unseen))


def read_recorded(path: Path, call: int, captured: Captured | None = None) -> RecordedCall:
    """Find a call of `depgraph.torch.parallelize`, by number, in a recording."""
    captures_path = captures_of(path)
    if not captures_path.is_file():
        raise ApplyError(
            f"{path}: recorded without depgraph.torch.parallelize: there is no "
            f"{captures_path.name}",
            "let depgraph apply record it",
        )
    store = Store(path)
    captures = read_captures(captures_path, store.identity)
    which = next((i for i, each in enumerate(captures) if each.call == call), None)
    if which is None:
        raise ApplyError(
            f"{path}: call {call} of depgraph.torch.parallelize is not in it, counted from 0",
            "record the program as it is now",
        )
    if captured is not None:
        refuse_other_nodes(captures[which], captured)
    operation = match_nodes(captures, operations_of(store.kernels, store.copies), which)
    return RecordedCall(store, captures[which], tuple(operation))


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
