"""The store: a folder of Parquet files that holds an extraction."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depgraph.arrow import (
    from_codes,
    from_list,
    from_lists,
    from_numpy,
    read_parquet,
    to_codes,
    to_lists,
    to_numpy,
)
from depgraph.errors import ModelError, StoreError
from depgraph.extraction import BlockCounts, Copy, Kernel, launch_resources
from depgraph.footprint import Footprints, concatenate_footprints, stack_footprints
from depgraph.graph import BASIS_NAMES, KIND_NAMES, BlockGraph, PairSummary, Pattern
from depgraph.output import new_folder
from depgraph.records import ACCESS_KINDS, ACCESS_WAYS
from depgraph.schema import SCHEMA_VERSION, STORED_TABLES, arrow_schema
from depgraph.version import tool_version

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.extraction import Extraction
    from depgraph.spill import SpilledFootprints

_METADATA_KEY = b"depgraph"
_ROW_GROUP = 1 << 19
# What to add to `READ` for each of `ACCESS_WAYS`.
_READS = np.array([0, 2, 3], np.uint8)
_PATTERNS = [pattern.value for pattern in Pattern]


def is_store(path: Path) -> bool:
    """Tell whether a folder looks like a store, of whatever version."""
    return (path / "kernels.parquet").is_file() and (path / "joins.parquet").is_file()


def write_store(extraction: Extraction, path: Path, *, force: bool = False) -> Store:
    """Write an extraction as a folder of Parquet files.

    Parameters
    ----------
    extraction : Extraction
    path : Path
        The folder; it must not exist, or be a store and `force` be given.
    force : bool

    Returns
    -------
    Store
        The store just written.

    Raises
    ------
    OutputExistsError, OutputError
        If the folder cannot be made.
    """
    with new_folder(path, force=force, is_ours=is_store) as folder:
        metadata = {
            "schema_version": SCHEMA_VERSION,
            "tool_version": tool_version(),
            **extraction.metadata,
        }
        for name, columns in _tables(extraction).items():
            _write_table(folder / f"{name}.parquet", name, columns, metadata)
        _write_footprints(folder / "footprints.parquet", extraction.footprints, metadata)
    return Store(path)


def _write_table(
    file: Path, table: str, columns: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    schema = arrow_schema(table).with_metadata({_METADATA_KEY: json.dumps(metadata)})
    arrays = [_array(columns[field.name], field.type) for field in schema]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema), file, compression="zstd", compression_level=1
    )


def _write_footprints(
    file: Path, footprints: Footprints | SpilledFootprints, metadata: Mapping[str, Any]
) -> None:
    """Write footprints in row groups of one size, however they come."""
    schema = arrow_schema("footprints").with_metadata({_METADATA_KEY: json.dumps(metadata)})
    kept = concatenate_footprints([], 0)
    with pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=["kind", "way"],
        column_encoding=dict.fromkeys(("block", "start", "end"), "DELTA_BINARY_PACKED"),
    ) as writer:

        def write(rows: Footprints) -> None:
            kinds = from_codes(rows.access, ACCESS_KINDS)
            columns = [from_numpy(rows.block), kinds, from_numpy(rows.start), from_numpy(rows.end)]
            columns.append(from_codes(rows.way, ACCESS_WAYS))
            writer.write_table(
                pa.Table.from_arrays(columns, schema=schema), row_group_size=_ROW_GROUP
            )

        for batch in footprints.batches():
            rows = stack_footprints([kept, batch]) if len(kept) else batch
            whole = len(rows) - len(rows) % _ROW_GROUP
            for low in range(0, whole, _ROW_GROUP):
                write(rows.take(slice(low, low + _ROW_GROUP)))
            kept = rows.take(slice(whole, None))
        write(kept)


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        return from_numpy(values, type_)
    return from_list(values, type_)


def _positions(offsets: NDArray[np.int64], values: NDArray[np.float64] | None) -> pa.Array:
    if values is None:
        return pa.nulls(len(offsets) - 1, pa.list_(pa.float64()))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _or_nulls(values: NDArray[np.float64] | None, size: int) -> pa.Array:
    if values is None:
        return pa.nulls(size, pa.float64())
    return pa.array(values, pa.float64(), from_pandas=True)


def _tables(extraction: Extraction) -> dict[str, dict[str, Any]]:
    graph = extraction.graph
    kernel, index = graph.block_names()
    coordinates = _coordinates(extraction, index)
    counts = extraction.counts
    streams = {k.kernel: k.stream for k in extraction.kernels}
    return {
        "kernels": {
            f.name: [getattr(k, f.name) for k in extraction.kernels] for f in fields(Kernel)
        },
        "blocks": {
            "block": np.arange(graph.n_blocks, dtype=np.int32),
            "kernel": kernel.astype(np.int32),
            "index": index,
            **coordinates,
            "accesses": counts.accesses,
            "instructions": counts.instructions,
            "read_bytes": counts.read_bytes,
            "written_bytes": counts.written_bytes,
            "cost": counts.cost,
            "duration": _or_nulls(extraction.durations, graph.n_blocks),
        },
        "copies": {f.name: [getattr(c, f.name) for c in extraction.copies] for f in fields(Copy)},
        "sets": {
            "set": np.arange(len(graph.set_operation), dtype=np.int32),
            "operation": graph.set_operation,
            "blocks": from_lists(graph.set_offsets, graph.set_blocks),
            "first_use": _positions(graph.set_offsets, graph.first_use),
            "last_use": _positions(graph.set_offsets, graph.last_use),
        },
        "joins": {
            "join": np.arange(len(graph.join_kind), dtype=np.int32),
            "kind": from_codes(graph.join_kind, KIND_NAMES),
            "certain": graph.join_certain,
            "basis": from_codes(_bases(graph), BASIS_NAMES),
            "source_kernel": graph.kernel[graph.join_source_operation],
            "target_kernel": graph.kernel[graph.join_target_operation],
            "sources": from_lists(graph.source_offsets, graph.sources),
            "targets": from_lists(graph.target_offsets, graph.targets),
        },
        "pairs": {
            **{
                f.name: [getattr(p, f.name) for p in extraction.pairs]
                for f in fields(PairSummary)
                if f.name != "pattern"
            },
            "pattern": from_codes(
                np.array([_PATTERNS.index(p.pattern.value) for p in extraction.pairs], np.int8),
                _PATTERNS,
            ),
            "cross_stream": [
                min(p.source, p.target) >= 0 and streams[p.source] != streams[p.target]
                for p in extraction.pairs
            ],
        },
    }


def _bases(graph: BlockGraph) -> NDArray[np.uint8]:
    return (
        np.zeros(len(graph.join_kind), np.uint8) if graph.join_basis is None else graph.join_basis
    )


def _coordinates(extraction: Extraction, index: NDArray[np.int64]) -> dict[str, NDArray[np.int32]]:
    graph = extraction.graph
    grid = np.ones((graph.n_operations, 2), np.int64)
    for k in extraction.kernels:
        grid[k.operation] = k.grid_x, k.grid_y
    x_size, y_size = grid[graph.operation_of_block].T
    return {
        "x": (index % x_size).astype(np.int32),
        "y": (index // x_size % y_size).astype(np.int32),
        "z": (index // (x_size * y_size)).astype(np.int32),
    }


class Store:
    """An extraction on disk; tables are read when they are asked for.

    Parameters
    ----------
    path : str or Path
        The folder.

    Raises
    ------
    StoreError
        If there is no store, it is incomplete, or of another schema version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata = self._read_metadata()

    def _read_metadata(self) -> dict[str, Any]:
        if not self.path.exists():
            raise StoreError(self.path, "no such store", "make one with: depgraph extract TRACE")
        if not is_store(self.path):
            raise StoreError(
                self.path, "is not a depgraph store", "make one with: depgraph extract TRACE"
            )
        schema = self._schema("kernels")
        try:
            metadata = json.loads((schema.metadata or {})[_METADATA_KEY])
            found = metadata["schema_version"]
        except (KeyError, ValueError, TypeError):
            raise StoreError(
                self.path, "holds Parquet files that depgraph did not write", "extract again"
            ) from None
        if found != SCHEMA_VERSION:
            raise StoreError(
                self.path,
                f"has schema version {found}, this depgraph reads version {SCHEMA_VERSION}",
                "extract the trace again with --force",
            )
        missing = [name for name in STORED_TABLES if not self._file(name).is_file()]
        if missing:
            raise StoreError(self.path, f"lacks {missing[0]}.parquet", "extract the trace again")
        return metadata  # type: ignore[no-any-return]

    def _file(self, table: str) -> Path:
        return self.path / f"{table}.parquet"

    def _schema(self, table: str) -> pa.Schema:
        try:
            return pq.read_schema(self._file(table))
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(table, error) from None

    def _damaged(self, table: str, error: Exception) -> StoreError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return StoreError(self._file(table), f"is damaged ({reason})", "extract the trace again")

    def table(self, name: str) -> pa.Table:
        """Return a table as Arrow data.

        Raises
        ------
        StoreError
            If there is no such table, its file is damaged, or its columns are not the schema's.
        """
        if name not in STORED_TABLES:
            raise StoreError(
                self.path, f"has no table {name!r}", f"it has {', '.join(STORED_TABLES)}"
            )
        try:
            table = read_parquet(self._file(name))
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(name, error) from None
        expected = arrow_schema(name)
        if table.schema.names != expected.names or table.schema.types != expected.types:
            raise StoreError(
                self._file(name), "has columns that the schema does not name", "extract again"
            )
        return table

    def to_pandas(self, name: str) -> pd.DataFrame:
        """Return a table as a pandas data frame; `depgraph.schema` says what its columns hold."""
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels, in launch order."""
        return [Kernel(**row) for row in self.table("kernels").to_pylist()]

    @cached_property
    def copies(self) -> list[Copy]:
        """The host copies, in program order."""
        return [Copy(**row) for row in self.table("copies").to_pylist()]

    @cached_property
    def counts(self) -> BlockCounts:
        """Counts of every block."""
        table = self.table("blocks")
        return BlockCounts(
            *(
                to_numpy(table[name])
                for name in ("accesses", "instructions", "read_bytes", "written_bytes")
            )
        )

    @cached_property
    def pairs(self) -> list[PairSummary]:
        """The pairs of kernels that depend on one another."""
        rows = self.table("pairs").drop_columns(["cross_stream"]).to_pylist()
        return [PairSummary(**{**row, "pattern": Pattern(row["pattern"])}) for row in rows]

    def footprints(self) -> Footprints:
        """Return the footprints of all blocks."""
        table = self.table("footprints")
        return Footprints(
            to_numpy(table["block"]),
            to_codes(table["kind"], ACCESS_KINDS) + _READS[to_codes(table["way"], ACCESS_WAYS)],
            to_numpy(table["start"]),
            to_numpy(table["end"]),
        )

    def graph(self, kinds: Collection[str] | None = None) -> BlockGraph:
        """Return the block graph.

        Parameters
        ----------
        kinds : collection of str, optional
            Among "RAW", "WAR", "WAW"; default all that were extracted.

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
                f"{self.path}: the store holds {extracted} dependences alone; extract again "
                "for others"
            )
        return chosen

    @cached_property
    def _graph(self) -> BlockGraph:
        operations = sorted(
            [(k.operation, k.kernel, k.first_block, k.blocks) for k in self.kernels]
            + [(c.operation, -1 - c.copy, c.block, 1) for c in self.copies]
        )
        first_block = [first for _, _, first, _ in operations]
        n_blocks = operations[-1][2] + operations[-1][3] if operations else 0
        kernel = np.array([kernel for _, kernel, _, _ in operations], np.int32)
        sets = self.table("sets")
        joins = self.table("joins")
        operation_of_kernel = {kernel: operation for operation, kernel, _, _ in operations}
        set_offsets, set_blocks = to_lists(sets["blocks"])
        has_positions = sets["first_use"].null_count < len(sets)
        source_offsets, sources = to_lists(joins["sources"])
        target_offsets, targets = to_lists(joins["targets"])
        basis = to_codes(joins["basis"], BASIS_NAMES)
        spaces = self.metadata.get("address_spaces")

        def operations_of(column: str) -> NDArray[np.int32]:
            kernels, inverse = np.unique(to_numpy(joins[column]), return_inverse=True)
            numbers = [operation_of_kernel[k] for k in kernels.tolist()]
            return np.array(numbers, np.int32)[inverse]

        return BlockGraph(
            kernel=kernel,
            first_block=np.array([*first_block, n_blocks], np.int64),
            set_operation=to_numpy(sets["operation"]),
            set_offsets=set_offsets,
            set_blocks=set_blocks,
            join_kind=to_codes(joins["kind"], KIND_NAMES),
            join_basis=basis if basis.any() else None,
            join_source_operation=operations_of("source_kernel"),
            join_target_operation=operations_of("target_kernel"),
            source_offsets=source_offsets,
            sources=sources,
            target_offsets=target_offsets,
            targets=targets,
            kinds=frozenset(self.metadata["options"]["kinds"]),
            cost=self.counts.cost,
            resources=launch_resources(self.kernels, len(kernel)),
            first_use=_values(sets["first_use"]) if has_positions else None,
            last_use=_values(sets["last_use"]) if has_positions else None,
            position_step=self.metadata.get("position_step", 0.0),
            duration=self._durations(),
            duration_unit=self.metadata.get("duration_unit", "cycles"),
            occupancy=self._occupancies(len(kernel)),
            space=None if spaces is None else np.array(spaces, np.int32),
        )

    def _durations(self) -> NDArray[np.float64] | None:
        column = self.table("blocks")["duration"]
        if column.null_count == len(column):
            return None
        return column.to_numpy()  # type: ignore[no-any-return]

    def _occupancies(self, n_operations: int) -> NDArray[np.int64] | None:
        stated = {k.operation: k.occupancy for k in self.kernels if k.occupancy is not None}
        if not stated:
            return None
        result = np.zeros(n_operations, np.int64)
        result[list(stated)] = list(stated.values())
        return result


def _values(column: pa.ChunkedArray) -> NDArray[np.float64]:
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    return np.concatenate([np.empty(0, np.float64), *chunks])
