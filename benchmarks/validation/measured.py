"""What depgraph predicts for programs that were measured (``samples/validation/measured``)."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

from rows import Row

from depgraph.analysis.measured_programs import (
    MeasuredKernel,
    MeasuredProgram,
    Measurements,
    predict_graph,
)
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import find_mechanisms, parse_cost
from depgraph.mechanisms.predicted_time import predicted_time
from depgraph.mechanisms.streams import Streams
from depgraph.parsers.measurements import read_measurements
from depgraph.system.text import counted
from depgraph.timing.launch_model import OF_GPU, LaunchChoice, launch_model

FOLDER = Path(__file__).resolve().parents[2] / "samples" / "validation" / "measured"


@cache
def measurements(name: str) -> Measurements:
    """Read a file of measurements."""
    return read_measurements(FOLDER / f"{name}.json.xz")


@cache
def graphs(name: str) -> list[Row]:
    """Predict each program of a file as a graph with its own edges, and as a chain."""
    found = measurements(name)
    gpu = load_gpu(found.gpu)
    rows = []
    for program in found.programs:
        for as_chain in (False, True):
            each = predict_graph(program, gpu, as_chain=as_chain)
            rows.append(
                Row(
                    name, program.name, "cuda-graph", program.serial, each.time, each.measured,
                    each.family, program.half,
                )
            )  # fmt: skip
    return rows


def streams_of(program: MeasuredProgram) -> list[int]:
    """Return the stream of each kernel, as ``samples/validation/measure.py`` chose them.

    An operation goes where the last one is that it waits for or comes after anyway, so that streams
    add no order.
    """
    operation = [kernel.operation for kernel in program.kernels]
    needs: list[set[int]] = [set() for _ in range(1 + max(operation))]
    for source, target in program.edges:
        if operation[source] != operation[target]:
            needs[operation[target]].add(operation[source])
    before: list[set[int]] = []
    last: list[int] = []
    chosen: list[int] = []
    for i, direct in enumerate(needs):
        before.append(direct.union(*(before[j] for j in direct)))
        free = [s for s, end in enumerate(last) if end in before[i]]
        best = next((s for s in free if last[s] in direct), free[0] if free else len(last))
        last[best : best + 1] = [i]
        chosen.append(best)
    return [chosen[i] for i in operation]


@cache
def streams(name: str) -> list[Row]:
    """Predict each program of a file on streams, the host ahead of the GPU."""
    found = measurements(name)
    gpu = load_gpu(found.gpu)
    ahead = launch_model(LaunchChoice(OF_GPU, {"host": 0.0}), unit="us", gpu=gpu)
    rows = []
    for program in found.programs:
        if program.streams_ahead is None:
            continue
        scenario = program.scenario(gpu, "full", streams=streams_of(program)).with_launch(ahead)
        policy = Streams()
        rows.append(
            Row(
                name, program.name, policy.name, program.serial,
                predicted_time(policy, scenario).time, program.streams_ahead, policy.family,
                program.half,
            )
        )  # fmt: skip
    return rows


# How `samples/validation/hardware.cu` launched 20 dependent kernels, and which part of the work of
# each needs nothing of the one before.
PDL_MODES = {
    1: ("end", "no trigger", 0.0),
    2: ("early", "early trigger", 0.0),
    3: ("end", "no trigger, half the work before the wait", 0.5),
    4: ("early", "early trigger, half the work before the wait", 0.5),
}
NAMES = {
    (0, "end"): "pdl(end)", (0, "early"): "pdl", (1, "end"): "cuda-graph(programmatic,1)",
    (1, "early"): "cuda-graph(programmatic)",
}  # fmt: skip


def programmatic(name: str) -> list[Row]:
    """Predict chains of kernels launched programmatically, into a stream or as a CUDA graph.

    A kernel takes what it took launched as usual, in the same way, less what the GPU needs between
    two. The host is ahead of the GPU.
    """
    with lzma.open(FOLDER / f"{name}-hardware.jsonl.xz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    gpu = load_gpu(found[0]["gpu"])
    launch = launch_model(LaunchChoice(OF_GPU, {"host": 0.0}), unit="us", gpu=gpu)
    chains = [row for row in found if row["what"] == "pdl"]
    plain = {(row["graph"], row["blocks"]): row["us"] for row in chains if row["mode"] == 0}
    rows = []
    for row in (row for row in chains if row["mode"] in PDL_MODES):
        trigger, how, early = PDL_MODES[row["mode"]]
        blocks, nodes, graph = row["blocks"], row["nodes"], row["graph"]
        serial = plain[graph, blocks]
        time = serial / nodes - (launch.path if graph else launch.gap).value
        kernel = MeasuredKernel("spin", (blocks, 1, 1), (row["threads"], 1, 1), 32, 0, time)
        links = [(i, i + 1) for i in range(nodes - 1)]
        program = MeasuredProgram("chain", "chain", 1, [kernel] * nodes, links, serial, row["us"])
        scenario = program.scenario(gpu, "none").with_launch(launch)
        (policy,) = find_mechanisms([NAMES[graph, trigger]])
        _, cost, preamble = parse_cost(f"{policy.name}.preamble={early * time}us")
        found_time = predicted_time(policy, scenario, {policy.name: {cost: preamble}}).time
        case = f"{counted(blocks, 'block')}, {how}"
        family = policy.family_of(scenario)
        rows.append(Row(name, case, policy.label, serial, found_time, row["us"], family))
    return rows
