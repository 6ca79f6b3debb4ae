"""Footprints learned relative to buffers: the same launch on other buffers touches the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.mechanisms.base import footprints_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.footprint.footprints import Footprints
    from depgraph.scenario.scenario import Scenario
    from depgraph.trace.records import Allocation

_ALIGNMENT = 512  # of allocations; what is nearer than that is one buffer where none are known


@dataclass(frozen=True, slots=True)
class Touched:
    """What a launch touches of each buffer, from the first byte of it that it touches."""

    sizes: tuple[int, ...]  # bytes from the first to the last, in order of size
    ranges: tuple[bytes, ...]  # digests of what each block reads and writes, in any one order
    n_ranges: int


@dataclass(frozen=True, slots=True)
class RelativeLesson:
    """Which launches touch what an earlier one did, buffers apart."""

    learned: NDArray[np.bool_]  # [n_operations]
    # [n_operations]: its buffers are as large as those that were learned, but its blocks touch
    # other bytes: nobody can tell before they do.
    late: NDArray[np.bool_]
    other_sizes: int  # launches whose buffers have other sizes, which are known as they come
    n_ranges: int  # that are remembered, of all functions

    def describe(self, kernels: int) -> str:
        """Say it in a sentence."""
        n = int(self.learned.sum())
        first = kernels - n - self.other_sizes - int(self.late.sum())
        return (
            f"launches that touch, relative to their buffers, what an earlier one did: {n} of "
            f"{kernels}; {first} came first; {self.other_sizes} were found to be others by the "
            f"sizes of their buffers as they came, {int(self.late.sum())} by a block that touched "
            f"other bytes; byte ranges remembered: {self.n_ranges}"
        )


def relative_lesson(program: Scenario, taught_by: Sequence[int | None]) -> RelativeLesson:
    """Compare each launch with the one that taught it, `taught_by` it of all kernels.

    Raises
    ------
    NotApplicableError
        If the program has no footprints.
    """
    graph = program.graph
    footprints = footprints_for("dataflow-learned(relative)", program)
    kernels = np.flatnonzero(program.is_kernel).tolist()
    bounds = np.searchsorted(footprints.block, graph.first_block)
    allocations = program.allocations if graph.space is None else ()
    touched = [
        touched_by(
            footprints.take(slice(bounds[k], bounds[k + 1])), int(graph.first_block[k]),
            [a for a in allocations if a.allocated <= k and (a.freed is None or k < a.freed)],
        )
        for k in kernels
    ]  # fmt: skip
    learned, late = np.zeros((2, graph.n_operations), np.bool_)
    other_sizes = n_ranges = 0
    for k, own, teacher in zip(kernels, touched, taught_by, strict=True):
        if teacher is None:
            n_ranges += own.n_ranges
            continue
        known = touched[teacher]
        learned[k] = own.ranges == known.ranges
        late[k] = not learned[k] and own.sizes == known.sizes
        other_sizes += own.sizes != known.sizes
    # What an opaque kernel touches is not known, so neither is whether it was the same.
    learned &= ~program.opaque
    return RelativeLesson(learned, late & ~program.opaque, other_sizes, n_ranges)


def touched_by(
    footprints: Footprints, first_block: int, allocations: Sequence[Allocation]
) -> Touched:
    """Describe the footprints of a launch, whatever the addresses of its buffers."""
    order = np.argsort(footprints.start, kind="stable")
    start, end = footprints.start[order].astype(np.int64), footprints.end[order].astype(np.int64)
    if not len(start):
        return Touched((), (), 0)
    reached = np.maximum.accumulate(end)
    begins = start // _ALIGNMENT > (np.append(start[:1], reached[:-1]) - 1) // _ALIGNMENT + 1
    begins[0] = True
    for allocation in allocations:
        begins[np.searchsorted(start, allocation.address) :][:1] = True
    buffer = np.cumsum(begins) - 1
    base = start[begins]
    block, access = footprints.block[order] - first_block, footprints.access[order]
    rows = np.stack([buffer, block, access, start - base[buffer], end - base[buffer]])
    rows = rows[:, np.lexsort(rows[::-1])]
    cuts = np.flatnonzero(np.diff(rows[0])) + 1
    each = [np.ascontiguousarray(part[1:]) for part in np.split(rows, cuts, axis=1)]
    return Touched(
        tuple(sorted(int(part[-1].max()) for part in each)),
        tuple(sorted(hashlib.sha256(part.tobytes()).digest() for part in each)),
        rows.shape[1],
    )
