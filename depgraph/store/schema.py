"""Every table and column of a store, with its type, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depgraph.trace.records import SOMEWHERE

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 5
OLDEST_VERSION = 3
"""Of the stores that can be read: what they lack is filled in with the default of its column."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type by name, its unit ("" if it has none), and what it holds.

    Stores before schema version `since` lack it; there it is `default`.
    """

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool = False
    since: int = OLDEST_VERSION
    default: str | int | None = None


def _c(name: str, type_: str, unit: str, meaning: str, **more: Any) -> Column:
    return Column(name, type_, unit, meaning, **more)


_KINDS = '"RAW", "WAR", "WAW" or "REUSE": through memory that was freed in between'

TABLES: dict[str, tuple[Column, ...]] = {
    "kernels": (
        _c("kernel", "int32", "", "kernel number, from 0 in launch order"),
        _c("operation", "int32", "", "place among kernels, copies and memsets in program order"),
        _c("name", "string", "", "demangled name of the function"),
        _c("mangled_name", "string", "", "mangled name, where the trace has it", nullable=True),
        _c("trace_id", "int64", "", "number that the trace gives the launch", nullable=True),
        _c("grid_x", "int32", "blocks", "grid size"),
        _c("grid_y", "int32", "blocks", "grid size"),
        _c("grid_z", "int32", "blocks", "grid size"),
        _c("block_x", "int32", "threads", "block size"),
        _c("block_y", "int32", "threads", "block size"),
        _c("block_z", "int32", "threads", "block size"),
        _c("registers", "int32", "per thread", "null where the trace is silent", nullable=True),
        _c("shared_bytes", "int64", "bytes", "shared memory of a block", nullable=True),
        _c("architecture", "int32", "", "SASS version, such as 80", nullable=True),
        _c("stream", "int64", "", "CUDA stream, 0 for the default stream"),
        _c("context", "uint64", "", "CUDA context"),
        _c("first_block", "int64", "", "global number of the kernel's first block"),
        _c("blocks", "int64", "blocks", "blocks in the grid"),
        _c("active_blocks", "int64", "blocks", "blocks with traced instructions"),
        _c("accesses", "int64", "", "global-memory access records (warp level)"),
        _c("instructions", "int64", "", "traced warp instructions"),
        _c("read_bytes", "int64", "bytes", "distinct bytes that the kernel reads"),
        _c("written_bytes", "int64", "bytes", "distinct bytes that the kernel writes"),
        _c(
            "shared_written_bytes",
            "int64",
            "bytes",
            "bytes that a block writes and another block of the kernel touches",
        ),
        _c(
            "untraced",
            "string",
            "",
            "why the kernel is opaque: which of its accesses are untraced",
            nullable=True,
        ),
        _c("occupancy", "int32", "blocks", "per SM, where the input states it", nullable=True),
        _c("cuttable", "bool", "", "blocks may be cut, where the input says so", nullable=True),
        _c(
            "waits_inside",
            "string",
            "",
            '"found" where blocks synchronise and read what others wrote, "suspected" where they '
            "only share counters",
            nullable=True,
        ),
        _c("ldgsts_bytes", "int64", "bytes", "of read_bytes those read only by LDGSTS"),
        _c(
            "reach",
            "string",
            "",
            'where what is untraced may be: "range", somewhere in known memory; '
            '"tiles", inferred block by block; null: anywhere',
            nullable=True,
            since=4,
        ),
        _c(
            "nvtx",
            "string",
            "",
            'NVTX ranges that it was launched in, the outermost first: "step / layer 3"',
            nullable=True,
            since=5,
        ),
    ),
    "blocks": (
        _c("block", "int32", "", "global block number"),
        _c("kernel", "int32", "", "kernel number; -1 - i for copy or memset i"),
        _c("index", "int64", "", "number in the grid: x + grid_x * (y + grid_y * z)"),
        _c("x", "int32", "", "block coordinate"),
        _c("y", "int32", "", "block coordinate"),
        _c("z", "int32", "", "block coordinate"),
        _c("accesses", "int64", "", "global-memory access records (warp level)"),
        _c("instructions", "int64", "", "traced warp instructions"),
        _c("read_bytes", "int64", "bytes", "distinct bytes that the block reads"),
        _c("written_bytes", "int64", "bytes", "distinct bytes that the block writes"),
        _c("cost", "float64", "instructions", "work of the block, where no time was measured"),
        _c(
            "duration",
            "float64",
            "duration_unit in the metadata, else cycles",
            "how long the block ran, where the input states it",
            nullable=True,
        ),
    ),
    "footprints": (
        _c("block", "int32", "", "global block number"),
        _c("kind", "dictionary", "", '"read" or "write"; atomics stand in both'),
        _c("start", "uint64", "byte address", "first byte"),
        _c("end", "uint64", "byte address", "first byte after the range"),
        _c(
            "way",
            "dictionary",
            "",
            'how it is read: "plain", "sync" (only by atomics or ordered loads) or "ldgsts" (by '
            'LDGSTS alone); "plain" for what is written',
        ),
    ),
    "copies": (
        _c("copy", "int32", "", "number of the copy or memset, from 0 in program order"),
        _c("operation", "int32", "", "place among kernels, copies and memsets in program order"),
        _c("block", "int32", "", "global block number that stands for it"),
        _c("address", "uint64", "byte address", "first byte written on the GPU", nullable=True),
        _c("size", "int64", "bytes", "number of bytes written or read"),
        _c(
            "source", "uint64", "byte address", "first byte read on the GPU", nullable=True, since=4
        ),
        _c(
            "what",
            "string",
            "",
            '"memcpy HtoD", "memcpy DtoH", "memcpy DtoD", "memcpy" (not known '
            'between which) or "memset"',
            since=4,
            default=SOMEWHERE,
        ),
    ),
    "allocations": (
        _c("address", "uint64", "byte address", "first byte", since=4),
        _c("size", "int64", "bytes", "number of bytes", since=4),
        _c(
            "allocated",
            "int32",
            "",
            "operation that follows the allocation; 0 if it was before all",
            since=4,
        ),
        _c(
            "freed",
            "int32",
            "",
            "operation that follows the free; null if it was never freed",
            nullable=True,
            since=4,
        ),
        _c("op", "string", "", "operator that allocated it, if known", nullable=True, since=4),
        _c("line", "string", "", "line of the program that did", nullable=True, since=4),
    ),
    "sets": (
        _c("set", "int32", "", "number of the set"),
        _c("operation", "int32", "", "operation that its blocks belong to"),
        _c("blocks", "list<int32>", "", "global block numbers"),
        _c(
            "first_use",
            "list<float64>",
            "share",
            "of each block's work before it first touches what the set shares (--positions)",
            nullable=True,
        ),
        _c(
            "last_use",
            "list<float64>",
            "share",
            "of each block's work after which it has last touched it",
            nullable=True,
        ),
    ),
    "joins": (
        _c("join", "int32", "", "number of the join"),
        _c("kind", "dictionary", "", _KINDS),
        _c("certain", "bool", "", "whether accesses in the trace make it; else it is possible"),
        _c(
            "basis",
            "dictionary",
            "",
            'what it rests on: "seen", "ldgsts" (only reads by LDGSTS), "opaque" (a kernel whose '
            'accesses the trace cannot show), "unit" (a kernel whose blocks wait for one another), '
            '"range" (what a kernel writes out of sight, somewhere in known memory), "tiles" (what '
            "a block writes out of sight, inferred from what it reads)",
        ),
        _c("source_kernel", "int32", "", "kernel waited for; -1 - i for copy or memset i"),
        _c("target_kernel", "int32", "", "kernel that waits"),
        _c("sources", "list<int32>", "", "sets; all their blocks are waited for"),
        _c("targets", "list<int32>", "", "sets; all their blocks wait"),
    ),
    "launches": (
        _c("launch", "int32", "", "number of a launch from the device, from 0 by block", since=4),
        _c("kernel", "int32", "", "kernel whose block launches", since=4),
        _c("block", "int32", "", "global number of the block that launches", since=4),
        _c("at", "float64", "share", "of the block's own work that comes before", since=4),
        _c(
            "warp",
            "int64",
            "",
            "warp that launches; launches of one warp and share are lanes of "
            "one instruction; -1: launches one after another",
            since=4,
        ),
        _c("lanes", "int64", "lanes", "lanes that launch", since=4),
        _c("child_grid", "int64", "blocks", "blocks of the child, of all lanes together", since=4),
        _c(
            "child_duration",
            "float64",
            "as duration of blocks",
            "time of each child block",
            since=4,
        ),
        _c(
            "inline",
            "float64",
            "as duration of blocks",
            "time of the parent if it does the work",
            since=4,
        ),
        _c(
            "join",
            "dictionary",
            "",
            '"none", "block" (the block waits for its child) or "kernel" '
            "(the child waits for the kernel)",
            since=4,
        ),
        _c(
            "stream",
            "int64",
            "",
            "children of one block and stream run in order; -1: on their own",
            since=4,
        ),
        _c("items", "int64", "", "work items, that thresholds are about", since=4),
    ),
    "pairs": (
        _c("source", "int32", "", "kernel waited for; -1 - i for copy or memset i"),
        _c("target", "int32", "", "kernel that waits"),
        _c("raw", "int64", "edges", "distinct certain read-after-write edges"),
        _c("war", "int64", "edges", "distinct certain write-after-read edges"),
        _c("waw", "int64", "edges", "distinct certain write-after-write edges"),
        _c("edges", "int64", "edges", "distinct certain edges of any kind"),
        _c("pattern", "dictionary", "", "shape of the dependence"),
        _c("waiting", "int64", "blocks", "blocks of the target that wait"),
        _c("awaited", "int64", "blocks", "blocks of the source waited for"),
        _c("most_sources", "int64", "blocks", "most blocks that one block waits for"),
        _c("most_targets", "int64", "blocks", "most blocks that wait for one block"),
        _c("ldgsts", "int64", "edges", "of each kind those that rest only on LDGSTS reads"),
        _c("possible", "int64", "edges", "distinct edges of any kind that are only possible"),
        _c(
            "reuse",
            "int64",
            "edges",
            "distinct certain edges through memory that was freed in between",
            since=4,
            default=0,
        ),
        _c("cross_stream", "bool", "", "source and target run in different streams"),
    ),
    "edges": (
        _c("src_kernel", "int64", "", "kernel waited for; -1 - i for copy or memset i"),
        _c("src_block", "int64", "", "its block, numbered within the kernel"),
        _c("dst_kernel", "int64", "", "kernel that waits"),
        _c("dst_block", "int64", "", "its block, numbered within the kernel"),
        _c("kind", "string", "", _KINDS),
        _c("certain", "bool", "", "false where it is only possible"),
        _c("ldgsts", "bool", "", "whether it rests only on LDGSTS reads"),
    ),
}

STORED_TABLES = (
    "kernels", "blocks", "footprints", "copies", "allocations", "sets", "joins", "launches",
    "pairs",
)  # fmt: skip


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
