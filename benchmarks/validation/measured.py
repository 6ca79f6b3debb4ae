"""What depgraph predicts for programs that were measured (``samples/validation/measured``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rows import Row

from depgraph.analysis.measured_programs import (
    PROGRAMS,
    Measurements,
    Prediction,
    errors_of,
    predict_graph,
)
from depgraph.gpu.model import load_gpu
from depgraph.parsers.measurements import read_measurements

if TYPE_CHECKING:
    from depgraph.gpu.measured_errors import MeasuredErrors
    from depgraph.scenario.contention import Contention

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
