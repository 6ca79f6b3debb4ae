"""Child kernels: the programs of samples/validation/children.cu, predicted and measured."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.compare_mechanisms import charges_of, run_mechanism
from depgraph.extraction.workload import WorkloadKernel, workload_extraction
from depgraph.gpu.model import load_gpu
from depgraph.graph.launches import DeviceLaunches
from depgraph.mechanisms import find_mechanisms
from depgraph.scenario.build_scenario import build_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from depgraph.scenario.scenario import Scenario

FILE = Path(__file__).resolve().parents[2] / "samples/validation/measured/h100-children.jsonl.xz"
_BLOCKS_OF_AN_SM = 16


@dataclass(frozen=True, slots=True)
class Run:
    """One program at one threshold, in microseconds."""

    name: str
    threshold: int
    launches: int
    measured: float
    predicted: float
    flat: float


def measurements() -> list[dict[str, Any]]:
    """Return what was measured, a line each."""
    return [json.loads(line) for line in lzma.open(FILE, "rt", encoding="utf-8")]


def scenario_of(case: dict[str, Any]) -> Scenario:
    """Describe a case: each thread of a block of four warps has items of its own."""
    items, threads = np.array(case["items"]), case["threads"]
    blocks = -(-len(items) // threads)
    thread = np.arange(len(items))
    own = case["before"] + case["after"]
    grid = -(-items // threads)
    one = np.ones(len(items), np.int64)
    launches = DeviceLaunches(
        block=thread // threads,
        at=one * case["before"] / own,
        warp=thread % threads // 32,
        lanes=one,
        child_grid=grid,
        child_duration=one * float(case["cycles"]),
        inline=items * float(case["cycles"]),
        join=np.zeros(len(items), np.uint8),
        stream=-one,
        items=items,
    )
    parent = WorkloadKernel(
        case["name"], (blocks, 1, 1), (threads, 1, 1), np.full(blocks, float(own)),
        occupancy=_BLOCKS_OF_AN_SM,
    )  # fmt: skip
    found = workload_extraction([parent], [], [(0, launches)], unit="cycles", metadata={})
    gpu = load_gpu("H100 SXM")
    return build_scenario(found.graph, found.kernels, gpu=gpu).on(gpu.sms)


def runs(**constants: float) -> Iterator[Run]:
    """Yield each case at each threshold, children launched to run on their own.

    Parameters
    ----------
    **constants
        Of the GPU, in place of its model's.
    """
    lines = measurements()
    machine = next(line for line in lines if line["what"] == "machine")
    scenarios = {line["name"]: scenario_of(line) for line in lines if line["what"] == "case"}
    own = [line for line in lines if line["what"] == "run" and line["stream"] == 0]
    flat = {line["name"]: line["us"] for line in own if line["launches"] == 0}
    for line in own:
        scenario = scenarios[line["name"]]
        if constants:
            resources = scenario.resources
            changed = replace(resources, gpu=replace(resources.gpu, **constants))
            scenario = replace(scenario, resources_of=lambda _, found=changed: found)
        (mechanism,) = find_mechanisms([f"cdp({line['threshold']})"])
        plan, _ = run_mechanism(mechanism, scenario, charges_of(mechanism, {}, scenario))
        yield Run(
            line["name"], line["threshold"], line["launches"], line["us"],
            plan.makespan / machine["mhz"], flat[line["name"]],
        )  # fmt: skip
