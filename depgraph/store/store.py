"""A store: an extraction on disk, read table by table as it is asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError, StoreError
from depgraph.footprint.footprints import Footprints, freed_between
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES, PairSummary, Pattern
from depgraph.graph.program import BlockCounts, Copy, DeviceLaunches, Kernel, launch_resources
from depgraph.store.columns import CheckedTables, kind_of_ranges
from depgraph.store.schema import PATTERNS
from depgraph.store.tables import StoredTables
from depgraph.trace.records import Allocation, HostCall

if TYPE_CHECKING:
    import pandas as pd


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
