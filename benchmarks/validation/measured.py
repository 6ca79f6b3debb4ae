"""What depgraph predicts for programs that were measured (``samples/validation/measured``)."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rows import Row

from depgraph.analysis.compare_mechanisms import charges_of, predicted, run_mechanism
from depgraph.analysis.measured_programs import (
    PROGRAMS,
    MeasuredKernel,
    MeasuredProgram,
    Measurements,
    Prediction,
    errors_of,
    predict_graph,
)
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import find_mechanisms, parse_cost
from depgraph.mechanisms.streams import Streams
from depgraph.parsers.measurements import read_measurements
from depgraph.system.text import counted
from depgraph.timing.launch_model import OF_GPU, LaunchChoice, launch_model

if TYPE_CHECKING:
    from depgraph.gpu.model_file import MeasuredErrors
    from depgraph.scenario.work_alone import Contention

FOLDER = Path(__file__).resolve().parents[2] / "samples" / "validation" / "measured"
POLICY = "cuda-graph"
NOT_FITTED = {"h100_sxm": {"h100": (1,), "h100-unseen": (0, 1)}, "h200": {"h200": (0, 1)}}
"""GPU model to files, and halves of them, that its constants were not fitted to."""


@cache
def measurements(name: str) -> Measurements:
    """Read a file of measurements."""
    return read_measurements(FOLDER / f"{name}.json.xz")


@cache
def predict(name: str, contention: Contention) -> list[Prediction]:
    """Predict the parallel graph of each program of a file."""
    found = measurements(name)
    gpu = load_gpu(found.gpu)
    return [predict_graph(program, gpu, contention) for program in found.programs]


def row_of(name: str, each: Prediction) -> Row:
    """Return a prediction as a row of a table."""
    program = each.program
    return Row(name, program.name, POLICY, program.serial, each.time, program.parallel)


def errors(model: str) -> MeasuredErrors:
    """Return how far predictions were off on a GPU that was measured."""
    found, fixed = (
        [
            each
            for name, halves in NOT_FITTED[model].items()
            for each in predict(name, contention)
            if each.program.half in halves
        ]
        for contention in ("full", "none")
    )
    return errors_of(measurements(next(iter(NOT_FITTED[model]))).gpu, PROGRAMS, found, fixed)


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
def predict_streams(name: str, *, ahead: bool) -> list[Row]:
    """Predict each program of a file on streams, the host ahead of the GPU or as measured."""
    found = measurements(name)
    gpu = load_gpu(found.gpu)
    rows = []
    for program in found.programs:
        time = program.streams_ahead if ahead else program.streams
        if time is None or program.streams_host is None:
            continue
        host = 0.0 if ahead else program.streams_host / len(program.kernels)
        scenario = program.scenario(gpu, "full", streams=streams_of(program))
        scenario = scenario.with_launch(
            launch_model(LaunchChoice(OF_GPU, {"host": host}), unit="us", gpu=gpu)
        )
        policy = Streams()
        predicted_time = predicted(policy, {}, scenario)
        if predicted_time is not None:
            row = Row(name, program.name, policy.name, program.serial, predicted_time, time)
            rows.append(row)
    return rows


# How `samples/validation/hardware.cu` launched 20 dependent kernels, and which part of the work of
# each needs nothing of the one before.
PDL_MODES = {
    1: ("pdl(end)", "no trigger", 0.0),
    2: ("pdl", "early trigger", 0.0),
    3: ("pdl(end)", "no trigger, half the work before the wait", 0.5),
    4: ("pdl", "early trigger, half the work before the wait", 0.5),
}


def pdl(name: str) -> list[Row]:
    """Predict chains of kernels with programmatic dependent launch, the host ahead of the GPU.

    A kernel takes what it took launched as usual, less the gap of the GPU.
    """
    with lzma.open(FOLDER / f"{name}-hardware.jsonl.xz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    gpu = load_gpu(found[0]["gpu"])
    launch = launch_model(LaunchChoice(OF_GPU, {"host": 0.0}), unit="us", gpu=gpu)
    chains = [row for row in found if row["what"] == "pdl" and not row["graph"]]
    plain = {row["blocks"]: row["us"] for row in chains if row["mode"] == 0}
    rows = []
    for row in (row for row in chains if row["mode"] in PDL_MODES):
        mechanism, how, early = PDL_MODES[row["mode"]]
        blocks, nodes = row["blocks"], row["nodes"]
        time = plain[blocks] / nodes - launch.gap.value
        kernel = MeasuredKernel("spin", (blocks, 1, 1), (row["threads"], 1, 1), 32, 0, time)
        links = [(i, i + 1) for i in range(nodes - 1)]
        program = MeasuredProgram(
            "chain", "chain", 1, [kernel] * nodes, links, plain[blocks], row["us"]
        )
        scenario = program.scenario(gpu, "none").with_launch(launch)
        (policy,) = find_mechanisms([mechanism])
        _, cost, preamble = parse_cost(f"{policy.name}.preamble={early * time}us")
        charges = charges_of(policy, {policy.name: {cost: preamble}}, scenario)
        makespan = run_mechanism(policy, scenario, charges)[0].makespan
        case = f"{counted(blocks, 'block')}, {how}"
        rows.append(Row(name, case, mechanism, plain[blocks], makespan, row["us"]))
    return rows
