"""A store, an extraction on disk: read table by table as it is asked for; and how it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from depgraph.errors import ModelError, StoreError
from depgraph.footprint.footprints import (
    Footprints,
    SpilledFootprints,
    freed_between,
    stack_footprints,
)
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES, PairSummary, Pattern
from depgraph.graph.program import (
    BlockCounts,
    Copy,
    DeviceLaunches,
    Extraction,
    Kernel,
    launch_resources,
    no_launches,
)
from depgraph.store.columns import CheckedTables, kind_of_ranges
from depgraph.store.schema import (
    PATTERNS,
    SCHEMA_VERSION,
    STORED_TABLES,
    TABLES,
    Column,
    arrow_schema,
)
from depgraph.store.tables import (
    IDENTITY_KEY,
    METADATA_KEY,
    Checksums,
    HashingFile,
    StoredTables,
    file_name,
    not_a_store,
)
from depgraph.system.arrays import columns_of, from_codes, from_list, from_lists, from_numpy
from depgraph.system.output import new_folder, stable_path, tool_version
from depgraph.trace.records import HOST_CALLS, Allocation, HostCall

if TYPE_CHECKING:
    import pandas as pd
    from _typeshed import DataclassInstance


_IDENTITY_LENGTH = 32
_ROW_GROUP = 1 << 19
_ENCODINGS: dict[str, dict[str, Any]] = {
    "footprints": {
        "use_dictionary": ["kind", "way"],
        "column_encoding": dict.fromkeys(("block", "start", "end"), "DELTA_BINARY_PACKED"),
    }
}


class Store(StoredTables):
    """An extraction on disk; tables are read when they are asked for.

    Parameters
    ----------
    path : str or Path
        The folder.

    Attributes
    ----------
    metadata : dict
        Provenance, as `Extraction` has it, and the version of schema and tool.

    Raises
    ------
    StoreError
        If there is no store, it is incomplete, of another schema version, or has files of another
        store.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._checked = CheckedTables(self)

    def to_pandas(self, name: str) -> pd.DataFrame:
        """Return a table as a data frame; `depgraph.store.schema` says what its columns hold."""
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels, in launch order."""
        return self._checked["kernels"].rows(Kernel)

    @cached_property
    def copies(self) -> list[Copy]:
        """The copies and memsets, in program order."""
        return self._checked["copies"].rows(Copy)

    @cached_property
    def allocations(self) -> list[Allocation]:
        """The allocations; none where the input does not know of frees."""
        return self._checked["allocations"].rows(Allocation)

    @cached_property
    def host_calls(self) -> list[HostCall]:
        """The calls that order streams; none where the input does not know of them."""
        return self._checked["calls"].rows(HostCall)

    @cached_property
    def counts(self) -> BlockCounts:
        """Counts of every block."""
        blocks = self._checked["blocks"]
        return BlockCounts(*(blocks[field.name] for field in fields(BlockCounts)))

    @cached_property
    def pairs(self) -> list[PairSummary]:
        """The pairs of kernels that depend on one another."""
        pairs = self._checked["pairs"]
        patterns = list(map(Pattern, PATTERNS))
        return pairs.rows(
            PairSummary, pattern=[patterns[code] for code in pairs["pattern"].tolist()]
        )

    def footprints(self) -> Footprints:
        """Return the footprints of all blocks."""
        ranges = self._checked["footprints"]
        self._checked.release("footprints")
        return Footprints(ranges["block"], kind_of_ranges(ranges), ranges["start"], ranges["end"])

    def graph(self, kinds: Collection[str] | None = None) -> BlockGraph:
        """Return the block graph.

        Parameters
        ----------
        kinds : collection of str, optional
            Among `KIND_NAMES`; default all that were extracted.

        Raises
        ------
        ModelError
            If another kind is asked for, or one that the store was extracted without.
        """
        graph = self._graph
        if kinds is None:
            return graph
        chosen = graph.with_kinds(kinds)
        if chosen.kinds < {kind.upper() for kind in kinds}:
            extracted = ", ".join(kind for kind in KIND_NAMES if kind in graph.kinds)
            raise ModelError(
                f"{self.path}: the store holds only {extracted} dependences; extract again "
                "for others (REUSE: a recording, which knows what was freed)"
            )
        return chosen

    @cached_property
    def _graph(self) -> BlockGraph:
        layout = self._checked.layout
        spaces = self.metadata.get("address_spaces")
        sets, joins = self._checked["sets"], self._checked["joins"]
        self._checked.release("sets", "joins")
        set_offsets, set_blocks = sets.lists("blocks")
        has_positions = sets.nulls("first_use") < len(sets)
        source_offsets, sources = joins.lists("sources")
        target_offsets, targets = joins.lists("targets")
        n_operations = len(layout.kernel)
        return BlockGraph(
            kernel=layout.kernel.astype(np.int32),
            first_block=layout.first_block,
            set_operation=sets["operation"],
            set_offsets=set_offsets,
            set_blocks=set_blocks,
            join_kind=joins["kind"],
            join_basis=joins["basis"] if joins["basis"].any() else None,
            join_source_operation=joins.operations("source_kernel", layout),
            join_target_operation=joins.operations("target_kernel", layout),
            source_offsets=source_offsets,
            sources=sources,
            target_offsets=target_offsets,
            targets=targets,
            kinds=frozenset(self.metadata["options"]["kinds"]),
            cost=self.counts.cost,
            resources=launch_resources(self.kernels, n_operations),
            first_use=sets["first_use"] if has_positions else None,
            last_use=sets["last_use"] if has_positions else None,
            position_step=self.metadata.get("position_step", 0.0),
            duration=self._durations,
            duration_unit=self.metadata.get("duration_unit", "cycles"),
            occupancy=self._occupancies(n_operations),
            space=None if spaces is None else np.array(spaces, np.int32),
            frees=freed_between(self.allocations, n_operations),
            copies={copy.number: copy.what for copy in self.copies},
            launches=self._launches(),
            counted=tuple(self.pairs),
        )

    def _launches(self) -> DeviceLaunches | None:
        columns = self._checked["launches"]
        if not len(columns):
            return None
        if self._durations is None:
            file = self.file("launches")
            raise StoreError(file, "has launches of blocks without durations", "extract again")
        known = {field.name: columns[field.name] for field in fields(DeviceLaunches)}
        return DeviceLaunches(**{**known, "block": columns["block"].astype(np.int64)})

    @property
    def _durations(self) -> NDArray[np.float64] | None:
        blocks = self._checked["blocks"]
        return blocks["duration"] if blocks.nulls("duration") < len(blocks) else None

    def _occupancies(self, n_operations: int) -> NDArray[np.int64] | None:
        stated = {k.operation: k.occupancy for k in self.kernels if k.occupancy is not None}
        if not stated:
            return None
        result = np.zeros(n_operations, np.int64)
        result[list(stated)] = list(stated.values())
        return result


def write_store(
    extraction: Extraction, path: Path, *, force: bool = False, place_checked: bool = False
) -> Store:
    """Write an extraction as a folder, which must not exist, or be a store and `force` be given."""
    path = stable_path(path)
    with new_folder(path, force=force, not_ours=not_a_store, place_checked=place_checked) as folder:
        metadata = json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "tool_version": tool_version(),
                **extraction.metadata,
            }
        )
        with ExitStack() as open_files:
            files = {
                table: open_files.enter_context(_TableFile(folder, table, metadata))
                for table in STORED_TABLES
            }
            with ThreadPoolExecutor() as pool:  # packing holds no lock of the interpreter
                tables = _tables(extraction)
                written = pool.map(
                    _TableFile.write, [files[name] for name in tables], tables.values()
                )
                _write_footprints(files["footprints"], extraction.footprints)
                list(written)  # raises what went wrong
            content = [metadata, *(file.hexdigest() for file in files.values())]
            identity = hashlib.sha256("\n".join(content).encode()).hexdigest()[:_IDENTITY_LENGTH]
            for file in files.values():
                file.finish(identity)
        digests = {file.name: file.hexdigest() for file in files.values()}
        Checksums(identity, digests).write(folder)
    return Store(path)


class _TableFile:
    """A file of a store as it is written; `metadata` is that of the store, as JSON."""

    def __init__(self, folder: Path, table: str, metadata: str) -> None:
        self.name = file_name(table)
        self._columns = TABLES[table]
        self._schema = arrow_schema(table).with_metadata({METADATA_KEY: metadata})
        self._file = HashingFile(folder / self.name)
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=1,
            write_page_checksum=True,
            **_ENCODINGS.get(table, {}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # the footer of a file that is given up; what is whole is closed
            self._writer.close()
        self._file.close()

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows."""
        rows = len(columns[self._columns[0].name])
        arrays = [
            _array(columns[column.name], column, field.type, rows)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def finish(self, identity: str) -> None:
        """Write the id of the store, and all that a reader needs."""
        self._writer.add_key_value_metadata({IDENTITY_KEY: identity})
        self._writer.close()

    def hexdigest(self) -> str:
        """Return the SHA-256 of what has been written so far."""
        return self._file.hexdigest()


def _write_footprints(file: _TableFile, footprints: Footprints | SpilledFootprints) -> None:
    """Write footprints in row groups of one size, however they come."""
    kept = stack_footprints([])

    def write(rows: Footprints) -> None:
        columns = {name: getattr(rows, name) for name in ("block", "start", "end", "way")}
        file.write({**columns, "kind": rows.access})

    for batch in footprints.batches():
        rows = stack_footprints([kept, batch]) if len(kept) else batch
        whole = len(rows) - len(rows) % _ROW_GROUP
        for low in range(0, whole, _ROW_GROUP):
            write(rows.take(slice(low, low + _ROW_GROUP)))
        kept = rows.take(slice(whole, None))
    write(kept)


def _array(values: Any, column: Column, type_: pa.DataType, rows: int) -> pa.Array:
    """Return a column: codes of names, offsets and values of lists, None where all is null."""
    if values is None:
        return pa.nulls(rows, type_)
    if column.names:
        return from_codes(values, column.names)
    if column.is_list:
        return from_lists(*values)
    if isinstance(values, np.ndarray):
        return from_numpy(values, type_, nan_is_null=column.nullable)
    return from_list(values, type_)


def _rows(objects: Sequence[Any], kind: type[DataclassInstance]) -> dict[str, Any]:
    return columns_of(objects, [field.name for field in fields(kind)])


def _tables(extraction: Extraction) -> dict[str, dict[str, Any]]:
    """Return the columns of all tables but footprints, as `_array` takes them."""
    graph, pairs = extraction.graph, extraction.pairs
    kernel, index = graph.block_names()
    counts = {field.name: getattr(extraction.counts, field.name) for field in fields(BlockCounts)}
    has_positions = graph.first_use is not None
    kernels = _rows(extraction.kernels, Kernel)
    streams = dict(zip(kernels["kernel"], kernels["stream"], strict=True))
    codes = {pattern: PATTERNS.index(pattern.value) for pattern in Pattern}
    return {
        "kernels": kernels,
        "blocks": {
            "block": np.arange(graph.n_blocks, dtype=np.int32),
            "kernel": kernel,
            "index": index,
            **_coordinates(graph, kernels, index),
            **counts,
            "cost": extraction.counts.cost,
            "duration": graph.duration,
        },
        "copies": _rows(extraction.copies, Copy),
        "allocations": _rows(extraction.allocations, Allocation),
        "calls": {
            **_rows(extraction.host_calls, HostCall),
            "what": np.array([HOST_CALLS.index(c.what) for c in extraction.host_calls], np.int8),
        },
        "sets": {
            "set": np.arange(len(graph.set_operation)),
            "operation": graph.set_operation,
            "blocks": graph.set_lists,
            "first_use": (graph.set_offsets, graph.first_use) if has_positions else None,
            "last_use": (graph.set_offsets, graph.last_use) if has_positions else None,
        },
        "joins": {
            "join": np.arange(len(graph.join_kind)),
            "kind": graph.join_kind,
            "certain": graph.join_certain,
            "basis": graph.basis,
            "source_kernel": graph.kernel[graph.join_source_operation],
            "target_kernel": graph.kernel[graph.join_target_operation],
            "sources": graph.source_lists,
            "targets": graph.target_lists,
        },
        "launches": _launch_columns(graph),
        "pairs": {
            **_rows(pairs, PairSummary),
            "pattern": np.array([codes[p.pattern] for p in pairs], np.int8),
            "cross_stream": [
                min(p.source, p.target) >= 0 and streams[p.source] != streams[p.target]
                for p in pairs
            ],
        },
    }


def _launch_columns(graph: BlockGraph) -> dict[str, Any]:
    """Return the launches from the device; no rows where there are none."""
    given = no_launches() if graph.launches is None else graph.launches
    return {
        **{field.name: getattr(given, field.name) for field in fields(DeviceLaunches)},
        "launch": np.arange(len(given)),
        "kernel": graph.kernel[graph.operation_of_block[given.block]],
    }


def _coordinates(
    graph: BlockGraph, kernels: Mapping[str, Any], index: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    grid = np.ones((graph.n_operations, 2), np.int64)
    grid[kernels["operation"]] = np.transpose([kernels["grid_x"], kernels["grid_y"]])
    x_size, y_size = grid[graph.operation_of_block].T
    return {"x": index % x_size, "y": index // x_size % y_size, "z": index // (x_size * y_size)}
