"""The tables of a store as arrays, looked through before compiled code, which checks nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from depgraph.errors import StoreError
from depgraph.store.schema import TABLES, Column
from depgraph.store.table_checks import RULES, of_layout
from depgraph.system.arrow import to_codes, to_lists, to_numpy

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from _typeshed import DataclassInstance
    from numpy.typing import NDArray

    from depgraph.store.table_checks import Demands
    from depgraph.store.tables import StoredTables

    _Row = TypeVar("_Row", bound=DataclassInstance)


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
            found = layout.operations_of(self[name])
            known = layout.kernel[found] == self[name]
            self.demand([(known, f"{name} is not among the kernels and copies")])
            self._operations[name] = found
        return self._operations[name]

    def filled(self, name: str, null: int) -> NDArray[Any]:
        """Return a column with a number of its type for null."""
        return to_numpy(self._table[name], null)

    def nulls(self, name: str) -> int:
        """Return how many values are null."""
        return int(self._table[name].null_count)

    def rows(self, kind: type[_Row]) -> list[_Row]:
        """Return the rows as objects of a class whose fields are columns."""
        known = self._table.select([field.name for field in fields(kind)])
        return [kind(**row) for row in known.to_pylist()]

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


@dataclass(frozen=True)
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
