"""The programs that graphs are of: kernels, copies, launches from the device, communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.block_graph import BlockGraph, Resources
from depgraph.system.arrays import columns_of, rows_of
from depgraph.trace.records import RANGE, TILES, Allocation, HostCall, KernelLaunch

if TYPE_CHECKING:
    from depgraph.footprint.footprints import Footprints, SpilledFootprints
    from depgraph.graph.dependences import PairSummary
    from depgraph.system.arrays import BlockTimes, Mask
    from depgraph.system.output import Scratch

_OPAQUE = {
    None: "opaque",
    RANGE: "opaque in memory that is known",
    TILES: "inferred, block by block",
}


_OF_LAUNCH = (
    "name", "mangled_name", "trace_id", "registers", "shared_bytes", "architecture", "nvtx",
    "stream", "context", "blocks", "programmatic",
)  # fmt: skip
_SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


@dataclass(slots=True)  # never changed; frozen, hundreds of thousands take three times as long
class Kernel:
    """One row of the table of kernels; ``depgraph.store.schema`` says what each field holds."""

    kernel: int
    operation: int
    name: str
    mangled_name: str | None
    trace_id: int | None
    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    block_y: int
    block_z: int
    registers: int | None
    shared_bytes: int | None
    architecture: int | None
    stream: int
    context: int
    first_block: int
    blocks: int
    active_blocks: int
    accesses: int = 0
    instructions: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    shared_written_bytes: int = 0
    untraced: str | None = None
    occupancy: int | None = None
    cuttable: bool | None = None
    waits_inside: str | None = None
    ldgsts_bytes: int = 0
    reach: str | None = None
    nvtx: str | None = None
    programmatic: str | None = None

    @property
    def is_opaque(self) -> bool:
        """Whether it may touch anything."""
        return self.untraced is not None and self.reach is None

    @property
    def leaves_open(self) -> bool:
        """Whether the trace may not show all that waits for it, or that it waits for."""
        return self.untraced is not None or bool(self.reach or self.waits_inside)

    @classmethod
    def launched(
        cls, launches: Sequence[KernelLaunch], columns: Mapping[str, Iterable[Any]]
    ) -> list[Self]:
        """Return the rows of launches, with more columns; what those do not count is 0."""
        same = columns_of(launches, _OF_LAUNCH)
        grids, blocks = columns_of(launches, ("grid", "block")).values()
        sizes = chain(zip(*grids, strict=True), zip(*blocks, strict=True))
        same["active_blocks"] = same["blocks"]
        return rows_of(cls, {**same, **dict(zip(_SIZES, sizes, strict=False)), **columns})

    @property
    def grid(self) -> tuple[int, int, int]:
        """Grid size in blocks."""
        return self.grid_x, self.grid_y, self.grid_z

    @property
    def block(self) -> tuple[int, int, int]:
        """Block size in threads."""
        return self.block_x, self.block_y, self.block_z

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block_x * self.block_y * self.block_z


@dataclass(frozen=True, slots=True)
class Copy:
    """One row of the table of copies and memsets; see `depgraph.store.schema`."""

    copy: int
    operation: int
    block: int
    address: int | None
    size: int
    source: int | None
    what: str

    @property
    def number(self) -> int:
        """What stands for it where kernels have their numbers."""
        return -1 - self.copy


@dataclass(frozen=True, slots=True, eq=False)
class BlockCounts:
    """Counts of every block, by global block number."""

    # [n_blocks]: global-memory access records and traced instructions, both a warp each.
    accesses: NDArray[np.int64]
    instructions: NDArray[np.int64]
    # [n_blocks]: distinct bytes.
    read_bytes: NDArray[np.int64]
    written_bytes: NDArray[np.int64]

    @property
    def cost(self) -> BlockTimes:
        """Work of each block where no time was measured: instructions, else accesses."""
        counted = self.instructions if self.instructions.any() else self.accesses
        return counted.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Extraction:
    """All that a store holds."""

    kernels: list[Kernel]
    copies: list[Copy]
    counts: BlockCounts
    footprints: Footprints | SpilledFootprints
    # With durations where the input states any; NaN for blocks of which it does not. They are in
    # cycles unless ``metadata["duration_unit"]`` says otherwise.
    graph: BlockGraph
    # Provenance: sources, format, options, what was skipped and why, warnings.
    metadata: dict[str, Any]
    allocations: list[Allocation] = field(default_factory=list)  # where the input knows of frees
    host_calls: list[HostCall] = field(default_factory=list)  # where the input knows of streams
    scratch: Scratch | None = None  # holds the files of footprints that were too large for memory

    @property
    def pairs(self) -> list[PairSummary]:
        """The pairs of kernels that depend on one another."""
        return self.graph.pairs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove intermediate files; footprints that stood in them are gone then."""
        if self.scratch is not None:
            self.scratch.remove()


def kernel_remarks(kernel: Kernel) -> list[str]:
    """Say what a user should know of a kernel before trusting a graph of its trace."""
    result: list[str] = []
    if kernel.active_blocks == 0:
        result.append("no instruction in the trace")
    elif kernel.accesses == 0:
        result.append("no global-memory access in the trace")
    elif kernel.read_bytes and not kernel.written_bytes and not kernel.untraced:
        result.append("writes nothing to global memory in the trace")
    if 0 < kernel.active_blocks < kernel.blocks:
        result.append("blocks of the grid without an instruction in the trace")
    if kernel.registers is None:
        result.append("registers per thread unknown")
    if kernel.shared_bytes is None:
        result.append("shared memory unknown")
    if kernel.untraced:
        result.append(f"{_OPAQUE[kernel.reach]}: {kernel.untraced}")
    return result


def remarks(kernels: Iterable[Kernel]) -> dict[str, list[int]]:
    """Return each remark with the numbers of the kernels that it is about."""
    kernels_of: dict[str, list[int]] = {}
    for kernel in kernels:
        for remark in kernel_remarks(kernel):
            kernels_of.setdefault(remark, []).append(kernel.kernel)
    return kernels_of


def launch_resources(kernels: Sequence[Kernel], n_operations: int) -> Resources:
    """Collect what kernels take to run, as columns over all operations."""
    operations = [kernel.operation for kernel in kernels]
    columns = {}
    for name, unknown in (("threads", 0), ("registers", -1), ("shared_bytes", -1), ("stream", 0)):
        values = map(attrgetter(name), kernels)
        columns[name] = np.full(n_operations, unknown, np.int64)
        columns[name][operations] = [unknown if value is None else value for value in values]
    return Resources(**columns, architecture=common_architecture(kernels))


def common_architecture(kernels: Sequence[Kernel]) -> int | None:
    """Return the SASS version of most kernels, else None: some tracers leave it uninitialised."""
    counts = Counter(map(attrgetter("architecture"), kernels))
    ((architecture, count),) = counts.most_common(1) or ((None, 0),)
    return architecture if 2 * count > len(kernels) else None


Engine = Literal["sm", "dma"]
ENGINES: tuple[str, ...] = get_args(Engine)
_KEY = "communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What collectives cross, and what happens to computation beside them."""

    name: str
    # 10**9 bytes a second that blocks on SMs move, and that one copy engine does.
    bandwidth: float
    # What a transfer takes besides, in the unit of the program.
    alpha: float = 0.0
    dma_bandwidth: float
    dma_alpha: float = 0.0
    engines: int = 1  # copy engines, each of which moves one transfer at a time
    # How much longer each takes while the other runs: 0.2 is a fifth.
    computation_slowed: float = 0.0
    communication_slowed: float = 0.0

    def alpha_of(self, engine: Engine) -> float:
        """Return what a transfer takes besides moving its bytes."""
        return self.alpha if engine == "sm" else self.dma_alpha

    def bandwidth_of(self, engine: Engine) -> float:
        """Return 10**9 bytes a second of blocks on SMs or of a copy engine."""
        return self.bandwidth if engine == "sm" else self.dma_bandwidth


class Collective(NamedTuple):
    """A kernel that moves data between GPUs, or a part of one."""

    engine: Engine  # blocks that each keep an SM, or a copy engine that needs none
    link: str
    sms: int  # blocks, 1 by a copy engine
    time: float  # how long it takes alone, in the unit of the program

    def slower_by(self, engine: Engine, link: Link) -> float:
        """Return how many times as long it takes alone if another engine moves the bytes."""
        if engine == self.engine or self.time == 0:
            return 1.0
        moving = max(0.0, self.time - link.alpha_of(self.engine))
        ratio = link.bandwidth_of(self.engine) / link.bandwidth_of(engine)
        return (link.alpha_of(engine) + moving * ratio) / self.time


class Communication(NamedTuple):
    """The links of a program, and its collectives by the name of their kernel."""

    links: Mapping[str, Link]
    collectives: Mapping[str, Collective]

    def to_metadata(self) -> dict[str, Any]:
        """Return what a store keeps of it; nothing where there is none."""
        if not self.collectives:
            return {}
        return {
            _KEY: {
                "links": [asdict(link) for link in self.links.values()],
                "collectives": {name: c._asdict() for name, c in self.collectives.items()},
            }
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Communication:
        """Read what `to_metadata` wrote; empty where a program has none."""
        kept = metadata.get(_KEY, {"links": [], "collectives": {}})
        return cls(
            {link["name"]: Link(**link) for link in kept["links"]},
            {name: Collective(**c) for name, c in kept["collectives"].items()},
        )


MOST_CHILD_BLOCKS = 1 << 21
JOINS = ("none", "block", "kernel")
"""Who waits: nobody inside the kernel; the block, for its child; the child, for the kernel."""
JOIN_BLOCK = JOINS.index("block")
JOIN_KERNEL = JOINS.index("kernel")


def no_launches() -> DeviceLaunches:
    """Return launches of which there are none."""
    whole, times = np.empty(0, np.int64), np.empty(0, np.float64)
    join = np.empty(0, np.uint8)
    return DeviceLaunches(whole, times, whole, whole, whole, times, times, join, whole, whole)


@dataclass(frozen=True, eq=False)
class DeviceLaunches:
    """Launches that blocks can make, or do the work of: sorted by block, warp, then `at`."""

    block: NDArray[np.int64]  # global number of the block that launches
    at: NDArray[np.float64]  # share of the block's own work that comes before, 0 to 1
    # Warp of the block that launches, -1 where that is not said. Warps of a block run side by side;
    # launches of one warp at the same share are lanes of one instruction. Those without a warp come
    # one after another.
    warp: NDArray[np.int64]
    lanes: NDArray[np.int64]  # lanes of the warp that launch: what the launch costs depends on it
    # Blocks of the child, of all lanes together. They take the room of the parent's blocks.
    child_grid: NDArray[np.int64]
    # Time of each child block; time that the parent takes if it does the child's work itself.
    child_duration: NDArray[np.float64]
    inline: NDArray[np.float64]
    join: NDArray[np.uint8]  # which of `JOINS`
    # Children that one block launches into the same stream run in order; -1: a stream of its own.
    stream: NDArray[np.int64]
    items: NDArray[np.int64]  # work items of the child, that thresholds are about

    def __len__(self) -> int:
        return len(self.block)

    def in_order(self) -> DeviceLaunches:
        """Return the same launches, sorted as they have to be."""
        order = np.lexsort((self.at, self.warp, self.block))
        return DeviceLaunches(*(getattr(self, f.name)[order] for f in fields(self)))

    @cached_property
    def begins_warp(self) -> Mask:
        """Whether a launch is the first of its warp: bool[n]."""
        changes = (np.diff(self.block) != 0) | (np.diff(self.warp) != 0)
        return np.concatenate([np.ones(min(1, len(self)), np.bool_), changes])

    @cached_property
    def begins_instruction(self) -> Mask:
        """Whether a launch is the first lane of its instruction: bool[n]."""
        apart = (np.diff(self.at) != 0) | (self.warp[1:] < 0)
        apart = np.concatenate([np.ones(min(1, len(self)), np.bool_), apart])
        begins: Mask = self.begins_warp | apart
        return begins

    @property
    def child_work(self) -> NDArray[np.float64]:
        """Time of all blocks of each child, summed: float64[n]."""
        return self.child_grid * self.child_duration

    @cached_property
    def child_blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each block of all children the launch, and its number in the child: int64[n] each."""
        launch = np.repeat(np.arange(len(self)), self.child_grid)
        first = np.cumsum(self.child_grid) - self.child_grid
        return launch, np.arange(len(launch)) - first[launch]

    def inlined(self, durations: BlockTimes) -> BlockTimes:
        """Return durations of blocks that do all work themselves, not only their own."""
        inline = self._of_instructions(np.maximum, self.inline)
        return durations + self._of_blocks(inline, len(durations))

    def without_work_of(self, launched: Mask) -> DeviceLaunches:
        """Return the same launches, parents having nothing to do for those that are made."""
        return replace(self, inline=np.where(launched, 0.0, self.inline))

    def least_work(self, durations: BlockTimes) -> BlockTimes:
        """Return the least time of each block and its children together; launches are free here."""
        # Of each instruction the cheaper: all done by the parent, or the smallest child launched.
        inline = self._of_instructions(np.maximum, self.inline)
        child = self._of_instructions(np.minimum, self.child_work)
        return durations + self._of_blocks(np.minimum(inline, child), len(durations))

    def least_durations(self, durations: BlockTimes) -> BlockTimes:
        """Return the least time until a block's children have ended; launches are free here."""
        own = durations[self.block]
        before = np.where(self.join == JOIN_BLOCK, own, self.at * own)
        least = durations.copy()
        either = np.minimum(own + self.inline, before + self.child_duration)
        np.maximum.at(least, self.block, either)
        return least

    def _of_instructions(self, pick: np.ufunc, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one value for each instruction."""
        picked: NDArray[np.float64] = pick.reduceat(values, np.flatnonzero(self.begins_instruction))
        return picked

    def _of_blocks(self, values: NDArray[np.float64], n_blocks: int) -> NDArray[np.float64]:
        """Add up values of instructions within each warp; return the most of a block's warps."""
        first = self.begins_warp[self.begins_instruction]
        of_warps = np.add.reduceat(values, np.flatnonzero(first))
        result = np.zeros(n_blocks)
        np.maximum.at(result, self.block[self.begins_warp], of_warps)
        return result
