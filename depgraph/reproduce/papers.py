"""What papers published of dependences and policies, computed from packaged programs."""

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.kernel_groups import kernel_loads
from depgraph.dependence.sweep import build_graph, sweep
from depgraph.errors import ModelError
from depgraph.extraction.workload import (
    WorkloadDependence,
    WorkloadKernel,
    workload_extraction,
    workload_graph,
)
from depgraph.footprint.footprints import Footprints, concatenate_footprints
from depgraph.gpu.model import load_gpu
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.program import DeviceLaunches, Extraction
from depgraph.mechanisms import Quantity, find_mechanisms
from depgraph.mechanisms.base import charges_of
from depgraph.reproduce import cusync_programs, simulator
from depgraph.reproduce.cusync_programs import mlp
from depgraph.reproduce.figures import Figure, Inputs, Published, Reproduction
from depgraph.reproduce.programs import geometric_mean, makespan, scenario_of
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.store.store import Store
from depgraph.system.arrays import list_of_each
from depgraph.system.text import did_you_mean, in_short, ratio
from depgraph.timing.program_times import LaunchChoice, parse_launch
from depgraph.trace.records import READ, WRITE

KUPER_TABLE = "papers/kuper_tool.json"
_LINE = 128  # bytes of what the tool tells apart


def kuper(published: Published) -> Iterator[Figure]:
    """Find edges and ideal times of programs that the tool of Kuper et al. was run on."""
    for case in json.loads(published.inputs.path(KUPER_TABLE).read_text(encoding="utf-8")):
        yield from _of_the_tool(published, case)


def _of_the_tool(published: Published, case: Mapping[str, Any]) -> Iterator[Figure]:
    graph, durations = graph_of(case["input"])
    edges = sum(len(targets) for targets in case["edges"].values())
    ours = sum(len(sources) for sources, _, _ in graph.edges())
    alone = np.array([kernel["kernel_time"] for kernel in case["input"]], np.float64)
    blocks, _ = graph.earliest_finish(durations)
    figures = {
        "edges": (edges, ours),
        "kernels": (case["ideal_kernel"], _ideal_of_kernels(graph, alone)),
        "blocks": (case["ideal_tb"], blocks.max()),
    }
    for key, (paper, found) in figures.items():
        name = case["case"].replace("_", " ")
        why = published.why(f"{name} {key}")
        yield published.figure(key, found, float(paper), why=why, case=name, depth=case["depth"])


def graph_of(program: Sequence[Mapping[str, Any]]) -> tuple[BlockGraph, NDArray[np.float64]]:
    """Return the dependences between blocks, by lines of 128 bytes, and how long blocks run."""
    blocks: list[int] = []
    kinds: list[int] = []
    lines: list[int] = []
    durations: list[float] = []
    first = [0]
    for kernel in program:
        for block in kernel["tbs"].values():
            for line, kind in block["accesses"]:
                blocks.append(len(durations))
                kinds.append(WRITE if kind == "W" else READ)
                lines.append(line)
            durations.append(block["end"] - block["start"])
        first.append(len(durations))
    start = np.array(lines, np.uint64) * np.uint64(_LINE)
    touched = Footprints(
        np.array(blocks, np.int32), np.array(kinds, np.uint8), start, start + np.uint64(_LINE)
    )
    footprints = concatenate_footprints([touched], len(durations))
    first_block = np.array(first, np.int64)
    swept = sweep(footprints, list_of_each(first_block), len(program))
    graph = build_graph([swept], first_block, np.arange(len(program), dtype=np.int32))
    return graph, np.array(durations, np.float64)


def _ideal_of_kernels(graph: BlockGraph, times: NDArray[np.float64]) -> float:
    """Return when the last kernel ends if each starts once all that it depends on have ended."""
    kernels = [
        WorkloadKernel(f"kernel-{i + 1}", (1, 1, 1), (1, 1, 1), duration=time)
        for i, time in enumerate(times)
    ]
    waits = [WorkloadDependence(pair.source, pair.target, "all") for pair in graph.pairs()]
    finish, _ = workload_graph(kernels, waits).earliest_finish(times)
    return float(finish.max())


CHILDREN_TABLE = "validation/measured/h100-children.jsonl.xz"
_BLOCKS_OF_AN_SM = 16
_POLICIES = ("flat", "cdp", "spawn")
# The paper simulates a Kepler K20m: 13 SMs, 16 blocks each. No model of it is packaged, and all
# costs are the simulator's; of the V100's model nothing else counts here.
_GPU, _SMS = "V100", 13
_WARP = 32
_EDGE_CYCLES = 600.0  # of a work item, as in the programs that are not searches


def spawn(published: Published) -> Iterator[Figure]:
    """Run eight programs and two breadth-first searches under SPAWN's simulated launch costs."""
    lines = measurements(published.inputs.path(CHILDREN_TABLE))
    programs = {
        name: [scenario_of(described(case), _GPU, _SMS) for case in kernels]
        for name, kernels in _programs(lines).items()
    }
    times = {
        name: {policy: sum(makespan(each, policy) for each in kernels) for policy in _POLICIES}
        for name, kernels in programs.items()
    }
    published.notes += [
        f"{name}: spawn {own['flat'] / own['spawn']:.2f}x over flat, "
        f"{own['cdp'] / own['spawn']:.2f}x over cdp"
        for name, own in times.items()
    ]
    yield from _stalls(published, next(iter(programs.values()))[0])
    for slow, fast in (("flat", "spawn"), ("cdp", "spawn"), ("flat", "cdp")):
        gains = (own[slow] / own[fast] for own in times.values())
        yield published.figure(f"{slow} over {fast}", geometric_mean(gains))


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
    kernels_of: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["what"] == "case":
            kernels_of[line["name"]] = [line]
        elif line["what"] == "level":
            kernels_of.setdefault(line["name"], []).append(
                {**line, "before": 1, "after": 1, "cycles": _EDGE_CYCLES}
            )
    return kernels_of


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
        case["name"], (blocks, 1, 1), (threads, 1, 1), duration=own,
        occupancy=_BLOCKS_OF_AN_SM,
    )  # fmt: skip
    return workload_extraction([parent], [], [(0, launches)], unit="cycles", metadata={})


_MIXTURE = "papers/dyn_moe.out", "papers/dyn_moe.times.csv"
_MEASURED_ON = "H100 SXM"
_STENCIL_SMS = 20
_BLOCKMAESTRO_LAUNCH_US = 5


def acs(published: Published) -> Iterator[Figure]:
    """Run a simulation and a mixture of experts through windows of 32 kernels."""
    inputs, launch = published.inputs, parse_launch("gpu")
    programs = {
        "simulation": scenario_of(inputs.workload("simulation"), "RTX 3070", launch=launch),
        "mixture": _of_store(inputs, *_MIXTURE, launch),
        "mixture renamed": _of_store(inputs, *_MIXTURE, launch, ("RAW",)),
    }
    for policy in ("acs-sw", "acs-hw"):
        speedups = {name: _speedup(scenario, policy) for name, scenario in programs.items()}
        for name, speedup in speedups.items():
            yield published.figure(f"{policy} {name}", speedup)
    yield published.figure("mean", geometric_mean(speedups.values()))  # of the last, acs-hw


def blockmaestro(published: Published) -> Iterator[Figure]:
    """Run three programs whose kernels depend on each other, launches of 5 us as published."""
    inputs = published.inputs
    launch = parse_launch(f"0,{_BLOCKMAESTRO_LAUNCH_US},0")
    stencil = inputs.workload("stencil_sweeps")
    programs = {
        "stencil": scenario_of(stencil, "V100", _STENCIL_SMS, launch),
        "mixture": _of_store(inputs, *_MIXTURE, launch),
        "training": _of_store(
            inputs, "simulator/gru_train.out", "timing/gru_train.kineto.json", launch
        ),
    }
    speedups = {name: _speedup(scenario, "blockmaestro(4)") for name, scenario in programs.items()}
    for name, speedup in speedups.items():
        yield published.figure(name, speedup)
    yield published.figure("mean", 100 * (geometric_mean(speedups.values()) - 1))


def _of_store(
    inputs: Inputs, store: str, times: str, launch: LaunchChoice,
    kinds: tuple[str, ...] | None = None,
) -> Scenario:  # fmt: skip
    """Return a recorded program on the GPU that it was measured on, an H100."""
    request = Request(
        kinds=kinds, times=inputs.path(times), read_profile=inputs.read_profile, gpu=_MEASURED_ON,
        launch=launch,
    )  # fmt: skip
    scenario = Scenario.of_store(Store(inputs.path(store)), request, tell=lambda _: None)
    return scenario.on(load_gpu(_MEASURED_ON).sms)


def _speedup(scenario: Scenario, policy: str) -> float:
    return makespan(scenario, "serial") / makespan(scenario, policy)


_LADDER = ("c3", "c3-first", "c3-reserved", "c3-both", "c3-dma", "c3-dma(8)")


def c3(published: Published) -> Iterator[Figure]:
    """Return which share of the ideal gain each rung of ConCCL's ladder reaches."""
    scenario = scenario_of(published.inputs.workload("conccl"), "MI300X")
    serial = makespan(scenario, "serial")
    gains = {policy: serial / makespan(scenario, policy) for policy in _LADDER}
    for policy, gain in gains.items():
        # Of two that take as long as each other the ideal is twice as fast.
        yield published.figure(policy, 100 * (gain - 1))
    yield published.figure("best", max(gains.values()))


def flashoverlap(published: Published) -> Iterator[Figure]:
    """Return what FlashOverlap's public predictor was asked for."""
    scenario = scenario_of(published.inputs.workload("flashoverlap"), "A100")
    serial, groups = (makespan(scenario, policy) for policy in ("serial", "c3-groups(2)"))
    yield published.figure("predictor", groups)
    yield published.figure("best", ratio(serial, groups))


_TILES_SMS = 4


def stream_k(published: Published) -> Iterator[Figure]:
    """Say how well whole tiles fill four SMs, and what cutting them gains."""
    inputs = published.inputs
    whole = inputs.workload("nine_tiles")
    halves = workload_extraction(
        [WorkloadKernel("gemm", (18, 1, 1), (256, 1, 1), duration=2.0, occupancy=1, cuttable=True)],
        [], unit="us", metadata={},
    )  # fmt: skip
    for key, extraction in (("nine tiles", whole), ("eighteen tiles", halves)):
        scenario = scenario_of(extraction, "V100", _TILES_SMS)
        yield published.figure(key, 100 * kernel_loads(scenario)[0].utilization)
    scenario = scenario_of(whole, "V100", _TILES_SMS)
    free = {"stream-k": {"fixup": Quantity(0, "count")}}
    even = scenario.durations.sum() / _TILES_SMS
    yield published.figure("nine tiles cut", 100 * even / makespan(scenario, "stream-k", free))
    cases = [case for case in mlp(inputs) if case.policy == "stream-k"]
    yield published.figure(
        "products", geometric_mean(case.serial / case.predicted for case in cases),
        geometric_mean(case.serial / case.measured for case in cases), n=len(cases),
    )  # fmt: skip


EXPERIMENTS: Mapping[str, Callable[[Published], Iterable[Figure]]] = {
    "kuper": kuper,
    "cusync": cusync_programs.reproduce,
    "acs": acs,
    "spawn": spawn,
    "c3": c3,
    "blockmaestro": blockmaestro,
    "flashoverlap": flashoverlap,
    "stream-k": stream_k,
    "simulator": simulator.reproduce,
}


def reproduce(name: str, inputs: Inputs) -> Reproduction:
    """Compute the figures of one publication."""
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS) or f"; there are {', '.join(EXPERIMENTS)}"
        raise ModelError(f"nothing called {in_short(name)!r} can be reproduced{hint}")
    published = Published(inputs, name)
    figures, table = tuple(EXPERIMENTS[name](published)), published.table
    notes = (*table.get("notes", ()), *published.notes)
    return Reproduction(name, table["paper"], table["about"], table["programs"], figures, notes)
