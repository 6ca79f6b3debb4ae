"""What one SM holds: blocks of different kernels beside each other, counted in whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.gpu import occupancy
from depgraph.jit.schedule import place_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.bounds import Occupancies
    from depgraph.gpu import Gpu
    from depgraph.graph import BlockGraph

RESOURCES = ("block slots", "warps", "registers", "shared memory")
_UNKNOWN = (-1,) * len(RESOURCES)
# Resources are counted in fine units, so that o blocks of 1/o, rounded down, fit and o + 1 do not.
_FINE = 1 << 12
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Room:
    """What a block of each operation takes of an SM.

    Attributes
    ----------
    capacity : int64[n_resources]
        Of one SM; a single number where blocks are counted in shares of an SM.
    need : int64[n_operations, n_resources]
        0 for host copies.
    note : str
        How blocks share an SM, for reports; empty if each takes 1/o.
    """

    capacity: NDArray[np.int64]
    need: NDArray[np.int64]
    note: str = ""

    def work(
        self, operation_of_block: NDArray[np.int32], durations: NDArray[np.float64], sms: float
    ) -> float:
        """Return the time below which no schedule on `sms` SMs can stay.

        The most used resource decides: sum of duration times need, over what all SMs have.
        """
        if math.isinf(sms):
            return 0.0
        share = self.need / self.capacity
        used = np.zeros(len(self.capacity))
        per_operation = np.bincount(operation_of_block, weights=durations, minlength=len(share))
        used = per_operation @ share
        return float(used.max(initial=0.0)) / sms


def shares(kernel: NDArray[np.int32], blocks_per_sm: NDArray[np.int64]) -> Room:
    """Let a block of a kernel with occupancy o take 1/o of an SM, a host copy nothing.

    Parameters
    ----------
    kernel : int32[n_operations]
        Negative for host copies.
    blocks_per_sm : int64[n_operations]
    """
    # Units of which every 1/o is a whole number: sums stay exact.
    capacity = math.lcm(*np.unique(blocks_per_sm).tolist())
    capacity = min(capacity, _LARGEST)
    need = np.where(kernel >= 0, capacity // blocks_per_sm, 0)
    return Room(np.array([capacity], np.int64), need[:, None].astype(np.int64))


def sm_room(graph: BlockGraph, occupancies: Occupancies) -> Room:
    """Let blocks share an SM by threads, registers and shared memory where all are known.

    A block of another kernel takes 1/o of each resource, and so does every block if none is known
    or the occupancies were not worked out from the resources.

    Parameters
    ----------
    graph : BlockGraph
    occupancies : Occupancies
    """
    values = occupancies.values
    resources = graph.resources
    plain = shares(graph.kernel, values)
    if resources is None or (graph.occupancy is not None and graph.occupancy.all()):
        return plain
    gpu = occupancies.gpu
    columns = resources.threads, resources.registers, resources.shared_bytes, values
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    rows = []
    for kernel, key in zip(
        graph.kernel.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True
    ):
        if kernel < 0:
            rows.append((0,) * len(RESOURCES))
            continue
        if key not in known:
            known[key] = _block_need(gpu, *key)
        rows.append(known[key])
    kernels = int((graph.kernel >= 0).sum())
    measured = sum(row != _UNKNOWN for row, k in zip(rows, graph.kernel, strict=True) if k >= 0)
    if not measured:
        return plain
    capacity = np.array(_capacity(gpu), np.int64) * _FINE
    need = np.array(rows, np.int64) * _FINE
    unknown = need[:, 0] < 0
    need[unknown] = capacity // values[unknown, None]
    return Room(
        capacity,
        need,
        f"blocks of different kernels share an SM by warps, registers and shared memory "
        f"({measured} of {kernels} kernels; the others by 1/occupancy)",
    )


def most_room(
    free: Sequence[Sequence[int]], need: Sequence[int], order: Sequence[int], blocks: int
) -> list[int]:
    """Place equal blocks on SMs, each where most further blocks of its kernel would fit.

    Parameters
    ----------
    free : sequence of n_sms sequences
        What is left of each resource on each SM.
    need : sequence
        What a block takes of each.
    order : sequence of n_sms ints
        The device's order of SMs, which decides ties.
    blocks : int

    Returns
    -------
    list of int
        SM of each block, -1 where none has room.

    Notes
    -----
    The rule that Gilman et al. measured on Pascal and Turing GPUs ("Demystifying the placement
    policies of the NVIDIA GPU thread block scheduler for concurrent kernels", SIGMETRICS
    Performance Evaluation Review 48(3), 2020).
    """
    ordered = np.array(free, np.int64)[np.array(order)]
    places = place_blocks(ordered, np.array([need], np.int64), blocks)
    return [order[place] if place >= 0 else -1 for place in places.tolist()]


def block_resources(gpu: Gpu, threads: int) -> tuple[int, int, int, int]:
    """Return what a block takes that uses neither registers nor shared memory worth counting."""
    warps = -(-threads // gpu.warp_size)
    return 1, warps, 0, 0


def _capacity(gpu: Gpu) -> tuple[int, int, int, int]:
    return (
        gpu.max_blocks_per_sm,
        gpu.max_warps_per_sm,
        gpu.registers_per_sm,
        gpu.shared_bytes_per_sm,
    )


def _block_need(
    gpu: Gpu, threads: int, registers: int, shared_bytes: int, blocks_per_sm: int
) -> tuple[int, ...]:
    """Return what a block takes of each resource, or `_UNKNOWN`."""
    if threads < 1 or registers < 0 or shared_bytes < 0:
        return _UNKNOWN
    found = occupancy(gpu, threads=threads, registers=registers, shared_bytes=shared_bytes)
    if found.assumed or found.blocks_per_sm != blocks_per_sm:
        return _UNKNOWN
    need = [
        1,
        found.warps_per_block,
        found.registers_per_block or 0,
        found.shared_bytes_per_block or 0,
    ]
    capacity = _capacity(gpu)
    hosted = min(c // n for c, n in zip(capacity, need, strict=True) if n)
    if hosted > blocks_per_sm:
        # Registers come from sub-partitions of the SM: some are left that no block can use.
        need[2] = capacity[2] // (blocks_per_sm + 1) + 1
    return tuple(need)
