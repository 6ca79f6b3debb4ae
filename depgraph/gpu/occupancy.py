"""How many thread blocks of a kernel one SM holds, by the CUDA occupancy rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from depgraph.errors import ModelError

if TYPE_CHECKING:
    from depgraph.gpu.model import Gpu

Resource = Literal["blocks", "warps", "registers", "shared memory"]

# No SM up to Blackwell has more L1 storage (L1 cache and shared memory together), so a larger
# request in a trace is not a request but an uninitialised value.
_LARGEST_L1_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel one SM holds at a time, at least 1, and why."""

    blocks_per_sm: int
    limited_by: tuple[Resource, ...]  # what allows no more: several where they allow the same
    assumed: tuple[str, ...]  # what was not known or not usable, and what was assumed instead
    warps_per_block: int
    registers_per_block: int | None  # with rounding; None if unknown
    shared_bytes_per_block: int | None  # with rounding and the driver's share; None if unknown


def occupancy(
    gpu: Gpu,
    *,
    threads: int,
    registers: int | None,
    shared_bytes: int | None,
    carveout_percent: int | None = None,
) -> Occupancy:
    """Return how many blocks one SM holds: the smallest of the four limits of ``cuda_occupancy.h``.

    Registers or shared memory that no thread or block can have (0 or negative registers, more than
    there are) are taken to be unknown, and what is unknown limits nothing. A block that cannot be
    launched on this GPU counts as one per SM, and `Occupancy.assumed` says so.

    Parameters
    ----------
    registers : int or None
        Of a thread.
    shared_bytes : int or None
        Static and dynamic, of a block.
    carveout_percent : int, optional
        Share of the SM's shared memory that the program prefers
        (``cudaFuncAttributePreferredSharedMemoryCarveout``); default all of it.

    Notes
    -----
    The rules of ``cuda_occupancy.h`` (CUDA 13.0):

    - blocks: the SM's block slots;
    - warps: the SM's warp slots over the warps of a block;
    - registers: a warp takes ``registers * warp_size``, rounded up to the allocation unit, from one
      sub-partition of the SM; whole warps fit into each sub-partition; the limit is their number
      over the warps of a block. A block whose warps, rounded up to the number of sub-partitions,
      need more than `Gpu.max_registers_per_block` is not launched;
    - shared memory: the SM's carve-out over the request plus the driver's reserve, rounded up to
      the allocation unit.

    Traces name neither barriers nor clusters: the limit on barriers never binds for kernels with
    one barrier, and the placement of clusters is not modelled.
    """
    if threads < 1:
        raise ModelError(f"a block of {threads} threads: expected at least 1")
    if carveout_percent is not None and carveout_percent not in range(101):
        raise ModelError(f"carve-out of {carveout_percent} %: expected 0 to 100")
    warps = -(-threads // gpu.warp_size)
    limits: dict[Resource, int] = {"blocks": gpu.max_blocks_per_sm}
    assumed: list[str] = []

    limits["warps"] = gpu.max_warps_per_sm // warps
    if threads > gpu.max_threads_per_block:
        limits["warps"] = 0
        assumed.append(_does_not_fit(gpu, f"{threads} threads", gpu.max_threads_per_block))

    registers_per_block = None
    if registers is None or not 0 < registers <= gpu.max_registers_per_thread:
        assumed.append(_unknown("registers per thread", registers))
    else:
        per_warp = _round_up(registers * gpu.warp_size, gpu.register_allocation_unit)
        registers_per_block = per_warp * warps
        parts = gpu.warp_allocation_granularity
        if per_warp * _round_up(warps, parts) > gpu.max_registers_per_block:
            limits["registers"] = 0
            wanted = f"{threads} threads with {registers} registers each"
            assumed.append(_does_not_fit(gpu, wanted, gpu.max_registers_per_block))
        else:
            warps_per_part = gpu.registers_per_sm // parts // per_warp
            limits["registers"] = warps_per_part * parts // warps

    shared_per_block = None
    largest = max(_LARGEST_L1_BYTES, gpu.shared_bytes_per_sm)
    if shared_bytes is None or not 0 <= shared_bytes <= largest:
        assumed.append(_unknown("shared memory per block", shared_bytes))
    else:
        shared_per_block = gpu.shared_bytes_of_block(shared_bytes)
        if shared_bytes > gpu.max_shared_bytes_per_block:
            limits["shared memory"] = 0
            wanted = f"{shared_bytes} bytes of shared memory"
            assumed.append(_does_not_fit(gpu, wanted, gpu.max_shared_bytes_per_block))
        elif shared_per_block > 0:
            capacity = _shared_capacity(gpu, shared_per_block, carveout_percent)
            limits["shared memory"] = capacity // shared_per_block

    blocks = min(limits.values())
    return Occupancy(
        blocks_per_sm=max(blocks, 1),
        limited_by=tuple(resource for resource, limit in limits.items() if limit == blocks),
        assumed=tuple(assumed),
        warps_per_block=warps,
        registers_per_block=registers_per_block,
        shared_bytes_per_block=shared_per_block,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _shared_capacity(gpu: Gpu, allocated: int, carveout_percent: int | None) -> int:
    if carveout_percent is None:
        return gpu.shared_bytes_per_sm
    wanted = max(gpu.shared_bytes_per_sm * carveout_percent // 100, allocated)
    return next(size for size in gpu.shared_carveouts if size >= wanted)


def _unknown(what: str, value: int | None) -> str:
    return f"{what} {'unknown' if value is None else f'unusable ({value})'}: no limit"


def _does_not_fit(gpu: Gpu, wanted: str, at_most: int) -> str:
    return f"a block of {wanted} does not fit on {gpu.name} (at most {at_most}): one block per SM"
