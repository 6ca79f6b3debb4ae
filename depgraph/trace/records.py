"""What a trace parser hands to the core: launches, copies, memsets, bytes touched, its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError

READ = 0
WRITE = 1
SYNC_READ = 2  # by an atomic, or by a load that is ordered with other blocks
LDGSTS_READ = 3
ACCESS_KINDS = ("read", "write")
# How a kind accesses; what several instructions of a block read counts as the first of these.
ACCESS_WAYS = ("plain", "sync", "ldgsts")

# What a memory operation is, in the words of NVIDIA's profilers.
TO_DEVICE, TO_HOST, ON_DEVICE = "memcpy HtoD", "memcpy DtoH", "memcpy DtoD"
SOMEWHERE, MEMSET = "memcpy", "memset"

TRIGGER, WAIT = "trigger", "wait"
"""What programmatic launches need in the code of kernels: PTX ``griddepcontrol.launch_dependents``
in the one before, ``griddepcontrol.wait`` in the one after (PTX ISA, sm_90 and newer)."""
PROGRAMMATIC = ("", TRIGGER, WAIT, f"{TRIGGER} and {WAIT}")
PROGRAMMATIC_OPCODES = {"PREEXIT": TRIGGER, "ACQBULK": WAIT}
"""What they are in machine code (CUDA Binary Utilities, instruction set of Hopper)."""

Dim3 = tuple[int, int, int]

# What the CUDA programming guide allows for a grid and a block (Technical Specifications per
# Compute Capability).
_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024
_SHOWN_DIGITS = 20
_MAX_REGISTERS = 255
_MAX_SHARED_BYTES = 1 << 20
_ARCHITECTURES = frozenset(
    (20, 21, 30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101)
) | {103, 110, 120, 121}


def programmatic_code(opcodes: Iterable[str]) -> str:
    """Return what the opcodes of a whole kernel have of programmatic launch, as in `Kernel`."""
    return " and ".join(sorted({PROGRAMMATIC_OPCODES.get(opcode, "") for opcode in opcodes} - {""}))


@dataclass(slots=True)  # never changed; frozen, hundreds of thousands take three times as long
class KernelLaunch:
    """One launch of a GPU function, as the trace states it; None where it says nothing usable."""

    name: str
    grid: Dim3
    block: Dim3
    registers: int | None = None  # per thread
    shared_bytes: int | None = None  # static + dynamic, per block
    stream: int = 0
    context: int = 0
    process: int = 0  # of a trace that several processes wrote, by where their numbers start again
    mangled_name: str | None = None
    trace_id: int | None = None  # the number the trace itself gives this launch
    architecture: int | None = None  # SASS version: 70, 80, 90, ...
    nvtx: str | None = None  # ranges that were open, the outermost first
    # What its code has of programmatic launch: "trigger", "wait", "trigger and wait", or "" for
    # neither; None where nobody read it.
    programmatic: str | None = None
    # Whether an address means the same in all contexts of the process (CUDA C++ Programming Guide,
    # "Unified Virtual Address Space"); of a text that several processes wrote nobody knows.
    is_unified: bool = False

    @property
    def blocks(self) -> int:
        """Number of thread blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Number of threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]


def check_dimensions(grid: Dim3, block: Dim3) -> None:
    """Refuse a grid or block that no GPU can launch; a `ValueError` says what was found."""
    if not all(0 < n <= limit for n, limit in zip(grid, _GRID_LIMIT, strict=True)):
        raise ValueError(f"grid of {_dimensions(grid)} blocks is not possible")
    if min(block) <= 0 or block[0] * block[1] * block[2] > _MAX_THREADS:
        raise ValueError(f"block of {_dimensions(block)} threads is not possible")


def _dimensions(sizes: Dim3) -> str:
    digits = (str(size) for size in sizes)
    return ",".join(text if len(text) <= _SHOWN_DIGITS else text[:9] + "..." for text in digits)


def checked_launch(
    name: str,
    grid: Dim3,
    block: Dim3,
    *,
    registers: int = 0,
    shared_bytes: int = -1,
    architecture: int = 0,
    **known: Any,
) -> KernelLaunch:
    """Return a launch, numbers that are rubbish left out; see `check_dimensions`."""
    check_dimensions(grid, block)
    return KernelLaunch(
        name,
        grid,
        block,
        registers=registers if 0 < registers <= _MAX_REGISTERS else None,
        shared_bytes=shared_bytes if 0 <= shared_bytes < _MAX_SHARED_BYTES else None,
        architecture=architecture if architecture in _ARCHITECTURES else None,
        **known,
    )


def signed64(value: int) -> int:
    """Return a stream or launch number as a signed 64-bit integer; `ValueError` if it has more."""
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"number {str(value)[:24]}... has more than 64 bits")
    return value - (1 << 64) if value >= 1 << 63 else value


@dataclass(frozen=True, slots=True)
class MemoryOperation:
    """A copy or a memset between kernels: it writes and reads ``size`` bytes of GPU memory."""

    address: int | None  # of the first byte it writes
    size: int
    source: int | None = None  # of the first byte it reads
    what: str = TO_DEVICE


Operation = KernelLaunch | MemoryOperation


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory of a GPU from its allocation to its free."""

    address: int
    size: int
    # Which operation of the program comes next after it was allocated; 0 if it was before.
    allocated: int
    freed: int | None = None  # which comes next after it was freed; None if it was not
    # The operator and the line of the program that allocated it, where that is known.
    op: str | None = None
    line: str | None = None


class Calls(StrEnum):
    """What calls of the host do, in the order in which stores number them."""

    LEGACY = "legacy stream"
    BLOCKING = "blocking stream"
    NON_BLOCKING = "non-blocking stream"
    RUNS_IN = "runs in"
    RECORDS = "record"
    AWAITS = "wait"
    HOST_AWAITS_EVENT = "host waits for event"
    HOST_AWAITS_STREAM = "host waits for stream"
    HOST_AWAITS_CONTEXT = "host waits for context"
    GRAPH_BEGINS = "graph begins"
    UNKNOWN_GRAPH_BEGINS = "graph of unknown edges begins"
    GRAPH_ENDS = "graph ends"
    GRAPH_EDGE = "graph edge"


HOST_CALLS = tuple(Calls)


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of the host that orders operations, or says in which stream one runs."""

    # Which operation comes next after it; of `RUNS_IN` and `GRAPH_EDGE` the operation it is about.
    operation: int
    what: str  # one of `HOST_CALLS`
    stream: int | None = None
    event: int | None = None
    context: int | None = None
    after: int | None = None  # of `GRAPH_EDGE`: the operation that comes before


class Ranges(NamedTuple):
    """Bytes ``[start, end)`` of global memory, each touched by a row of some `BlockTouches`."""

    row: NDArray[np.int32]
    kind: NDArray[np.uint8]  # `READ`, `WRITE`, `SYNC_READ` or `LDGSTS_READ`
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]


class BlockTouches(NamedTuple):
    """What some blocks touched, as columns; the blocks of several launches may be mixed.

    A *row* is one block of one launch. A *range* belongs to a row and is ``[start, end)`` in
    bytes of global memory. Ranges are sorted by (row, kind, start); those of one row and kind
    are disjoint and do not touch, and no byte of a row is in two kinds of reads.
    """

    launch: NDArray[np.int32]  # index into the launches of the part
    # Block coordinates in the grid.
    x: NDArray[np.int32]
    y: NDArray[np.int32]
    z: NDArray[np.int32]
    # Global-memory access records (one a warp instruction and address operand).
    accesses: NDArray[np.int64]
    instructions: NDArray[np.int64]  # traced warp instructions of any kind
    row: NDArray[np.int32]
    kind: NDArray[np.uint8]  # `READ`, `WRITE`, `SYNC_READ` or `LDGSTS_READ`
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]

    @property
    def ranges(self) -> Ranges:
        """The ranges alone."""
        return Ranges(self.row, self.kind, self.start, self.end)

    @classmethod
    def empty(cls) -> BlockTouches:
        """No rows, no ranges."""
        of_rows: list[Any] = [np.int32] * 4 + [np.int64] * 2
        of_ranges: list[Any] = [np.int32, np.uint8, np.uint64, np.uint64]
        return cls(*(np.empty(0, type_) for type_ in of_rows + of_ranges))


@dataclass(frozen=True, slots=True)
class Damage:
    """A fault: its line, from 1, within the part, or within the file at `path`."""

    line: int
    found: str
    path: str | None = None


# Of a `ScannedPart`: what it counts by names, and by numbers.
COUNTERS = ("skipped", "opcodes", "warnings")
NUMBERS = ("damaged_lines", "access_lines", "lines", "bytes", "text_bytes")


@dataclass(slots=True)
class ScannedPart:
    """The result of scanning one part of a trace (a byte range of a log, a kernel file)."""

    # For each launch that the part mentions, how the trace names it (format specific).
    keys: list[tuple[int, ...]] = field(default_factory=list)
    # For each of them its description, or None where it was announced in an earlier part. Copies
    # and memsets may stand among them.
    launches: list[Operation | None] = field(default_factory=list)
    # ``touches.launch`` indexes `keys` and `launches`.
    touches: BlockTouches = field(default_factory=BlockTouches.empty)
    # Lines or instructions left out, by reason.
    skipped: Counter[str] = field(default_factory=Counter)
    # Traced instructions by opcode text (or by mnemonic, where that is all there is).
    opcodes: Counter[str] = field(default_factory=Counter)
    # Things the user should know, each with the number of times they occurred.
    warnings: Counter[str] = field(default_factory=Counter)
    # What the opcodes of a launch show it does out of the trace's sight; index in `launches`.
    untraced: dict[int, str] = field(default_factory=dict)
    # Where that is not anywhere, but among `possible`: one of `REACHES`, by the same index.
    reach: dict[int, str] = field(default_factory=dict)
    possible: list[PossibleWrites] = field(default_factory=list)
    # Whether bulk or tensor copies are among the instructions, so that they are traced.
    shows_bulk: bool = False
    allocations: list[Allocation] = field(default_factory=list)  # where the trace knows of frees
    host_calls: list[HostCall] = field(default_factory=list)  # where the trace knows of streams
    # Cycles that each row of `touches` ran, where the trace says so; NaN for the others.
    durations: NDArray[np.float64] | None = None
    # What makes the graph wrong: a cut last line, a damaged launch.
    damage: list[Damage] = field(default_factory=list)
    # The first of `damaged_lines` access lines (of `access_lines`) that lost something.
    damaged_line: Damage | None = None
    damaged_lines: int = 0
    access_lines: int = 0
    # Size of the part, as it lies in its file.
    lines: int = 0
    bytes: int = 0
    text_bytes: int = 0  # size of its text, decompressed
    path: str | None = None  # the file that the part is cut from, if the trace has several

    def add_launch(self, key: tuple[int, ...], launch: Operation | None = None) -> int:
        """Take another launch that the part mentions; return its index."""
        self.keys.append(key)
        self.launches.append(launch)
        return len(self.keys) - 1

    def add_damaged_line(self, found: str, line: int | None = None) -> None:
        """Count an access line that lost something, by default the last one."""
        self.damaged_lines += 1
        self.damaged_line = self.damaged_line or Damage(line or self.lines, found)

    def count_lines(
        self,
        counters: NDArray[np.int64],
        skipped: Iterable[tuple[int, str]],
        warnings: Iterable[tuple[int, str]],
    ) -> None:
        """Add what a scanner counted: lines left out, and lines to be warned of."""
        for total, reasons in ((self.skipped, skipped), (self.warnings, warnings)):
            for counter, reason in reasons:
                if counters[counter]:
                    total[reason] += int(counters[counter])

    def count(self, other: ScannedPart) -> None:
        """Add what another part counts, its allocations and its calls of the host."""
        for name in (*COUNTERS, *NUMBERS, "allocations", "host_calls"):
            total = getattr(self, name)
            total += getattr(other, name)
            setattr(self, name, total)
        self.shows_bulk |= other.shows_bulk


RANGE, TILES = "range", "tiles"
REACHES = (RANGE, TILES)
"""How far what is untraced of a kernel reaches: it writes somewhere in known ranges; or it writes
tiles, of which it is inferred which block writes which."""


class PossibleWrites(NamedTuple):
    """What blocks may write out of sight of the trace."""

    launch: NDArray[np.int32]  # index into the launches of the part
    block: NDArray[np.int64]  # number within the grid; -1 for every block
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]


class Overflow(Protocol):
    """Takes ranges of a part that would take too much memory until all of it is scanned."""

    most_ranges: int  # a scanner holds about so many at most

    def take(self, ranges: Ranges) -> None:
        """Take some ranges, sorted and joined; others of the same rows may follow."""


class PartTask(Protocol):
    """One independent piece of work: may run in any thread, or, pickled, on any machine."""

    @property
    def input_bytes(self) -> int:
        """Bytes of input that this part stands for."""

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read and scan the part; what `overflow` takes is missing in the result."""


class KnownPart(NamedTuple):
    """A part that is known without scanning anything."""

    part: ScannedPart
    input_bytes: int = 0

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:  # noqa: ARG002
        """Return the part."""
        return self.part


class ProgramOrder:
    """Numbers launches, copies and memsets: here in the order in which parts announce them."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._newest: dict[tuple[int, ...], int] = {}

    def add(self, part: ScannedPart) -> NDArray[np.int64]:
        """Take the next part; return for each launch its index in `operations`, -1 for none."""
        places = []
        for key, launch in zip(part.keys, part.launches, strict=True):
            if launch is not None:
                self._newest[key] = len(self.operations)
                self.operations.append(self.announced(key, launch))
            places.append(self._newest.get(key, -1))
        return np.array(places, np.int64)

    def announced(self, key: tuple[int, ...], launch: Operation) -> Operation:  # noqa: ARG002
        """Return a launch with what those before it tell of it."""
        return launch


class Trace(Protocol):
    """An opened trace of any format, which may be a subclass for what is usual."""

    format: str
    name: str
    sources: SourceFiles
    blind_spots: tuple[str, ...]  # what no trace of this format shows, a sentence each
    # What to do where there is no launch.
    hint: str = (
        "give the standard output of a program run under NVBit's mem_trace, or an Accel-Sim trace"
    )

    @property
    def input_bytes(self) -> int | None:
        """Size of the input in bytes, compressed as it is; None for standard input."""
        return self.sources.bytes if self.sources.paths else None

    def tasks(self) -> Iterator[PartTask]:
        """Yield the parts of the trace, in its order."""

    def program_order(self) -> ProgramOrder:
        """Return what numbers the operations of this trace."""
        return ProgramOrder()

    def untraced(self, launch: KernelLaunch) -> str | None:  # noqa: ARG002
        """Say what a kernel's name tells is not shown, where no kernel shows such instructions."""
        return None


class FileState(NamedTuple):
    """What tells that a file is still the same."""

    size: int  # bytes
    changed: int  # time of the last change, in ns
    inode: int  # of another file that was put in its place this differs

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Return the present state of a file."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)

    def verify(self, path: Path) -> None:
        """Refuse a file that is not in this state any more."""
        try:
            now = FileState.of(path)
        except OSError:
            now = None
        if now == self:
            return
        found = "changed while it was read"
        if now is None:
            found = "is gone, which was there when reading began"
        elif now.size != self.size:
            found += f", from {self.size} to {now.size} bytes"
        raise TraceError(path, found, "read it again once nothing writes to it any more")


class SourceFiles:
    """The files of a trace, each with its state when it was first looked at."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._states: dict[Path, FileState] = {}
        for path in paths:
            self.add(path)

    def add(self, path: Path, state: FileState | None = None) -> FileState:
        """Take another file, as it is now or was; return its state."""
        if path not in self._states:
            try:
                self._states[path] = state or FileState.of(path)
            except OSError as error:
                raise unreadable(path, error) from None
        return self._states[path]

    @property
    def paths(self) -> list[Path]:
        """The files, in the order in which they were added."""
        return list(self._states)

    @property
    def bytes(self) -> int:
        """Size of all files together, packed as they are."""
        return sum(state.size for state in self._states.values())

    def verify(self) -> None:
        """Refuse files that have changed since."""
        for path, state in self._states.items():
            state.verify(path)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse, at the end, files that have changed; this comes before any other fault found."""
        try:
            yield
        except Exception:
            self.verify()
            raise
        self.verify()


def unreadable(path: str | Path, error: OSError) -> TraceError:
    """Put an operating-system error about `path` in one line."""
    if isinstance(error, FileNotFoundError):
        return TraceError(path, "no such file")
    if isinstance(error, IsADirectoryError):
        return TraceError(path, "is a folder", "name the trace file inside it")
    return TraceError(path, f"cannot be read ({error.strerror or error})")
