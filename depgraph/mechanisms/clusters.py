"""Thread-block clusters, placed together on close SMs, and control of their launch."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph.block_graph import BlockGraph, assemble
from depgraph.mechanisms.base import (
    LAUNCH,
    Availability,
    Charges,
    Cost,
    Mechanism,
    Numbered,
    serialized,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Against, Rules

PORTABLE, LARGEST = 8, 16


class Clusters(Numbered):
    """Serialized launches whose blocks start in clusters of consecutive numbers."""

    name = "clusters"
    signature = "clusters(C)"
    most = LARGEST
    rule = (
        "serialized launches; C = 8 blocks on end start at once, each on an SM of its own of one "
        "graphics processing cluster (GPC), or none of them does; kernels whose blocks C does not "
        "divide have none"
    )
    cost = "SMs that stay empty because what is left of a GPC holds no cluster; launches as serial"
    availability = Availability.SHIPS
    vendor = "NVIDIA"
    least_architecture = 90
    source = (
        "CUDA C++ programming guide, thread block clusters (compute capability 9.0): 8 blocks at "
        "most on every GPU, 16 where a kernel asks for a non-portable size; an SM each as measured "
        "on an H200; GPCs as a GPU's model states them, else of up to 18 SMs"
    )
    costs = (LAUNCH,)

    def __init__(self, size: int = PORTABLE) -> None:
        super().__init__(size)
        self.size = size
        self.freedom = self.name, 1 / size

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Place the blocks of a cluster together."""
        blocks = np.diff(program.graph.first_block)
        has = program.is_kernel & (blocks % self.size == 0) & (self.size > 1)
        note = f"kernels in clusters: {int(has.sum())} of {int(program.is_kernel.sum())}"
        if self.size > PORTABLE:
            note += "; the size is not portable"
        return serialized(
            program, charges, cluster=np.where(has, self.size, 1), assumptions=(note,)
        )


class ClusterLaunchControl(Mechanism):
    """Persistent blocks in serialized launches: each takes tiles, or was dealt them before."""

    name = "clc"
    signature = "clc[(static)]"
    rule = (
        "serialized launches; a block that has done its tile takes the next one that no block has, "
        "so that only the first tile of each slot pays for the start of a block; static: tiles are "
        "dealt out to the slots in turn before the launch, and none changes hands"
    )
    cost = "a negative one: the start of a block, from a slot's second tile on; launches as serial"
    availability = Availability.CODE
    vendor = "NVIDIA"
    least_architecture = 100
    source = (
        "CUDA C++ programming guide, cluster launch control (compute capability 10.0); up to 15 % "
        "over static persistent kernels (second-hand)"
    )
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "start", 0.2, "us", "part of a block's time that the next tile of a running block does "
            "not need, without what its code does first, such as barriers and descriptors",
            "benchmarks/block_placement.cu on an H200: blocks that fill their SM's shared memory",
        ),
        LAUNCH,
    )  # fmt: skip

    def __init__(self, *, is_static: bool = False) -> None:
        self.is_static = is_static
        self.shown = ("static",) if is_static else ()
        self.freedom = self.name, 1 - is_static

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read how tiles are dealt out."""
        if list(parameters) != ["static"]:
            raise ModelError(f"give {cls.signature}")
        return cls(is_static=True)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Shorten all tiles but the first of each slot; let static ones wait for their slot's."""
        graph = program.graph
        blocks = np.diff(graph.first_block)
        slots = blocks if math.isinf(program.sms) else program.occupancy * int(program.sms)
        slots = np.clip(slots, 1, np.maximum(blocks, 1))
        of_block = graph.operation_of_block
        later = np.arange(graph.n_blocks) - graph.first_block[of_block] >= slots[of_block]
        start = charges.time("start")
        durations = np.maximum(program.durations - start * later, 0.0)
        rules = serialized(
            program,
            charges,
            durations=durations if start else None,
            against=Against.WORK if start else Against.BLOCK,
        )
        return replace(rules, graph=_dealt_out(graph, later, slots)) if self.is_static else rules


def _dealt_out(graph: BlockGraph, later: NDArray[np.bool_], slots: NDArray[np.int64]) -> BlockGraph:
    """Return a graph in which each tile waits for the one before it in its slot, and no other."""
    tiles = np.flatnonzero(later).astype(np.int32)
    before = tiles - slots[graph.operation_of_block[tiles]].astype(np.int32)
    one_each = np.arange(graph.n_blocks + 1)
    of_tiles = np.arange(len(tiles) + 1)
    return assemble(
        graph.kernel,
        graph.first_block,
        (graph.operation_of_block, one_each, one_each[:-1].astype(np.int32)),
        np.zeros(len(tiles), np.uint8),
        (of_tiles, before),
        (of_tiles, tiles),
    )
