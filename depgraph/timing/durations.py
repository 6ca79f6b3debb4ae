"""Durations of blocks: measured, scaled from measured kernels, stated, or counted in the trace."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.errors import ModelError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.program import Kernel
from depgraph.schedule.simulate_jit import serial_schedule
from depgraph.system.text import counted, kernels_text, nor_more, show_number

_SAME_LAUNCH = "the median time of launches of the same function, grid and block"
_BEYOND = (
    "the shortest measured time, {floor} {unit}, and what {whose} take beyond it per instruction"
)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """What kernels that were not measured are taken to take."""

    # By kernel, alone on the GPU that was measured; where blocks were, the mean of the kernel's.
    times: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # which kernels, and how their times were estimated


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


_COUNTED = (
    "a block takes as long as it has traced warp instructions: only ratios mean anything; pass "
    "--timing for times"
)


def median(values: ArrayLike) -> Any:
    """Return the medians of columns, or of numbers, but for NaN; NumPy's imports masked arrays."""
    ordered = np.sort(values, axis=0)  # NaN comes last
    known = np.count_nonzero(~np.isnan(ordered), axis=0, keepdims=True)
    middle = [np.take_along_axis(ordered, place // 2, axis=0)[0] for place in (known - 1, known)]
    return (middle[0] + middle[1]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """How long each block runs, in what unit, and where that comes from."""

    values: NDArray[np.float64]  # of each block; copies and memsets take no time
    unit: str  # "us", "cycles" or "instructions"; of the last, only ratios mean anything
    source: str  # one line for reports
    assumptions: tuple[str, ...] = ()  # what was assumed to get from the source to the values
    estimated: Estimates = field(default_factory=Estimates)  # of kernels not measured
    of_blocks: frozenset[int] = frozenset()  # kernels of which single blocks were measured

    def noting(self, *notes: str) -> Durations:
        """Return the durations with more assumptions."""
        return replace(self, assumptions=(*self.assumptions, *notes))


def default_durations(graph: BlockGraph) -> Durations:
    """Return what to take for durations where the user gives no times.

    What the input states, if it does so for any block of a kernel; else counts. A block for
    which it states nothing usable is given the median of its kernel's other blocks; in a kernel
    without any, the others' median time per instruction. How many there are is noted.
    """
    if graph.duration is None:
        return counted_durations(graph)
    is_kernel = graph.kernel[graph.operation_of_block] >= 0
    is_usable = np.isfinite(graph.duration) & (graph.duration >= 0)
    if not (is_kernel & is_usable).any():
        return counted_durations(graph)
    values = np.where(is_kernel & is_usable, graph.duration, 0.0)
    notes = _fill_unstated(graph, values, is_kernel & ~is_usable)
    if graph.launches is not None:
        values = graph.launches.inlined(values)
        launches = counted(len(graph.launches), "launch", "launches")
        note = (
            f"{launches} from the device: but for the rows cdp and spawn, blocks do the work of "
            "their child kernels themselves"
        )
        notes += (note,)
    return Durations(values, graph.duration_unit, "as the input states them", notes)


def counted_durations(graph: BlockGraph) -> Durations:
    """Take the instructions that the trace shows of each block as its duration."""
    if graph.cost is None:
        message = "the graph carries no counts: pass durations"
        raise ModelError(message)
    return Durations(
        graph.cost.astype(np.float64),
        "instructions",
        "traced warp instructions of each block",
        (_COUNTED,),
    )


def _fill_unstated(
    graph: BlockGraph, values: NDArray[np.float64], missing: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Give the missing blocks durations, in place; say which they are."""
    if not missing.any():
        return ()
    cost = np.ones(graph.n_blocks) if graph.cost is None else np.maximum(graph.cost, 1)
    present = ~missing & (graph.kernel[graph.operation_of_block] >= 0)
    rate = float(median(values[present] / cost[present]))
    for operation in np.unique(graph.operation_of_block[missing]).tolist():
        blocks = slice(graph.first_block[operation], graph.first_block[operation + 1])
        own, others = values[blocks], present[blocks]
        given = median(own[others]) if others.any() else cost[blocks] * rate
        values[blocks] = np.where(others, own, given)
    first = block_name(graph, int(np.argmax(missing)))
    count = int(missing.sum())
    which = first if count == 1 else f"{first} and {count - 1} more"
    note = (
        f"no usable duration is stated for {count} of {int((missing | present).sum())} blocks "
        f"({which}): they are given the median of their kernel's other blocks, or the others' "
        "median time per instruction"
    )
    return (note,)


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


def kernel_makespans(
    graph: BlockGraph, durations: NDArray[np.float64], slots: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how long each operation takes alone, on the slots of each."""
    none = np.zeros(graph.n_operations, np.float64)
    _, _, ends = serial_schedule(durations, graph.first_block, slots, none, none)
    return np.diff(ends, prepend=0.0)


def block_name(graph: BlockGraph, block: int) -> str:
    """Name a block by its kernel and its number within the kernel."""
    operation = int(graph.operation_of_block[block])
    kernel = int(graph.kernel[operation])
    if kernel < 0:
        return graph.copy_name(kernel)
    return f"kernel {kernel} block {block - int(graph.first_block[operation])}"
