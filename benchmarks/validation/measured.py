"""What depgraph predicts for programs that were measured (``samples/validation/measured``)."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rows import Row

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.extraction.workload import (
    WorkloadDependence,
    WorkloadKernel,
    workload_extraction,
)
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import find_mechanisms
from depgraph.scenario.build_scenario import build_scenario
from depgraph.timing.launch_model import parse_launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from depgraph.scenario.contention import Contention

FOLDER = Path(__file__).resolve().parents[2] / "samples" / "validation" / "measured"
TRACE = "cuda-graph"


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured program.

    Attributes
    ----------
    row : Row
    kind : str
    half : int
        0 if the model was fitted to it.
    spread : float
        Ninth decile less the least of the measured times, as a share of their median.
    bound : float
        The time that no prediction is below.
    """

    row: Row
    kind: str
    half: int
    spread: float
    bound: float


def kernels_of(file: dict[str, Any], program: dict[str, Any]) -> list[WorkloadKernel]:
    """Return the kernels of a program; blocks take as long as the kernel, to be scaled later."""
    found = []
    for place, (launch, _, time, alone, *_) in enumerate(program["kernels"]):
        name, grid, block, registers, static, dynamic = file["launches"][launch]
        if grid is None:  # a memset or a copy
            grid, block, registers, static, dynamic = [1, 1, 1], [32, 1, 1], 32, 0, 0
        blocks = int(np.prod(grid))
        found.append(
            WorkloadKernel(
                f"{place} {name[:40]}", tuple(grid), tuple(block),
                np.full(blocks, alone if time is None else time),
                registers=registers, shared_bytes=static + dynamic,
            )
        )  # fmt: skip
    return found


def predict(name: str, contention: Contention) -> Iterator[Measured]:
    """Predict the parallel graph of each program of a file."""
    with lzma.open(FOLDER / f"{name}.json.xz") as packed:
        file = json.load(packed)
    gpu = load_gpu("H200" if name.startswith("h200") else "H100 SXM")
    for program in file["programs"]:
        if "kernels" not in program:
            continue
        kernels = kernels_of(file, program)
        links = [WorkloadDependence(before, after, "all") for before, after in program["edges"]]
        extraction = workload_extraction(kernels, links, unit="us", metadata={})
        scenario = build_scenario(
            extraction.graph, extraction.kernels, gpu=gpu, launch=parse_launch("gpu"),
            contention=contention,
        )  # fmt: skip
        # The times above are those of whole kernels: a wave each.
        waves = np.ceil(np.diff(scenario.graph.first_block) / (scenario.occupancy * gpu.sms))
        durations = scenario.durations / waves[scenario.graph.operation_of_block]
        scenario = scenario.with_durations(durations)
        found = compare_mechanisms(scenario, [gpu.sms], find_mechanisms([TRACE]))
        (outcome,), (limits,) = found.outcomes, found.limits
        predicted = outcome.makespan if outcome.predicted is None else outcome.predicted
        least = min(program["parallel"], program["parallel_primed"])
        serial = min(program["serial"][0], program["serial_primed"][0])
        row = Row(name, program["name"], TRACE, serial, predicted, least[0])
        bound = limits.lower_bound if limits.contended is None else limits.contended
        spread = (least[2] - least[1]) / least[0]
        yield Measured(row, program["kind"], program["half"], spread, bound)
