"""The arrays of footprints and of the block graph: dtype, shape and unit of each, said once.

An *operation* is a kernel, a copy or a memset, in program order; *global* numbers of blocks count
through all of them. Only type checkers import this module.
"""

import numpy as np
from numpy.typing import NDArray

PerOperation = NDArray[np.int64]
"""int64[n_operations]: a number for each operation."""
KernelNumbers = NDArray[np.int32]
"""int32[n_operations]: the kernel that each operation is, ``-1 - i`` for copy or memset i."""
FirstBlocks = NDArray[np.int64]
"""int64[n_operations + 1]: global number of the first block of each operation."""
AddressSpaces = NDArray[np.int32]
"""int32[n_operations]: number of the address space of each operation."""
Operations = NDArray[np.int32]
"""int32[n]: operations, by their place in program order."""
Grids = NDArray[np.int64]
"""int64[n_operations, 3]: grid of each operation in blocks, x, y, z."""

PerBlock = NDArray[np.int64]
"""int64[n_blocks]: a number for each block, by its global number."""
OperationOfBlock = NDArray[np.int32]
"""int32[n_blocks]: which operation each block belongs to."""
BlockTimes = NDArray[np.float64]
"""float64[n_blocks]: a time of each block, in the unit of the graph."""
Blocks = NDArray[np.int32]
"""int32[n]: global block numbers."""

Offsets = NDArray[np.int64]
"""int64[n + 1]: where each of n lists begins among their values, and where the last one ends."""
Lists = tuple[Offsets, NDArray[np.int32]]
"""Lists of numbers one after another: offsets and values."""
SetNumbers = NDArray[np.int32]
"""int32[n]: numbers of sets of a graph."""
Sets = tuple[Operations, Offsets, Blocks]
"""Sets of blocks of an operation each: the operations, and the blocks as lists."""
Edges = tuple[Blocks, Blocks, NDArray[np.uint8]]
"""Of each edge the block waited for, the block that waits, and the kind or code."""
Mask = NDArray[np.bool_]
"""bool[n]"""

Addresses = NDArray[np.uint64]
"""uint64[n]: addresses of GPU memory, in bytes."""
AccessKinds = NDArray[np.uint8]
"""uint8[n]: `READ`, `WRITE`, `SYNC_READ` or `LDGSTS_READ` of `depgraph.trace.records`."""

Text = NDArray[np.uint8]
"""uint8[n]: a buffer of text, behind which a scanner may read `PADDING` bytes."""
Words = NDArray[np.uint64]
"""uint64[n - 7]: the same buffer as overlapping words, see `overlapping_words`."""
