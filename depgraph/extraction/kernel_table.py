"""The table of kernels, and what is remarkable about each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.dependence.possible import waits_inside
from depgraph.graph.program import Kernel
from depgraph.trace.records import RANGE, TILES, KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from depgraph.extraction.collect import Collector
    from depgraph.extraction.shards import Analysed
    from depgraph.graph.program import BlockCounts


_OPAQUE = {
    None: "opaque",
    RANGE: "opaque in memory that is known",
    TILES: "inferred, block by block",
}


def kernel_rows(collector: Collector, counts: BlockCounts, found: Analysed) -> list[Kernel]:
    """Describe the kernels of a trace."""
    first_block = collector.numbers.first_block
    numbers = collector.numbers.kernel.tolist()
    read, written, ldgsts = found.operation_bytes.tolist()
    shared, inside = found.shared_bytes.tolist(), found.inside.tolist()

    def per_operation(values: NDArray[Any]) -> list[int]:
        running = np.append(0, np.cumsum(values))
        return np.diff(running[first_block]).tolist()  # type: ignore[no-any-return]

    accesses = per_operation(counts.accesses)
    instructions = per_operation(counts.instructions)
    active = per_operation(counts.instructions > 0)
    rows = []
    for index, launch in enumerate(collector.operations):
        if not isinstance(launch, KernelLaunch):
            continue
        rows.append(
            Kernel.launched(
                launch,
                kernel=numbers[index],
                operation=index,
                first_block=int(first_block[index]),
                active_blocks=active[index],
                accesses=accesses[index],
                instructions=instructions[index],
                read_bytes=read[index],
                written_bytes=written[index],
                shared_written_bytes=shared[index],
                untraced=collector.untraced_of(index),
                reach=collector.reach.get(index),
                waits_inside=waits_inside(inside[index]),
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
        found.append(f"{_OPAQUE[kernel.reach]}: {kernel.untraced}")
    return found


def remarks(kernels: Iterable[Kernel], *, is_traced: bool = True) -> dict[str, list[int]]:
    """Return each remark with the numbers of the kernels that it is about."""
    found: dict[str, list[int]] = {}
    for kernel in kernels:
        for remark in kernel_remarks(kernel, is_traced=is_traced):
            found.setdefault(remark, []).append(kernel.kernel)
    return found
