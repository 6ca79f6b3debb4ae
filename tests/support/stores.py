"""Stores changed in one place, with checksums that say all is well."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depgraph.recorder.times import as_trace
from depgraph.store.companions import times_of, write_companion
from depgraph.store.schema import OLDEST_VERSION, STORED_TABLES, TABLES
from depgraph.store.tables import Checksums

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from depgraph.store.store import Store


def files_of(store: Path) -> dict[str, bytes]:
    """Return what the files of a store hold, by name."""
    return {file.name: file.read_bytes() for file in sorted(store.iterdir())}


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a table of a store, and the checksums with it."""
    file = folder / f"{table}.parquet"
    identity = Checksums.read(folder).identity
    changed = change(pq.read_table(file))
    with pq.ParquetWriter(file, changed.schema) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata({"depgraph_store": identity})
    seal(folder)


def seal(folder: Path) -> None:
    """Write the checksums of what is there now."""
    files = [file for t in STORED_TABLES if (file := folder / f"{t}.parquet").is_file()]
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    Checksums(Checksums.read(folder).identity, digests).write(folder)


def set_values(folder: Path, table: str, column: str, values: Any) -> None:
    """Put other values into a column: an Arrow array, or a function of the values that it has."""

    def change(content: pa.Table) -> pa.Table:
        field = content.schema.field(column).with_nullable(nullable=True)
        new = values(content[column].to_pylist()) if callable(values) else values
        place = content.schema.get_field_index(column)
        return content.set_column(place, field, pa.array(new, field.type))

    rewrite(folder, table, change)


def set_metadata(folder: Path, text: str = "", **entries: Any) -> None:
    """Put other entries, or another text altogether, into the metadata of a store."""
    known = json.loads(pq.read_schema(folder / "kernels.parquet").metadata[b"depgraph"])
    metadata = text or json.dumps(known | entries)
    rewrite(folder, "kernels", lambda t: t.replace_schema_metadata({"depgraph": metadata}))


def make_version(folder: Path, version: int) -> None:
    """Let a store say that it is of another schema version; the first had no checksums."""
    set_metadata(folder, schema_version=version)
    if version == 1:
        (folder / "SHA256SUMS").unlink()


def make_oldest(folder: Path) -> None:
    """Take from a store all that its oldest readable version lacked."""
    for table in STORED_TABLES:
        columns = [c.name for c in TABLES[table] if c.since == OLDEST_VERSION]
        if columns:
            rewrite(folder, table, lambda content, kept=columns: content.select(kept))
        else:
            (folder / f"{table}.parquet").unlink()
    make_version(folder, OLDEST_VERSION)


def flip_bit(content: bytes, bit: int) -> bytes:
    """Return bytes with one bit the other way round."""
    flipped = np.frombuffer(content, np.uint8).copy()
    flipped[bit // 8] ^= 1 << bit % 8
    return flipped.tobytes()


def write_times(store: Store, identity: str) -> None:
    """Put times beside a store, as if its program, or another one, had been timed."""
    events = [
        {
            "ph": "X", "cat": "kernel", "name": k.name, "ts": 10.0 * k.kernel, "dur": 5.0,
            "args": {"device": 0, "stream": 7, "grid": k.grid, "block": k.block},
        }
        for k in store.kernels
    ]  # fmt: skip
    write_companion(times_of(store.path), as_trace(events, ["H100"]), store=identity)
