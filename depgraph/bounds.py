"""How much overlap could gain at most, and what a block-level dataflow schedule achieves."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import ModelError
from depgraph.gpu import gpu_for_architecture, load_gpu, load_gpu_file, occupancy
from depgraph.graph import ALL_KINDS
from depgraph.jobs import available_jobs
from depgraph.schedules import PRIORITIES, dataflow, serial
from depgraph.stated import default_durations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from depgraph.gpu import Gpu
    from depgraph.graph import BlockGraph
    from depgraph.timing import Durations

UNLIMITED = math.inf
DEFAULT_GPU = "H100 SXM"
MANY_SIZES = 8
"""More sizes than this are a curve: one line each, one dataflow schedule each."""


@dataclass(frozen=True, slots=True)
class Occupancies:
    """Resident blocks per SM of every operation, and what was assumed to get them.

    Attributes
    ----------
    values : int64[n_operations]
        1 for host copies.
    gpu : Gpu
        Whose limits were used.
    assumptions : tuple of str
    """

    values: NDArray[np.int64]
    gpu: Gpu
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Achieved:
    """What one schedule achieves.

    Attributes
    ----------
    schedule : str
    makespan : float
    gain : float
        Serial time over makespan.
    utilization : float
        Work over makespan, 0 to 1.
    """

    schedule: str
    makespan: float
    gain: float
    utilization: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound on the overlap gain on one GPU size, for one choice of dependences.

    Attributes
    ----------
    sms : float
        Number of SMs, infinite for no limit.
    dependences : str
        Kinds that count, such as "RAW,WAR,WAW".
    serial : float
        Kernels one after another.
    critical_path : float
        Longest path through the certain edges of the block graph.
    work : float
        Sum of duration / occupancy over all blocks, divided by the SMs.
    lower_bound : float
        The larger of the two: no schedule that honours the dependences is shorter, while the
        durations stay as they are.
    gain : float
        Serial over lower bound.
    schedules : tuple of Achieved
        Serial first. Empty but for serial with unlimited SMs, where dataflow takes the critical
        path.
    memory : float
        Bytes over memory bandwidth, the third lower bound; 0 where it was not asked for.
    """

    sms: float
    dependences: str
    serial: float
    critical_path: float
    work: float
    lower_bound: float
    gain: float
    schedules: tuple[Achieved, ...]
    memory: float = 0.0

    @property
    def limited_by(self) -> str:
        """Which of the terms makes the lower bound."""
        if self.memory > max(self.critical_path, self.work):
            return "memory bandwidth"
        return "critical path" if self.critical_path >= self.work else "work"


@dataclass(frozen=True, slots=True)
class MeasuredSchedule:
    """How the program ran on the GPU that was profiled.

    Attributes
    ----------
    sms : int
    wall : float
        From the start of the first kernel to the end of the last one.
    gain : float
        Serial time on that GPU, without launch gaps, over `wall`.
    utilization : float
        Work over `wall`, 0 to 1.
    """

    sms: int
    wall: float
    gain: float
    utilization: float


@dataclass(frozen=True, slots=True)
class BoundTable:
    """Bounds for several GPU sizes and choices of dependences.

    Attributes
    ----------
    bounds : tuple of Bound
    unit : str
        Of all times.
    durations : str
        Where the durations come from.
    gpu : str
        Whose occupancy limits were used.
    occupancy : (int, int)
        Least and most resident blocks per SM among the kernels.
    assumptions : tuple of str
    measured : MeasuredSchedule or None
        How the program ran when it was profiled.
    """

    bounds: tuple[Bound, ...]
    unit: str
    durations: str
    gpu: str
    occupancy: tuple[int, int]
    assumptions: tuple[str, ...]
    measured: MeasuredSchedule | None = None

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a schedule, with the bound that it is held against."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "sms": bound.sms,
                    "dependences": bound.dependences,
                    "serial": bound.serial,
                    "critical_path": bound.critical_path,
                    "work": bound.work,
                    "lower_bound": bound.lower_bound,
                    "limited_by": bound.limited_by,
                    "bound_on_gain": bound.gain,
                    "schedule": achieved.schedule,
                    "makespan": achieved.makespan,
                    "gain": achieved.gain,
                    "utilization": achieved.utilization,
                    "unit": self.unit,
                }
                for bound in self.bounds
                for achieved in bound.schedules
            ]
        )


def default_gpu(graph: BlockGraph) -> tuple[Gpu, str]:
    """Choose the GPU whose limits apply: by the trace's SASS version if it is known, else an H100.

    Returns
    -------
    gpu : Gpu
    reason : str
        One line for the report.
    """
    architecture = None if graph.resources is None else graph.resources.architecture
    if architecture is None:
        gpu = load_gpu(DEFAULT_GPU)
        return gpu, f"the trace names no architecture: the limits of {gpu.name} are assumed (--gpu)"
    try:
        gpu = gpu_for_architecture(architecture)
    except ModelError:
        gpu = load_gpu(DEFAULT_GPU)
        what = f"the trace names sm_{architecture}, of which there is no model"
        return gpu, f"{what}: the limits of {gpu.name} are assumed (--gpu)"
    return gpu, f"the trace is for sm_{architecture}: the limits of {gpu.name} are used (--gpu)"


def gpu_occupancies(
    graph: BlockGraph, name: str | None = None, file: Path | None = None
) -> Occupancies:
    """Compute occupancies for a GPU by name, by its model file, or the one the trace suggests.

    Raises
    ------
    ModelError
        If there is no such model, or the graph carries no launch resources.
    """
    if file is not None:
        return occupancies(graph, load_gpu_file(file))
    if name is not None:
        return occupancies(graph, load_gpu(name))
    gpu, reason = default_gpu(graph)
    result = occupancies(graph, gpu)
    return replace(result, assumptions=(reason, *result.assumptions))


def fixed_occupancies(graph: BlockGraph, blocks_per_sm: int, gpu: Gpu) -> Occupancies:
    """Give every kernel the same occupancy, whatever it takes to run."""
    values = np.where(graph.kernel >= 0, blocks_per_sm, 1).astype(np.int64)
    return Occupancies(values, gpu, (f"{blocks_per_sm} blocks per SM for every kernel, as asked",))


def occupancies(graph: BlockGraph, gpu: Gpu) -> Occupancies:
    """Compute the resident blocks per SM of every kernel by the CUDA occupancy rules.

    Raises
    ------
    ModelError
        If the graph carries no launch resources.
    """
    if graph.resources is None:
        message = "the graph carries no launch resources: pass occupancies"
        raise ModelError(message)
    values = np.ones(graph.n_operations, np.int64)
    assumed: dict[str, list[int]] = {}
    known: dict[tuple[int, int, int], tuple[int, tuple[str, ...]]] = {}
    columns = graph.resources.threads, graph.resources.registers, graph.resources.shared_bytes
    stated = np.zeros_like(values) if graph.occupancy is None else graph.occupancy
    for operation, key in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if graph.kernel[operation] < 0:
            continue
        if stated[operation] > 0:
            values[operation] = stated[operation]
            continue
        if key not in known:
            threads, registers, shared = key
            result = occupancy(
                gpu,
                threads=threads,
                registers=None if registers < 0 else registers,
                shared_bytes=None if shared < 0 else shared,
            )
            known[key] = result.blocks_per_sm, result.assumed
        values[operation], notes = known[key]
        for note in notes:
            assumed.setdefault(note, []).append(int(graph.kernel[operation]))
    kernels = int((graph.kernel >= 0).sum())
    assumptions = tuple(
        f"{note} ({len(which)} of {kernels} kernels)" for note, which in assumed.items()
    )
    if stated.any():
        note = f"occupancy as the input states it ({int((stated > 0).sum())} of {kernels} kernels)"
        assumptions = (note, *assumptions)
    return Occupancies(values, gpu, assumptions)


def work_per_sm(
    graph: BlockGraph, durations: NDArray[np.float64], occupancy: NDArray[np.int64]
) -> float:
    """Return the sum of duration / occupancy over all blocks: the time one SM would need."""
    return float((durations / occupancy[graph.operation_of_block]).sum())


def bound_one(
    graph: BlockGraph,
    durations: NDArray[np.float64],
    occupancy: NDArray[np.int64],
    sms: float,
    *,
    launch_gap: float = 0.0,
    priorities: Iterable[str] = PRIORITIES,
    memory: float = 0.0,
    critical_path: float | None = None,
) -> Bound:
    """Bound the gain on one GPU size.

    Parameters
    ----------
    graph : BlockGraph
    durations : float64[n_blocks]
    occupancy : int64[n_operations]
    sms : float
        Number of SMs; infinity for no limit.
    launch_gap : float
        Time that serial execution loses before each kernel.
    priorities : iterable of str
        Of the dataflow schedules to try.
    memory : float
        Bytes over memory bandwidth, where that counts as well.
    critical_path : float, optional
        Where it is known already.
    """
    if critical_path is None:
        critical_path = longest_path(graph, durations)
    unlimited = math.isinf(sms)
    size = int(np.diff(graph.first_block).max(initial=1)) if unlimited else int(sms)
    serial_time = serial(graph, durations, occupancy, size, launch_gap=launch_gap).makespan
    work = 0.0 if unlimited else work_per_sm(graph, durations, occupancy) / sms
    lower = max(critical_path, work, memory)
    makespans = {"serial": serial_time}
    names = list(priorities)

    def makespan_of(priority: str) -> float:
        if unlimited:
            return float(graph.earliest_finish(durations)[0].max(initial=0.0))
        return dataflow(graph, durations, occupancy, size, priority=priority).makespan

    with ThreadPoolExecutor(len(names) or 1) as pool:
        for priority, makespan in zip(names, pool.map(makespan_of, names), strict=True):
            makespans[f"dataflow, {priority}"] = makespan
    return Bound(
        sms=sms,
        dependences=",".join(kind for kind in ("RAW", "WAR", "WAW") if kind in graph.kinds),
        serial=serial_time,
        critical_path=critical_path,
        work=work,
        lower_bound=lower,
        gain=_ratio(serial_time, lower),
        schedules=tuple(
            Achieved(name, makespan, _ratio(serial_time, makespan), _share(work, makespan))
            for name, makespan in makespans.items()
        ),
        memory=memory,
    )


def longest_path(graph: BlockGraph, durations: NDArray[np.float64]) -> float:
    """Return the critical path: the time that unlimited SMs need for what is certain."""
    finish, _ = graph.certain().earliest_finish(durations)
    return float(finish.max(initial=0.0))


def bound(
    graph: BlockGraph,
    sms: float | Sequence[float],
    *,
    durations: Durations | None = None,
    occupancy: Occupancies | None = None,
    launch_gap: float = 0.0,
    memory: float = 0.0,
    measured: MeasuredSchedule | None = None,
) -> BoundTable:
    """Bound the overlap gain for one or several GPU sizes, with all dependences and RAW alone.

    Parameters
    ----------
    graph : BlockGraph
    sms : number or sequence of numbers
        SM counts; infinity for no limit.
    durations : Durations, optional
        Default the instructions that the trace shows.
    occupancy : Occupancies, optional
        Default by the CUDA rules for the GPU that the trace suggests.
    launch_gap : float
        Time that serial execution loses before each kernel, in the unit of the durations.
    memory : float
        Bytes over memory bandwidth, where that counts as well, in the unit of the durations.
    measured : MeasuredSchedule, optional
        How the program ran when it was profiled.

    Returns
    -------
    BoundTable
        Of more than `MANY_SIZES` sizes with one dataflow schedule each, not all of them.

    Raises
    ------
    ModelError
        If an SM count is below 1, or the graph lacks what a default needs.
    """
    sizes = [sms] if isinstance(sms, (int, float)) else list(sms)
    for size in sizes:
        if size < 1 or (not math.isinf(size) and size != int(size)):
            message = f"{size} SMs: give whole numbers from 1, or inf"
            raise ModelError(message)
    if durations is None:
        durations = default_durations(graph)
    if occupancy is None:
        occupancy = gpu_occupancies(graph)
    graphs = [graph]
    if graph.kinds != {"RAW"} and "RAW" in graph.kinds:
        graphs.append(graph.with_kinds({"RAW"}))
    priorities = list(PRIORITIES)[: 1 if len(sizes) > MANY_SIZES else None]
    paths = [longest_path(g, durations.values) for g in graphs]

    def bound_for(choice: tuple[float, BlockGraph, float]) -> Bound:
        size, chosen, path = choice
        return bound_one(
            chosen,
            durations.values,
            occupancy.values,
            size,
            launch_gap=launch_gap,
            priorities=priorities,
            memory=memory,
            critical_path=path,
        )

    choices = [(size, g, p) for size in sizes for g, p in zip(graphs, paths, strict=True)]
    # Each of them makes its schedules side by side already; more at once would cost memory.
    with ThreadPoolExecutor(max(1, available_jobs() // max(1, len(priorities)))) as pool:
        bounds = list(pool.map(bound_for, choices))
    of_kernels = np.compress(graph.kernel >= 0, occupancy.values)
    notes = [*durations.assumptions, *occupancy.assumptions]
    notes.append(
        "the bound holds for fixed durations: measured overlap has beaten it by up to 15 % "
        "on an A100 where caches were reused better"
    )
    if graph.kinds != ALL_KINDS:
        left_out = ", ".join(sorted(ALL_KINDS - graph.kinds))
        notes.append(f"{left_out} dependences were left out")
    return BoundTable(
        bounds=tuple(bounds),
        unit=durations.unit,
        durations=durations.source,
        gpu=occupancy.gpu.name,
        occupancy=(int(of_kernels.min()), int(of_kernels.max())) if len(of_kernels) else (1, 1),
        assumptions=tuple(notes),
        measured=measured,
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 1.0


def _share(work: float, makespan: float) -> float:
    return work / makespan if makespan > 0 else 0.0
