"""What one SM holds, what a block of each kernel takes of it, and how blocks slow each other."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from depgraph.errors import ModelError
from depgraph.gpu.kernel_classes import contention_of
from depgraph.gpu.model import Gpu, gpu_for_architecture, load_gpu
from depgraph.gpu.occupancy import Resource, occupancy
from depgraph.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph


DEFAULT_GPU = "H100 SXM"
RESOURCES = ("block slots", "warps", "registers", "shared memory")
SHARE = "share of the SM"
# Where a block takes 1/o of each resource these are counted in finer units, so that o blocks of
# 1/o, rounded down, fit and o + 1 do not.
_FINE = 1 << 12
_LARGEST = 1 << 62


@dataclass(frozen=True)
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
        """What is placed, and the capacity, of those resources that can ever run out first.

        A resource of which no block takes a larger share than of another one never does.
        """
        placed = np.unique(self.placed, axis=0)
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
        """Return the time below which no schedule on `sms` SMs can stay.

        The most used resource decides: duration times need, summed over the blocks, over what all
        SMs have of it.
        """
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


def equal_shares(
    is_kernel: NDArray[np.bool_], occupancy: NDArray[np.int64], gpu: Gpu, *assumptions: str
) -> SmResources:
    """Let a block of a kernel with occupancy o take 1/o of an SM, a copy or memset nothing."""
    # Units of which every 1/o is a whole number: sums stay exact.
    capacity = min(math.lcm(*np.unique(occupancy[is_kernel]).tolist()), _LARGEST)
    need = np.where(is_kernel, capacity // np.maximum(occupancy, 1), 0)[:, None].astype(np.int64)
    return SmResources((SHARE,), np.array([capacity], np.int64), need, need, gpu, assumptions)


def sm_resources(
    graph: BlockGraph, gpu: Gpu | None = None, fixed_occupancy: int | None = None
) -> SmResources:
    """Work out what blocks take of an SM: as stated, as fixed, or by the CUDA occupancy rules."""
    if gpu is None:
        gpu, reason = default_gpu(graph)
        found = sm_resources(graph, gpu, fixed_occupancy)
        said = (reason, *found.assumptions)
        return replace(found, assumptions=said, gpu_is_assumed=True)
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
    said = [f"{note} ({count} of {counted(kernels, 'kernel')})" for note, count in notes.items()]
    if kernels > 1:
        said.append(f"blocks of different kernels share an SM by {', '.join(RESOURCES[:-1])} "
                    f"and {RESOURCES[-1]}")  # fmt: skip
    return SmResources(RESOURCES, capacity, need, placed, gpu, tuple(said))


def _alike(
    graph: BlockGraph, stated: NDArray[np.int64]
) -> dict[tuple[int, int, int, int], list[int]]:
    """Return the kernels that take the same, those launched first before others."""
    resources: Any = graph.resources
    columns = (resources.threads, resources.registers, resources.shared_bytes, stated)
    operations = np.flatnonzero(_takes_room(graph))
    groups: dict[Any, list[int]] = {}
    keys = np.stack(columns, axis=1)[operations].tolist()
    for operation, key in zip(operations.tolist(), keys, strict=True):
        groups.setdefault(tuple(key), []).append(operation)
    return groups


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
    wanted = [
        1,
        found.warps_per_block,
        found.registers_per_block or 0,
        found.shared_bytes_per_block or 0,
    ]
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
            what = f"the trace is for sm_{architecture}"
            return gpu, f"{what}: the limits of {gpu.name} are used (--gpu)"
    gpu = otherwise or load_gpu(DEFAULT_GPU)
    what = "no architecture is named"
    if architecture is not None:
        what = f"the trace names sm_{architecture}, of which there is no model"
    return gpu, f"{what}: the limits of {gpu.name} are assumed (--gpu)"


# A block that holds an eighth of an SM's registers is a load of 1.
_FULL_LOAD = 8
# Read off an H100 and an H200 (samples/validation): an empty SM is set to hold twice the blocks of
# a kernel and one more, for blocks of up to so many threads, but not to more than so much.
_SMALL_BLOCK = 512
_MOST_BLOCKS = 32
_LARGEST_CHOICE = 132 << 10


@dataclass(frozen=True, slots=True)
class CarveOuts:
    """Which shares of an SM's L1 cache kernels need as shared memory."""

    shared: int  # place of shared memory among the resources
    least: NDArray[np.int64]  # bytes [n_operations] where others run: a set SM must empty first
    chosen: NDArray[np.int64]  # bytes [n_operations] that an empty SM is set to for a block

    def keep_apart(self, is_kernel: NDArray[np.bool_]) -> bool:
        """Whether some kernel could not join another one on an SM."""
        least, chosen = self.least[is_kernel], self.chosen[is_kernel]
        return bool(len(least) and least.max() > chosen.min())


@dataclass(frozen=True, slots=True)
class SmSharing:
    """How blocks on one SM slow each other: each runs at the rate 1 / (1 + slowdown * load)."""

    slowdown: float
    # [n_operations] eighths of the registers, times how much sooner than others a kernel fills an
    # SM; 0 for copies and memsets
    load: NDArray[np.float64]
    spread: float  # by what share the work of blocks of one kernel on one SM differs
    # Part of a kernel's measured time that holds no SM: at most, in microseconds; of contended
    # scenarios that of each operation, in the unit of the durations.
    lead: float | NDArray[np.float64]
    carve_outs: CarveOuts | None = None  # None where any two blocks may share an SM
    # [n_operations] 0 for computation, 1 for communication; None where neither slows the other.
    side: NDArray[np.int64] | None = None
    beside: tuple[float, float] = (0.0, 0.0)  # how much longer each takes while the other runs
    full_load: float = _FULL_LOAD  # the most that an SM can hold

    @property
    def best_throughput(self) -> float:
        """The most work times load that an SM does in a unit of time: that of a full one."""
        return self.full_load / (1 + self.slowdown * self.full_load)


def sm_sharing(
    resources: SmResources,
    functions: Sequence[str] = (),
    shape: NDArray[np.int64] | None = None,
    *,
    carve_outs: bool,
) -> SmSharing:
    """Work out how the blocks of a program slow each other.

    Of the forms that were tried on 449 programs measured on an H100 and an H200
    (``samples/validation``), registers told best how much of an SM a block keeps busy, and the
    class of a kernel how soon a busy SM gains nothing more.

    Parameters
    ----------
    functions : sequence of str
        Name of each operation's kernel, default unknown.
    shape : int64[n_operations, 3], optional
        Grids; needed with names.
    carve_outs : bool
        Whether kernels that need different ones cannot share an SM.
    """
    calibrated = calibrated_gpu(resources.gpu)
    slowdown = calibrated.contention or 0.0
    share = resources.largest_shares
    if resources.names == RESOURCES:
        registers = resources.need[:, 2] / resources.capacity[2]
        share = np.where(registers > 0, registers, share)
    sooner = np.ones(len(share))
    if functions and shape is not None and slowdown > 0:
        sooner = contention_of(functions, shape, calibrated) / slowdown
    return SmSharing(
        slowdown=slowdown,
        load=_FULL_LOAD * share * sooner,
        spread=calibrated.block_spread or 0.0,
        lead=calibrated.kernel_lead_us or 0.0,
        carve_outs=_carve_outs(resources) if carve_outs else None,
        full_load=_FULL_LOAD * float(sooner.max(initial=1.0)),
    )


def calibrated_gpu(gpu: Gpu) -> Gpu:
    """Return the GPU whose constants count: the H100 where nobody measured this one."""
    return load_gpu(DEFAULT_GPU) if gpu.contention is None else gpu


def _carve_outs(resources: SmResources) -> CarveOuts | None:
    """Return the carve-outs of kernels whose shared memory is known; None if of none."""
    gpu = resources.gpu
    fits = resources.names == RESOURCES and resources.capacity[3] == gpu.shared_bytes_per_sm
    if not fits or len(gpu.shared_carveouts) <= 1:
        return None
    sizes = np.array(gpu.shared_carveouts, np.int64)

    def at_least(wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes[np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)]

    shared, occupancy = resources.placed[:, 3], resources.occupancy
    small = resources.need[:, 1] * gpu.warp_size <= _SMALL_BLOCK
    blocks = np.where(small, np.minimum(_MOST_BLOCKS, 2 * occupancy + 1), occupancy)
    least = at_least(occupancy * shared)
    chosen = np.minimum(at_least(blocks * shared), at_least(np.array([_LARGEST_CHOICE])))
    return CarveOuts(shared=3, least=least, chosen=np.maximum(least, chosen))
