"""Flux: a matrix product beside a collective, as published and as depgraph predicts it.

What else was published is computed by ``depgraph reproduce``. The table lies in ``samples/papers``:
times as their authors published them (bytedance/flux).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from rows import Row

from depgraph.extraction.workload import (
    WorkloadDependence,
    WorkloadKernel,
    workload_extraction,
)
from depgraph.reproduce.programs import makespan, scenario_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).resolve().parents[2] / "samples" / "papers" / "flux.csv"


def read() -> list[dict[str, str]]:
    """Read the published table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _part(name: str, time: float) -> WorkloadKernel:
    return WorkloadKernel(name, (1, 1, 1), (256, 1, 1), duration=time, occupancy=1)


def flux() -> Iterator[Row]:
    """Predict a matrix product beside a collective over eight GPUs, one part of the rows each."""
    # Parts of the product follow one another on the SMs, those of the collective on the link; what
    # comes first of a part lets the other begin.
    parts = 8
    for line in read():
        gemm, collective = (float(line[name]) * 1e3 for name in ("gemm_ms", "collective_ms"))
        first = line["program"].startswith("AG")
        transfers = [_part(f"transfer_{i}", collective / parts) for i in range(parts)]
        products = [_part(f"gemm_{i}", gemm / parts) for i in range(parts)]
        both = (transfers, products) if first else (products, transfers)
        kernels = [kernel for pair in zip(*both, strict=True) for kernel in pair]
        pairs = [(i, i + 1) for i in range(0, 2 * parts, 2)]
        pairs += [(i, i + 2) for i in range(2 * parts - 2)]
        links = [WorkloadDependence(before, after, "all") for before, after in pairs]
        program = workload_extraction(kernels, links, unit="us", metadata={})
        yield Row(
            f"Flux, 8 x {line['gpu']}", "{program}, {m} x {n} x {k}".format(**line),
            "ideal", float(line["serial_ms"]) * 1e3,
            makespan(scenario_of(program, "A100"), "ideal"),
            float(line["measured_ms"]) * 1e3,
        )  # fmt: skip
