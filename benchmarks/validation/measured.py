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
    predict_streams,
)
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import find_mechanisms, parse_cost
from depgraph.mechanisms.predicted_time import predicted_time
from depgraph.parsers.measurements import read_measurements
from depgraph.scenario.contention import EAGER
from depgraph.system.text import counted
from depgraph.timing.launch_model import OF_GPU, LaunchChoice, launch_model

LATER = ("h200-later",)
"""Files of programs that no constant was fitted to, whatever their names."""
_REGISTERS = 32  # of a thread of a chain's kernels
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
                    each.family, half_of(name, program),
                )
            )  # fmt: skip
    return rows


@cache
def streams(name: str) -> list[Row]:
    """Predict each program of a file on streams, the host ahead of the GPU."""
    found = measurements(name)
    gpu = load_gpu(found.gpu)
    predictions = filter(None, (predict_streams(program, gpu) for program in found.programs))
    return [
        Row(
            name, each.program.name, each.family, each.program.serial, each.time, each.measured,
            each.family, half_of(name, each.program),
        )
        for each in predictions
    ]  # fmt: skip


@cache
def launched_alone(name: str) -> list[Row]:
    """Compare what the kernels of each program take launched one by one with those in its chain."""
    with lzma.open(FOLDER / f"{name}.json.xz", "rt") as file:
        times = {
            row["name"]: [sum(kernel[i] for kernel in row["kernels"]) for i in (3, 2)]
            for row in json.load(file)["programs"]
            if row.get("kernels") and all(kernel[3] for kernel in row["kernels"])
        }
    return [
        Row(
            name, program.name, EAGER, in_graph, alone, in_graph, EAGER, half_of(name, program)
        )
        for program in measurements(name).programs
        if program.name in times
        for alone, in_graph in [times[program.name]]
    ]  # fmt: skip


def half_of(name: str, program: MeasuredProgram) -> int:
    """Return the half of a program in a file; see `rows.Row`."""
    return 1 if name in LATER else program.half


# How `samples/validation/hardware.cu` and `pdl.cu` launched 20 dependent kernels, and which part of
# the work of each needs nothing of the one before.
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
WORK = ("", "dependent sums, ", "reads of the L2 cache and sums, ", "reads of the L2 cache, ")


def programmatic(name: str) -> list[Row]:
    """Predict chains of kernels launched programmatically, into a stream or as a CUDA graph.

    A kernel takes what it took launched as usual, in the same way, less what the GPU needs between
    two. The host is ahead of the GPU.
    """
    with lzma.open(FOLDER / f"{name}.jsonl.xz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    gpu = load_gpu(found[0]["gpu"])
    launch = launch_model(LaunchChoice(OF_GPU, {"host": 0.0}), unit="us", gpu=gpu)
    chains = [{"kind": 0, "shared": 0} | row for row in found if row["what"] == "pdl"]
    keys = ("kind", "threads", "shared", "blocks", "graph")
    plain = {tuple(row[k] for k in keys): row["us"] for row in chains if row["mode"] == 0}
    rows = []
    for row in (row for row in chains if row["mode"] in PDL_MODES):
        trigger, how, early = PDL_MODES[row["mode"]]
        kind, threads, shared, blocks, graph = (row[k] for k in keys)
        nodes, serial = row["nodes"], plain[kind, threads, shared, blocks, graph]
        time = serial / nodes - (launch.path if graph else launch.gap).value
        kernel = MeasuredKernel(
            "chain", (blocks, 1, 1), (threads, 1, 1), _REGISTERS, shared << 10, time
        )
        links = [(i, i + 1) for i in range(nodes - 1)]
        program = MeasuredProgram("chain", "chain", 1, [kernel] * nodes, links, serial, row["us"])
        scenario = program.scenario(gpu, "full").with_launch(launch)
        (policy,) = find_mechanisms([NAMES[graph, trigger]])
        _, cost, preamble = parse_cost(f"{policy.name}.preamble={early * time}us")
        predicted = predicted_time(policy, scenario, {policy.name: {cost: preamble}}).time
        size = f"{counted(blocks, 'block')} of {threads}{f' and {shared} KiB' if shared else ''}"
        case = f"{WORK[kind]}{size}, {how}"
        family = policy.family_of(scenario)
        rows.append(Row(name, case, policy.label, serial, predicted, row["us"], family))
    return rows
