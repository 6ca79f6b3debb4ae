"""In which order blocks that could run are placed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph

__all__ = ["PRIORITIES"]


def oldest_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order blocks by program order."""
    del durations
    return np.arange(graph.n_blocks)


def newest_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order kernels from the last to the first, the blocks of a kernel in block order."""
    del durations
    return np.lexsort((np.arange(graph.n_blocks), -graph.operation_of_block))


def longest_path_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order blocks by the longest path from their start to the end of the program."""
    return np.lexsort((np.arange(graph.n_blocks), -graph.longest_tail(durations)))


PRIORITIES: dict[str, Callable[[BlockGraph, NDArray[np.float64]], NDArray[np.int64]]] = {
    "oldest-first": oldest_first,
    "newest-first": newest_first,
    "longest-path-first": longest_path_first,
}
