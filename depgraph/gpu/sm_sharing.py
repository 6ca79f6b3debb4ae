"""How blocks on one SM slow each other, which cannot share one, and which stand together."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from depgraph.gpu.model import Gpu, calibrated_gpu
from depgraph.gpu.sm_resources import RESOURCES, SmResources

_ATTENTION, _NORM, _ROWS = "contention_attention", "contention_norm", "contention_rows"
_CLASSES = (
    (_ROWS, re.compile(r"gemmSN")),  # products of few rows; arguments name other ones
    (
        "contention_convolution",
        re.compile(r"[fdw](prop|grad)|conv(?!ert)|gemm_f32f32_f32f32", re.IGNORECASE),
    ),
    ("contention_gemm32", re.compile(r"sgemm", re.IGNORECASE)),
    (_ATTENTION, re.compile(r"flash_?(fwd|bwd|attn)|fmha", re.IGNORECASE)),
    (_NORM, re.compile(r"layer_?norm", re.IGNORECASE)),
    (_ROWS, re.compile(r"reduce_kernel|softmax|norm|scan|cumsum", re.IGNORECASE)),
)
_CLUSTER = re.compile(r"nvjet_sm\d+\w*?_\d+x\d+_\d+x\d+_(\d+)x(\d+)_")
_PORTABLE = 8  # blocks of a cluster that any GPU can place: CUDA C++ programming guide
_FIRST_WITH_CLUSTERS = 90
_NAMES = 1 << 14  # that are remembered: most kernels of a program have the name of another


def contention_of(functions: Sequence[str], gpu: Gpu) -> NDArray[np.float64]:
    """Return the constant of contention of each operation, by the class that its name tells."""
    usual = gpu.contention or 0.0
    found = np.full(len(functions), usual)
    for place, name in enumerate(functions):
        key = _class_of(name)
        if key == _NORM and gpu.contention_norm is None:
            key = _ROWS
        if key is not None:
            found[place] = getattr(gpu, key) or usual
    return found


def _parts_of(functions: Sequence[str]) -> NDArray[np.int64] | None:
    """Return which part of an SM each operation keeps busy: 1 of attention, else 0."""
    part = np.array([_class_of(name) == _ATTENTION for name in functions], np.int64)
    return part if 0 < part.sum() < len(part) else None


@lru_cache(_NAMES)
def _class_of(function: str) -> str | None:
    return next((key for key, pattern in _CLASSES if pattern.search(function)), None)


def clusters_of(
    functions: Sequence[str], shape: NDArray[np.int64], blocks: NDArray[np.int64], gpu: Gpu
) -> NDArray[np.int64]:
    """Return how many blocks of each operation are placed together: int64[n_operations].

    cuBLAS names it in its kernels for Hopper, after the tile and the depth and stages of its
    pipeline: ``nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT`` runs in clusters of 2 x 4. Where grids
    (`shape`) are not of as many `blocks` as a program has, no cluster is told.
    """
    found = np.ones(len(blocks), np.int64)
    if gpu.architecture < _FIRST_WITH_CLUSTERS or gpu.vendor != "NVIDIA":
        return found
    largest = min(_PORTABLE, max(gpu.gpc_sms or (_PORTABLE,)))
    for place, name in enumerate(functions):
        named = _CLUSTER.search(name)
        if named is None or shape[place].prod() != blocks[place]:
            continue
        size = int(named[1]) * int(named[2])
        if size <= largest and blocks[place] % size == 0:
            found[place] = size
    return found


# A block that holds an eighth of an SM's registers is a load of 1.
_FULL_LOAD = 8
# Read off an H100 and an H200 (samples/validation): an empty SM is set to hold twice the blocks of
# a kernel and one more, for blocks of up to so many threads, but not to more than so much.
_SMALL_BLOCK = 512
_MOST_BLOCKS = 32
_LARGEST_CHOICE = 132 << 10
# A kernel whose blocks end about as fast as the GPU takes blocks back leaves its SMs at one time:
# of those in samples/validation, gathers of short rows (0.6 to 1 of that rate) and no others (less
# than 0.45).
_ALL_AT_ONCE = 0.6


class CarveOuts(NamedTuple):
    """Which shares of an SM's L1 cache kernels need as shared memory."""

    shared: int  # place of shared memory among the resources
    least: NDArray[np.int64]  # bytes [n_operations] where others run: a set SM must empty first
    chosen: NDArray[np.int64]  # bytes [n_operations] that an empty SM is set to for a block

    def without(self, kernels: NDArray[np.bool_]) -> Self:
        """Return the same where some kernels keep none from their SMs."""
        return self._replace(chosen=np.where(kernels, self.chosen.max(), self.chosen))

    def keep_apart(self, is_kernel: NDArray[np.bool_]) -> bool:
        """Whether some kernel could not join another one on an SM."""
        least, chosen = self.least[is_kernel], self.chosen[is_kernel]
        return bool(len(least) and least.max() > chosen.min())


class SmSharing(NamedTuple):
    """How blocks on one SM slow each other: each runs at the rate 1 / (1 + slowdown * load).

    The load is that of the blocks which keep the same part of the SM busy, and `across` times that
    of the others, on the busiest sub-partition that the block has warps on. What is spread evenly
    over the sub-partitions counts on each of them as much as on the SM.
    """

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
    # In microseconds, of contended scenarios in the unit of the durations: what it takes the GPU to
    # take a block back, how long after the first large cluster of a kernel blocks of others go
    # where none of these can stand, and what it takes an empty SM for each further block.
    take_back: float = 0.0
    cluster_start: float = 0.0
    fill: float = 0.0
    part: NDArray[np.int64] | None = None  # [n_operations] 0 or 1; None where all keep one busy
    across: float = 1.0
    # Sub-partitions (SMSPs) of an SM, to which warps go in turn, and [n_operations] the warps of a
    # block; 1 and None where all blocks keep them equally busy.
    smsps: int = 1
    warps: NDArray[np.int64] | None = None

    def load_of(self, blocks: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what so many blocks of each operation, 1 or more, are to the busiest SMSP."""
        if self.warps is None:
            return self.load * blocks
        warps = blocks * self.warps
        return self.load * blocks * self.smsps * -(-warps // self.smsps) / warps

    def timed(
        self,
        lead: NDArray[np.float64],
        blocks: NDArray[np.int64],
        times: NDArray[np.float64],
        microsecond: float,
    ) -> Self:
        """Return the same for kernels of so many blocks and such leads, in the unit of `times`."""
        take_back, carve_outs = self.take_back * microsecond, self.carve_outs
        if carve_outs is not None:
            at_once = blocks * take_back > _ALL_AT_ONCE * (times - lead)
            carve_outs = carve_outs.without(at_once)
        return self._replace(
            lead=lead, take_back=take_back, fill=self.fill * microsecond,
            cluster_start=self.cluster_start * microsecond, carve_outs=carve_outs,
        )  # fmt: skip

    @property
    def parts(self) -> int:
        """How many parts of an SM blocks keep busy."""
        return 1 if self.part is None else 2

    def full_time(self, work: NDArray[np.float64]) -> float:
        """Return what `work`, what each operation takes at a rate of 1, takes on one SM, all full.

        Where it keeps two parts of the SM busy, they share it so that both end at one time.
        """
        part = np.zeros(len(work), np.int64) if self.part is None else self.part
        less, more = map(float, np.sort(np.bincount(part, work * self.load, minlength=2)))
        full, across = self.slowdown * self.full_load, self.across
        # Shares p and q = 1 - p of the load: less / more = p (1 + full (q + across p)) /
        # (q (1 + full (p + across q))), which are the throughputs of both parts.
        a = full * (across - 1) * (more - less)
        b = more * (1 + full) + less * (1 - full + 2 * full * across)
        c = less * (1 + full * across)
        share = 2 * c / (b + math.sqrt(b * b + 4 * a * c)) if less else 0.0
        return more * (1 + full * (1 - share + across * share)) / (self.full_load * (1 - share))


def sm_sharing(
    resources: SmResources,
    functions: Sequence[str] = (),
    *,
    carve_outs: bool,
) -> SmSharing:
    """Work out how the blocks of a program slow each other.

    Of the forms that were tried on 449 programs measured on an H100 and an H200
    (``samples/validation``), registers told best how much of an SM a block keeps busy, and the
    class of a kernel how soon a busy SM gains nothing more. With `carve_outs` kernels that need
    different ones cannot share an SM.
    """
    calibrated = calibrated_gpu(resources.gpu)
    slowdown = calibrated.contention or 0.0
    share = resources.largest_shares
    if resources.names == RESOURCES:
        registers = resources.need[:, 2] / resources.capacity[2]
        share = np.where(registers > 0, registers, share)
    sooner = np.ones(len(share))
    part = None
    if functions and slowdown > 0:
        sooner = contention_of(functions, calibrated) / slowdown
        part = _parts_of(functions)
    smsps = resources.gpu.warp_allocation_granularity
    warps = np.where(resources.warps > 0, resources.warps, smsps)
    is_uneven = bool((warps % smsps).any())
    return SmSharing(
        slowdown=slowdown,
        load=_FULL_LOAD * share * sooner,
        spread=calibrated.block_spread or 0.0,
        lead=calibrated.kernel_lead_us or 0.0,
        take_back=1 / calibrated.blocks_per_us if calibrated.blocks_per_us else 0.0,
        fill=calibrated.fill_us or 0.0,
        cluster_start=calibrated.cluster_start_us or 0.0,
        carve_outs=_carve_outs(resources) if carve_outs else None,
        full_load=_FULL_LOAD * float(sooner.max(initial=1.0)),
        part=part,
        across=1.0 if calibrated.contention_across is None else calibrated.contention_across,
        smsps=smsps if is_uneven else 1,
        warps=warps if is_uneven else None,
    )


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
