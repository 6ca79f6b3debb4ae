"""Footprints that do not fit in memory: Parquet files sorted by one column, read in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depgraph.footprint import Footprints

if TYPE_CHECKING:
    from pathlib import Path

_ROW_GROUP = 1 << 16
_SCHEMA = pa.schema(
    [("block", pa.int32()), ("kind", pa.uint8()), ("start", pa.uint64()), ("end", pa.uint64())]
)


def write_run(footprints: Footprints, path: Path) -> None:
    """Write footprints in their present order, which is that of the column to slice by."""
    table = pa.Table.from_arrays(
        [pa.array(getattr(footprints, name)) for name in _SCHEMA.names], schema=_SCHEMA
    )
    pq.write_table(
        table, path, row_group_size=_ROW_GROUP, compression="lz4", use_dictionary=False
    )


def by_start(footprints: Footprints) -> Footprints:
    """Return the same ranges, sorted by start address."""
    order = np.argsort(footprints.start, kind="stable")
    return Footprints(*(getattr(footprints, name)[order] for name in _SCHEMA.names))


def read_slice(path: Path, column: str, low: int, high: int) -> Footprints:
    """Read the rows of a run whose sort column is in ``[low, high)``.

    Parameters
    ----------
    path : Path
    column : {"block", "start"}
        The column that the run is sorted by.
    low, high : int
    """
    with pq.ParquetFile(path) as file:
        index = _SCHEMA.get_field_index(column)
        groups = []
        for group in range(file.num_row_groups):
            statistics = file.metadata.row_group(group).column(index).statistics
            if statistics.max >= low and statistics.min < high:
                groups.append(group)
        table = file.read_row_groups(groups)
    values = table[column].to_numpy()
    kind = values.dtype.type
    first, last = (
        np.searchsorted(values, kind(min(bound, np.iinfo(kind).max))) for bound in (low, high)
    )
    table = table.slice(int(first), int(last - first))
    return Footprints(*(table[name].to_numpy() for name in _SCHEMA.names))
