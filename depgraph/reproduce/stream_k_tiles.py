"""Stream-K: the tiles that it is introduced with, and the matrix products of cuSync's authors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.analysis.kernel_loads import kernel_loads
from depgraph.extraction.workload import WorkloadKernel, workload_extraction
from depgraph.mechanisms import Quantity
from depgraph.reproduce.cusync_programs import mlp
from depgraph.reproduce.figures import Published
from depgraph.reproduce.programs import geometric_mean, makespan, scenario_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from depgraph.reproduce.figures import Figure, Inputs, Reproduction

_SMS = 4


def reproduce(inputs: Inputs) -> Reproduction:
    """Say how well whole tiles fill four SMs, and what cutting them gains."""
    published = Published(inputs, "stream-k")
    return published.found([*_tiles(inputs, published), *_products(inputs, published)])


def _tiles(inputs: Inputs, published: Published) -> Iterator[Figure]:
    whole = inputs.workload("nine_tiles")
    halves = workload_extraction(
        [WorkloadKernel("gemm", (18, 1, 1), (256, 1, 1), np.full(18, 2.0), 1, cuttable=True)],
        [], unit="us", metadata={},
    )  # fmt: skip
    for key, extraction in (("nine tiles", whole), ("eighteen tiles", halves)):
        scenario = scenario_of(extraction, "V100", _SMS)
        yield published.figure(key, 100 * kernel_loads(scenario)[0].utilization)
    scenario = scenario_of(whole, "V100", _SMS)
    free = {"stream-k": {"fixup": Quantity(0, "count")}}
    even = scenario.durations.sum() / _SMS
    yield published.figure("nine tiles cut", 100 * even / makespan(scenario, "stream-k", free))


def _products(inputs: Inputs, published: Published) -> Iterator[Figure]:
    cases = [case for case in mlp(inputs) if case.policy == "stream-k"]
    yield published.figure(
        "products", geometric_mean(case.serial / case.predicted for case in cases),
        geometric_mean(case.serial / case.measured for case in cases), n=len(cases),
    )  # fmt: skip
