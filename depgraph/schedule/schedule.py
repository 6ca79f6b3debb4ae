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
    """

    name: str
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]
    waiting: float = 0.0
    least: float = 0.0

    @property
    def makespan(self) -> float:
        """When the last block ends, or what the bytes take at least if that is longer."""
        return max(self.least, float(self.end.max(initial=0.0)))

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
