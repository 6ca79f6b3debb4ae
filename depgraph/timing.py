"""Durations of blocks: measured, scaled from measured kernels, or counted in the trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.jit.schedule import serial_schedule
from depgraph.profile import BlockProfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from depgraph.graph import BlockGraph
    from depgraph.profile import KernelProfile

_LISTED = 5


@dataclass(frozen=True, slots=True)
class Durations:
    """How long each block runs, in what unit, and where that comes from.

    Attributes
    ----------
    values : float64[n_blocks]
        Host copies take no time.
    unit : str
        "us", "cycles" or "instructions"; of the last, only ratios mean anything.
    source : str
        One line for reports.
    assumptions : tuple of str
        What was assumed to get from the source to the values.
    """

    values: NDArray[np.float64]
    unit: str
    source: str
    assumptions: tuple[str, ...] = ()

    @property
    def is_time(self) -> bool:
        """Whether the unit is one of time."""
        return self.unit != "instructions"


def counted_durations(graph: BlockGraph) -> Durations:
    """Take the instructions that the trace shows of each block as its duration.

    Raises
    ------
    ModelError
        If the graph carries no counts.
    """
    if graph.cost is None:
        message = "the graph carries no counts: pass durations"
        raise ModelError(message)
    return Durations(
        graph.cost.astype(np.float64),
        "instructions",
        "traced warp instructions of each block",
        (
            "a block takes as long as it has traced warp instructions: only ratios mean anything; "
            "pass --timing for times",
        ),
    )


def measured_block_durations(
    graph: BlockGraph,
    kernel: NDArray[np.int64],
    block: NDArray[np.int64],
    duration: NDArray[np.float64],
    *,
    unit: str,
    source: str,
) -> Durations:
    """Take measured times of blocks.

    Parameters
    ----------
    graph : BlockGraph
    kernel, block : int64[n]
        Kernel number, and block number within the kernel.
    duration : float64[n]
    unit, source : str

    Raises
    ------
    ModelError
        If a row names no block of the graph or names one twice, or a block has no row.
    """
    operation_of_kernel = {int(k): i for i, k in enumerate(graph.kernel)}
    operation = np.array([operation_of_kernel.get(int(k), -1) for k in kernel], np.int64)
    size = np.diff(graph.first_block)
    bad = np.flatnonzero((operation < 0) | (block < 0) | (block >= size[operation]))
    if len(bad):
        raise ModelError(
            f"{source}: kernel {kernel[bad[0]]} block {block[bad[0]]} is not in the store"
            + (f", nor are {len(bad) - 1} more" if len(bad) > 1 else "")
        )
    number = graph.first_block[operation] + block
    times = np.bincount(number, minlength=graph.n_blocks)
    if times.max(initial=0) > 1:
        twice = int(np.argmax(times > 1))
        raise ModelError(f"{source}: {block_name(graph, twice)} has more than one duration")
    if (duration < 0).any() or not np.isfinite(duration).all():
        raise ModelError(f"{source}: a duration is negative or not a number")
    values = np.zeros(graph.n_blocks, np.float64)
    values[number] = duration
    missing = np.flatnonzero((times == 0) & (graph.kernel[graph.operation_of_block] >= 0))
    if len(missing):
        raise ModelError(
            f"{source}: {block_name(graph, int(missing[0]))} has no duration"
            + (f", nor have {len(missing) - 1} more blocks" if len(missing) > 1 else "")
        )
    return Durations(values, unit, source)


def scaled_durations(
    graph: BlockGraph,
    kernel_times: Mapping[int, float],
    slots: NDArray[np.int64],
    *,
    unit: str,
    source: str,
    sms: int,
) -> Durations:
    """Spread measured times of kernels over their blocks, in proportion to the blocks' cost.

    A kernel alone, its blocks in order on the slots of the GPU that was measured, then takes
    exactly its measured time.

    Parameters
    ----------
    graph : BlockGraph
    kernel_times : mapping
        Kernel number to time. A kernel without one is given the median time per cost of the
        others, and the assumptions say so.
    slots : int64[n_operations]
        Blocks that run at once on the measured GPU.
    unit, source : str
    sms : int
        SMs of the measured GPU, for the report.

    Raises
    ------
    ModelError
        If no kernel of the graph has a time, or a time is negative.
    """
    kernels = {int(k) for k in graph.kernel if k >= 0}
    unknown = sorted(set(kernel_times) - kernels)
    if unknown:
        raise ModelError(
            f"{source}: kernel {unknown[0]} is not in the store"
            + (f", nor are {len(unknown) - 1} more" if len(unknown) > 1 else "")
        )
    if not kernel_times:
        raise ModelError(f"{source}: holds no time of a kernel of the store")
    if any(not time >= 0 for time in kernel_times.values()):
        raise ModelError(f"{source}: a time is negative or not a number")
    cost = np.ones(graph.n_blocks) if graph.cost is None else graph.cost.astype(np.float64)
    totals = np.add.reduceat(cost, graph.first_block[:-1]) if graph.n_blocks else cost
    flat = np.flatnonzero(totals == 0)
    for operation in flat:
        cost[graph.first_block[operation] : graph.first_block[operation + 1]] = 1.0
    cost[graph.kernel[graph.operation_of_block] < 0] = 0.0
    alone = kernel_makespans(graph, cost, slots)

    values = np.zeros(graph.n_blocks, np.float64)
    rates = []
    unmatched = []
    for operation, kernel in enumerate(graph.kernel.tolist()):
        if kernel < 0:
            continue
        if kernel not in kernel_times:
            unmatched.append(operation)
            continue
        blocks = slice(graph.first_block[operation], graph.first_block[operation + 1])
        rate = kernel_times[kernel] / alone[operation]
        rates.append(rate)
        values[blocks] = cost[blocks] * rate
    median = float(np.median(rates))
    for operation in unmatched:
        blocks = slice(graph.first_block[operation], graph.first_block[operation + 1])
        values[blocks] = cost[blocks] * median
    assumptions = [
        f"the blocks of a kernel share its measured time in proportion to their instructions, "
        f"so that the kernel alone takes that time on {sms} SMs"
    ]
    if unmatched:
        names = ", ".join(str(graph.kernel[o]) for o in unmatched[:_LISTED])
        more = f" and {len(unmatched) - _LISTED} more" if len(unmatched) > _LISTED else ""
        assumptions.append(
            f"kernels without a measured time ({names}{more}) are given the median time per "
            "instruction of the others"
        )
    return Durations(values, unit, source, tuple(assumptions))


def profiled_durations(
    graph: BlockGraph,
    profile: KernelProfile | BlockProfile,
    occupancy: NDArray[np.int64],
    *,
    measured_sms: int | None = None,
    default_sms: int,
) -> Durations:
    """Turn a profile into durations of blocks.

    Parameters
    ----------
    graph : BlockGraph
    profile : KernelProfile or BlockProfile
    occupancy : int64[n_operations]
        Resident blocks per SM on the GPU that was measured.
    measured_sms : int, optional
        SMs of that GPU; default what the profile says.
    default_sms : int
        SMs to assume where neither says.

    Raises
    ------
    ModelError
        If the profile does not fit the graph.
    """
    if isinstance(profile, BlockProfile):
        return measured_block_durations(
            graph,
            profile.kernel,
            profile.block,
            profile.duration,
            unit=profile.unit,
            source=f"block times of {profile.source.name}",
        )
    if profile.kernel is None:
        raise ModelError(f"{profile.source}: does not number its kernels")
    scale, unit = (1e-3, "us") if profile.unit == "ns" else (1.0, profile.unit)
    notes: list[str] = []
    sms = measured_sms
    if sms is None and profile.measured_sms is not None:
        stated = {int(n) for n in profile.measured_sms if n > 0}
        if len(stated) > 1:
            raise ModelError(
                f"{profile.source}: kernels were measured on {sorted(stated)} SMs; "
                "pass --measured-sms N"
            )
        sms = next(iter(stated), None)
    if sms is None:
        sms = default_sms
        notes.append(
            f"the kernel times are taken to be measured on {sms} SMs (--measured-sms)"
        )
    durations = scaled_durations(
        graph,
        dict(zip(profile.kernel.tolist(), (profile.duration * scale).tolist(), strict=True)),
        occupancy * sms,
        unit=unit,
        source=f"kernel times of {profile.source.name}",
        sms=sms,
    )
    return replace(durations, assumptions=(*notes, *durations.assumptions))


def kernel_makespans(
    graph: BlockGraph, durations: NDArray[np.float64], slots: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how long each operation takes alone: float64[n_operations]."""
    gap = np.zeros(graph.n_operations, np.float64)
    _, _, ends = serial_schedule(durations, graph.first_block, slots, gap)
    return np.diff(ends, prepend=0.0)


def block_name(graph: BlockGraph, block: int) -> str:
    """Name a block by its kernel and its number within the kernel."""
    operation = int(graph.operation_of_block[block])
    kernel = int(graph.kernel[operation])
    if kernel < 0:
        return f"host copy {-1 - kernel}"
    return f"kernel {kernel} block {block - int(graph.first_block[operation])}"
