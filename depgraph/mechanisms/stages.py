"""Kernels in stages: fused side by side, or in streams with a barrier after each stage."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.graph.block_graph import BlockGraph, sources_of_each
from depgraph.mechanisms.base import (
    LAUNCH,
    Availability,
    Charges,
    Mechanism,
    Numbered,
    gated,
    one_by_one,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, Gates, Rules
from depgraph.timing.program_times import kernel_makespans

Numbers = NDArray[np.int64]

_MOST_GATES = 1 << 22


class HorizontalFusion(Mechanism):
    """Independent kernels as one launch."""

    name = "horizontal-fusion"
    rule = (
        "kernels at the same depth of the kernel graph are fused, block beside block, into one "
        "launch; a launch starts once the one before has ended"
    )
    cost = "launches: host and gap of each fused launch; none for what fused blocks share"
    availability = Availability.CODE
    source = (
        "Li et al., Automatic horizontal fusion for GPU kernels, CGO 2022; Ma et al., Rammer, OSDI "
        "2020 (second-hand): here blocks keep their threads and registers"
    )
    costs = (LAUNCH,)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by all of the depth before."""
        graph = program.graph
        depth = depths(graph)
        launching = one_by_one(program, charges)
        by_depth = np.argsort(depth, kind="stable")
        kernels = by_depth[program.is_kernel[by_depth]]
        is_first = np.diff(depth[kernels], prepend=-1) > 0
        enter = np.zeros(graph.n_operations)
        enter[kernels[is_first]] = launching.enter[kernels[is_first]]
        return gated(
            launching,
            _between_stages(depth, np.ones((2, graph.n_operations), np.bool_)),
            enter=enter,
            entry=by_depth,
            assumptions=(f"launches: {int(is_first.sum())} of {len(kernels)} kernels",),
        )


class InterOperatorScheduler(Numbered):
    """Stages of concurrent streams, of so many kernels and so many streams at most."""

    name = "ios"
    signature = "ios(R,S)"
    rule = (
        "kernels in launch order are cut into stages; those of a stage that are connected run one "
        "after another in a stream, at most R = 3 in each of at most S = 8 streams; a stage starts "
        "once the one before has ended; the cuts make the estimated time least"
    )
    cost = "launches: host and gap of each kernel"
    availability = Availability.CODE
    source = (
        "Ding et al., IOS: Inter-operator scheduler for CNN acceleration, MLSys 2021 "
        "(second-hand); here stages are cut in launch order and estimated by their longest "
        "stream and their work"
    )
    usual = (3, 8)
    costs = (LAUNCH,)

    def __init__(self, length: int = 3, groups: int = 8) -> None:
        super().__init__(length, groups)
        self.length, self.groups = length, groups

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by the one before in its stream, or by the stage before."""
        graph = program.graph
        launching = one_by_one(program, charges)
        stage, stream = self._stages(program, float(launching.launch.max(initial=0.0)))
        order = np.lexsort((np.arange(graph.n_operations), stream, stage))
        follows = (np.diff(stage[order]) == 0) & (np.diff(stream[order]) == 0)
        ends = np.ones((2, graph.n_operations), np.bool_)
        ends[0, order[:-1][follows]] = False
        ends[1, order[1:][follows]] = False
        gates = Gates.between(order[:-1][follows], order[1:][follows], ALL_ENDED)
        return gated(
            launching,
            gates + _between_stages(stage, ends),
            assumptions=(f"stages: {int(stage.max(initial=-1)) + 1}",),
        )

    def _stages(self, program: Scenario, gap: float) -> tuple[Numbers, Numbers]:
        """Return the stage of each operation, and its stream there: int64[n_operations]."""
        graph = program.graph
        n = graph.n_operations
        sms = min(program.sms, np.diff(graph.first_block).max(initial=1))
        alone = kernel_makespans(graph, program.durations, program.occupancy * int(sms)) + gap
        held = np.bincount(graph.operation_of_block, program.durations * program.shares, n)
        work = np.zeros(n) if math.isinf(program.sms) else held / program.sms
        sources = sources_of_each(graph)
        # Backwards: what all from an operation on take, if a stage begins with it.
        best, cut = np.zeros(n + 1), np.zeros(n, np.int64)
        streams: list[list[int]] = [[] for _ in range(n)]
        for begin in range(n - 1, -1, -1):
            best[begin] = math.inf
            for end, stream, longest in self._candidates(begin, sources, alone):
                time = max(float(work[begin:end].sum()), longest) + best[end]
                if time < best[begin]:
                    best[begin], cut[begin], streams[begin] = time, end, stream
        stage, stream_of = np.zeros((2, n), np.int64)
        begin = number = 0
        while begin < n:
            stage[begin : cut[begin]], stream_of[begin : cut[begin]] = number, streams[begin]
            begin, number = int(cut[begin]), number + 1
        return stage, stream_of

    def _candidates(
        self, begin: int, sources: list[NDArray[np.int32]], alone: NDArray[np.float64]
    ) -> Iterator[tuple[int, list[int], float]]:
        """Yield the stages that may begin so: their ends, streams, and the longest one's time."""
        stream: list[int] = []  # of each operation from `begin` on: the first one of its stream
        kernels: dict[int, int] = {}
        times: dict[int, float] = {}
        for at in range(begin, min(len(alone), begin + self.length * self.groups)):
            joined = {stream[s - begin] for s in sources[at] if s >= begin}
            kept = min(joined, default=at)
            stream = [kept if s in joined else s for s in stream] + [kept]
            kernels[kept] = 1 + sum(kernels.pop(s) for s in joined)
            times[kept] = alone[at] + sum(times.pop(s) for s in joined)
            if kernels[kept] > self.length:
                return
            if len(times) <= self.groups:
                yield at + 1, stream, max(times.values())


def depths(graph: BlockGraph) -> Numbers:
    """Return the operations on the longest path to each: int64[n_operations]."""
    depth = np.zeros(graph.n_operations, np.int64)
    for operation, before in enumerate(sources_of_each(graph)):
        depth[operation] = depth[before].max(initial=-1) + 1
    return depth


def _between_stages(stage: Numbers, ends: NDArray[np.bool_]) -> Gates:
    """Let what begins a stage wait for what ends the one before."""
    last, first = (np.flatnonzero(e) for e in ends)
    last, first = (each[np.argsort(stage[each], kind="stable")] for each in (last, first))
    low = np.searchsorted(stage[last], stage[first] - 1)
    waits = np.searchsorted(stage[last], stage[first]) - low
    if waits.sum() > _MOST_GATES:
        raise NotApplicableError("stages of so many kernels are not worked out")
    target = np.repeat(first, waits)
    at = np.arange(len(target)) - np.repeat(np.cumsum(waits) - waits, waits)
    return Gates.between(last[np.repeat(low, waits) + at], target, ALL_ENDED)
