"""Which blocks of one kernel wait for which blocks of another, as a matrix of limited size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.pairs import PairSummary, Pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph

_EXACT_CELLS = 1 << 24


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Dependences between two kernels, binned."""

    # Kernel numbers.
    source: int
    target: int
    # [rows, columns]: share of the block pairs in a cell that are edges, 0 to 1; rows are blocks of
    # `target`, columns blocks of `source`.
    density: NDArray[np.float64]
    source_blocks: int
    target_blocks: int

    @property
    def is_binned(self) -> bool:
        """Whether a cell stands for more than one block pair."""
        return self.density.shape != (self.target_blocks, self.source_blocks)


def clearest_pair(pairs: Sequence[PairSummary]) -> tuple[int, int] | None:
    """Choose the pair whose matrix shows most: RAW, many edges, but not all to all."""
    between_kernels = [p for p in pairs if p.source >= 0]
    shaped = [p for p in between_kernels if p.pattern is not Pattern.ALL_TO_ALL]
    wide = [p for p in shaped if p.awaited > 1 and p.waiting > 1]
    wide_or_full = [p for p in between_kernels if p.awaited > 1 and p.waiting > 1]
    ranked = wide, wide_or_full, shaped, between_kernels
    for candidates in (*([p for p in some if p.raw] for some in ranked), *ranked):
        if candidates:
            best = max(candidates, key=lambda p: (p.edges, -p.target, -p.source))
            return best.source, best.target
    return None


def pair_matrix(graph: BlockGraph, source: int, target: int, size: int = 256) -> PairMatrix:
    """Return the matrix of edges between two kernels, in at most `size` by `size` cells."""
    operations = {int(kernel): i for i, kernel in enumerate(graph.kernel)}
    for kernel in (source, target):
        if kernel not in operations:
            raise ModelError(f"there is no kernel {kernel}: the last is {graph.kernel.max()}")
    source_operation, target_operation = operations[source], operations[target]
    first_source, n_source = graph.span(source_operation)
    first_target, n_target = graph.span(target_operation)
    # Every cell but the last of a row holds as many blocks: unequal ones would show as stripes.
    wide, high = -(-n_source // size), -(-n_target // size)
    columns, rows = -(-n_source // wide), -(-n_target // high)
    exact = n_source * n_target <= _EXACT_CELLS
    shape = (n_target, n_source) if exact else (rows, columns)
    found = np.zeros(shape, np.float64)
    for join in graph.joins_between(source_operation, target_operation):
        sources = graph.blocks_of(graph.source_lists, join) - first_source
        targets = graph.blocks_of(graph.target_lists, join) - first_target
        if exact:
            found[np.ix_(targets, sources)] = 1.0
        else:
            column, in_column = np.unique(sources // wide, return_counts=True)
            row, in_row = np.unique(targets // high, return_counts=True)
            found[np.ix_(row, column)] += np.outer(in_row, in_column)
    if exact and shape != (rows, columns):
        found = np.add.reduceat(found, np.arange(0, n_target, high), 0)
        found = np.add.reduceat(found, np.arange(0, n_source, wide), 1)
    cell = np.outer(_sizes(n_target, high), _sizes(n_source, wide))
    return PairMatrix(source, target, np.minimum(found / cell, 1.0), n_source, n_target)


def _sizes(n: int, width: int) -> NDArray[np.int64]:
    """Return how many of `n` numbers fall into each bin of `width`."""
    return np.diff(np.arange(0, n, width), append=n)
