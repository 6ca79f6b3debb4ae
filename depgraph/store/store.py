"""A store: an extraction on disk, read table by table as it is asked for."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError, StoreError
from depgraph.footprint.footprints import Footprints, freed_between
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.kinds import BASIS_NAMES, KIND_NAMES
from depgraph.graph.launches import JOINS, DeviceLaunches
from depgraph.graph.pairs import PairSummary, Pattern
from depgraph.graph.program import BlockCounts, Copy, Kernel, launch_resources
from depgraph.store.files import PATTERNS
from depgraph.store.table_checks import (
    Layout,
    check_allocations,
    check_blocks,
    check_copies,
    check_footprints,
    check_joins,
    check_kernels,
    check_launches,
    check_layout,
    check_pairs,
    check_sets,
    codes,
)
from depgraph.store.tables import StoredTables
from depgraph.system.arrow import to_lists, to_numpy
from depgraph.trace.records import ACCESS_KINDS, ACCESS_WAYS, Allocation

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

# What to add to `READ` for each of `ACCESS_WAYS`.
_READS = np.array([0, 2, 3], np.uint8)


class Store:
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
        self._tables = StoredTables(path)
        self.path = self._tables.path
        self.metadata: dict[str, Any] = self._tables.metadata

    @property
    def identity(self) -> str:
        """Of the extraction; equal for equal results of equal inputs and options."""
        return self._tables.identity

    def table(self, name: str) -> pa.Table:
        """Return a table as Arrow data.

        Raises
        ------
        StoreError
            If there is no such table, its file has changed since it was written, or its columns
            are not the schema's.
        """
        return self._tables.table(name)

    def to_pandas(self, name: str) -> pd.DataFrame:
        """Return a table as a data frame; `depgraph.store.schema` says what its columns hold."""
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels, in launch order."""
        kernels = [Kernel(**row) for row in self._tables.kernels.to_pylist()]
        check_kernels(self._tables.file("kernels"), kernels)
        return kernels

    @cached_property
    def copies(self) -> list[Copy]:
        """The copies and memsets, in program order."""
        copies = [Copy(**row) for row in self.table("copies").to_pylist()]
        check_copies(self._tables.file("copies"), copies)
        return copies

    @cached_property
    def allocations(self) -> list[Allocation]:
        """The allocations; none where the input does not know of frees."""
        allocations = [Allocation(**row) for row in self.table("allocations").to_pylist()]
        check_allocations(self._tables.file("allocations"), allocations, len(self._layout.kernel))
        return allocations

    @cached_property
    def _layout(self) -> Layout:
        """Which blocks are of which kernel or copy."""
        rows = sorted(
            [(k.operation, k.kernel, k.first_block, k.blocks) for k in self.kernels]
            + [(c.operation, -1 - c.copy, c.block, 1) for c in self.copies]
        )
        layout = Layout(*np.array(rows, np.int64).reshape(-1, 4).T)
        check_layout(self._tables.file("kernels"), layout, self.metadata)
        return layout

    @cached_property
    def _block_table(self) -> pa.Table:
        table = self.table("blocks")
        check_blocks(self._tables.file("blocks"), table, self._layout, self.kernels)
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
        check_pairs(self._tables.file("pairs"), table, self._layout, PATTERNS)
        rows = table.drop_columns(["cross_stream"]).to_pylist()
        return [PairSummary(**{**row, "pattern": Pattern(row["pattern"])}) for row in rows]

    def footprints(self) -> Footprints:
        """Return the footprints of all blocks."""
        file, table = self._tables.file("footprints"), self.table("footprints")
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
        layout = self._layout
        spaces = self.metadata.get("address_spaces")
        sets, joins = self.table("sets"), self.table("joins")
        join_file = self._tables.file("joins")
        check_sets(self._tables.file("sets"), sets, layout)
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
            frees=freed_between(self.allocations, n_operations),
            copies={copy.number: copy.what for copy in self.copies},
            launches=self._launches(),
            counted=tuple(self.pairs),
        )
        check_joins(join_file, joins, graph)
        return graph

    def _launches(self) -> DeviceLaunches | None:
        file, table = self._tables.file("launches"), self.table("launches")
        if not len(table):
            return None
        columns = {
            f.name: to_numpy(table[f.name]) for f in fields(DeviceLaunches) if f.name != "join"
        }
        launches = DeviceLaunches(
            **{**columns, "block": columns["block"].astype(np.int64)},
            join=codes(file, table, "join", JOINS),
        )
        check_launches(file, table, launches, self._layout)
        if self._durations() is None:
            raise StoreError(file, "has launches of blocks without durations", "extract again")
        return launches

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
