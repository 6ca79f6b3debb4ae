"""SPAWN: programs with device launches, without them, with all, and with those that it chooses."""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.extraction.workload import WorkloadKernel, workload_extraction
from depgraph.graph.launches import DeviceLaunches
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.costs import charges_of
from depgraph.reproduce.figures import Published
from depgraph.reproduce.programs import geometric_mean, makespan, scenario_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from depgraph.graph.program import Extraction
    from depgraph.reproduce.figures import Figure, Inputs, Reproduction
    from depgraph.scenario.scenario import Scenario

TABLE = "validation/measured/h100-children.jsonl.xz"
_BLOCKS_OF_AN_SM = 16
_POLICIES = ("flat", "cdp", "spawn")
# The paper simulates a Kepler K20m: 13 SMs, 16 blocks each. No model of it is packaged, and all
# costs are the simulator's; of the V100's model nothing else counts here.
_GPU, _SMS = "V100", 13
_WARP = 32
_EDGE_CYCLES = 600.0  # of a work item, as in the programs that are not searches


def reproduce(inputs: Inputs) -> Reproduction:
    """Run eight programs and two breadth-first searches under SPAWN's simulated launch costs."""
    published = Published(inputs, "spawn")
    lines = measurements(inputs.path(TABLE))
    programs = {
        name: [scenario_of(described(case), _GPU, _SMS) for case in kernels]
        for name, kernels in _programs(lines).items()
    }
    times = {
        name: {policy: sum(makespan(each, policy) for each in kernels) for policy in _POLICIES}
        for name, kernels in programs.items()
    }
    figures = [
        published.figure(key, geometric_mean(own[slow] / own[fast] for own in times.values()))
        for key, slow, fast in (
            ("flat over spawn", "flat", "spawn"), ("cdp over spawn", "cdp", "spawn"),
            ("flat over cdp", "flat", "cdp"),
        )
    ]  # fmt: skip
    notes = [
        f"{name}: spawn {own['flat'] / own['spawn']:.2f}x over flat, "
        f"{own['cdp'] / own['spawn']:.2f}x over cdp"
        for name, own in times.items()
    ]
    return published.found([*_stalls(published, next(iter(programs.values()))[0]), *figures], notes)


def _stalls(published: Published, scenario: Scenario) -> Iterator[Figure]:
    """Return what a launch by one lane, and by all of a warp, stalls it."""
    (cdp,) = find_mechanisms(["cdp"])
    charges = charges_of(cdp, {}, scenario)
    for lanes in (1, _WARP):
        yield published.figure(
            f"{lanes} lanes", charges.time("stall") + lanes * charges.time("lane")
        )


def measurements(path: Path) -> list[dict[str, Any]]:
    """Return what was measured of programs with device launches, a line each."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _programs(lines: list[dict[str, Any]]) -> Mapping[str, list[dict[str, Any]]]:
    """Return the kernels of each program; of a search one a level."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["what"] == "case":
            found[line["name"]] = [line]
        elif line["what"] == "level":
            found.setdefault(line["name"], []).append(
                {**line, "before": 1, "after": 1, "cycles": _EDGE_CYCLES}
            )
    return found


def described(case: Mapping[str, Any]) -> Extraction:
    """Describe a case: each thread of a block of four warps has items of its own."""
    items, threads = np.array(case["items"]), case["threads"]
    blocks = -(-len(items) // threads)
    thread = np.arange(len(items))
    own = case["before"] + case["after"]
    one = np.ones(len(items), np.int64)
    cycles = float(case["cycles"])
    launches = DeviceLaunches(
        block=thread // threads,
        at=np.full(len(items), case["before"] / own),
        warp=thread % threads // _WARP,
        lanes=one,
        child_grid=-(-items // threads),
        child_duration=np.full(len(items), cycles),
        inline=items * cycles,
        join=np.zeros(len(items), np.uint8),
        stream=-one,
        items=items,
    )
    parent = WorkloadKernel(
        case["name"], (blocks, 1, 1), (threads, 1, 1), np.full(blocks, float(own)),
        occupancy=_BLOCKS_OF_AN_SM,
    )  # fmt: skip
    return workload_extraction([parent], [], [(0, launches)], unit="cycles", metadata={})
