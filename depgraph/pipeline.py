"""The main pipeline: scan a trace in parallel, join footprints, find dependences."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import nvtx

from depgraph.dependence import find_dependences
from depgraph.errors import ModelError, TraceError
from depgraph.extraction import BlockCounts, Copy, Extraction, Kernel, launch_resources
from depgraph.footprint import Footprints, concatenate_footprints, join_footprints
from depgraph.graph import ALL_KINDS
from depgraph.output import refuse_existing
from depgraph.records import READ, WRITE, HostCopy, KernelLaunch
from depgraph.store import write_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph
    from depgraph.records import Operation, PartTask, ScannedPart, Trace
    from depgraph.store import Store

# Above this many damaged access lines in a hundred, what is left is no basis for a graph.
_DAMAGED_LINES_LIMIT = 0.01
# Footprints are joined again whenever this many ranges have gathered (17 bytes each).
_COMPACT_RANGES = 8_000_000
# Global block numbers are 32-bit; this leaves room for the host copies.
_MAX_BLOCKS = 2**31 - 2**20
_SAMPLED_HASH_BYTES = 64 << 20


def available_jobs() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def analyse(
    trace: Trace,
    *,
    granularity: int = 1,
    kinds: Collection[str] = ALL_KINDS,
    kernels: tuple[int | None, int | None] = (None, None),
    jobs: int | None = None,
    allow_damaged: bool = False,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Extraction:
    """Read a trace and find the dependences between its thread blocks.

    Parameters
    ----------
    trace : Trace
        As `depgraph.parsers.open_trace` returns it.
    granularity : int
        Round accesses out to this many bytes (1, 32 or 128) before dependences are looked for.
        Footprints stay exact.
    kinds : collection of str
        Kinds of dependence to keep.
    kernels : (int or None, int or None)
        First kernel, and last kernel plus one, in launch order.
    jobs : int, optional
        Threads; default all processors.
    allow_damaged : bool
        Use what is readable of a damaged trace instead of refusing it.
    on_progress : callable
        Is called with the number of input bytes that have just been scanned.

    Raises
    ------
    TraceError
        If the trace cannot be read or is damaged.
    ModelError
        If an option makes no sense.
    """
    gathered = _Gathered(trace, kernels, allow_damaged=allow_damaged)
    with nvtx.annotate("scan", domain="depgraph"):
        for part in _scanned(trace, jobs or available_jobs()):
            gathered.add(part)
            on_progress(part.bytes)
    gathered.check()
    with nvtx.annotate("footprints", domain="depgraph"):
        footprints = gathered.footprints()
    n_blocks = int(gathered.first_block[-1])
    with nvtx.annotate("dependences", domain="depgraph"):
        graph, shared_bytes = find_dependences(
            footprints, gathered.first_block, gathered.operation_kernel
        )
        graph = graph.with_kinds(kinds)
        false_edges = None
        if granularity != 1:
            exact = graph
            rounded = footprints.rounded(granularity, n_blocks)
            graph, _ = find_dependences(rounded, gathered.first_block, gathered.operation_kernel)
            graph = graph.with_kinds(kinds)
            false_edges = graph.count_edges_not_in(exact)
    with nvtx.annotate("summary", domain="depgraph"):
        pairs = graph.pairs()
        counts = gathered.counts(footprints)
        kernel_rows = _kernel_rows(gathered, footprints, counts, shared_bytes)
        graph = replace(
            graph,
            cost=counts.cost,
            resources=launch_resources(kernel_rows, graph.n_operations),
        )
    return Extraction(
        kernels=kernel_rows,
        copies=gathered.copies(),
        counts=counts,
        footprints=footprints,
        graph=graph,
        pairs=pairs,
        metadata=gathered.metadata(granularity, graph, kernels, false_edges),
    )


def extract(
    trace: Trace, path: str | Path = "depgraph.out", *, force: bool = False, **options: Any
) -> Store:
    """Read a trace, find the dependences between its thread blocks, and write a store.

    Parameters
    ----------
    trace : Trace
        As `depgraph.parsers.open_trace` returns it.
    path : str or Path
        The store to make.
    force : bool
        Replace an existing store.
    **options
        As `analyse` takes them.

    Raises
    ------
    OutputExistsError
        If `path` exists and `force` is not given.
    TraceError, ModelError, OutputError
        As `analyse` and `write_store` raise them.
    """
    refuse_existing(Path(path), force=force)
    return write_store(analyse(trace, **options), Path(path), force=force)


def _scanned(trace: Trace, jobs: int) -> Iterator[ScannedPart]:
    """Scan the parts on `jobs` threads and yield the results in order, a few ahead at most."""
    if jobs == 1:
        for task in trace.tasks():
            yield task.scan()
        return
    with ThreadPoolExecutor(jobs, thread_name_prefix="scan") as pool:
        running: deque[Any] = deque()
        try:
            for task in trace.tasks():
                running.append(pool.submit(_scan, task))
                if len(running) > 2 * jobs:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def _scan(task: PartTask) -> ScannedPart:
    with nvtx.annotate("scan part", domain="depgraph"):
        return task.scan()


class _Gathered:
    """Scanned parts put together, in the order of the trace."""

    def __init__(
        self, trace: Trace, kernels: tuple[int | None, int | None], *, allow_damaged: bool
    ) -> None:
        self.trace = trace
        self.allow_damaged = allow_damaged
        self.skipped: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.opcodes: Counter[str] = Counter()
        self.lines = 0
        self.bytes = 0
        self.operations: list[Operation] = []
        self.unseen: dict[int, str] = {}
        self._order = trace.program_order()
        self._low = kernels[0] or 0
        self._high = kernels[1]
        self._seen = 0
        self._launches = 0
        self._copies = 0
        # For each operation of the trace its place among the kept ones, -1 for none.
        self._kept = np.full(64, -1, np.int64)
        self._first_block = [0]
        self._kernel: list[int] = []
        self._pieces: list[Footprints] = []
        self._ranges = 0
        self._accesses = np.zeros(1024, np.int64)
        self._instructions = np.zeros(1024, np.int64)
        self._access_lines = 0
        self._damaged_lines = 0
        self._damaged_at: tuple[int, str] | None = None

    @property
    def first_block(self) -> NDArray[np.int64]:
        return np.array(self._first_block, np.int64)

    @property
    def operation_kernel(self) -> NDArray[np.int32]:
        return np.array(self._kernel, np.int32)

    def add(self, part: ScannedPart) -> None:
        for damage in part.damage:
            self._damage(self.lines + damage.line, damage.found)
        if part.damaged_line and self._damaged_at is None:
            self._damaged_at = (self.lines + part.damaged_line.line, part.damaged_line.found)
        self._damaged_lines += part.damaged_lines
        self._access_lines += part.access_lines
        self.skipped += part.skipped
        self.warnings += part.warnings
        self.opcodes += part.opcodes
        indices = self._order.add(part)
        self._take_operations()
        for index, reason in part.unseen.items():
            self.unseen[int(indices[index])] = reason
        if len(part.touches.launch):
            self._take_touches(part, indices)
        self.lines += part.lines
        self.bytes += part.bytes

    def _damage(self, line: int, found: str) -> None:
        if not self.allow_damaged:
            raise TraceError(
                self.trace.name,
                found,
                "trace the program again, or pass --allow-damaged to use what is readable",
                line=line,
            )
        self.warnings[found] += 1

    def _take_operations(self) -> None:
        operations = self._order.operations
        while len(self._kept) < len(operations):
            self._kept = np.append(self._kept, np.full(len(self._kept), -1, np.int64))
        for index in range(self._seen, len(operations)):
            operation = operations[index]
            if isinstance(operation, KernelLaunch):
                kernel, blocks = self._launches, operation.blocks
                self._launches += 1
            else:
                kernel, blocks = -1 - self._copies, 1
                self._copies += 1
            selected = self._low <= self._launches - (kernel >= 0)
            if self._high is not None:
                selected = selected and self._launches - (kernel >= 0) < self._high
            if not selected:
                continue
            if self._first_block[-1] + blocks > _MAX_BLOCKS:
                raise TraceError(
                    self.trace.name,
                    f"kernel {kernel} has a grid of {blocks} blocks, too many to analyse",
                    "pick fewer kernels with --kernels A:B",
                )
            self._kept[index] = len(self.operations)
            self.operations.append(operation)
            self._kernel.append(kernel)
            self._first_block.append(self._first_block[-1] + blocks)
        self._seen = len(operations)

    def _take_touches(self, part: ScannedPart, indices: NDArray[np.int64]) -> None:
        touches = part.touches
        launch = indices[touches.launch]
        known = launch >= 0
        if not known.all():
            lost = int(touches.accesses[~known].sum())
            key = part.keys[int(touches.launch[np.flatnonzero(~known)[0]])]
            self._damage(
                self.lines + 1,
                f"{lost} accesses from here on belong to launch id {key[-1]}, "
                "which no launch line announces",
            )
        operation = np.where(known, self._kept[np.maximum(launch, 0)], -1)
        grid = np.array(
            [o.grid if isinstance(o, KernelLaunch) else (1, 1, 1) for o in self.operations],
            np.int64,
        ).reshape(-1, 3)
        size = grid[operation] if len(grid) else np.ones((len(operation), 3), np.int64)
        inside = (touches.x < size[:, 0]) & (touches.y < size[:, 1]) & (touches.z < size[:, 2])
        outside = np.flatnonzero((operation >= 0) & ~inside)
        if len(outside):
            row = outside[0]
            self._damage(
                self.lines + 1,
                f"block ({touches.x[row]},{touches.y[row]},{touches.z[row]}) is outside the grid "
                f"{tuple(size[row].tolist())} of kernel {self._kernel[operation[row]]}",
            )
        kept = (operation >= 0) & inside
        index = touches.x + size[:, 0] * (touches.y + size[:, 1] * touches.z.astype(np.int64))
        block = np.where(kept, self.first_block[operation] + index, -1)
        self._count(block[kept], touches.accesses[kept], touches.instructions[kept])
        of_range = block[touches.row]
        chosen = of_range >= 0
        self._pieces.append(
            Footprints(
                of_range[chosen].astype(np.int32),
                touches.kind[chosen],
                touches.start[chosen],
                touches.end[chosen],
            )
        )
        self._ranges += len(self._pieces[-1])
        if self._ranges > _COMPACT_RANGES:
            joined = concatenate_footprints(self._pieces, self._first_block[-1])
            self._pieces = [joined]
            # Joining again before as much has gathered anew would cost more than it frees.
            self._ranges = min(len(joined), _COMPACT_RANGES // 2)

    def _count(
        self,
        block: NDArray[np.int64],
        accesses: NDArray[np.int64],
        instructions: NDArray[np.int64],
    ) -> None:
        n_blocks = self._first_block[-1]
        if len(self._accesses) < n_blocks:
            more = np.zeros(2 * n_blocks - len(self._accesses), np.int64)
            self._accesses = np.append(self._accesses, more)
            self._instructions = np.append(self._instructions, more)
        np.add.at(self._accesses, block, accesses)
        np.add.at(self._instructions, block, instructions)

    def check(self) -> None:
        """Refuse a trace without kernels, or one of which too much is damaged."""
        if not self._order.operations:
            if self.bytes == 0:
                raise TraceError(self.trace.name, "the file is empty", "trace the program again")
            raise TraceError(
                self.trace.name,
                f"no kernel launch in {self.lines} lines",
                "give the standard output of a program run under NVBit's mem_trace",
            )
        if not self.operations:
            raise ModelError(
                f"{self.trace.name}: no kernel is selected; "
                f"the trace has kernels 0 to {self._launches - 1}"
            )
        if self._damaged_lines > _DAMAGED_LINES_LIMIT * self._access_lines:
            line, found = self._damaged_at or (1, "")
            self._damage(
                line, f"{found}, as are {self._damaged_lines} of {self._access_lines} access lines"
            )

    def footprints(self) -> Footprints:
        n_blocks = self._first_block[-1]
        copies = [
            (first, operation)
            for first, operation in zip(self._first_block, self.operations, strict=False)
            if isinstance(operation, HostCopy) and operation.size > 0
        ]
        written = Footprints(
            np.array([first for first, _ in copies], np.int32),
            np.full(len(copies), WRITE, np.uint8),
            np.array([copy.address for _, copy in copies], np.uint64),
            np.array([copy.address + copy.size for _, copy in copies], np.uint64),
        )
        pieces = [*self._pieces, written]
        self._pieces = []
        return concatenate_footprints(pieces, n_blocks)

    def counts(self, footprints: Footprints) -> BlockCounts:
        n_blocks = self._first_block[-1]
        self._count(*(np.empty(0, np.int64) for _ in range(3)))
        return BlockCounts(
            accesses=self._accesses[:n_blocks],
            instructions=self._instructions[:n_blocks],
            read_bytes=footprints.bytes_per_block(READ, n_blocks),
            written_bytes=footprints.bytes_per_block(WRITE, n_blocks),
        )

    def copies(self) -> list[Copy]:
        return [
            Copy(-1 - kernel, operation, first, copy.address, copy.size)
            for operation, (kernel, first, copy) in enumerate(
                zip(self._kernel, self._first_block, self.operations, strict=False)
            )
            if isinstance(copy, HostCopy)
        ]

    def unseen_of(self, operation: int) -> str | None:
        """Say what the trace cannot show of a kernel: by its opcodes, else by its name."""
        launch = self.operations[operation]
        in_trace = int(np.flatnonzero(self._kept == operation)[0])
        if in_trace in self.unseen:
            return self.unseen[in_trace]
        return self.trace.unseen(launch) if isinstance(launch, KernelLaunch) else None

    def metadata(
        self,
        granularity: int,
        graph: BlockGraph,
        kernels: tuple[int | None, int | None],
        false_edges: int | None,
    ) -> dict[str, Any]:
        low, high = kernels
        return {
            "format": self.trace.format,
            "sources": [describe_source(path) for path in self.trace.paths],
            "options": {
                "granularity": granularity,
                "kinds": sorted(graph.kinds),
                "kernels": None if low is None and high is None else [low, high],
                "allow_damaged": self.allow_damaged,
            },
            "lines": self.lines,
            "input_bytes": self.bytes,
            "opcodes": dict(sorted(self.opcodes.items())),
            "skipped": dict(self.skipped.most_common()),
            "warnings": dict(self.warnings.most_common()),
            "blind_spots": list(self.trace.blind_spots),
            "false_edges": false_edges,
        }


def describe_source(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a source file.

    Of a file above 64 MiB only the first and the last 32 MiB enter the hash, and the entry says so.
    """
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= _SAMPLED_HASH_BYTES:
            digest.update(file.read())
        else:
            digest.update(file.read(_SAMPLED_HASH_BYTES // 2))
            file.seek(-_SAMPLED_HASH_BYTES // 2, os.SEEK_END)
            digest.update(file.read())
    return {
        "path": str(path),
        "size": size,
        "sha256": digest.hexdigest(),
        "hashed": "all" if size <= _SAMPLED_HASH_BYTES else "first and last 32 MiB",
    }


def _kernel_rows(
    gathered: _Gathered,
    footprints: Footprints,
    counts: BlockCounts,
    shared_bytes: NDArray[np.int64],
) -> list[Kernel]:
    first_block = gathered.first_block
    n_operations = len(gathered.operations)
    operation_of_block = np.repeat(
        np.arange(n_operations, dtype=np.int32), np.diff(first_block)
    )
    by_kernel = join_footprints(
        operation_of_block[footprints.block],
        footprints.kind,
        footprints.start,
        footprints.end,
        n_operations,
    )
    read = by_kernel.bytes_per_block(READ, n_operations).tolist()
    written = by_kernel.bytes_per_block(WRITE, n_operations).tolist()

    def per_operation(values: NDArray[Any]) -> list[int]:
        running = np.append(0, np.cumsum(values))
        return np.diff(running[first_block]).tolist()  # type: ignore[no-any-return]

    accesses = per_operation(counts.accesses)
    instructions = per_operation(counts.instructions)
    active = per_operation(counts.instructions > 0)
    rows = []
    for index, launch in enumerate(gathered.operations):
        if not isinstance(launch, KernelLaunch):
            continue
        unseen = gathered.unseen_of(index)
        if not accesses[index]:
            unseen = unseen or "no global-memory access in the trace"
        rows.append(
            Kernel(
                kernel=int(gathered.operation_kernel[index]),
                operation=index,
                name=launch.name,
                mangled_name=launch.mangled_name,
                trace_id=launch.trace_id,
                grid_x=launch.grid[0],
                grid_y=launch.grid[1],
                grid_z=launch.grid[2],
                block_x=launch.block[0],
                block_y=launch.block[1],
                block_z=launch.block[2],
                registers=launch.registers,
                shared_bytes=launch.shared_bytes,
                architecture=launch.architecture,
                stream=launch.stream,
                context=launch.context,
                first_block=int(first_block[index]),
                blocks=launch.blocks,
                active_blocks=active[index],
                accesses=accesses[index],
                instructions=instructions[index],
                read_bytes=read[index],
                written_bytes=written[index],
                shared_written_bytes=int(shared_bytes[index]),
                unseen=unseen,
            )
        )
    return rows
