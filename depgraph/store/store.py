"""A store: an extraction on disk, read table by table as it is asked for."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError, StoreError
from depgraph.footprint.footprints import Footprints
from depgraph.footprint.frees import freed_between
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.kinds import KIND_NAMES
from depgraph.graph.launches import DeviceLaunches
from depgraph.graph.pairs import PairSummary, Pattern
from depgraph.graph.program import BlockCounts, Copy, Kernel, launch_resources
from depgraph.store import table_checks as checks
from depgraph.store.table_checks import Layout, StoredColumns
from depgraph.store.tables import StoredTables
from depgraph.trace.records import Allocation

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

    def _columns(self, name: str, n_sets: int = 0) -> StoredColumns:
        def count_of(what: str) -> int:
            if what == "sets":
                return n_sets
            return self._layout.n_blocks if what == "blocks" else len(self._layout.kernel)

        return StoredColumns(self._tables.file(name), name, self._tables.table(name), count_of)

    @cached_property
    def _kernel_columns(self) -> StoredColumns:
        columns = self._columns("kernels")
        columns.demand(checks.of_kernels(columns))
        return columns

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels, in launch order."""
        return self._kernel_columns.rows(Kernel)

    @cached_property
    def _copy_columns(self) -> StoredColumns:
        columns = self._columns("copies")
        columns.demand(checks.of_copies(columns))
        return columns

    @cached_property
    def copies(self) -> list[Copy]:
        """The copies and memsets, in program order."""
        return self._copy_columns.rows(Copy)

    @cached_property
    def allocations(self) -> list[Allocation]:
        """The allocations; none where the input does not know of frees."""
        columns = self._columns("allocations")
        columns.demand(checks.of_allocations(columns, len(self._layout.kernel)))
        return columns.rows(Allocation)

    @cached_property
    def _layout(self) -> Layout:
        """Which blocks are of which kernel or copy."""
        kernels, copies = self._kernel_columns, self._copy_columns
        parts = [
            [kernels[name] for name in ("operation", "kernel", "first_block", "blocks")],
            [copies["operation"], -1 - copies["copy"], copies["block"], np.ones(len(copies))],
        ]
        rows = np.concatenate([np.array(part, np.int64) for part in parts], axis=1)
        layout = Layout(*rows[:, np.argsort(rows[0], kind="stable")])
        kernels.demand(checks.of_layout(layout, self.metadata))
        return layout

    @cached_property
    def _blocks(self) -> StoredColumns:
        columns = self._columns("blocks")
        columns.demand(checks.of_blocks(columns, self._layout, self._kernel_columns))
        return columns

    @cached_property
    def counts(self) -> BlockCounts:
        """Counts of every block."""
        return BlockCounts(*(self._blocks[field.name] for field in fields(BlockCounts)))

    @cached_property
    def pairs(self) -> list[PairSummary]:
        """The pairs of kernels that depend on one another."""
        columns = self._columns("pairs")
        columns.demand(checks.of_pairs(columns, self._layout))
        found = columns.rows(PairSummary)
        return [replace(pair, pattern=Pattern(pair.pattern)) for pair in found]

    def footprints(self) -> Footprints:
        """Return the footprints of all blocks."""
        columns = self._columns("footprints")
        kind = columns["kind"] + _READS[columns["way"]]
        found = Footprints(columns["block"], kind, columns["start"], columns["end"])
        columns.demand(checks.of_footprints(found))
        return found

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
        sets = self._columns("sets")
        sets.demand(checks.of_sets(sets, layout))
        joins = self._columns("joins", len(sets))
        set_offsets, set_blocks = sets.lists("blocks")
        has_positions = sets.nulls("first_use") < len(sets)
        source_offsets, sources = joins.lists("sources")
        target_offsets, targets = joins.lists("targets")
        n_operations = len(layout.kernel)
        graph = BlockGraph(
            kernel=layout.kernel.astype(np.int32),
            first_block=layout.first_block,
            set_operation=sets["operation"],
            set_offsets=set_offsets,
            set_blocks=set_blocks,
            join_kind=joins["kind"],
            join_basis=joins["basis"] if joins["basis"].any() else None,
            join_source_operation=layout.operations_of(joins, "source_kernel"),
            join_target_operation=layout.operations_of(joins, "target_kernel"),
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
        joins.demand(checks.of_joins(joins, graph))
        return graph

    def _launches(self) -> DeviceLaunches | None:
        columns = self._columns("launches")
        if not len(columns):
            return None
        columns.demand(checks.of_launches(columns, self._layout))
        if self._durations is None:
            file = self._tables.file("launches")
            raise StoreError(file, "has launches of blocks without durations", "extract again")
        known = {field.name: columns[field.name] for field in fields(DeviceLaunches)}
        return DeviceLaunches(**{**known, "block": columns["block"].astype(np.int64)})

    @property
    def _durations(self) -> NDArray[np.float64] | None:
        is_known = self._blocks.nulls("duration") < len(self._blocks)
        return self._blocks["duration"] if is_known else None

    def _occupancies(self, n_operations: int) -> NDArray[np.int64] | None:
        stated = {k.operation: k.occupancy for k in self.kernels if k.occupancy is not None}
        if not stated:
            return None
        result = np.zeros(n_operations, np.int64)
        result[list(stated)] = list(stated.values())
        return result
