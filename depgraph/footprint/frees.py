"""Memory that was freed between two operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.footprint.footprints import Footprints, join_footprints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.trace.records import Allocation


def freed_between(allocations: Sequence[Allocation], n_operations: int) -> Footprints | None:
    """Return which memory was freed, and before which operation, in place of a block of footprints.

    Returns
    -------
    Footprints or None
        None if there are no allocations: whether anything was freed is not known then.
    """
    if not allocations:
        return None
    freed = [(a.freed, a.address, a.address + a.size) for a in allocations if a.freed is not None]
    rows = [row for row in freed if row[0] < n_operations and row[1] < row[2]]
    operation, start, end = np.array(rows, np.uint64).reshape(-1, 3).T
    kind = np.zeros(len(rows), np.uint8)
    return join_footprints(operation.astype(np.int32), kind, start, end, n_operations)


def renumbered(
    frees: Footprints | None, operation: NDArray[np.int32], n_operations: int
) -> Footprints | None:
    """Return frees with other numbers of operations.

    Parameters
    ----------
    operation : int32[old n_operations + 1]
        The new number of each.
    n_operations : int
        New ones.
    """
    if frees is None:
        return None
    moved = operation[frees.block]
    return join_footprints(moved, frees.kind, frees.start, frees.end, n_operations + 1)


def freed_past(frees: Footprints, earlier: int, later: int) -> Footprints:
    """Return what was freed after one operation and before another, as one block."""
    past = frees.take((frees.block > earlier) & (frees.block <= later))
    return join_footprints(np.zeros_like(past.block), past.kind, past.start, past.end, 1)
