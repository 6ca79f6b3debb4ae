"""Every table and column of a store: type, unit, meaning, and what must be true of its values.

Files are written, read, checked and documented by what stands here; what must be true between
columns and tables stands in `columns`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.dependences import BASIS_NAMES, KIND_NAMES, Pattern
from depgraph.graph.program import JOINS
from depgraph.system.text import LARGEST_ID, LONGEST_TIME
from depgraph.trace.records import ACCESS_KINDS, ACCESS_WAYS, HOST_CALLS, SOMEWHERE

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 7
OLDEST_VERSION = 3  # of stores that are read: what they lack is the default of its column
PATTERNS = tuple(pattern.value for pattern in Pattern)


class Rule(NamedTuple):
    """What must be true of each value of a column, null being 0, and of floats NaN."""

    holds: Callable[[NDArray[Any]], NDArray[np.bool_]]
    otherwise: str  # completes "row 3: COLUMN ..."


def at_least(least: int) -> Rule:
    """Demand numbers from `least`."""
    return Rule(lambda values: values >= least, f"is below {least}")


def within(least: int, most: float) -> Rule:
    """Demand numbers from `least` to `most`."""
    return Rule(
        lambda values: (values >= least) & (values <= most), f"is not from {least} to {most:g}"
    )


def ascends(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell of each value whether it is above the one before."""
    return np.append(np.ones(min(1, len(values)), np.bool_), values[1:] > values[:-1])


def never_falls(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell of each value whether it is not below the one before."""
    return np.append(np.ones(min(1, len(values)), np.bool_), values[1:] >= values[:-1])


FROM_0, FROM_1 = at_least(0), at_least(1)
SHARE = Rule(lambda values: (values >= 0) & (values <= 1), "is not between 0 and 1")
ASCENDS = Rule(ascends, "does not ascend")
NEVER_FALLS = Rule(never_falls, "is below the one before")
NUMBERED = Rule(lambda values: values == np.arange(len(values)), "is not the next number")
FINITE = Rule(lambda values: (values >= 0) & (values < np.inf), "is not a number")
FINITE_OR_NULL = Rule(lambda values: np.isnan(values) | FINITE.holds(values), FINITE.otherwise)


class Column(NamedTuple):
    """One column; stores before schema version `since` lack it, there it is `default`."""

    name: str
    type: str  # of Arrow, by name
    unit: str  # "" if it has none
    meaning: str
    must: tuple[Rule, ...] = ()  # of its values, of lists of all that is in them
    names: tuple[str, ...] = ()  # of a dictionary, by their codes
    refers: Literal["", "kernels and copies", "blocks", "sets"] = ""  # what its values number
    nullable: bool = False
    since: int = OLDEST_VERSION
    default: str | int | None = None

    @property
    def is_list(self) -> bool:
        """Whether each value is a list."""
        return self.type.startswith("list")


def _c(name: str, type_: str, unit: str, meaning: str, *must: Rule, **more: Any) -> Column:
    return Column(name, type_, unit, meaning, must, **more)


def _since(version: int, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(column._replace(since=version) for column in columns)


def _counts(what: str) -> tuple[Column, ...]:
    return (
        _c("accesses", "int64", "", "global-memory access records (warp level)", FROM_0),
        _c("instructions", "int64", "", "traced warp instructions", FROM_0),
        _c("read_bytes", "int64", "bytes", f"distinct bytes that the {what} reads", FROM_0),
        _c("written_bytes", "int64", "bytes", f"distinct bytes that the {what} writes", FROM_0),
    )


_KINDS = '"RAW", "WAR", "WAW" or "REUSE": through memory that was freed in between'

_KERNELS = (
    _c("kernel", "int32", "", "kernel number, from 0 in launch order", FROM_0, ASCENDS),
    _c("operation", "int32", "", "place among kernels, copies and memsets in program order", FROM_0,
       ASCENDS),
    _c("name", "string", "", "demangled name of the function"),
    _c("mangled_name", "string", "", "mangled name, where the trace has it", nullable=True),
    _c("trace_id", "int64", "", "number that the trace gives the launch", nullable=True),
    *(_c(f"grid_{axis}", "int32", "blocks", "grid size", FROM_1) for axis in "xyz"),
    *(_c(f"block_{axis}", "int32", "threads", "block size", FROM_1) for axis in "xyz"),
    _c("registers", "int32", "per thread", "null where the trace is silent", FROM_0, nullable=True),
    _c("shared_bytes", "int64", "bytes", "shared memory of a block", FROM_0, nullable=True),
    _c("architecture", "int32", "", "SASS version, such as 80", nullable=True),
    _c("stream", "int64", "", "CUDA stream, 0 for the default stream"),
    _c("context", "uint64", "", "CUDA context"),
    _c("first_block", "int64", "", "global number of the kernel's first block", FROM_0),
    _c("blocks", "int64", "blocks", "blocks in the grid", FROM_1),
    _c("active_blocks", "int64", "blocks", "blocks with traced instructions", FROM_0),
    *_counts("kernel"),
    _c("shared_written_bytes", "int64", "bytes",
       "bytes that a block writes and another block of the kernel touches", FROM_0),
    _c("untraced", "string", "", "why the kernel is opaque: which of its accesses are untraced",
       nullable=True),
    _c("occupancy", "int32", "blocks", "per SM, where the input states it", FROM_0, nullable=True),
    _c("cuttable", "bool", "", "blocks may be cut, where the input says so", nullable=True),
    _c("waits_inside", "string", "",
       '"found" where blocks synchronise and read what others wrote, "suspected" where they only '
       "share counters", nullable=True),
    _c("ldgsts_bytes", "int64", "bytes", "of read_bytes those read only by LDGSTS", FROM_0),
    _c("reach", "string", "",
       'where what is untraced may be: "range", somewhere in known memory; "tiles", inferred '
       "block by block; null: anywhere", nullable=True, since=4),
    _c("nvtx", "string", "",
       'NVTX ranges that it was launched in, the outermost first: "step / layer 3"', nullable=True,
       since=5),
    _c("programmatic", "string", "",
       'what its code has of programmatic launch: "trigger", "wait", "trigger and wait", or "" for '
       "neither; null where nobody read it", nullable=True, since=6),
)  # fmt: skip
_BLOCKS = (
    _c("block", "int32", "", "global block number"),
    _c("kernel", "int32", "", "kernel number; -1 - i for copy or memset i"),
    _c("index", "int64", "", "number in the grid: x + grid_x * (y + grid_y * z)"),
    *(_c(axis, "int32", "", "block coordinate", FROM_0) for axis in "xyz"),
    *_counts("block"),
    _c("cost", "float64", "instructions", "work of the block, where no time was measured", FINITE),
    _c("duration", "float64", "duration_unit in the metadata, else cycles",
       "how long the block ran, where the input states it", FINITE_OR_NULL, nullable=True),
)  # fmt: skip
_FOOTPRINTS = (
    _c("block", "int32", "", "global block number", refers="blocks"),
    _c("kind", "dictionary", "", '"read" or "write"; atomics stand in both', names=ACCESS_KINDS),
    _c("start", "uint64", "byte address", "first byte"),
    _c("end", "uint64", "byte address", "first byte after the range"),
    _c("way", "dictionary", "",
       'how it is read: "plain", "sync" (only by atomics or ordered loads) or "ldgsts" (by LDGSTS '
       'alone); "plain" for what is written', names=ACCESS_WAYS),
)  # fmt: skip
_COPIES = (
    _c("copy", "int32", "", "number of the copy or memset, from 0 in program order", FROM_0,
       ASCENDS),
    _c("operation", "int32", "", "place among kernels, copies and memsets in program order", FROM_0,
       ASCENDS),
    _c("block", "int32", "", "global block number that stands for it", FROM_0),
    _c("address", "uint64", "byte address", "first byte written on the GPU", nullable=True),
    _c("size", "int64", "bytes", "number of bytes written or read", FROM_0),
    _c("source", "uint64", "byte address", "first byte read on the GPU", nullable=True, since=4),
    _c("what", "string", "",
       '"memcpy HtoD", "memcpy DtoH", "memcpy DtoD", "memcpy" (not known between which) or '
       '"memset"', since=4, default=SOMEWHERE),
)  # fmt: skip
_ALLOCATIONS = (
    _c("address", "uint64", "byte address", "first byte"),
    _c("size", "int64", "bytes", "number of bytes", FROM_0),
    _c("allocated", "int32", "", "operation that follows the allocation; 0 if it was before all",
       FROM_0),
    _c("freed", "int32", "", "operation that follows the free; null if it was never freed", FROM_0,
       nullable=True),
    _c("op", "string", "", "operator that allocated it, if known", nullable=True),
    _c("line", "string", "", "line of the program that did", nullable=True),
)  # fmt: skip
_HOST_CALLS = (
    _c("operation", "int32", "",
       "operation that follows the call; the one it is about, if it says in which stream that "
       "runs, or after which node of its graph", FROM_0, NEVER_FALLS),
    _c("what", "dictionary", "", "what the call does, or what is known of a stream or operation",
       names=HOST_CALLS),
    _c("stream", "int64", "", "stream, if it is about one", FROM_0, nullable=True),
    _c("event", "int64", "", "CUDA event, if it is about one", FROM_0, nullable=True),
    _c("context", "int64", "", "CUDA context, if it is about one", FROM_0, nullable=True),
    _c("after", "int32", "", "of an edge of a CUDA graph the operation before", FROM_0,
       nullable=True),
)  # fmt: skip
_SETS = (
    _c("set", "int32", "", "number of the set", NUMBERED),
    _c("operation", "int32", "", "operation that its blocks belong to", NEVER_FALLS,
       refers="kernels and copies"),
    _c("blocks", "list<int32>", "", "global block numbers"),
    _c("first_use", "list<float64>", "share",
       "of each block's work before it first touches what the set shares (--positions)", SHARE,
       nullable=True),
    _c("last_use", "list<float64>", "share",
       "of each block's work after which it has last touched it", SHARE, nullable=True),
)  # fmt: skip
_JOINS = (
    _c("join", "int32", "", "number of the join", NUMBERED),
    _c("kind", "dictionary", "", _KINDS, names=KIND_NAMES),
    _c("certain", "bool", "", "whether accesses in the trace make it; else it is possible"),
    _c("basis", "dictionary", "",
       'what it rests on: "seen", "ldgsts" (only reads by LDGSTS), "opaque" (a kernel whose '
       'accesses the trace cannot show), "unit" (a kernel whose blocks wait for one another), '
       '"range" (what a kernel writes out of sight, somewhere in known memory), "tiles" (what a '
       "block writes out of sight, inferred from what it reads)", names=BASIS_NAMES),
    _c("source_kernel", "int32", "", "kernel waited for; -1 - i for copy or memset i"),
    _c("target_kernel", "int32", "", "kernel that waits"),
    _c("sources", "list<int32>", "", "sets; all their blocks are waited for", refers="sets"),
    _c("targets", "list<int32>", "", "sets; all their blocks wait", refers="sets"),
)  # fmt: skip
_LAUNCHES = (
    _c("launch", "int32", "", "number of a launch from the device, from 0 by block", NUMBERED),
    _c("kernel", "int32", "", "kernel whose block launches"),
    _c("block", "int32", "", "global number of the block that launches", refers="blocks"),
    _c("at", "float64", "share", "of the block's own work that comes before", SHARE),
    _c("warp", "int64", "",
       "warp that launches; launches of one warp and share are lanes of one instruction; -1: "
       "launches one after another", within(-1, LARGEST_ID)),
    _c("lanes", "int64", "lanes", "lanes that launch", within(1, LARGEST_ID)),
    _c("child_grid", "int64", "blocks", "blocks of the child, of all lanes together",
       within(1, LARGEST_ID)),
    _c("child_duration", "float64", "as duration of blocks", "time of each child block",
       within(0, LONGEST_TIME)),
    _c("inline", "float64", "as duration of blocks", "time of the parent if it does the work",
       within(0, LONGEST_TIME)),
    _c("join", "dictionary", "",
       '"none", "block" (the block waits for its child) or "kernel" (the child waits for the '
       "kernel)", names=JOINS),
    _c("stream", "int64", "", "children of one block and stream run in order; -1: on their own",
       within(-1, LARGEST_ID)),
    _c("items", "int64", "", "work items, that thresholds are about", within(0, LARGEST_ID)),
)  # fmt: skip
_PAIRS = (
    _c("source", "int32", "", "kernel waited for; -1 - i for copy or memset i"),
    _c("target", "int32", "", "kernel that waits"),
    _c("raw", "int64", "edges", "distinct certain read-after-write edges"),
    _c("war", "int64", "edges", "distinct certain write-after-read edges"),
    _c("waw", "int64", "edges", "distinct certain write-after-write edges"),
    _c("edges", "int64", "edges", "distinct certain edges of any kind"),
    _c("pattern", "dictionary", "", "shape of the dependence", names=PATTERNS),
    _c("waiting", "int64", "blocks", "blocks of the target that wait"),
    _c("awaited", "int64", "blocks", "blocks of the source waited for"),
    _c("most_sources", "int64", "blocks", "most blocks that one block waits for"),
    _c("most_targets", "int64", "blocks", "most blocks that wait for one block"),
    _c("ldgsts", "int64", "edges", "of each kind those that rest only on LDGSTS reads"),
    _c("possible", "int64", "edges", "distinct edges of any kind that are only possible"),
    _c("reuse", "int64", "edges", "distinct certain edges through memory that was freed in between",
       since=4, default=0),
    _c("cross_stream", "bool", "", "source and target run in different streams"),
)  # fmt: skip
_EDGES = (
    _c("src_kernel", "int64", "", "kernel waited for; -1 - i for copy or memset i"),
    _c("src_block", "int64", "", "its block, numbered within the kernel"),
    _c("dst_kernel", "int64", "", "kernel that waits"),
    _c("dst_block", "int64", "", "its block, numbered within the kernel"),
    _c("kind", "string", "", _KINDS),
    _c("certain", "bool", "", "false where it is only possible"),
    _c("ldgsts", "bool", "", "whether it rests only on LDGSTS reads"),
)  # fmt: skip

TABLES: dict[str, tuple[Column, ...]] = {
    "kernels": _KERNELS,
    "blocks": _BLOCKS,
    "footprints": _FOOTPRINTS,
    "copies": _COPIES,
    "allocations": _since(4, _ALLOCATIONS),
    "calls": _since(7, _HOST_CALLS),
    "sets": _SETS,
    "joins": _JOINS,
    "launches": _since(4, _LAUNCHES),
    "pairs": _PAIRS,
    "edges": _EDGES,
}
STORED_TABLES = tuple(table for table in TABLES if table != "edges")


def stored_tables(version: int) -> tuple[str, ...]:
    """Return the tables of a store of a version."""
    return tuple(t for t in STORED_TABLES if _columns(t, version))


def _columns(table: str, version: int) -> list[Column]:
    return [column for column in TABLES[table] if column.since <= version]


def arrow_schema(table: str, version: int = SCHEMA_VERSION) -> pa.Schema:
    """Return the Arrow schema of a table, units and meanings in the field metadata."""
    import pyarrow as pa

    types = {
        "dictionary": pa.dictionary(pa.int8(), pa.string()),
        "list<int32>": pa.list_(pa.int32()),
        "list<float64>": pa.list_(pa.float64()),
        "string": pa.string(),
        "bool": pa.bool_(),
        **{name: getattr(pa, name)() for name in ("int32", "int64", "uint64", "float64")},
    }
    return pa.schema(
        [
            pa.field(
                column.name,
                types[column.type],
                nullable=column.nullable,
                metadata={"unit": column.unit, "meaning": column.meaning},
            )
            for column in _columns(table, version)
        ]
    )
