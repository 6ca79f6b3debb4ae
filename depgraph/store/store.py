"""The store: a folder of Parquet files that holds an extraction."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depgraph.errors import ModelError, StoreError
from depgraph.footprint.footprints import Footprints, concatenate_footprints, stack_footprints
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.kinds import BASIS_NAMES, KIND_NAMES
from depgraph.graph.pairs import PairSummary, Pattern
from depgraph.graph.program import BlockCounts, Copy, Kernel, launch_resources
from depgraph.store.checksums import CHECKSUMS, Checksums, HashingFile, has_checksums
from depgraph.store.schema import SCHEMA_VERSION, STORED_TABLES, arrow_schema
from depgraph.store.table_checks import (
    Layout,
    check_blocks,
    check_copies,
    check_footprints,
    check_joins,
    check_kernels,
    check_layout,
    check_nulls,
    check_pairs,
    check_sets,
    codes,
)
from depgraph.system.arrow import (
    from_codes,
    from_list,
    from_lists,
    from_numpy,
    read_parquet,
    to_lists,
    to_numpy,
)
from depgraph.system.output import new_folder, stable_path, stranger_in
from depgraph.system.placing import recover
from depgraph.system.version import tool_version
from depgraph.trace.records import ACCESS_KINDS, ACCESS_WAYS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Self

    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.footprint.spill import SpilledFootprints
    from depgraph.graph.program import Extraction

_METADATA_KEY = b"depgraph"
_IDENTITY_KEY = b"depgraph_store"
_IDENTITY_LENGTH = 32
_SUFFIX = ".parquet"
_ROW_GROUP = 1 << 19
_FILES = (*(f"{table}{_SUFFIX}" for table in STORED_TABLES), CHECKSUMS)
_ADVICE = "copy the store again, or extract the trace again"
_ENCODINGS: dict[str, dict[str, Any]] = {
    "footprints": {
        "use_dictionary": ["kind", "way"],
        "column_encoding": dict.fromkeys(("block", "start", "end"), "DELTA_BINARY_PACKED"),
    }
}
# What to add to `READ` for each of `ACCESS_WAYS`.
_READS = np.array([0, 2, 3], np.uint8)
_PATTERNS = [pattern.value for pattern in Pattern]


def is_store(path: Path) -> bool:
    """Tell whether a folder looks like a store, of whatever version, whole or not."""
    if (path / "kernels.parquet").is_file() and (path / "joins.parquet").is_file():
        return True
    return has_checksums(path)


def not_a_store(path: Path) -> str:
    """Say what keeps a folder from being a store and nothing else, "" if nothing does."""
    if not is_store(path):
        return "was not written by depgraph"
    return stranger_in(path, lambda entry: entry.name in _FILES and _is_plain(entry))


def _is_plain(entry: Path) -> bool:
    return entry.is_file() and not entry.is_symlink()


def _file_name(table: str) -> str:
    return f"{table}{_SUFFIX}"


def write_store(
    extraction: Extraction, path: Path, *, force: bool = False, place_checked: bool = False
) -> Store:
    """Write an extraction as a folder of Parquet files.

    Parameters
    ----------
    extraction : Extraction
    path : Path
        The folder; it must not exist, or be a store and `force` be given.
    force : bool
    place_checked : bool
        As `depgraph.system.output.new_folder` takes it.

    Returns
    -------
    Store
        The store just written.

    Raises
    ------
    OutputExistsError, OutputError
        If the folder cannot be made, or something else has taken its place meanwhile.
    """
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
            for table, columns in _tables(extraction).items():
                files[table].write(columns)
            _write_footprints(files["footprints"], extraction.footprints)
            content = [metadata, *(file.hexdigest() for file in files.values())]
            identity = hashlib.sha256("\n".join(content).encode()).hexdigest()[:_IDENTITY_LENGTH]
            for file in files.values():
                file.finish(identity)
        digests = {file.name: file.hexdigest() for file in files.values()}
        Checksums(identity, digests).write(folder)
    return Store(path)


class _TableFile:
    """A file of a store as it is written.

    Parameters
    ----------
    folder : Path
    table : str
    metadata : str
        Of the store, as JSON.
    """

    def __init__(self, folder: Path, table: str, metadata: str) -> None:
        self.name = _file_name(table)
        self._schema = arrow_schema(table).with_metadata({_METADATA_KEY: metadata})
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
        arrays = [_array(columns[field.name], field.type) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def finish(self, identity: str) -> None:
        """Write the id of the store, and all that a reader needs."""
        self._writer.add_key_value_metadata({_IDENTITY_KEY: identity})
        self._writer.close()

    def hexdigest(self) -> str:
        """Return the SHA-256 of what has been written so far."""
        return self._file.hexdigest()


def _write_footprints(file: _TableFile, footprints: Footprints | SpilledFootprints) -> None:
    """Write footprints in row groups of one size, however they come."""
    kept = concatenate_footprints([], 0)

    def write(rows: Footprints) -> None:
        file.write(
            {
                "block": rows.block,
                "kind": from_codes(rows.access, ACCESS_KINDS),
                "start": rows.start,
                "end": rows.end,
                "way": from_codes(rows.way, ACCESS_WAYS),
            }
        )

    for batch in footprints.batches():
        rows = stack_footprints([kept, batch]) if len(kept) else batch
        whole = len(rows) - len(rows) % _ROW_GROUP
        for low in range(0, whole, _ROW_GROUP):
            write(rows.take(slice(low, low + _ROW_GROUP)))
        kept = rows.take(slice(whole, None))
    write(kept)


def _kind_of(field: pa.Field) -> tuple[str, pa.DataType]:
    """Return name and type; how wide the indices of a dictionary are is up to who reads it."""
    is_dictionary = pa.types.is_dictionary(field.type)
    return field.name, field.type.value_type if is_dictionary else field.type


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
        If there is no store, it is incomplete, of another schema version, or has files of another
        store.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.name:
            recover(self.path)
        if not is_store(self.path):
            what = "is not a depgraph store" if self.path.exists() else "no such store"
            raise StoreError(self.path, what, "make one with: depgraph extract TRACE")
        self._checksums = self._read_checksums()
        self._refuse_strange_files()
        self.metadata = self._metadata_in(self._kernel_table.schema)

    def _read_checksums(self) -> Checksums:
        missing = [name for name in _FILES if not (self.path / name).is_file()]
        if missing:
            self._refuse_other_version()
            raise StoreError(self.path, f"lacks {missing[0]}", _ADVICE)
        try:
            checksums = Checksums.read(self.path)
        except (OSError, ValueError) as error:
            self._refuse_other_version()
            raise self._damaged(self.path / CHECKSUMS, error) from None
        if set(checksums.digests) != {_file_name(table) for table in STORED_TABLES}:
            self._refuse_other_version()
            raise StoreError(self.path / CHECKSUMS, "names other files than a store has", _ADVICE)
        return checksums

    def _refuse_other_version(self) -> None:
        """Refuse a store of another version, whose files may be others."""
        if self._file("kernels").is_file():
            try:
                schema = pq.read_schema(self._file("kernels"))
            except (OSError, ValueError, pa.ArrowException):
                return
            self._metadata_in(schema)

    def _metadata_in(self, schema: pa.Schema) -> dict[str, Any]:
        try:
            metadata: dict[str, Any] = json.loads((schema.metadata or {})[_METADATA_KEY])
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
        return metadata

    def _refuse_strange_files(self) -> None:
        """Refuse files of other stores by what stands at their end, without reading them whole."""
        for table in STORED_TABLES:
            try:
                metadata = pq.read_metadata(self._file(table)).metadata or {}
            except (OSError, ValueError, pa.ArrowException) as error:
                raise self._damaged(self._file(table), error) from None
            if metadata.get(_IDENTITY_KEY) != self._checksums.identity.encode():
                raise StoreError(
                    self._file(table), f"is not of the store that {CHECKSUMS} describes", _ADVICE
                )

    def _file(self, table: str) -> Path:
        return self.path / _file_name(table)

    def _damaged(self, file: Path, error: Exception) -> StoreError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return StoreError(file, f"is damaged ({reason})", _ADVICE)

    def table(self, name: str) -> pa.Table:
        """Return a table as Arrow data.

        Raises
        ------
        StoreError
            If there is no such table, its file has changed since it was written, or its columns
            are not the schema's.
        """
        if name not in STORED_TABLES:
            raise StoreError(
                self.path, f"has no table {name!r}", f"it has {', '.join(STORED_TABLES)}"
            )
        file = self._file(name)
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self._checksums.digests[file.name]:
                raise StoreError(
                    file, f"is damaged (its checksum is not the one in {CHECKSUMS})", _ADVICE
                )
            table = read_parquet(content)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(file, error) from None
        expected = arrow_schema(name)
        if [*map(_kind_of, table.schema)] != [*map(_kind_of, expected)]:
            raise StoreError(file, "has columns that the schema does not name", "extract again")
        check_nulls(file, table, expected)
        return table

    def to_pandas(self, name: str) -> pd.DataFrame:
        """Return a table as a data frame; `depgraph.store.schema` says what its columns hold."""
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame

    @cached_property
    def _kernel_table(self) -> pa.Table:
        return self.table("kernels")

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels, in launch order."""
        kernels = [Kernel(**row) for row in self._kernel_table.to_pylist()]
        check_kernels(self._file("kernels"), kernels)
        return kernels

    @cached_property
    def copies(self) -> list[Copy]:
        """The host copies, in program order."""
        copies = [Copy(**row) for row in self.table("copies").to_pylist()]
        check_copies(self._file("copies"), copies)
        return copies

    @cached_property
    def _layout(self) -> Layout:
        """Which blocks are of which kernel or copy."""
        rows = sorted(
            [(k.operation, k.kernel, k.first_block, k.blocks) for k in self.kernels]
            + [(c.operation, -1 - c.copy, c.block, 1) for c in self.copies]
        )
        layout = Layout(*np.array(rows, np.int64).reshape(-1, 4).T)
        check_layout(self._file("kernels"), layout, self.metadata)
        return layout

    @cached_property
    def _block_table(self) -> pa.Table:
        table = self.table("blocks")
        check_blocks(self._file("blocks"), table, self._layout, self.kernels)
        return table

    @cached_property
    def counts(self) -> BlockCounts:
        """Counts of every block."""
        return BlockCounts(
            *(
                to_numpy(self._block_table[name])
                for name in ("accesses", "instructions", "read_bytes", "written_bytes")
            )
        )

    @cached_property
    def pairs(self) -> list[PairSummary]:
        """The pairs of kernels that depend on one another."""
        table = self.table("pairs")
        check_pairs(self._file("pairs"), table, self._layout, _PATTERNS)
        rows = table.drop_columns(["cross_stream"]).to_pylist()
        return [PairSummary(**{**row, "pattern": Pattern(row["pattern"])}) for row in rows]

    def footprints(self) -> Footprints:
        """Return the footprints of all blocks."""
        file, table = self._file("footprints"), self.table("footprints")
        footprints = Footprints(
            to_numpy(table["block"]),
            codes(file, table, "kind", ACCESS_KINDS)
            + _READS[codes(file, table, "way", ACCESS_WAYS)],
            to_numpy(table["start"]),
            to_numpy(table["end"]),
        )
        check_footprints(file, footprints, self._layout.n_blocks)
        return footprints

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
                f"{self.path}: the store holds only {extracted} dependences; extract again "
                "for others"
            )
        return chosen

    @cached_property
    def _graph(self) -> BlockGraph:
        layout = self._layout
        spaces = self.metadata.get("address_spaces")
        sets, joins = self.table("sets"), self.table("joins")
        join_file = self._file("joins")
        check_sets(self._file("sets"), sets, layout)
        set_offsets, set_blocks = to_lists(sets["blocks"])
        has_positions = sets["first_use"].null_count < len(sets)
        source_offsets, sources = to_lists(joins["sources"])
        target_offsets, targets = to_lists(joins["targets"])
        n_operations = len(layout.kernel)
        basis = codes(join_file, joins, "basis", BASIS_NAMES)
        graph = BlockGraph(
            kernel=layout.kernel.astype(np.int32),
            first_block=layout.first_block,
            set_operation=to_numpy(sets["operation"]),
            set_offsets=set_offsets,
            set_blocks=set_blocks,
            join_kind=codes(join_file, joins, "kind", KIND_NAMES),
            join_basis=basis if basis.any() else None,
            join_source_operation=layout.operations_of(join_file, joins, "source_kernel"),
            join_target_operation=layout.operations_of(join_file, joins, "target_kernel"),
            source_offsets=source_offsets,
            sources=sources,
            target_offsets=target_offsets,
            targets=targets,
            kinds=frozenset(self.metadata["options"]["kinds"]),
            cost=self.counts.cost,
            resources=launch_resources(self.kernels, n_operations),
            first_use=to_lists(sets["first_use"])[1] if has_positions else None,
            last_use=to_lists(sets["last_use"])[1] if has_positions else None,
            position_step=self.metadata.get("position_step", 0.0),
            duration=self._durations(),
            duration_unit=self.metadata.get("duration_unit", "cycles"),
            occupancy=self._occupancies(n_operations),
            space=None if spaces is None else np.array(spaces, np.int32),
            counted=tuple(self.pairs),
        )
        check_joins(join_file, joins, graph)
        return graph

    def _durations(self) -> NDArray[np.float64] | None:
        column = self._block_table["duration"]
        return None if column.null_count == len(column) else to_numpy(column)

    def _occupancies(self, n_operations: int) -> NDArray[np.int64] | None:
        stated = {k.operation: k.occupancy for k in self.kernels if k.occupancy is not None}
        if not stated:
            return None
        result = np.zeros(n_operations, np.int64)
        result[list(stated)] = list(stated.values())
        return result
