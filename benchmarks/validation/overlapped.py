"""Computation beside communication: what was measured and published, and what depgraph predicts.

``samples/validation/measured/h200-overlap.csv`` holds medians of runs of
``samples/validation/overlap.py`` on two H200s: a chain of bf16 matrix products beside a collective.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pages

from depgraph.extraction.workload import WorkloadKernel, workload_extraction
from depgraph.gpu.model import load_gpu
from depgraph.graph.program import Collective, Link
from depgraph.reproduce.programs import makespan as time_of
from depgraph.reproduce.programs import scenario_of

if TYPE_CHECKING:
    from collections.abc import Sequence


MEASURED = Path(__file__).resolve().parents[2] / "samples" / "validation" / "measured"
# What of two was launched second began so much later, so that the first was surely placed first:
# as events said on one H200, with copies from the host in place of those between peers.
LATER_US = {"products first": 19.8, "collective first": 18.1, "copies first": 20.9}
POLICIES = {
    "as launched": "c3", "communication first": "c3-first", "reserved": "c3-reserved",
    "both": "c3-both", "dma, 8 fewer": "c3-dma",
}  # fmt: skip
ASKED = ("as launched", "communication first")
CLOSE = 0.10
INTRODUCTION = """\
*Share of ideal*: (speedup - 1) / (ideal speedup - 1); the ideal is what both would take alone,
the longer one of the two."""
OF_PAIRS = """\
Chains of 1 to 12 bf16 matrix products beside one collective of NCCL 2.28.9 or beside copies
both ways by copy engines, from 16 to 512 MiB (`samples/validation/overlap.py`, PyTorch 2.11,
driver 580). *Reached* is what hardware did, of the ideal. A product is described as its tiles
(cuBLAS's kernel names say how large), which take the SMs in turn; a collective holds an SM with
each block, 24 by NCCL's choice; what was launched second began 18 to 21 us later. All of NCCL is
predicted with two constants, copies with one. cuBLAS was told to leave SMs alone in *reserved*
and *both*: there hardware overlapped far less than predicted, *reserved* often not at all,
although the SMs were free: NCCL's clusters of four (`NCCL_CGA_CLUSTER_SIZE`) are not modelled."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """How much longer computation takes beside communication, and communication beside it."""

    computation: float
    communication: float


# The least mean error of the share on half 0, of steps of a few percent.
FITTED = {"sm": Slowed(0.05, 0.12), "dma": Slowed(0.06, 0.0)}


@dataclass(frozen=True, slots=True)
class Pair:
    """One way to run a chain of matrix products beside a collective."""

    engine: str  # "sm" for NCCL, "dma" for copies between peers
    shape: tuple[int, int, int]  # of each product: m, n, k
    kernels: int
    tile: str  # of the kernel that cuBLAS took for so many SMs, by its name
    collective: str
    bytes: int
    mode: str
    reserved: int  # SMs that were kept for communication
    gemm_sms: int  # that cuBLAS was told of
    ctas: int  # blocks of the collective
    # Each alone, as launched by default: what "ideal" is made of.
    gemm_us: float
    collective_us: float
    # The same with the number of SMs and of blocks that this mode has.
    gemm_alone_us: float
    collective_alone_us: float
    measured_us: float
    half: int  # 0 if constants were fitted to it

    @property
    def name(self) -> str:
        """What ran beside what."""
        size = "x".join(map(str, self.shape))
        return f"{self.kernels} x {size}, {self.collective} {self.bytes >> 20} MiB"

    @property
    def ideal(self) -> float:
        """Speedup if neither slowed the other."""
        return (self.gemm_us + self.collective_us) / max(self.gemm_us, self.collective_us)

    def share(self, time: float) -> float:
        """Return which share of the ideal gain a time is."""
        return ((self.gemm_us + self.collective_us) / time - 1) / (self.ideal - 1)


@cache
def pairs() -> list[Pair]:
    """Read what was measured; pairs go to one half or the other with all their modes."""
    found: list[Pair] = []
    halves: dict[str, int] = {}
    with (MEASURED / "h200-overlap.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            shape = int(line["m"]), int(line["n"]), int(line["k"])
            key = f"{shape} {line['kernels']} {line['collective']} {line['bytes']}"
            half = halves.setdefault(key, (len(halves) + len(halves) // 6) % 2)
            found.append(
                Pair(
                    line["engine"], shape, int(line["kernels"]), line["tile"], line["collective"],
                    int(line["bytes"]), line["mode"], int(line["reserved"]),
                    int(line["gemm_sms"]), int(line["ctas"]),
                    *(float(line[f"{name}_us"]) for name in (
                        "gemm", "collective", "gemm_alone", "collective_alone", "measured",
                    )), half=half,
                )
            )  # fmt: skip
    return found


def tiles(shape: tuple[int, int, int], tile: str) -> int:
    """Return the tiles of a product of row-major matrices: cuBLAS makes its transpose."""
    height, width = (int(side) for side in tile.split("x"))
    return math.ceil(shape[1] / height) * math.ceil(shape[0] / width)


@cache
def predicted(pair: Pair) -> float:
    """Return the time of a pair in microseconds, with the constants that were fitted."""
    return predict(pair, FITTED[pair.engine])


def predict(pair: Pair, slowed: Slowed) -> float:
    """Return the time of a pair in microseconds."""
    blocks = tiles(pair.shape, pair.tile)
    waves = math.ceil(blocks / pair.gemm_sms)
    gemm = WorkloadKernel(
        "", (blocks, 1, 1), (384, 1, 1),
        duration=pair.gemm_alone_us / pair.kernels / waves, occupancy=1,
    )  # fmt: skip
    by_dma = pair.engine == "dma"
    ctas = max(1, pair.ctas)
    talk = WorkloadKernel(
        "collective", (ctas, 1, 1), (1 if by_dma else 544, 1, 1),
        duration=pair.collective_alone_us, occupancy=None if by_dma else 1,
        registers=0 if by_dma else None, shared_bytes=0 if by_dma else None, stream=1,
        collective=Collective(
            engine="dma" if by_dma else "sm", link="nvlink", sms=ctas,
            time=pair.collective_alone_us,
        ),
    )  # fmt: skip
    first = pair.mode in ("communication first", "both", "dma, 8 fewer")
    what = "products" if not first else "copies" if by_dma else "collective"
    later = WorkloadKernel(
        "later", (1, 1, 1), (1, 1, 1), duration=LATER_US[f"{what} first"],
        registers=0, shared_bytes=0, stream=0 if first else 1,
    )  # fmt: skip
    chain = [replace(gemm, name=f"gemm {i}") for i in range(pair.kernels)]
    kernels = [talk, later, *chain] if first else [later, chain[0], talk, *chain[1:]]
    policy = POLICIES[pair.mode]
    if pair.gemm_sms < load_gpu("H200").sms:
        policy = f"{policy}({load_gpu('H200').sms - pair.gemm_sms})"
    link = Link(
        name="nvlink", bandwidth=1, dma_bandwidth=1, computation_slowed=slowed.computation,
        communication_slowed=slowed.communication,
    )  # fmt: skip
    return makespan(kernels, [link], "H200", policy)


def makespan(
    kernels: Sequence[WorkloadKernel], links: Sequence[Link], gpu: str, policy: str
) -> float:
    """Return the time of a described program under a policy."""
    extraction = workload_extraction(kernels, [], unit="us", metadata={}, links=links)
    return time_of(scenario_of(extraction, gpu), policy)


def _cells(name: tuple[str, str], half: int, found: list[Pair]) -> tuple[object, ...]:
    """Sum up some pairs in a row: what hardware reached of the ideal, and the errors."""
    shares = np.array(
        [(pair.share(pair.measured_us), pair.share(predicted(pair))) for pair in found]
    )
    error = np.abs(shares[:, 1] - shares[:, 0])
    times = np.abs([predicted(pair) / pair.measured_us - 1 for pair in found])
    return (
        *name, half, len(found), f"{shares[:, 0].mean():.0%}", f"{shares[:, 1].mean():.0%}",
        f"{100 * error.mean():.1f}", f"{np.mean(error <= CLOSE):.0%}", f"{100 * error.max():.0f}",
        f"{times.mean():.1%}",
    )  # fmt: skip


def pairs_table() -> str:
    """Return the errors by engine and mode, for pairs that constants were fitted to and others."""
    groups: dict[tuple[str, str, int], list[Pair]] = defaultdict(list)
    for pair in pairs():
        limited = pair.engine == "sm" and pair.reserved and pair.mode == "communication first"
        mode = f"{pair.mode}, {pair.reserved} blocks at most" if limited else pair.mode
        if pair.mode in ("reserved", "both"):
            mode = f"{pair.mode}, {pair.reserved}"
        groups[pair.engine, mode, pair.half].append(pair)
    asked = [p for p in pairs() if p.mode in ASKED and not p.reserved]
    for half in (0, 1):
        groups["both", "as launched, communication first", half] = [
            p for p in asked if p.half == half
        ]
    heads = (
        "engine", "mode", "half", "runs", "reached", "predicted", "mean error (points)",
        "within 10 points", "worst", "mean error of the time",
    )  # fmt: skip
    named = {"sm": "NCCL", "dma": "copy engines", "both": "**both**"}
    rows = (
        _cells((named[engine], mode), half, groups[engine, mode, half])
        for engine, mode, half in sorted(groups)
        if half
    )
    return pages.table(heads, "llrrrrrrrr", rows)


def overlap_tables() -> str:
    """Return all tables of computation beside communication."""
    constants = "; ".join(
        f"{name}: computation takes {slowed.computation:.0%} longer, communication "
        f"{slowed.communication:.0%}"
        for name, slowed in (("NCCL", FITTED["sm"]), ("copy engines", FITTED["dma"]))
    )
    return "\n\n".join([
        "## Computation beside communication", INTRODUCTION,
        "### Measured on two H200s", f"Fitted to half 0: {constants}.", pairs_table(),
        OF_PAIRS,
    ]) + "\n"  # fmt: skip
