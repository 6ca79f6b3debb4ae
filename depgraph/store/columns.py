"""The tables of a store as arrays, and what must be true of them: compiled code checks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import StoreError
from depgraph.graph.dependences import KIND_NAMES, WAW, Basis
from depgraph.graph.program import MOST_CHILD_BLOCKS
from depgraph.store.schema import TABLES, Column, ascends, never_falls
from depgraph.system.arrays import rows_of, to_codes, to_list, to_lists, to_numpy
from depgraph.trace.records import HOST_CALLS, Calls

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

    from depgraph.store.tables import StoredTables

    _Row = TypeVar("_Row", bound=DataclassInstance)

    Demands: TypeAlias = Iterable[tuple[NDArray[np.bool_] | np.bool_ | bool, str]]
    """What must hold, of each row or in all, and what is said of the first row that it does not."""


class CheckedTables:
    """The tables of a store, each checked as it is first asked for."""

    def __init__(self, tables: StoredTables) -> None:
        self._tables = tables
        self._known: dict[str, StoredColumns] = {}

    def __getitem__(self, name: str) -> StoredColumns:
        """Return a table that obeys the rules of its columns and of its own."""
        if name not in self._known:
            file, table = self._tables.file(name), self._tables.table(name)
            columns = StoredColumns(file, name, table, self)
            columns.demand(RULES[name](columns, self))
            self._known[name] = columns
        return self._known[name]

    def release(self, *names: str) -> None:
        """Forget tables, which may be large."""
        for name in names:
            self._known.pop(name, None)

    def count_of(self, what: str) -> int:
        """Return how many there are of what a column refers to."""
        if what == "sets":
            return len(self["sets"])
        return self.layout.n_blocks if what == "blocks" else len(self.layout.kernel)

    @cached_property
    def layout(self) -> Layout:
        """Which blocks are of which kernel or copy."""
        kernels, copies = self["kernels"], self["copies"]
        parts = [
            [kernels[name] for name in ("operation", "kernel", "first_block", "blocks")],
            [copies["operation"], -1 - copies["copy"], copies["block"], np.ones(len(copies))],
        ]
        rows = np.concatenate([np.array(part, np.int64) for part in parts], axis=1)
        layout = Layout(*rows[:, np.argsort(rows[0], kind="stable")])
        kernels.demand(of_layout(layout, self._tables.metadata))
        return layout


class StoredColumns:
    """The columns of a table as arrays, each of which obeys the rules of its column."""

    def __init__(self, file: Path, name: str, table: pa.Table, program: CheckedTables) -> None:
        self._file, self._table = file, table
        self._columns = {column.name: column for column in TABLES[name]}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._lists: dict[str, tuple[NDArray[np.int64], NDArray[Any]]] = {}
        self._operations: dict[str, NDArray[np.int32]] = {}
        for column in TABLES[name]:
            if column.must or column.names or column.refers:
                self._check(column, program)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Codes of names, of lists all that is in them, of integers 0 for null."""
        column = self._columns[name]
        if column.is_list:
            return self.lists(name)[1]
        if name not in self._arrays:
            values = self._codes(column) if column.names else to_numpy(self._table[name])
            self._arrays[name] = values
        return self._arrays[name]

    def lists(self, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return offsets and values."""
        if name not in self._lists:
            self._lists[name] = to_lists(self._table[name])
        return self._lists[name]

    def operations(self, name: str, layout: Layout) -> NDArray[np.int32]:
        """Return the operations of a column of kernels, of which there must be each."""
        if name not in self._operations:
            operations = layout.operations_of(self[name])
            known = layout.kernel[operations] == self[name]
            self.demand([(known, f"{name} is not among the kernels and copies")])
            self._operations[name] = operations
        return self._operations[name]

    def filled(self, name: str, null: int) -> NDArray[Any]:
        """Return a column with a number of its type for null."""
        return to_numpy(self._table[name], null)

    def nulls(self, name: str) -> int:
        """Return how many values are null."""
        return int(self._table[name].null_count)

    def rows(self, kind: type[_Row], **instead: Sequence[Any]) -> list[_Row]:
        """Return the rows as objects of a class whose fields are columns, or given instead."""
        names = {field.name for field in fields(kind)} - instead.keys()
        return rows_of(kind, instead | {name: to_list(self._table[name]) for name in names})

    def demand(self, demands: Demands) -> None:
        """Refuse the table for the first demand that it does not fulfil."""
        for holds, otherwise in demands:
            if not np.all(holds):
                row = f"row {int(np.argmin(holds))}: " if np.ndim(holds) else ""
                raise self._refused(row + otherwise)

    def _check(self, column: Column, program: CheckedTables) -> None:
        values, name = self[column.name], column.name
        demands = [(rule.holds(values), rule.otherwise) for rule in column.must]
        if column.refers:
            known = (values >= 0) & (values < program.count_of(column.refers))
            demands.insert(0, (known, f"is not among the {column.refers}"))
        for holds, otherwise in demands:
            if not holds.all():
                row, what = int(np.argmin(holds)), name
                if column.is_list:
                    offsets, _ = self.lists(name)
                    row, what = int(np.searchsorted(offsets, row, "right")) - 1, f"one of {name}"
                raise self._refused(f"row {row}: {what} {otherwise}")

    def _codes(self, column: Column) -> NDArray[np.uint8]:
        try:
            return to_codes(self._table[column.name], column.names)
        except ValueError:
            known = ", ".join(column.names)
            raise self._refused(f"a {column.name} is none of {known}") from None

    def _refused(self, found: str) -> StoreError:
        return StoreError(self._file, f"makes no sense ({found})", "extract the trace again")


@dataclass(frozen=True, eq=False)
class Layout:
    """The kernels, copies and memsets of a program in its order, and how blocks are numbered."""

    operation: NDArray[np.int64]
    kernel: NDArray[np.int64]  # -1 - i for copy i
    first: NDArray[np.int64]  # block
    blocks: NDArray[np.int64]

    @cached_property
    def first_block(self) -> NDArray[np.int64]:
        """First block of each operation, and the number of all."""
        return np.append(0, np.cumsum(self.blocks))

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.first_block[-1])

    @property
    def kernel_of_block(self) -> NDArray[np.int64]:
        """Number of the kernel or copy of each block."""
        return np.repeat(self.kernel, self.blocks)

    def operations_of(self, kernels: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the operations of kernels, those of others where there are none such."""
        if not len(kernels):
            return np.empty(0, np.int32)
        if not len(self.kernel):
            return np.zeros(len(kernels), np.int32)
        order = np.argsort(self.kernel)
        place = np.searchsorted(self.kernel, kernels, sorter=order)
        return order[np.minimum(place, len(order) - 1)].astype(np.int32)


_MOST_BLOCKS = 2**31
_CERTAIN = (Basis.SEEN, Basis.LDGSTS)
_ABOUT_ONE = [HOST_CALLS.index(what) for what in (Calls.RUNS_IN, Calls.GRAPH_EDGE)]
_READS = np.array([0, 2, 3], np.uint8)  # what to add to `READ` for each of `ACCESS_WAYS`


def of_layout(layout: Layout, metadata: Mapping[str, Any]) -> Demands:
    """Look whether kernels and copies together number operations and blocks without gaps."""
    n = len(layout.operation)
    in_order = (layout.operation == np.arange(n)).all()
    yield in_order, f"{n} kernels and copies are not numbered 0 to {n - 1}"
    few = layout.blocks.sum(dtype=np.float64) < _MOST_BLOCKS
    yield few, "there are more blocks than can be numbered"
    follow = (layout.first == layout.first_block[:-1]).all()
    yield follow, "blocks of a kernel or copy do not follow those of the one before"
    spaces = metadata.get("address_spaces")
    if spaces is not None:
        yield len(spaces) == n, f"its metadata number {len(spaces)} address spaces for {n} kernels"


def _kernels(kernels: StoredColumns, _: CheckedTables) -> Demands:
    """Compare blocks with the grid."""
    grid = kernels["grid_x"].astype(np.int64) * kernels["grid_y"] * kernels["grid_z"]
    yield kernels["blocks"] == grid, "blocks are not those of the grid"
    yield kernels["active_blocks"] <= grid, "more blocks are active than there are"


def _copies(copies: StoredColumns, _: CheckedTables) -> Demands:
    """Look where copies end."""
    highest = np.maximum(copies["address"], copies["source"])
    yield _ends_in_memory(highest, copies["size"]), "the copy goes past the last address"


def _allocations(allocations: StoredColumns, program: CheckedTables) -> Demands:
    """Look where allocations end, in memory and in time."""
    ends = _ends_in_memory(allocations["address"], allocations["size"])
    yield ends, "the allocation goes past the last address"
    freed = allocations.filled("freed", len(program.layout.kernel))
    yield allocations["allocated"] <= freed, "it is freed before it is allocated"


def _calls(calls: StoredColumns, program: CheckedTables) -> Demands:
    """Look whether calls are about operations that there are."""
    n = len(program.layout.kernel)
    is_about_one = np.isin(calls["what"], _ABOUT_ONE)
    last = n - is_about_one.astype(np.int64)
    yield calls["operation"] <= last, "operation is not among the kernels and copies"
    is_edge = calls["what"] == HOST_CALLS.index(Calls.GRAPH_EDGE)
    comes_after = ~is_edge | (calls["after"] < calls["operation"])
    yield comes_after, "the node comes before the one that it waits for"


def _blocks(blocks: StoredColumns, program: CheckedTables) -> Demands:
    """Compare the names of blocks with the layout, and what they count with their kernels."""
    layout, kernels = program.layout, program["kernels"]
    n = layout.n_blocks
    yield len(blocks) == n, f"it has {len(blocks)} rows for {n} blocks"
    index = np.arange(n) - np.repeat(layout.first, layout.blocks)
    expected = {"block": np.arange(n), "kernel": layout.kernel_of_block, "index": index}
    for name, values in expected.items():
        yield blocks[name] == values, f"{name} is not that of the block"
    for name in ("accesses", "instructions"):
        running = np.append(0, np.cumsum(blocks[name]))
        counted = np.diff(running[layout.first_block])[kernels["operation"]]
        agrees = (counted == kernels[name]).all()
        yield agrees, f"{name} do not add up to those of the kernels"


def _sets(sets: StoredColumns, program: CheckedTables) -> Demands:
    """Look whether sets hold ascending blocks of the operation that each names."""
    operation = sets["operation"]
    offsets, blocks = sets.lists("blocks")
    yield np.diff(offsets) > 0, "the set is empty"
    ascend = ascends(blocks)
    ascend[offsets[:-1]] = True
    yield ascend.all() or np.logical_and.reduceat(ascend, offsets[:-1]), "blocks do not ascend"
    first, last = blocks[offsets[:-1]], blocks[offsets[1:] - 1]
    bounds = program.layout.first_block
    low, high = bounds[operation], bounds[operation + 1]
    yield (first >= low) & (last < high), "a block is of another operation"
    nulls = sets.nulls("first_use")
    alike = nulls == sets.nulls("last_use") and nulls in {0, len(sets)}
    yield alike, "some sets have positions and others have none"
    if nulls == 0:
        for name in ("first_use", "last_use"):
            yield sets.lists(name)[0][1:] == offsets[1:], f"{name} is not one a block"


def _joins(joins: StoredColumns, program: CheckedTables) -> Demands:
    """Look whether joins lead from sets of one kernel to sets of a later one, in order."""
    layout, set_operation = program.layout, program["sets"]["operation"]
    source = joins.operations("source_kernel", layout).astype(np.int64)
    target = joins.operations("target_kernel", layout).astype(np.int64)
    yield source < target, "the source does not come before the target"
    is_certain = np.isin(joins["basis"], _CERTAIN)
    yield joins["certain"] == is_certain, "certain is not what basis says"
    order = 2 * (target * len(layout.kernel) + source) + ~is_certain
    order = order * len(KIND_NAMES) + joins["kind"]
    yield never_falls(order), "the join does not follow the one before"
    for name, operation in (("sources", source), ("targets", target)):
        offsets, sets = joins.lists(name)
        sizes = np.diff(offsets)
        yield sizes > 0, f"{name} are none"
        same = (set_operation[sets] == np.repeat(operation, sizes)).all()
        yield same, f"{name} are sets of another kernel"


def _launches(launches: StoredColumns, program: CheckedTables) -> Demands:
    """Look whether launches are in order, and by blocks of kernels."""
    block = launches["block"]
    kernel = program.layout.kernel_of_block[block]
    yield kernel >= 0, "a copy launches nothing"
    yield launches["kernel"] == kernel, "kernel is not that of the block"
    few = launches["child_grid"].sum(dtype=np.float64) <= MOST_CHILD_BLOCKS
    yield few, "there are more child blocks than are taken"
    order = np.lexsort((launches["at"], launches["warp"], block))
    yield order == np.arange(len(launches)), "the launch does not follow the one before"


def _pairs(pairs: StoredColumns, program: CheckedTables) -> Demands:
    """Look whether pairs lead from a kernel to a later one and count possible numbers of edges."""
    layout = program.layout
    source, target = (pairs.operations(name, layout) for name in ("source", "target"))
    yield source < target, "the source does not come before the target"
    order = target.astype(np.int64) * len(layout.operation) + source
    yield ascends(order), "the pair does not follow the one before"
    sources, targets = layout.blocks[source], layout.blocks[target]
    kinds = np.stack([pairs[name] for name in map(str.lower, KIND_NAMES)])
    edges, possible, ldgsts = (pairs[name] for name in ("edges", "possible", "ldgsts"))
    added = (kinds >= 0).all(axis=0) & (edges <= kinds.sum(axis=0))
    added &= (edges >= kinds.max(axis=0, initial=0)) & (possible >= 0)
    added &= (edges + possible > 0) & (edges + possible <= sources * targets)
    added &= (ldgsts >= 0) & (ldgsts <= kinds.sum(axis=0) - kinds[WAW])
    yield added, "edges are not those of the kinds and blocks"
    for name, most in (
        ("waiting", targets), ("awaited", sources), ("most_sources", pairs["awaited"]),
        ("most_targets", pairs["waiting"]),
    ):  # fmt: skip
        yield (pairs[name] > 0) & (pairs[name] <= most), f"{name} are more than there are"


def _footprints(footprints: StoredColumns, _: CheckedTables) -> Demands:
    """Look whether ranges are sorted and disjoint."""
    block, kind = footprints["block"], kind_of_ranges(footprints)
    start, end = footprints["start"], footprints["end"]
    yield start < end, "the range is empty"
    same = block[1:] == block[:-1]
    follows = same & (kind[1:] > kind[:-1])
    same &= kind[1:] == kind[:-1]
    follows |= same & (start[1:] > end[:-1])
    follows |= block[1:] > block[:-1]
    yield np.append(True, follows), "the range does not follow the one before"


def kind_of_ranges(footprints: StoredColumns) -> NDArray[np.uint8]:
    """Return what `Footprints.kind` is."""
    kind: NDArray[np.uint8] = footprints["kind"] + _READS[footprints["way"]]
    return kind


def _ends_in_memory(address: NDArray[np.uint64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell where the bytes end by 2**64: else their last address is below the first."""
    last = address + np.maximum(size, 1).astype(np.uint64) - np.uint64(1)
    return last >= address


RULES: dict[str, Callable[[StoredColumns, CheckedTables], Demands]] = {
    "kernels": _kernels,
    "blocks": _blocks,
    "footprints": _footprints,
    "copies": _copies,
    "allocations": _allocations,
    "calls": _calls,
    "sets": _sets,
    "joins": _joins,
    "launches": _launches,
    "pairs": _pairs,
}
