"""What an extraction yields: kernels, copies, collectives, footprints, graph, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np

from depgraph.graph.block_graph import BlockGraph, Resources
from depgraph.trace.records import RANGE, TILES, Allocation, HostCall, KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.footprint.spill import SpilledFootprints
    from depgraph.graph.pairs import PairSummary
    from depgraph.system.arrays import BlockTimes
    from depgraph.system.work_folder import Scratch


_OPAQUE = {
    None: "opaque",
    RANGE: "opaque in memory that is known",
    TILES: "inferred, block by block",
}


_OF_LAUNCH = (
    "name", "mangled_name", "trace_id", "registers", "shared_bytes", "architecture", "nvtx",
    "stream", "context", "blocks", "programmatic",
)  # fmt: skip
_COUNTED = ("accesses", "instructions", "read_bytes", "written_bytes", "shared_written_bytes")


@dataclass(frozen=True, slots=True)
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
    accesses: int
    instructions: int
    read_bytes: int
    written_bytes: int
    shared_written_bytes: int
    untraced: str | None
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

    @classmethod
    def launched(cls, launch: KernelLaunch, **row: Any) -> Self:
        """Return the row of a launch; what `row` does not count is 0."""
        same = {name: getattr(launch, name) for name in _OF_LAUNCH}
        for name, sizes in (("grid", launch.grid), ("block", launch.block)):
            same |= {f"{name}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}
        counted = dict.fromkeys(_COUNTED, 0)
        return cls(**{"active_blocks": launch.blocks, "untraced": None, **counted, **same, **row})

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


def kernel_remarks(kernel: Kernel, *, is_traced: bool = True) -> list[str]:
    """Say what a user should know of a kernel before trusting a graph of its trace."""
    found: list[str] = []
    if not is_traced:
        return found
    if kernel.active_blocks == 0:
        found.append("no instruction in the trace")
    elif kernel.accesses == 0:
        found.append("no global-memory access in the trace")
    elif kernel.read_bytes and not kernel.written_bytes and not kernel.untraced:
        found.append("writes nothing to global memory in the trace")
    if 0 < kernel.active_blocks < kernel.blocks:
        found.append("blocks of the grid without an instruction in the trace")
    if kernel.registers is None:
        found.append("registers per thread unknown")
    if kernel.shared_bytes is None:
        found.append("shared memory unknown")
    if kernel.untraced:
        found.append(f"{_OPAQUE[kernel.reach]}: {kernel.untraced}")
    return found


def remarks(kernels: Iterable[Kernel], *, is_traced: bool = True) -> dict[str, list[int]]:
    """Return each remark with the numbers of the kernels that it is about."""
    found: dict[str, list[int]] = {}
    for kernel in kernels:
        for remark in kernel_remarks(kernel, is_traced=is_traced):
            found.setdefault(remark, []).append(kernel.kernel)
    return found


def launch_resources(kernels: Sequence[Kernel], n_operations: int) -> Resources:
    """Collect what kernels take to run, as columns over all operations."""
    columns = {
        name: np.full(n_operations, fill, np.int64)
        for name, fill in (("threads", 0), ("registers", -1), ("shared_bytes", -1), ("stream", 0))
    }
    for kernel in kernels:
        for name, column in columns.items():
            value = getattr(kernel, name)
            if value is not None:
                column[kernel.operation] = value
    return Resources(**columns, architecture=common_architecture(kernels))


def common_architecture(kernels: Sequence[Kernel]) -> int | None:
    """Return the SASS version that more than half of the kernels name, None if there is none.

    Some tracers leave the number uninitialised, so that a kernel may name any.
    """
    ((architecture, count),) = Counter(k.architecture for k in kernels).most_common(1) or (
        (None, 0),
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
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


@dataclass(frozen=True, slots=True)
class Communication:
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
                "collectives": {name: asdict(c) for name, c in self.collectives.items()},
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
