"""Described programs, and what a mechanism makes of one."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np

from depgraph.analysis.compare_mechanisms import schedule_of
from depgraph.extraction.workload import WorkloadKernel
from depgraph.footprint.footprints import Footprints
from depgraph.gpu.model import load_gpu
from depgraph.graph.program import Extraction
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.base import ChangedCosts
from depgraph.scenario.build_scenario import build_scenario
from depgraph.scenario.scenario import Scenario
from depgraph.timing.program_times import NO_LAUNCHES, LaunchChoice
from depgraph.trace.records import READ

_SHARED_BYTES = {"V100": 96 << 10, "A100": 164 << 10}
_MOST_OF_TWO = 128 * 128


@dataclass(frozen=True, slots=True)
class Tiled:
    """A matrix product cut into tiles, one a block."""

    rows: int
    columns: int  # pieces along k count, too
    height: int  # rows of the result that a tile has
    resident: int  # blocks on one SM

    def kernel(self, name: str, time: float, sms: int) -> WorkloadKernel:
        """Return the kernel, whose blocks all take as long, so that alone it takes `time`."""
        waves = math.ceil(self.rows * self.columns / (sms * self.resident))
        return WorkloadKernel(
            name, (self.columns, self.rows, 1), (256, 1, 1), duration=time / waves,
            occupancy=self.resident, cuttable=True,
        )  # fmt: skip


def tiled(gpu: str, rows: int, columns: int, tile: str, stages: int, split: int) -> Tiled:
    """Cut a matrix product into tiles, such as ``"128x256x32"``."""
    # How many blocks an SM holds is not published. Halves take 2 bytes in each of the stages in
    # shared memory; the accumulators of a tile above 128 x 128 leave registers for one block alone.
    height, width, *depth = (int(number) for number in tile.split("x"))
    staged = stages * (height + width) * (depth or [32])[0] * 2
    by_registers = 2 if height * width <= _MOST_OF_TWO else 1
    resident = max(1, min(_SHARED_BYTES[gpu] // staged, by_registers))
    return Tiled(math.ceil(rows / height), math.ceil(columns / width) * split, height, resident)


def scenario_of(
    extraction: Extraction,
    gpu: str,
    sms: int | None = None,
    launch: LaunchChoice = NO_LAUNCHES,
    bytes_read: int = 0,
) -> Scenario:
    """Return a described program on some SMs of a GPU, where so many bytes cross its bus."""
    read = Footprints(
        np.zeros(1, np.int32), np.array([READ], np.uint8),
        np.zeros(1, np.uint64), np.array([bytes_read], np.uint64),
    )  # fmt: skip
    model = load_gpu(gpu)
    scenario = build_scenario(
        extraction.graph, extraction.kernels, gpu=model, launch=launch,
        footprints=lambda: read if bytes_read else cast("Footprints", extraction.footprints),
        metadata=extraction.metadata, memory_gb_per_s="gpu" if bytes_read else None,
    )  # fmt: skip
    return scenario.on(sms or model.sms)


def makespan(scenario: Scenario, policy: str, costs: ChangedCosts | None = None) -> float:
    """Return the time of a program under a mechanism, in the unit of its durations."""
    (mechanism,) = find_mechanisms([policy])
    return float(schedule_of(scenario, mechanism, costs).makespan)


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean of speedups."""
    return float(np.exp(np.mean(np.log(list(ratios)))))
