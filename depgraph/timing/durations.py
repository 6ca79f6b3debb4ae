"""Durations of blocks from measured times of blocks or kernels, and estimates of those without."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.program import Kernel
from depgraph.system.text import counted, kernels_text, nor_more, show_number
from depgraph.timing.program_times import Durations, Estimates, block_name, kernel_makespans, median

_SAME_LAUNCH = "the median time of launches of the same function, grid and block"
_BEYOND = (
    "the shortest measured time, {floor} {unit}, and what {whose} take beyond it per instruction"
)


def measured_block_durations(
    graph: BlockGraph,
    kernel: NDArray[np.int64],
    block: NDArray[np.int64],
    duration: NDArray[np.float64],
    *,
    unit: str,
    source: str,
    kernels: Sequence[Kernel] = (),
) -> Durations:
    """Take measured times of blocks: of kernels by number, and of blocks within them.

    All blocks of a kernel must have a time. A kernel without any is given times as
    `scaled_durations` does.
    """
    operation_of_kernel = {int(k): i for i, k in enumerate(graph.kernel)}
    operation = np.array([operation_of_kernel.get(int(k), -1) for k in kernel], np.int64)
    size = np.diff(graph.first_block)
    bad = np.flatnonzero((operation < 0) | (block < 0) | (block >= size[operation]))
    if len(bad):
        which = f"{source}: kernel {kernel[bad[0]]} block {block[bad[0]]}"
        raise ModelError(f"{which} is not in the store{nor_more(len(bad), 'are')}")
    if not len(operation):
        raise ModelError(f"{source}: holds no time of a block of the store")
    number = graph.first_block[operation] + block
    given = np.bincount(number, minlength=graph.n_blocks)
    if given.max(initial=0) > 1:
        twice = int(np.argmax(given > 1))
        raise ModelError(f"{source}: {block_name(graph, twice)} has more than one duration")
    if (duration < 0).any() or not np.isfinite(duration).all():
        raise ModelError(f"{source}: a duration is negative or not a number")
    values = np.zeros(graph.n_blocks, np.float64)
    values[number] = duration
    measured = np.bincount(operation, minlength=graph.n_operations) > 0
    missing = np.flatnonzero((given == 0) & measured[graph.operation_of_block])
    if len(missing):
        more = nor_more(len(missing), "have", " blocks")
        raise ModelError(f"{source}: {block_name(graph, int(missing[0]))} has no duration{more}")
    cost = _costs(graph)
    mean_cost = _ratios(_sums(graph, cost), size)
    mean = np.where(measured, _ratios(_sums(graph, values), size), np.nan)
    times, estimates = estimate_times(mean, mean_cost, graph.kernel, kernels, unit)
    rates = np.where(measured, 0.0, _ratios(times, mean_cost))
    values += cost * rates[graph.operation_of_block]
    of_blocks = frozenset(graph.kernel[measured].tolist())
    return Durations(values, unit, source, estimates.notes, estimates, of_blocks)


def scaled_durations(
    graph: BlockGraph,
    kernel_times: Mapping[int, float],
    slots: NDArray[np.int64],
    *,
    unit: str,
    source: str,
    sms: int,
    kernels: Sequence[Kernel] = (),
    block_times: Mapping[int, NDArray[np.float64]] | None = None,
) -> Durations:
    """Spread measured times of kernels over their blocks, in proportion to the blocks' cost.

    A kernel alone, its blocks in order on the slots of the GPU that was measured, then takes
    exactly its measured time. The time of a kernel without one is estimated; see `estimate_times`.
    Where `block_times` has the measured times of a kernel's blocks, they stand for their cost.
    """
    of_kernels = {int(k) for k in graph.kernel if k >= 0}
    unknown = sorted(set(kernel_times) - of_kernels)
    if unknown:
        more = nor_more(len(unknown), "are")
        raise ModelError(f"{source}: kernel {unknown[0]} is not in the store{more}")
    if not kernel_times:
        raise ModelError(f"{source}: holds no time of a kernel of the store")
    if any(not time >= 0 for time in kernel_times.values()):
        raise ModelError(f"{source}: a time is negative or not a number")
    cost = _costs(graph)
    alone = kernel_makespans(graph, cost, slots)
    whole = np.array([kernel_times.get(kernel, np.nan) for kernel in graph.kernel.tolist()])
    times, estimates = estimate_times(whole, alone, graph.kernel, kernels, unit)
    measured = {k: own for k, own in (block_times or {}).items() if kernel_times.get(k)}
    for operation, kernel in enumerate(graph.kernel.tolist() if measured else []):
        if kernel in measured:
            cost[graph.first_block[operation] : graph.first_block[operation + 1]] = measured[kernel]
    if measured:
        alone = kernel_makespans(graph, cost, slots)
    factor = _ratios(times, alone)
    own_factor = factor[np.isin(graph.kernel, list(measured))]
    shared = _shared_text(own_factor, len(of_kernels), sms)
    return Durations(
        cost * factor[graph.operation_of_block],
        unit,
        source,
        (shared, *estimates.notes),
        estimates,
        frozenset(measured),
    )


def estimate_times(
    measured: NDArray[np.float64],
    cost: NDArray[np.float64],
    numbers: NDArray[np.integer],
    kernels: Sequence[Kernel],
    unit: str,
) -> tuple[NDArray[np.float64], Estimates]:
    """Return the times of all operations, the NaN among the measured estimated; copies take 0.

    A kernel takes as long as launches of the same function with the same grid and block, in the
    median; else what the shortest measured kernel takes, and beyond that a time in proportion to
    its cost: the median of launches of the same function, else of all. Without `kernels` all are
    alike; numbers of copies and memsets are negative.

    A small kernel takes its time to start and to end, however little it does. Half of the kernels
    of five programs on an H100 were estimated from the other half, 30 times each: the total was off
    by 11 % on average; in proportion to instructions alone, without the shortest time, by 64 %.
    """
    times = np.where(numbers < 0, 0.0, measured)
    missing = np.flatnonzero(np.isnan(times))
    known = np.flatnonzero(~np.isnan(times) & (numbers >= 0))
    if not len(missing):
        return times, Estimates()
    floor = float(times[known].min())
    beyond = (times[known] - floor) / np.maximum(cost[known], 1e-300)
    launches: dict[int, tuple[Hashable, Hashable]] = {
        k.operation: (k.name, (k.grid, k.block)) for k in kernels
    }
    same_launch: dict[Hashable, list[float]] = {}
    same_function: dict[Hashable, list[float]] = {}
    for operation, rate in zip(known.tolist(), beyond.tolist(), strict=True):
        if operation in launches:
            launch = launches[operation]
            same_launch.setdefault(launch, []).append(float(times[operation]))
            same_function.setdefault(launch[0], []).append(rate)
    how: dict[str, list[int]] = {}
    for operation in missing.tolist():
        launch = launches.get(operation, (None, None))
        whose, rates = "all kernels", beyond.tolist()
        if launch[0] in same_function:
            whose, rates = "launches of the same function", np.array(same_function[launch[0]])
        reason = _BEYOND.format(floor=show_number(floor), unit=unit, whose=whose)
        times[operation] = floor + float(median(rates)) * cost[operation]
        if launch in same_launch:
            reason = _SAME_LAUNCH
            times[operation] = median(same_launch[launch])
        how.setdefault(reason, []).append(operation)
    estimated = dict(zip(numbers[missing].tolist(), times[missing].tolist(), strict=True))
    notes = tuple(
        f"no measured time of {kernels_text(numbers[which].tolist())}: estimated at {reason} "
        f"({show_number(float(times[which].sum()))} {unit} in all)"
        for reason, which in how.items()
    )
    return times, Estimates(estimated, notes)


def _shared_text(measured: NDArray[np.float64], kernels: int, sms: int) -> str:
    """Say how blocks share the times of kernels; `measured` blocks' times are scaled by so much."""
    share = "the blocks of a kernel share its measured time in proportion to their instructions"
    alone = f"so that the kernel alone takes that time on {sms} SMs"
    if not len(measured):
        return f"{share}, {alone}"
    low, high = (show_number(factor) for factor in (measured.min(), measured.max()))
    own = f"the blocks of {len(measured)} of {counted(kernels, 'kernel')} take their measured times"
    rest = "" if len(measured) == kernels else f"; elsewhere {share}"
    return (
        f"{own}, times {low} to {high}, so that each kernel alone takes its own on {sms} SMs{rest}"
    )


def _costs(graph: BlockGraph) -> NDArray[np.float64]:
    """Return the cost of each block; 1 throughout a kernel that has none, 0 for copies."""
    if graph.cost is None:
        cost = np.ones(graph.n_blocks)
    else:
        cost = graph.cost.astype(np.float64)
        cost[(_sums(graph, cost) == 0)[graph.operation_of_block]] = 1.0
    cost[graph.kernel[graph.operation_of_block] < 0] = 0.0
    return cost


def _sums(graph: BlockGraph, values: NDArray[np.float64]) -> NDArray[np.float64]:
    operation = graph.operation_of_block
    sums = np.bincount(operation, weights=values, minlength=graph.n_operations)
    return sums.astype(np.float64)


def _ratios(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)
