"""What one SM holds, and what a block of each kernel takes of it, by the CUDA occupancy rules."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.gpu.model import DEFAULT_GPU, Gpu, compiler_target, gpu_for_architecture, load_gpu
from depgraph.system.arrays import distinct_rows
from depgraph.system.text import counted

if TYPE_CHECKING:
    from depgraph.graph.block_graph import BlockGraph

Resource = Literal["blocks", "warps", "registers", "shared memory"]

# No SM up to Blackwell has more L1 storage (L1 cache and shared memory together), so a larger
# request in a trace is not a request but an uninitialised value.
_LARGEST_L1_BYTES = 256 * 1024


class Occupancy(NamedTuple):
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
    registers: int | None,  # of a thread
    shared_bytes: int | None,  # static and dynamic, of a block
    carveout_percent: int | None = None,  # of the SM's shared memory, as the program prefers; all
) -> Occupancy:
    """Return how many blocks one SM holds: the smallest of the four limits of ``cuda_occupancy.h``.

    ``docs/gpus.md`` explains them. Registers or shared memory that no thread or block can have (0
    or negative registers, more than there are) are taken to be unknown, and what is unknown limits
    nothing. A block that cannot be launched on this GPU counts as one per SM, and
    `Occupancy.assumed` says so.
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
        # A block whose warps, rounded up to the sub-partitions, need more is not launched.
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


RESOURCES = ("block slots", "warps", "registers", "shared memory")
SHARE = "share of the SM"
# Where a block takes 1/o of each resource these are counted in finer units, so that o blocks of
# 1/o, rounded down, fit and o + 1 do not.
_FINE = 1 << 12
_LARGEST = 1 << 62


@dataclass(frozen=True, eq=False)
class SmResources:
    """What one SM has of each resource, and what a block of each operation takes of them.

    Examples
    --------
    Eight registers and eight bytes of shared memory; a block takes half of one or of the other.

    >>> import numpy as np
    >>> from depgraph.gpu.model import load_gpu
    >>> need = np.array([[4, 1], [1, 4]])
    >>> sm = SmResources(("registers", "bytes"), np.array([8, 8]), need, need, load_gpu("V100"))
    >>> sm.occupancy.tolist()
    [2, 2]
    >>> sm.work(np.array([0, 0, 1, 1]), np.ones(4), 1)
    1.25
    """

    names: tuple[str, ...]  # of the resources
    capacity: NDArray[np.int64]  # [n_resources] of one SM
    # [n_operations, n_resources] what the hardware allocates to a block; 0 for copies and engines.
    need: NDArray[np.int64]
    # The same where a block is placed, `need` or more: registers come from sub-partitions of the
    # SM, and what is left in each is of no use to a further block.
    placed: NDArray[np.int64]
    gpu: Gpu  # whose limits these are
    assumptions: tuple[str, ...] = ()
    gpu_is_assumed: bool = False  # nobody named it

    @cached_property
    def occupancy(self) -> NDArray[np.int64]:
        """Blocks of each operation that one SM holds, 1 for copies and memsets: int64[n]."""
        held = self.capacity // np.maximum(self.placed, 1)
        held[self.placed == 0] = _LARGEST
        return np.where(self.placed.any(axis=1), held.min(axis=1, initial=_LARGEST), 1)

    @cached_property
    def binding(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What is placed, and the capacity, of those resources that can ever run out first."""
        placed = self.placed
        kept = list(range(len(self.capacity)))
        for x in reversed(range(len(self.capacity))):
            # Exact in 64 bits: each factor is below 2^30, or there is one resource only.
            if any(
                (placed[:, x] * self.capacity[y] <= placed[:, y] * self.capacity[x]).all()
                for y in kept
                if y != x
            ):
                kept.remove(x)
        return np.ascontiguousarray(self.placed[:, kept]), self.capacity[kept]

    def work_by_resource(
        self, operation_of_block: NDArray[np.int32], durations: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the time that one SM needs for its part of each resource: float64[n_resources]."""
        times = np.bincount(operation_of_block, weights=durations, minlength=len(self.need))
        work: NDArray[np.float64] = times @ (self.need / self.capacity)
        return work

    def work(
        self, operation_of_block: NDArray[np.int32], durations: NDArray[np.float64], sms: float
    ) -> float:
        """Return how long the most used resource of all SMs is needed: no schedule is shorter."""
        if math.isinf(sms):
            return 0.0
        by_resource = self.work_by_resource(operation_of_block, durations)
        return float(by_resource.max(initial=0.0)) / sms

    def shares(
        self, operation_of_block: NDArray[np.int32], durations: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return what each block takes of an SM, of the resource that sets the work, 0 to 1."""
        most_used = int(self.work_by_resource(operation_of_block, durations).argmax())
        shares = self.need[:, most_used] / self.capacity[most_used]
        taken: NDArray[np.float64] = shares[operation_of_block]
        return taken

    @cached_property
    def largest_shares(self) -> NDArray[np.float64]:
        """What a block of each operation takes of its own most used resource: float64[n]."""
        shares: NDArray[np.float64] = (self.need / self.capacity).max(axis=1, initial=0.0)
        return shares

    def take(self, operations: list[int]) -> SmResources:
        """Return the resources of some operations alone."""
        return replace(self, need=self.need[operations], placed=self.placed[operations])

    @property
    def warps(self) -> NDArray[np.int64]:
        """Return the warps of a block of each operation, 0 where they are not known."""
        if self.names != RESOURCES:
            return np.zeros(len(self.need), np.int64)
        most = np.array([self.gpu.max_blocks_per_sm, self.gpu.max_warps_per_sm])
        warps = self.need[:, 1] * most[1] // self.capacity[1]
        # Where the occupancy was stated, a block takes a share of all, slots for blocks among them.
        is_known = self.need[:, 0] * most[0] == self.capacity[0]
        return np.where(is_known, warps, 0)

    def beside(self, other: SmResources) -> SmResources:
        """Return what the operations of both take, those of `other` last, on one GPU."""
        each, gpu = (self, other), self.gpu
        notes = tuple(dict.fromkeys((*self.assumptions, *other.assumptions)))
        is_assumed = self.gpu_is_assumed or other.gpu_is_assumed
        if self.names == other.names == (SHARE,):
            takes = np.concatenate([r.need.any(axis=1) for r in each])
            found = equal_shares(takes, np.append(self.occupancy, other.occupancy), gpu, *notes)
            return replace(found, gpu_is_assumed=is_assumed)
        names, capacity = self.names, self.capacity
        if self.names != other.names or (self.capacity != other.capacity).any():
            names, capacity = RESOURCES, _FINE * _capacity(gpu)
        need, placed = (
            np.concatenate([_in_units(r, getattr(r, what), capacity) for r in each])
            for what in ("need", "placed")
        )
        return SmResources(names, capacity, need, placed, gpu, notes, is_assumed)


def _in_units(
    resources: SmResources, taken: NDArray[np.int64], capacity: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return what is taken of an SM, counted in the units of `capacity`."""
    if len(resources.names) == len(capacity):
        return taken * (capacity // resources.capacity)
    return np.where(taken > 0, capacity // resources.occupancy[:, None], 0)


def equal_shares(
    is_kernel: NDArray[np.bool_], occupancy: NDArray[np.int64], gpu: Gpu, *assumptions: str
) -> SmResources:
    """Let a block of a kernel with occupancy o take 1/o of an SM, a copy or memset nothing."""
    # Units of which every 1/o is a whole number: sums stay exact.
    capacity = min(math.lcm(*set(occupancy[is_kernel].tolist())), _LARGEST)
    need = np.where(is_kernel, capacity // np.maximum(occupancy, 1), 0)[:, None].astype(np.int64)
    return SmResources((SHARE,), np.array([capacity], np.int64), need, need, gpu, assumptions)


def sm_resources(
    graph: BlockGraph, gpu: Gpu | None = None, fixed_occupancy: int | None = None
) -> SmResources:
    """Work out what blocks take of an SM: as stated, as fixed, or by the CUDA occupancy rules."""
    if gpu is None:
        gpu, reason = default_gpu(graph)
        resources = sm_resources(graph, gpu, fixed_occupancy)
        return replace(resources, assumptions=(reason, *resources.assumptions), gpu_is_assumed=True)
    is_kernel = _takes_room(graph)
    if fixed_occupancy is not None:
        same = np.full(graph.n_operations, fixed_occupancy, np.int64)
        note = f"{counted(fixed_occupancy, 'block')} per SM for every kernel (--occupancy)"
        return equal_shares(is_kernel, same, gpu, note)
    if graph.resources is None:
        message = "the graph carries no launch resources: pass resources_of, or an occupancy"
        raise ModelError(message)
    stated = np.zeros(graph.n_operations, np.int64) if graph.occupancy is None else graph.occupancy
    stated = np.where(is_kernel, stated, 0)
    kernels = int(is_kernel.sum())
    if kernels and (stated[is_kernel] > 0).all():
        note = f"occupancy as the input states it ({kernels} of {counted(kernels, 'kernel')})"
        return equal_shares(is_kernel, stated, gpu, note)
    return _by_need(graph, gpu, stated)


def _takes_room(graph: BlockGraph) -> NDArray[np.bool_]:
    """Tell kernels from host copies and from copy engines: one thread, no registers."""
    takes: NDArray[np.bool_] = graph.kernel >= 0
    if graph.resources is not None:
        takes = takes & ((graph.resources.threads > 1) | (graph.resources.registers != 0))
    return takes


def _by_need(graph: BlockGraph, gpu: Gpu, stated: NDArray[np.int64]) -> SmResources:
    """Count block slots, warps, registers and shared memory."""
    fine = _FINE if (stated > 0).any() else 1
    capacity = fine * _capacity(gpu)
    need = np.zeros((graph.n_operations, len(capacity)), np.int64)
    placed = need.copy()
    notes: Counter[str] = Counter()
    groups = _alike(graph, stated)
    for (threads, registers, shared_bytes, blocks), members in groups.items():
        assumed: tuple[str, ...] = ("occupancy as the input states it",)
        if blocks > 0:
            need[members] = placed[members] = capacity // blocks
        else:
            taken, allocated, assumed = _block_need(gpu, threads, registers, shared_bytes)
            need[members], placed[members] = fine * taken, fine * allocated
        notes.update(dict.fromkeys(assumed, len(members)))
    kernels = sum(map(len, groups.values()))
    of_all = counted(kernels, "kernel")
    assumptions = [f"{note} ({count} of {of_all})" for note, count in notes.items()]
    if kernels > 1:
        shared = f"{', '.join(RESOURCES[:-1])} and {RESOURCES[-1]}"
        assumptions.append(f"blocks of different kernels share an SM by {shared}")
    return SmResources(RESOURCES, capacity, need, placed, gpu, tuple(assumptions))


def _alike(
    graph: BlockGraph, stated: NDArray[np.int64]
) -> dict[tuple[int, int, int, int], NDArray[np.int64]]:
    """Return the kernels that take the same, those launched first before others."""
    resources: Any = graph.resources
    columns = (resources.threads, resources.registers, resources.shared_bytes, stated)
    operations = np.flatnonzero(_takes_room(graph))
    taken = np.stack(columns, axis=1)[operations]
    first, group = distinct_rows(taken)
    by_group = operations[np.argsort(group, kind="stable")]
    members = np.split(by_group, np.cumsum(np.bincount(group))[:-1])
    return {tuple(taken[first[g]].tolist()): members[g] for g in np.argsort(first)}


def _block_need(
    gpu: Gpu, threads: int, registers: int, shared_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return what a block takes of each resource, what counts to place it, and what is assumed."""
    found = occupancy(
        gpu,
        threads=threads,
        registers=None if registers < 0 else registers,
        shared_bytes=None if shared_bytes < 0 else shared_bytes,
    )
    capacity = _capacity(gpu)
    of_block = found.registers_per_block or 0, found.shared_bytes_per_block or 0
    wanted = [1, found.warps_per_block, *of_block]
    # A block that does not fit on this GPU counts as one per SM.
    need = np.minimum(np.array(wanted, np.int64), capacity)
    placed = need.copy()
    for name in found.limited_by:
        at = get_args(Resource).index(name)
        if capacity[at] // max(need[at], 1) > found.blocks_per_sm:
            placed[at] = capacity[at] // (found.blocks_per_sm + 1) + 1
    return need, placed, found.assumed


def _capacity(gpu: Gpu) -> NDArray[np.int64]:
    sizes = gpu.max_blocks_per_sm, gpu.max_warps_per_sm, gpu.registers_per_sm
    return np.array([*sizes, gpu.shared_bytes_per_sm], np.int64)


def default_gpu(graph: BlockGraph, otherwise: Gpu | None = None) -> tuple[Gpu, str]:
    """Choose a GPU by the trace's SASS version, else an H100, and say why in one line."""
    architecture = None if graph.resources is None else graph.resources.architecture
    if architecture is not None:
        with suppress(ModelError):
            gpu = gpu_for_architecture(architecture)
            what = f"the trace is for {compiler_target(architecture)}"
            return gpu, f"{what}: the limits of {gpu.name} are used (--gpu)"
    gpu = otherwise or load_gpu(DEFAULT_GPU)
    what = "no architecture is named"
    if architecture is not None:
        what = f"the trace names {compiler_target(architecture)}, of which there is no model"
    return gpu, f"{what}: the limits of {gpu.name} are assumed (--gpu)"
