"""What depgraph predicts for programs that were measured (``samples/validation/measured``)."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from rows import Row

from depgraph.analysis.measured_programs import (
    MeasuredKernel,
    MeasuredProgram,
    Measurements,
    predict_graph,
    predict_streams,
)
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import parse_cost
from depgraph.mechanisms.cuda_graph import PROGRAMMATIC, CudaGraph
from depgraph.mechanisms.pdl import ProgrammaticDependentLaunch
from depgraph.mechanisms.predicted_time import predicted_time
from depgraph.parsers.measurements import read_measurements
from depgraph.scenario.contention import EAGER
from depgraph.system.text import counted
from depgraph.timing.program_times import OF_GPU, LaunchChoice, launch_model

LATER = ("h100-fresh", "h200-fresh", "h200-newest")
"""Files of programs that no constant was fitted to, whatever their names."""
# Registers of a thread, for each kind of kernels, by nvcc 13.0; h100-pdl states its own.
_REGISTERS = {"h100-hardware": (8,), "h200-hardware": (8,), "h200-pdl": (14, 16, 23, 58)}
# What a kernel without work takes: as a profiler saw it on an H200; in chains of them a node takes
# 0.25 us longer on an H100 (hardware.cu: 0.78 and 0.54).
_EMPTY_US = {"NVIDIA H100 80GB HBM3": 0.85, "NVIDIA H200": 0.6}
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
def rooted(name: str) -> list[Row]:
    """Predict each program of a file as a graph with its own edges between two empty kernels."""
    found = measurements(name)
    gpu = load_gpu(found.gpu)
    with lzma.open(FOLDER / f"{name}.json.xz", "rt") as file:
        times = {
            row["name"]: min(row["rooted"][0], row["rooted_primed"][0])
            for row in json.load(file)["programs"]
        }
    rows = []
    for program in found.programs:
        between = _between_empty_kernels(program, _EMPTY_US[found.gpu], times[program.name])
        each = predict_graph(between, gpu)
        rows.append(
            Row(
                name, program.name, "cuda-graph", each.program.serial, each.time, each.measured,
                predict_graph(program, gpu).family, half_of(name, program), is_rooted=True,
            )
        )  # fmt: skip
    return rows


def _between_empty_kernels(program: MeasuredProgram, empty: float, time: float) -> MeasuredProgram:
    """Return a program of one root and one leaf; `time` is what its graph took."""
    # Each stream was forked from the one of the first kernel and of the last one, so that the
    # first kernel has an edge to the first of each and to the last, whatever else these wait for.
    n, stream = len(program.kernels), program.streams_captured
    inner = {source for source, _ in program.edges}
    edges = [(0, n + 1), *((0, stream.index(one) + 1) for one in dict.fromkeys(stream))]
    edges += [(source + 1, target + 1) for source, target in program.edges]
    edges += [(i + 1, n + 1) for i in range(n) if i not in inner]
    last = 2 + max(kernel.operation for kernel in program.kernels)
    ends = [
        MeasuredKernel("spin_kernel", (1, 1, 1), (1, 1, 1), 16, 0, empty, operation)
        for operation in (0, last)
    ]
    own = [replace(kernel, operation=kernel.operation + 1) for kernel in program.kernels]
    return replace(
        program,
        kernels=[ends[0], *own, ends[1]],
        edges=sorted(edges, key=itemgetter(1, 0)),
        serial=program.serial + 2 * empty,
        parallel=time,
    )


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


# How `samples/validation/hardware.cu` and `pdl.cu` launched 20 dependent kernels: the share of the
# work of each that needs nothing of the one before, and that after which it triggers (-1: none).
PDL_MODES = {1: (0.0, -1), 2: (0.0, 0.0), 3: (0.5, -1), 4: (0.5, 0.0)}
SHARES = {0.25: "a quarter", 0.5: "half", 0.75: "three quarters"}
TRIGGERS = {-1: "no trigger", 0: "early trigger", 0.5: "trigger after half"}
_IN_SHARED_MEMORY = 6
_BY_CLOCK = (0, 5)
WORK = (
    "", "dependent sums, ", "reads of the L2 cache and sums, ", "reads of the L2 cache, ",
    "independent sums, ", "the global clock, ", "shared memory, ",
)  # fmt: skip


@cache
def programmatic(name: str) -> list[Row]:
    """Predict chains of kernels launched programmatically, into a stream or as a CUDA graph."""
    # A kernel takes what it took in a plain graph, less what the GPU needs between two nodes. The
    # host is ahead of the GPU.
    with lzma.open(FOLDER / f"{name}.jsonl.xz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    gpu = load_gpu(found[0]["gpu"])
    registers = found[0].get("registers") or _REGISTERS[name]
    launch = launch_model(LaunchChoice(OF_GPU, {"host": 0.0}), unit="us", gpu=gpu)
    usual = {"kind": 0, "shared": 0, "other": 0, "amount": 0}
    chains = [usual | row for row in found if row["what"] in {"pdl", "spans"}]
    keys = ("kind", "threads", "shared", "blocks", "other", "amount", "graph")
    plain = {
        tuple(row[k] for k in keys): row["us"]
        for row in chains if row["what"] == "pdl" and row["mode"] == 0
    }  # fmt: skip
    spans = {_setting(row): row["us"] for row in chains if row["what"] == "spans"}
    rows = []
    for row in (row for row in chains if row["what"] == "pdl" and row["mode"] > 0):
        before, trigger = PDL_MODES.get(row["mode"]) or (row["before"], row["trigger"])
        if row["other"] and before:
            continue  # one preamble cannot be said for kernels of two sizes
        kind, threads, shared, blocks, other, _, graph = (row[k] for k in keys)
        nodes, serial = row["nodes"], plain[tuple(row[k] for k in keys)]
        in_graph = plain[tuple((row | {"graph": 1})[k] for k in keys)]
        time = in_graph / nodes - launch.path.value
        times, sizes = [time] * 2, [blocks] * 2
        if other:
            sizes[1] = blocks * other // row["per"]
            own = spans[_setting(row)]
            times = [2 * time * each / sum(own) for each in own]
        taken = max(shared << 10, 4 * threads if kind == _IN_SHARED_MEMORY else 0)
        kernels = [
            MeasuredKernel("chain", (size, 1, 1), (threads, 1, 1), registers[kind], taken, each)
            for size, each in zip(sizes, times, strict=True)
        ]
        links = [(i, i + 1) for i in range(nodes - 1)]
        program = MeasuredProgram(
            "chain", "chain", 1, kernels * (nodes // 2), links, serial, row["us"]
        )
        scenario = program.scenario(gpu, "full").with_launch(launch)
        point = 1 if trigger < 0 else trigger
        policy = CudaGraph(PROGRAMMATIC, point) if graph else ProgrammaticDependentLaunch(point)
        _, cost, preamble = parse_cost(f"{policy.name}.preamble={before * time}us")
        predicted = predicted_time(policy, scenario, {policy.name: {cost: preamble}}).time
        size = f"{counted(blocks, 'block')} of {threads}{f' and {shared} KiB' if shared else ''}"
        if other:
            size += f" and {sizes[1]} in turn"
        how = TRIGGERS[trigger]
        if before:
            how += f", {SHARES[before]} of the work before the wait"
        case = f"{WORK[kind]}{size}, {how}"
        family = policy.family_of(scenario)
        rows.append(
            Row(
                name, case, policy.label, serial, predicted, row["us"], family,
                by_clock=kind in _BY_CLOCK,
            )
        )  # fmt: skip
    return rows


def _setting(row: dict[str, Any]) -> tuple[int, ...]:
    """Return what `pdl.cu` calls a setting."""
    return tuple(row[k] for k in ("kind", "threads", "shared", "per", "other", "amount"))
