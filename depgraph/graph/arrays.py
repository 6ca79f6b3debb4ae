"""The block graph as compiled code takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GraphArrays(NamedTuple):
    """Arrays of a `BlockGraph`, under the same names."""

    first_block: NDArray[np.int64]
    set_operation: NDArray[np.int32]
    set_offsets: NDArray[np.int64]
    set_blocks: NDArray[np.int32]
    join_code: NDArray[np.uint8]
    join_source_operation: NDArray[np.int32]
    join_target_operation: NDArray[np.int32]
    source_offsets: NDArray[np.int64]
    sources: NDArray[np.int32]
    target_offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
