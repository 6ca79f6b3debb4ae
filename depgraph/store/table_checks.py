"""What must be true of the tables of a store before compiled code, which checks nothing, sees them.

Each function looks through a table once, as whole columns, and names the first row at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import StoreError
from depgraph.graph.kinds import BASIS_NAMES, KIND_NAMES, WAW, Basis
from depgraph.graph.launches import MOST_CHILD_BLOCKS
from depgraph.system.arrow import to_codes, to_lists, to_numpy
from depgraph.system.limits import LARGEST_ID, LONGEST_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.launches import DeviceLaunches
    from depgraph.graph.program import Copy, Kernel
    from depgraph.trace.records import Allocation

_MOST_BLOCKS = 2**31
_ADDRESS_END = 1 << 64
_COUNTS = ("accesses", "instructions", "read_bytes", "written_bytes")
_CERTAIN = (Basis.SEEN, Basis.LDGSTS)
_LEAST_OF_KERNELS = {
    "kernel": 0, "operation": 0, "grid_x": 1, "grid_y": 1, "grid_z": 1, "block_x": 1, "block_y": 1,
    "block_z": 1, "registers": 0, "shared_bytes": 0, "first_block": 0, "blocks": 1,
    "active_blocks": 0, "shared_written_bytes": 0, "occupancy": 0, "ldgsts_bytes": 0,
    **dict.fromkeys(_COUNTS, 0),
}  # fmt: skip
_LEAST_OF_COPIES = dict.fromkeys(("copy", "operation", "block", "address", "source", "size"), 0)


@dataclass(frozen=True)
class Layout:
    """The kernels, copies and memsets of a program in its order, and how their blocks are numbered.

    Attributes
    ----------
    operation, kernel, first, blocks : int64[n_operations]
        Number of the operation; of the kernel, ``-1 - i`` for copy i; of the first block; how many
        blocks.
    """

    operation: NDArray[np.int64]
    kernel: NDArray[np.int64]
    first: NDArray[np.int64]
    blocks: NDArray[np.int64]

    @cached_property
    def first_block(self) -> NDArray[np.int64]:
        """First block of each operation, and the number of all: int64[n_operations + 1]."""
        return np.append(0, np.cumsum(self.blocks))

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.first_block[-1])

    def operations_of(self, file: Path, table: pa.Table, column: str) -> NDArray[np.int32]:
        """Return the operations of a column of kernels: int32[rows].

        Raises
        ------
        StoreError
            If there is no such kernel or copy.
        """
        kernels = to_numpy(table[column])
        if not len(kernels):
            return np.empty(0, np.int32)
        order = np.argsort(self.kernel)
        place = np.searchsorted(self.kernel, kernels, sorter=order)
        operations = order[np.minimum(place, len(order) - 1)]
        known = self.kernel[operations] == kernels
        _demand_rows(file, known, f"{column} is not among the kernels and copies")
        return operations.astype(np.int32)


def codes(file: Path, table: pa.Table, column: str, names: Sequence[str]) -> NDArray[np.uint8]:
    """Turn a dictionary column into codes in the order of `names`.

    Raises
    ------
    StoreError
        If the column holds another name.
    """
    try:
        return to_codes(table[column], names)
    except ValueError:
        raise _nonsense(file, f"a {column} is none of {', '.join(names)}") from None


def check_nulls(file: Path, table: pa.Table, schema: pa.Schema) -> None:
    """Refuse nulls where the schema has none."""
    for field in schema:
        column = table[field.name]
        nulls = 0 if field.nullable else column.null_count
        if hasattr(field.type, "value_field"):
            nulls += sum(chunk.values.null_count for chunk in column.chunks)
        if nulls:
            raise _nonsense(file, f"column {field.name} has nulls")


def check_kernels(file: Path, kernels: Sequence[Kernel]) -> None:
    """Check the numbers of each kernel, and that they are in launch order."""
    columns = _checked_rows(file, kernels, _LEAST_OF_KERNELS)
    grid = columns["grid_x"] * columns["grid_y"] * columns["grid_z"]
    _demand_rows(file, columns["blocks"] == grid, "blocks are not those of the grid")
    _demand_rows(file, columns["active_blocks"] <= grid, "more blocks are active than there are")
    for name in ("kernel", "operation"):
        _demand_rows(file, _ascends(columns[name]), f"{name} does not ascend")


def check_copies(file: Path, copies: Sequence[Copy]) -> None:
    """Check the numbers of each copy and memset, and that they are in program order."""
    columns = _checked_rows(file, copies, _LEAST_OF_COPIES)
    ends = np.array(
        [max(copy.address or 0, copy.source or 0) + copy.size <= _ADDRESS_END for copy in copies],
        np.bool_,
    )
    _demand_rows(file, ends, "the copy goes past the last address")
    for name in ("copy", "operation"):
        _demand_rows(file, _ascends(columns[name]), f"{name} does not ascend")


def check_allocations(file: Path, allocations: Sequence[Allocation], n_operations: int) -> None:
    """Check where allocations lie, and between which operations."""
    _checked_rows(file, allocations, dict.fromkeys(("address", "size", "allocated", "freed"), 0))
    ends = np.array([a.address + a.size <= _ADDRESS_END for a in allocations], np.bool_)
    _demand_rows(file, ends, "the allocation goes past the last address")
    stands = [a.allocated <= (n_operations if a.freed is None else a.freed) for a in allocations]
    _demand_rows(file, np.array(stands, np.bool_), "it is freed before it is allocated")


def check_layout(file: Path, layout: Layout, metadata: Mapping[str, Any]) -> None:
    """Check that kernels, copies and memsets together number operations and blocks without gaps.

    Parameters
    ----------
    metadata : mapping
        Of the store; it may number the address space of each.
    """
    n = len(layout.operation)
    if not (layout.operation == np.arange(n)).all():
        raise _nonsense(file, f"{n} kernels and copies are not numbered 0 to {n - 1}")
    if layout.blocks.sum(dtype=np.float64) >= _MOST_BLOCKS:
        raise _nonsense(file, "there are more blocks than can be numbered")
    if not (layout.first == layout.first_block[:-1]).all():
        raise _nonsense(file, "blocks of a kernel or copy do not follow those of the one before")
    spaces = metadata.get("address_spaces")
    if spaces is not None and len(spaces) != n:
        raise _nonsense(file, f"its metadata number {len(spaces)} address spaces for {n} kernels")


def check_blocks(file: Path, table: pa.Table, layout: Layout, kernels: Sequence[Kernel]) -> None:
    """Check the table of blocks: its numbers, and that kernels count what their blocks do."""
    n = layout.n_blocks
    if len(table) != n:
        raise _nonsense(file, f"it has {len(table)} rows for {n} blocks")
    kernel = np.repeat(layout.kernel, layout.blocks)
    index = np.arange(n) - np.repeat(layout.first, layout.blocks)
    for name, expected in (("block", np.arange(n)), ("kernel", kernel), ("index", index)):
        _demand_rows(file, to_numpy(table[name]) == expected, f"{name} is not that of the block")
    for name in ("x", "y", "z", *_COUNTS):
        _demand_rows(file, to_numpy(table[name]) >= 0, f"{name} is below 0")
    for name in ("cost", "duration"):
        values = to_numpy(table[name])
        unknown = np.isnan(values) if name == "duration" else np.zeros(n, np.bool_)
        _demand_rows(file, unknown | ((values >= 0) & (values < np.inf)), f"{name} is not a number")
    operation = np.array([k.operation for k in kernels], np.int64)
    for name in ("accesses", "instructions"):
        running = np.append(0, np.cumsum(to_numpy(table[name])))
        found = np.diff(running[layout.first_block])[operation]
        if not (found == np.array([getattr(k, name) for k in kernels], np.int64)).all():
            raise _nonsense(file, f"{name} do not add up to those of the kernels")


def check_sets(file: Path, table: pa.Table, layout: Layout) -> None:
    """Check that sets hold ascending blocks of the operation that each names."""
    n_sets = len(table)
    operation = to_numpy(table["operation"])
    offsets, blocks = to_lists(table["blocks"])
    _demand_rows(file, to_numpy(table["set"]) == np.arange(n_sets), "set is not the next number")
    known = (operation >= 0) & (operation < len(layout.operation))
    _demand_rows(file, known, "operation is not among the kernels and copies")
    _demand_rows(file, _ascends(operation, strictly=False), "operation is below the one before")
    _demand_rows(file, np.diff(offsets) > 0, "the set is empty")
    ascends = _ascends(blocks)
    ascends[offsets[:-1]] = True
    if not ascends.all():
        ascends = np.logical_and.reduceat(ascends, offsets[:-1])
        _demand_rows(file, ascends, "blocks do not ascend")
    first, last = blocks[offsets[:-1]], blocks[offsets[1:] - 1]
    low, high = layout.first_block[operation], layout.first_block[operation + 1]
    _demand_rows(file, (first >= low) & (last < high), "a block is of another operation")
    nulls = table["first_use"].null_count
    for name in ("first_use", "last_use"):
        if table[name].null_count != nulls or nulls not in {0, n_sets}:
            raise _nonsense(file, "some sets have positions and others have none")
        if nulls == 0:
            own_offsets, shares = to_lists(table[name])
            _demand_rows(file, own_offsets[1:] == offsets[1:], f"{name} is not one a block")
            if not ((shares >= 0) & (shares <= 1)).all():
                raise _nonsense(file, f"a {name} is not between 0 and 1")


def check_joins(file: Path, table: pa.Table, graph: BlockGraph) -> None:
    """Check that joins lead from sets of one kernel to sets of a later one, in order.

    Parameters
    ----------
    table : pyarrow.Table
        Of joins.
    graph : BlockGraph
        Made of it.
    """
    source = graph.join_source_operation.astype(np.int64)
    target = graph.join_target_operation.astype(np.int64)
    numbers = np.arange(len(table))
    _demand_rows(file, to_numpy(table["join"]) == numbers, "join is not the next number")
    _demand_rows(file, source < target, "the source does not come before the target")
    is_certain = np.isin(codes(file, table, "basis", BASIS_NAMES), _CERTAIN)
    _demand_rows(file, to_numpy(table["certain"]) == is_certain, "certain is not what basis says")
    order = 2 * (target * graph.n_operations + source) + ~is_certain
    order = order * len(KIND_NAMES) + graph.join_kind
    _demand_rows(file, _ascends(order, strictly=False), "the join does not follow the one before")
    for name, offsets, sets, operation in (
        ("sources", graph.source_offsets, graph.sources, source),
        ("targets", graph.target_offsets, graph.targets, target),
    ):
        sizes = np.diff(offsets)
        _demand_rows(file, sizes > 0, f"{name} are none")
        if not ((sets >= 0) & (sets < len(graph.set_operation))).all():
            raise _nonsense(file, f"{name} are not among the sets")
        if not (graph.set_operation[sets] == np.repeat(operation, sizes)).all():
            raise _nonsense(file, f"{name} are sets of another kernel")


def check_launches(file: Path, table: pa.Table, launches: DeviceLaunches, layout: Layout) -> None:
    """Check the launches from the device: blocks that there are, in order, possible numbers.

    Parameters
    ----------
    table : pyarrow.Table
        Of launches.
    launches : DeviceLaunches
        Made of it.
    """
    n = len(table)
    block = launches.block
    _demand_rows(file, to_numpy(table["launch"]) == np.arange(n), "launch is not the next number")
    known = (block >= 0) & (block < layout.n_blocks)
    _demand_rows(file, known, "block is not among the blocks")
    kernel = np.repeat(layout.kernel, layout.blocks)[block]
    _demand_rows(file, kernel >= 0, "a copy launches nothing")
    _demand_rows(file, to_numpy(table["kernel"]) == kernel, "kernel is not that of the block")
    _demand_rows(file, (launches.at >= 0) & (launches.at <= 1), "at is not between 0 and 1")
    for name, least in (
        ("warp", -1), ("lanes", 1), ("child_grid", 1), ("stream", -1), ("items", 0),
        ("child_duration", 0), ("inline", 0),
    ):  # fmt: skip
        values = getattr(launches, name)
        most = LARGEST_ID if values.dtype.kind == "i" else LONGEST_TIME
        possible = (values >= least) & (values <= most)
        _demand_rows(file, possible, f"{name} is not from {least} to {most:g}")
    if launches.child_grid.sum(dtype=np.float64) > MOST_CHILD_BLOCKS:
        raise _nonsense(file, "there are more child blocks than are taken")
    order = np.lexsort((launches.at, launches.warp, block))
    _demand_rows(file, order == np.arange(n), "the launch does not follow the one before")


def check_pairs(file: Path, table: pa.Table, layout: Layout, patterns: Sequence[str]) -> None:
    """Check that pairs lead from a kernel to a later one and count possible numbers of edges."""
    codes(file, table, "pattern", patterns)
    source, target = (layout.operations_of(file, table, name) for name in ("source", "target"))
    _demand_rows(file, source < target, "the source does not come before the target")
    order = target.astype(np.int64) * len(layout.operation) + source
    _demand_rows(file, _ascends(order), "the pair does not follow the one before")
    sources, targets = layout.blocks[source], layout.blocks[target]
    kinds = np.stack([to_numpy(table[name]) for name in map(str.lower, KIND_NAMES)])
    edges, possible, ldgsts = (to_numpy(table[n]) for n in ("edges", "possible", "ldgsts"))
    added = (kinds >= 0).all(axis=0) & (edges <= kinds.sum(axis=0))
    added &= (edges >= kinds.max(axis=0, initial=0)) & (possible >= 0)
    added &= (edges + possible > 0) & (edges + possible <= sources * targets)
    added &= (ldgsts >= 0) & (ldgsts <= kinds.sum(axis=0) - kinds[WAW])
    _demand_rows(file, added, "edges are not those of the kinds and blocks")
    for name, most in (
        ("waiting", targets), ("awaited", sources), ("most_sources", to_numpy(table["awaited"])),
        ("most_targets", to_numpy(table["waiting"])),
    ):  # fmt: skip
        found = to_numpy(table[name])
        _demand_rows(file, (found > 0) & (found <= most), f"{name} are more than there are")


def check_footprints(file: Path, footprints: Footprints, n_blocks: int) -> None:
    """Check that ranges are sorted and disjoint, and those of blocks that there are."""
    if not len(footprints):
        return
    block, kind = footprints.block, footprints.kind
    start, end = footprints.start, footprints.end
    _demand_rows(file, start < end, "the range is empty")
    if block[0] < 0 or block[-1] >= n_blocks:
        raise _nonsense(file, f"a block is not among the {n_blocks} blocks")
    same = block[1:] == block[:-1]
    follows = same & (kind[1:] > kind[:-1])
    same &= kind[1:] == kind[:-1]
    follows |= same & (start[1:] > end[:-1])
    follows |= block[1:] > block[:-1]
    _demand_rows(file, np.append(True, follows), "the range does not follow the one before")


def _checked_rows(
    file: Path, rows: Sequence[Any], least: dict[str, int]
) -> dict[str, NDArray[np.int64]]:
    """Return attributes of rows as columns, after a look at the least that each may be."""
    columns = {}
    for name, low in least.items():
        values = [getattr(row, name) for row in rows]
        present = [low if value is None else value for value in values]
        _demand_rows(
            file, np.array([v >= low for v in present], np.bool_), f"{name} is below {low}"
        )
        if name not in {"address", "source"}:
            columns[name] = np.array(present, np.int64)
    return columns


def _ascends(values: NDArray[Any], *, strictly: bool = True) -> NDArray[np.bool_]:
    """Tell of each value whether it is above the one before, or not below it."""
    result = np.ones(len(values), np.bool_)
    compare = np.greater if strictly else np.greater_equal
    compare(values[1:], values[:-1], out=result[1:])
    return result


def _demand_rows(file: Path, holds: NDArray[np.bool_], otherwise: str) -> None:
    if not holds.all():
        raise _nonsense(file, f"row {int(np.argmin(holds))}: {otherwise}")


def _nonsense(file: Path, what: str) -> StoreError:
    return StoreError(file, f"makes no sense ({what})", "extract the trace again")
