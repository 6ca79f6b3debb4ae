"""Published measurements, and what depgraph predicts for the programs that they describe.

The tables lie in ``samples/validation/published``: times and launch configurations as their authors
published them (microsoft/cusync, bytedance/flux).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rows import Row

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.extraction.workload import (
    WorkloadDependence,
    WorkloadKernel,
    workload_extraction,
)
from depgraph.footprint.footprints import Footprints
from depgraph.gpu.model import load_gpu
from depgraph.mechanisms import find_mechanisms
from depgraph.scenario.build_scenario import build_scenario
from depgraph.trace.records import READ

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = Path(__file__).resolve().parents[2] / "samples" / "validation" / "published"

# Columns of the two matrix products (below) times these are the weights, of two bytes each.
MLP_DEPTH = {"gpt3": (12288, 6144), "llama": (8192, 2816)}
# Columns of the two matrix products of an MLP on one of eight GPUs, as microsoft/cusync runs them
# (src/ml-bench/transformer/eval_mlp.py): GPT-3 has a hidden size of 12288, LLaMA of 8192.
MLP_COLUMNS = {"gpt3": (6144, 12288), "llama": (5632, 8192)}
MLP_POLICIES = {
    ("gpt3", "tile"): "cusync-tile",
    # A step of LLaMA's second product needs two tiles of the first, half a row apart.
    ("llama", "tile"): "cusync-strided(2)",
}
# Height and width of the images of ResNet's layers by number of channels (eval_resnet.py).
IMAGE = {64: 56, 128: 28, 256: 14, 512: 7}
SHARED_BYTES = {"V100": 96 << 10, "A100": 164 << 10}


@dataclass(frozen=True, slots=True)
class Tiled:
    """A matrix product cut into tiles, one a block.

    Attributes
    ----------
    rows, columns : int
        Tiles; pieces along k count as columns.
    height : int
        Rows of the result that a tile has.
    resident : int
        Blocks on one SM.
    """

    rows: int
    columns: int
    height: int
    resident: int

    def kernel(self, name: str, time: float, sms: int) -> WorkloadKernel:
        """Return the kernel, whose blocks all take as long, so that alone it takes `time`."""
        blocks = self.rows * self.columns
        waves = math.ceil(blocks / (sms * self.resident))
        return WorkloadKernel(
            name, (self.columns, self.rows, 1), (256, 1, 1), np.full(blocks, time / waves),
            occupancy=self.resident, cuttable=True,
        )  # fmt: skip


def tiled(gpu: str, rows: int, columns: int, tile: str, stages: int, split: int) -> Tiled:
    """Cut a matrix product into tiles, such as ``"128x256x32"``.

    How many blocks an SM holds is not published. Halves take 2 bytes in each of the stages in
    shared memory; the accumulators of a tile above 128 x 128 leave registers for one block alone.
    """
    height, width, *depth = (int(number) for number in tile.split("x"))
    staged = stages * (height + width) * (depth or [32])[0] * 2
    by_registers = 2 if height * width <= 128 * 128 else 1
    resident = max(1, min(SHARED_BYTES[gpu] // staged, by_registers))
    return Tiled(math.ceil(rows / height), math.ceil(columns / width) * split, height, resident)


def predict(
    kernels: list[WorkloadKernel],
    dependences: list[WorkloadDependence],
    gpu: str,
    policy: str,
    bytes_read: int = 0,
) -> float:
    """Return the makespan in microseconds of a described program under a policy.

    `bytes_read` cross the memory bus at least, at the bandwidth of the GPU.
    """
    model = load_gpu(gpu)
    extraction = workload_extraction(kernels, dependences, unit="us", metadata={})
    reads = Footprints(
        np.zeros(1, np.int32), np.array([READ], np.uint8),
        np.zeros(1, np.uint64), np.array([bytes_read], np.uint64),
    )  # fmt: skip
    scenario = build_scenario(
        extraction.graph, extraction.kernels, gpu=model, footprints=lambda: reads,
        memory_gb_per_s="gpu" if bytes_read else None,
    )  # fmt: skip
    found = compare_mechanisms(scenario, [model.sms], find_mechanisms([policy]))
    return found.outcomes[0].makespan


def rows_that_meet(first: Tiled, second: Tiled, reach: int = 0) -> WorkloadDependence:
    """Let each tile of the second wait for the tiles of the first that hold rows it needs."""
    if first.height == second.height and not reach:
        return WorkloadDependence(0, 1, "row")
    edges = [
        (before * first.columns + i, after * second.columns + j)
        for after in range(second.rows)
        for before in range(first.rows)
        if before * first.height < (after + 1) * second.height + reach
        and (before + 1) * first.height > after * second.height - reach
        for i in range(first.columns)
        for j in range(second.columns)
    ]
    return WorkloadDependence(0, 1, "edges", edges=edges)


def read(name: str) -> list[dict[str, str]]:
    """Read one of the published tables."""
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cusync_mlp() -> Iterator[Row]:
    """Predict two matrix products of an MLP: rows, tiles, Stream-K."""
    for line in read("cusync_mlp.csv"):
        if line["policy"] == "baseline":
            continue
        gpu, model, tokens = line["gpu"], line["model"], int(line["tokens"])
        sms = load_gpu(gpu).sms
        products = [
            tiled(
                gpu, tokens, MLP_COLUMNS[model][i], line[f"tile_{i + 1}"],
                int(line[f"stages_{i + 1}"]), int(line[f"split_{i + 1}"]),
            )
            for i in (0, 1)
        ]  # fmt: skip
        kernels = [
            product.kernel(f"gemm_{i + 1}", float(line[f"kernel_{i + 1}_us"]), sms)
            for i, product in enumerate(products)
        ]
        policy = line["policy"]
        name = MLP_POLICIES.get((model, policy), f"cusync-{policy}")
        dependence = rows_that_meet(*products)
        if policy == "stream-k":
            name = "stream-k"
        elif policy == "tile" and dependence.pattern == "row":
            pattern = "strided" if model == "llama" and products[0].columns % 2 == 0 else "tile"
            dependence = WorkloadDependence(0, 1, pattern)
        weights = 2 * int(np.dot(MLP_COLUMNS[model], MLP_DEPTH[model]))
        yield Row(
            f"cuSync, {gpu}", f"{model} MLP, {tokens} tokens", name, float(line["serial_us"]),
            predict(kernels, [dependence], gpu, name, weights), float(line["measured_us"]),
        )  # fmt: skip


def cusync_conv2d() -> Iterator[Row]:
    """Predict two equal 3 x 3 convolutions of ResNet as implicit matrix products."""
    for line in read("cusync_conv2d.csv"):
        if line["policy"] == "baseline":
            continue
        gpu, batch, channels = line["gpu"], int(line["batch"]), int(line["channels"])
        side = IMAGE[channels]
        product = tiled(gpu, batch * side * side, channels, line["tile"], 2, int(line["split"]))
        serial = float(line["serial_us"])
        kernels = [product.kernel(f"conv_{i}", serial / 2, load_gpu(gpu).sms) for i in (1, 2)]
        name = "cusync-row" if line["policy"] == "row" else "cusync-conv2d(3,3)"
        # A pixel needs those around it: one row of the image, and a pixel, before and after.
        dependence = rows_that_meet(product, product, reach=side + 1)
        yield Row(
            f"cuSync, {gpu}", f"ResNet conv2d, batch {batch}, {channels} channels", name, serial,
            predict(kernels, [dependence], gpu, name), float(line["measured_us"]),
        )  # fmt: skip


def _part(name: str, time: float) -> WorkloadKernel:
    return WorkloadKernel(name, (1, 1, 1), (256, 1, 1), np.array([time]), occupancy=1)


def flux() -> Iterator[Row]:
    """Predict a matrix product beside a collective over eight GPUs, one part of the rows each.

    Parts of the product follow one another on the SMs, those of the collective on the link; what
    comes first of a part lets the other begin.
    """
    parts = 8
    for line in read("flux.csv"):
        gemm, collective = (float(line[name]) * 1e3 for name in ("gemm_ms", "collective_ms"))
        first = line["program"].startswith("AG")
        transfers = [_part(f"transfer_{i}", collective / parts) for i in range(parts)]
        products = [_part(f"gemm_{i}", gemm / parts) for i in range(parts)]
        both = (transfers, products) if first else (products, transfers)
        kernels = [kernel for pair in zip(*both, strict=True) for kernel in pair]
        pairs = [(i, i + 1) for i in range(0, 2 * parts, 2)]
        pairs += [(i, i + 2) for i in range(2 * parts - 2)]
        links = [WorkloadDependence(before, after, "all") for before, after in pairs]
        yield Row(
            f"Flux, 8 x {line['gpu']}", "{program}, {m} x {n} x {k}".format(**line),
            "ideal", float(line["serial_ms"]) * 1e3, predict(kernels, links, "A100", "ideal"),
            float(line["measured_ms"]) * 1e3,
        )  # fmt: skip


TABLES_OF = {"cuSync, MLP": cusync_mlp, "cuSync, ResNet": cusync_conv2d, "Flux": flux}
NOT_EXPRESSED = {
    "FlashOverlap, evaluation/results.csv, 7 rows (its predictor: see above)": "the times of "
    "the matrix product and of the collective apart are not published, nor is the bandwidth of the "
    "link",
    "cuSync, attention": "the times of its four kernels apart are not published",
}
