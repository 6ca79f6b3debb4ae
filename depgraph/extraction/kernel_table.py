"""The table of kernels, and what is remarkable about each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.dependence.possible import waits_inside
from depgraph.graph.program import Kernel
from depgraph.trace.records import KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from depgraph.extraction.collect import Gatherer
    from depgraph.graph.program import BlockCounts


def kernel_rows(
    gathered: Gatherer,
    counts: BlockCounts,
    operation_bytes: NDArray[np.int64],
    shared_bytes: NDArray[np.int64],
    inside: NDArray[np.uint8],
) -> list[Kernel]:
    """Describe the kernels of a trace.

    Parameters
    ----------
    gathered : Gatherer
    counts : BlockCounts
    operation_bytes : int64[3, n_operations]
        Distinct bytes that each operation reads, writes, and reads by LDGSTS alone.
    shared_bytes : int64[n_operations]
        Bytes that a block writes and another block of the same operation touches.
    inside : uint8[n_operations]
        What blocks do with each other's bytes, as `sum_sharing` finds it.
    """
    first_block, numbers = gathered.first_block, gathered.operation_kernel.tolist()
    read, written, ldgsts = operation_bytes.tolist()

    def per_operation(values: NDArray[Any]) -> list[int]:
        running = np.append(0, np.cumsum(values))
        return np.diff(running[first_block]).tolist()  # type: ignore[no-any-return]

    accesses = per_operation(counts.accesses)
    instructions = per_operation(counts.instructions)
    active = per_operation(counts.instructions > 0)
    rows = []
    for index, launch in enumerate(gathered.operations):
        if not isinstance(launch, KernelLaunch):
            continue
        rows.append(
            Kernel(
                kernel=numbers[index],
                operation=index,
                name=launch.name,
                mangled_name=launch.mangled_name,
                trace_id=launch.trace_id,
                grid_x=launch.grid[0],
                grid_y=launch.grid[1],
                grid_z=launch.grid[2],
                block_x=launch.block[0],
                block_y=launch.block[1],
                block_z=launch.block[2],
                registers=launch.registers,
                shared_bytes=launch.shared_bytes,
                architecture=launch.architecture,
                stream=launch.stream,
                context=launch.context,
                first_block=int(first_block[index]),
                blocks=launch.blocks,
                active_blocks=active[index],
                accesses=accesses[index],
                instructions=instructions[index],
                read_bytes=read[index],
                written_bytes=written[index],
                shared_written_bytes=int(shared_bytes[index]),
                untraced=gathered.untraced_of(index),
                waits_inside=waits_inside(int(inside[index])),
                ldgsts_bytes=ldgsts[index],
            )
        )
    return rows


def kernel_remarks(kernel: Kernel, *, is_traced: bool = True) -> list[str]:
    """Say what a user should know of a kernel before trusting a graph made from its trace.

    Parameters
    ----------
    kernel : Kernel
    is_traced : bool
        Rather than described, by whoever knows what it does.
    """
    found: list[str] = []
    if not is_traced:
        return found
    if kernel.active_blocks == 0:
        found.append("no instruction in the trace")
    elif kernel.accesses == 0:
        found.append("no global-memory access in the trace")
    elif kernel.read_bytes and not kernel.written_bytes and not kernel.untraced:
        found.append("writes nothing to global memory in the trace")
    if 0 < kernel.active_blocks < kernel.blocks:
        found.append("blocks of the grid without an instruction in the trace")
    if kernel.registers is None:
        found.append("registers per thread unknown")
    if kernel.shared_bytes is None:
        found.append("shared memory unknown")
    if kernel.untraced:
        found.append(f"opaque: {kernel.untraced}")
    return found


def remarks(kernels: Iterable[Kernel], *, is_traced: bool = True) -> dict[str, list[int]]:
    """Return each remark with the numbers of the kernels that it is about."""
    found: dict[str, list[int]] = {}
    for kernel in kernels:
        for remark in kernel_remarks(kernel, is_traced=is_traced):
            found.setdefault(remark, []).append(kernel.kernel)
    return found
