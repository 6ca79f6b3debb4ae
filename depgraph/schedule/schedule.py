"""A schedule: when and where every block runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph


@dataclass(frozen=True, slots=True)
class Children:
    """The child kernels of a schedule: what blocks launched, and when each child block ran.

    Attributes
    ----------
    launched, issued : bool[n_launches], float64[n_launches]
        Which launches were made, and when each was through and its child began to wait.
    launch, block : int64[n]
        Of each child block the launch, and its number within the child.
    start, end : float64[n]
    sm : int32[n]
    """

    launched: NDArray[np.bool_]
    issued: NDArray[np.float64]
    launch: NDArray[np.int64]
    block: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Schedule:
    """When every block starts and on which SM.

    Attributes
    ----------
    start, end : float64[n_blocks]
        In the unit of the durations.
    sm : int32[n_blocks]
    waiting : float
        Time that blocks spend waiting in a slot, summed over all blocks.
    least : float
        Time below which the memory bandwidth keeps the schedule as a whole.
    children : Children or None
        Of rules that let blocks launch from the device.
    """

    name: str
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]
    waiting: float = 0.0
    least: float = 0.0
    children: Children | None = None

    @property
    def makespan(self) -> float:
        """When the last block ends, or what the bytes take at least if that is longer."""
        last = 0.0 if self.children is None else float(self.children.end.max(initial=0.0))
        return max(self.least, last, float(self.end.max(initial=0.0)))

    def to_pandas(self, graph: BlockGraph) -> pd.DataFrame:
        """Return one row per block: kernel, block (within the kernel), sm, start, end."""
        import pandas as pd

        kernel, index = graph.block_names()
        return pd.DataFrame(
            {
                "kernel": kernel,
                "block": index,
                "sm": self.sm,
                "start": self.start,
                "end": self.end,
            }
        )
