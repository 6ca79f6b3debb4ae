"""An extraction written as a store: a folder of Parquet files, each with its checksum."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depgraph.footprint.footprints import stack_footprints
from depgraph.graph.kinds import BASIS_NAMES, KIND_NAMES
from depgraph.graph.launches import JOINS, DeviceLaunches, no_launches
from depgraph.graph.pairs import PairSummary
from depgraph.graph.program import Copy, Kernel
from depgraph.store.checksums import Checksums, HashingFile
from depgraph.store.files import IDENTITY_KEY, METADATA_KEY, PATTERNS, file_name, not_a_store
from depgraph.store.schema import SCHEMA_VERSION, STORED_TABLES, arrow_schema
from depgraph.store.store import Store
from depgraph.system.arrow import from_codes, from_list, from_lists, from_numpy
from depgraph.system.output import new_folder, stable_path, tool_version
from depgraph.trace.records import ACCESS_KINDS, ACCESS_WAYS, Allocation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.footprint.spill import SpilledFootprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import Extraction

_IDENTITY_LENGTH = 32
_ROW_GROUP = 1 << 19
_ENCODINGS: dict[str, dict[str, Any]] = {
    "footprints": {
        "use_dictionary": ["kind", "way"],
        "column_encoding": dict.fromkeys(("block", "start", "end"), "DELTA_BINARY_PACKED"),
    }
}


def write_store(
    extraction: Extraction, path: Path, *, force: bool = False, place_checked: bool = False
) -> Store:
    """Write an extraction as a folder of Parquet files.

    Parameters
    ----------
    path : Path
        The folder; it must not exist, or be a store and `force` be given.
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
    """A file of a store as it is written; `metadata` is that of the store, as JSON."""

    def __init__(self, folder: Path, table: str, metadata: str) -> None:
        self.name = file_name(table)
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
        arrays = [_array(columns[field.name], field.type) for field in self._schema]
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
            "duration": _or_nulls(graph.duration, graph.n_blocks),
        },
        "copies": {f.name: [getattr(c, f.name) for c in extraction.copies] for f in fields(Copy)},
        "allocations": {
            f.name: [getattr(a, f.name) for a in extraction.allocations] for f in fields(Allocation)
        },
        "sets": {
            "set": np.arange(len(graph.set_operation), dtype=np.int32),
            "operation": graph.set_operation,
            "blocks": from_lists(*graph.set_lists),
            "first_use": _positions(graph.set_offsets, graph.first_use),
            "last_use": _positions(graph.set_offsets, graph.last_use),
        },
        "joins": {
            "join": np.arange(len(graph.join_kind), dtype=np.int32),
            "kind": from_codes(graph.join_kind, KIND_NAMES),
            "certain": graph.join_certain,
            "basis": from_codes(graph.basis, BASIS_NAMES),
            "source_kernel": graph.kernel[graph.join_source_operation],
            "target_kernel": graph.kernel[graph.join_target_operation],
            "sources": from_lists(*graph.source_lists),
            "targets": from_lists(*graph.target_lists),
        },
        "launches": _launch_columns(graph),
        "pairs": {
            **{
                f.name: [getattr(p, f.name) for p in extraction.pairs]
                for f in fields(PairSummary)
                if f.name != "pattern"
            },
            "pattern": from_codes(
                np.array([PATTERNS.index(p.pattern.value) for p in extraction.pairs], np.int8),
                PATTERNS,
            ),
            "cross_stream": [
                min(p.source, p.target) >= 0 and streams[p.source] != streams[p.target]
                for p in extraction.pairs
            ],
        },
    }


def _launch_columns(graph: BlockGraph) -> dict[str, Any]:
    """Return the launches from the device; no rows where there are none."""
    given = no_launches() if graph.launches is None else graph.launches
    return {
        **{f.name: getattr(given, f.name) for f in fields(DeviceLaunches)},
        "launch": np.arange(len(given), dtype=np.int32),
        "kernel": graph.kernel[graph.operation_of_block[given.block]],
        "block": given.block.astype(np.int32),
        "join": from_codes(given.join, JOINS),
    }


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
