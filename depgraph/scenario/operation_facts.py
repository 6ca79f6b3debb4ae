"""What is known of each operation of a program, as columns."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import NotApplicableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import Kernel


class OperationFacts:
    """Columns over the operations of a program, from its graph and its kernels.

    Attributes
    ----------
    graph : BlockGraph
    kernels : sequence of Kernel
        Empty where only the graph is known.
    """

    graph: BlockGraph
    kernels: Sequence[Kernel]

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Which operations are kernels: bool[n_operations]."""
        return self.graph.kernel >= 0

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """Stream of each operation: int64[n_operations]."""
        resources = self.graph.resources
        if resources is None:
            return np.zeros(self.graph.n_operations, np.int64)
        return resources.stream

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """Name of each operation's function; empty if unknown."""
        if not self.kernels:
            return ()
        names = [""] * self.graph.n_operations
        for kernel in self.kernels:
            names[kernel.operation] = kernel.name
        return tuple(names)

    @cached_property
    def shape(self) -> NDArray[np.int64]:
        """Grid of each operation: int64[n_operations, 3]."""
        if not self.kernels:
            raise NotApplicableError("rows of blocks need the grids of the kernels")
        return self._sizes("grid")

    @cached_property
    def block(self) -> NDArray[np.int64] | None:
        """Threads of a block of each operation: int64[n_operations, 3]; None if unknown."""
        return self._sizes("block") if self.kernels else None

    def _sizes(self, name: str) -> NDArray[np.int64]:
        sizes = np.ones((self.graph.n_operations, 3), np.int64)
        for kernel in self.kernels:
            sizes[kernel.operation] = getattr(kernel, name)
        return sizes

    @cached_property
    def opaque(self) -> NDArray[np.bool_]:
        """Whether the trace cannot show all that an operation touches: bool[n_operations]."""
        opaque = np.zeros(self.graph.n_operations, np.bool_)
        for kernel in self.kernels:
            opaque[kernel.operation] = kernel.untraced is not None
        return opaque
