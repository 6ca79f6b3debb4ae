"""How a scenario comes about: the graph, its durations, the GPU, and where each comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.gpu.model import Gpu, load_gpu
from depgraph.gpu.sm_resources import SmResources, default_gpu, sm_resources
from depgraph.scenario.scenario import MeasuredSchedule, Scenario
from depgraph.scenario.what_if import Statement, apply_what_ifs
from depgraph.system.text import convert_time, counted, kernels_text, ratio, share_of
from depgraph.timing.durations import measured_block_durations
from depgraph.timing.fit import Fit, fit_profile
from depgraph.timing.matched_profile import Match, fill_resources, matched_durations
from depgraph.timing.measured_run import measured_run
from depgraph.timing.profile import BlockProfile, KernelProfile, Where
from depgraph.timing.program_times import (
    MEASURED,
    NO_LAUNCHES,
    Durations,
    LaunchChoice,
    default_durations,
    kernel_makespans,
    launch_model,
)

if TYPE_CHECKING:
    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import Kernel
    from depgraph.scenario.contention import Contention
    from depgraph.trace.records import Allocation


def build_scenario(
    graph: BlockGraph,
    kernels: Sequence[Kernel],
    *,
    profile: KernelProfile | BlockProfile | Fit | None = None,
    where: Where | None = None,
    allow_mismatch: bool = False,
    measured_sms: int | None = None,
    gpu: Gpu | None = None,
    fixed_occupancy: int | None = None,
    launch: LaunchChoice = NO_LAUNCHES,
    what_ifs: Sequence[Statement] = (),
    ignore_waits_inside: bool = False,
    memory_gb_per_s: float | Literal["gpu"] | None = None,
    footprints: Callable[[], Footprints] | None = None,
    granularity: int = 1,
    allocations: Sequence[Allocation] = (),
    metadata: Mapping[str, Any] | None = None,
    contention: Contention | None = None,
    wall_us: float | None = None,
) -> Scenario:
    """Put together what bounds, mechanisms, reports and exports are made from, without a store.

    What `Request` has too means what it means there.

    Parameters
    ----------
    graph : BlockGraph
        With the kinds of dependence that count.
    kernels : sequence of Kernel
    profile : KernelProfile, BlockProfile or Fit, optional
        Measured times, or how they fit if that is known; default the instructions that the trace
        shows.
    footprints : callable, optional
        Returns the byte-exact footprints of all blocks; needed for what-ifs about buffers, for the
        memory bandwidth and for mechanisms that look at addresses.
    granularity : int
        Bytes that the dependences of `graph` were tracked by.
    allocations, metadata : sequence of Allocation, mapping
        As the store has them.

    Raises
    ------
    ModelError, ProfileError
        If the profile does not fit, or a GPU is not known.
    """
    notes: tuple[str, ...] = ()
    _refuse_for_launches(graph, profile, contention)
    if ignore_waits_inside:
        graph, kernels, notes = _without_units(graph, kernels)
    fit = profile
    if fit is not None and not isinstance(fit, Fit):
        fit = fit_profile(fit, kernels, where)
    if fit is not None:
        fit.check(allow_mismatch=allow_mismatch)
    match = None if fit is None else fit.match
    filled: tuple[str, ...] = ()
    if match is not None and graph.resources is not None:
        resources, filled = fill_resources(match, graph.resources)
        graph = replace(graph, resources=resources)
    named, which = _named_gpu(match, gpu)
    chosen = gpu or named

    def resources_of(program: BlockGraph) -> SmResources:
        resources = sm_resources(program, chosen, fixed_occupancy)
        of_gpu = () if gpu else which
        return replace(resources, assumptions=(*of_gpu, *filled, *resources.assumptions))

    scenario = Scenario(
        graph=graph,
        timing=default_durations(graph),
        resources_of=resources_of,
        kernels=kernels,
        fit=fit,
        read_footprints=footprints,
        granularity=granularity,
        allocations=allocations,
        metadata=metadata or {},
        profile_clock_mhz=None if fit is None else fit.profile.clock_mhz,
        sites={} if match is None else match.sites,
        alu=None if match is None else match.alu,
    )
    if fit is not None and isinstance(fit.profile, BlockProfile):
        scenario = replace(scenario, timing=_block_durations(graph, fit.profile, fit))
    elif match is not None:
        measured_gpu = named or default_gpu(graph, gpu)[0]
        scenario = replace(
            scenario, measured_on=lambda g: sm_resources(g, measured_gpu, fixed_occupancy)
        )
        scenario = _with_kernel_times(scenario, match, measured_sms)
    scenario = _with_wall(scenario, wall_us, launch)
    scenario = _with_launches(scenario.noting(*notes), launch)
    if memory_gb_per_s is not None:
        scenario = _with_memory(scenario, memory_gb_per_s)
    if contention is None:
        contention = "none" if profile is None else "full"
    scenario = _with_contention(scenario, contention)
    return apply_what_ifs(scenario, what_ifs)


def _refuse_for_launches(graph: BlockGraph, profile: object, contention: Contention | None) -> None:
    """Refuse what would not count the child kernels that blocks launch."""
    named = None
    if graph.launches is None:
        return
    if profile is not None:
        named = "measured times (--timing)"
    elif contention not in {None, "none"}:
        named = "contention (--contention)"
    if named is not None:
        raise ModelError(
            f"{named} do not count child kernels, which this program launches from the device: "
            "leave them out"
        )


def _with_contention(scenario: Scenario, contention: Contention) -> Scenario:
    scenario = replace(scenario, contention=contention)
    if contention != "none" and scenario.unit == "instructions":
        return scenario.noting("contention is left out: durations are instructions, not times")
    if contention != "none" and scenario.is_eager:
        known = "ranges of predictions are wider for it"
        unknown = "by how much that is off was not measured on this GPU"
        return scenario.noting(
            "kernels were timed as they were launched one by one, not in a CUDA graph: "
            + (unknown if scenario.eager_errors is None else known)
        )
    return scenario


def _without_units(
    graph: BlockGraph, kernels: Sequence[Kernel]
) -> tuple[BlockGraph, list[Kernel], tuple[str, ...]]:
    """Take no kernel for one that waits inside; return a note that names those that do."""
    waiting = [k.kernel for k in kernels if k.waits_inside is not None]
    free = [replace(kernel, waits_inside=None) for kernel in kernels]
    note = (
        f"blocks of {kernels_text(waiting)} may wait for each other inside the kernel; others "
        "depend on single blocks of them, as asked (--ignore-waits-inside)"
    )
    return graph.without_units(), free, (note,) if waiting else ()


def _named_gpu(match: Match | None, given: Gpu | None) -> tuple[Gpu | None, tuple[str, ...]]:
    """Return the GPU that the profile names, None if there is no model of it, and why."""
    name = None if match is None else match.device_name
    if name is None:
        return None, ()
    if given is not None and given.goes_by(name):
        return given, ()
    try:
        gpu = load_gpu(name)
    except ModelError:
        return None, (f"the profile is of {name}, of which there is no model",)
    return gpu, (f"the profile is of {name}: the limits of {gpu.name} are used (--gpu)",)


def _with_memory(scenario: Scenario, gb_per_s: float | Literal["gpu"]) -> Scenario:
    gpu, unit = scenario.resources.gpu, scenario.unit
    whose = "as given"
    if gb_per_s == "gpu":
        if gpu.memory_gb_per_s is None:
            message = f"the model of {gpu.name} states no memory bandwidth: give it in GB/s"
            raise ModelError(message)
        gb_per_s, whose = gpu.memory_gb_per_s, f"of {gpu.name}, whatever the number of SMs"
    if gpu.l2_bytes is None:
        message = (
            f"the model of {gpu.name} states no L2 size (l2_bytes): which bytes must cross the "
            "memory bus cannot be said without"
        )
        raise ModelError(message)
    if scenario.read_footprints is None:
        message = "this needs the footprints of the blocks: pass footprints=store.footprints"
        raise ModelError(message)
    n_bytes = touched_bytes(scenario.read_footprints(), scenario.graph)
    time = memory_time(max(0, n_bytes - gpu.l2_bytes), gb_per_s, unit, scenario.profile_clock_mhz)
    if time is None:
        return scenario.noting(
            f"the memory bandwidth is left out: durations are {unit}, not times"
            if unit != "cycles"
            else "the memory bandwidth is left out: the profile states no clock for its cycles"
        )
    note = (
        f"memory bandwidth counts: of the {n_bytes} distinct bytes that kernels touch all but the "
        f"{gpu.l2_bytes} that the L2 cache of {gpu.name} holds cross the memory bus, which takes "
        f"{time:.4g} {unit} at {gb_per_s:g} GB/s ({whose})"
    )
    return replace(scenario.noting(note), memory=time)


def _block_durations(graph: BlockGraph, profile: BlockProfile, fit: Fit) -> Durations:
    kernel, is_usable = fit.usable_blocks()
    notes = profile.notes
    if fit.match is not None:
        notes = (f"profile and trace: {fit.match.summary()}", *fit.match.notes, *notes)
    elif fit.warning:
        notes = (f"profile and trace: {fit.summary}", *notes)
    durations = measured_block_durations(
        graph,
        kernel[is_usable],
        profile.block[is_usable],
        profile.duration[is_usable],
        unit=profile.unit,
        source=f"block times of {profile.source.name}",
        kernels=fit.kernels,
    )
    return replace(durations, assumptions=(*notes, *durations.assumptions))


def _with_wall(scenario: Scenario, wall_us: float | None, launch: LaunchChoice) -> Scenario:
    """Let the profiled run take as long as it does without a profiler."""
    if wall_us is None:
        return scenario
    run, measured = scenario.run, scenario.measured
    wall = None if run is None else convert_time(wall_us, "us", run.unit, scenario.clock_mhz)
    if run is None or measured is None or wall is None:
        message = "--wall needs a profile, with --timing or recorded, that says when kernels ran"
        raise ModelError(message)
    if launch.base == MEASURED:
        message = "--wall does not go with --launch measured, which takes the profiler's gaps"
        raise ModelError(message)
    faster = ratio(run.wall, wall)
    measured = measured._replace(
        wall=wall,
        speedup=measured.speedup * faster,
        utilization=min(1.0, measured.utilization * faster),
    )
    return replace(scenario, run=run.without_profiler(wall), measured=measured)


def _with_kernel_times(scenario: Scenario, match: Match, measured_sms: int | None) -> Scenario:
    graph = scenario.graph
    measured_on = (scenario.measured_on or scenario.resources_of)(graph)
    gpu = measured_on.gpu
    stated = measured_sms or match.measured_sms
    sms = stated or gpu.sms
    timing = matched_durations(graph, match, measured_on.occupancy, sms)
    timing = timing.noting(*_more_resident(graph, match, measured_on))
    scenario = replace(scenario, measured_sms=sms)
    if stated is None:
        timing = timing.noting(
            f"kernel times are assumed to be of all {sms} SMs of {gpu.name} (--measured-sms)"
        )
    run = measured_run(match)
    if run is None:
        return replace(scenario, timing=timing)
    run = run._replace(sms=sms)
    alone = float(kernel_makespans(graph, timing.values, measured_on.occupancy * sms).sum())
    work = measured_on.work(graph.operation_of_block, timing.values, sms)
    measured = MeasuredSchedule(
        sms=sms,
        wall=run.wall,
        speedup=ratio(alone, run.wall),
        utilization=share_of(work, run.wall),
    )
    return replace(scenario, timing=timing, run=run, measured=measured)


def _more_resident(graph: BlockGraph, match: Match, on: SmResources) -> tuple[str, ...]:
    """Say of which kernels an SM was seen to hold more blocks than it should."""
    assumed = dict(zip(graph.kernel.tolist(), on.occupancy.tolist(), strict=True))
    more = {k: n for k, n in match.resident.items() if n > assumed[k]}
    if not more:
        return ()
    first = min(more)
    note = (
        f"SMs were seen to hold more blocks at a time than the limits of {on.gpu.name} say, of "
        f"{kernels_text(sorted(more))}: {more[first]} and not {assumed[first]} of kernel {first}"
    )
    return (note,)


def _with_launches(scenario: Scenario, choice: LaunchChoice) -> Scenario:
    run = scenario.run
    launch = launch_model(
        choice, unit=scenario.unit, gpu=scenario.resources.gpu, clock_mhz=scenario.clock_mhz,
        run=run,
    )  # fmt: skip
    if run is not None:
        others = (
            f", including {counted(run.others, 'kernel')} that the trace lacks"
            if run.others
            else ""
        )
        is_known = choice.times or run.is_stated
        used = " is not used" if is_known else " is left out (--launch measured)"
        what = "from the first start to the last end"
        if run.is_stated:
            what = "without a profiler, as stated (--wall)"
        scenario = scenario.noting(
            f"measured: {run.wall:.4g} {run.unit} {what}{others}; "
            f"the median gap between kernels of {run.gap:.4g} {run.unit}"
            f"{' is part of the launch costs' if choice.base == MEASURED else used}"
        )
    return scenario.with_launch(launch)


def touched_bytes(footprints: Footprints, graph: BlockGraph) -> int:
    """Count the distinct bytes that kernels read or write."""
    # Those that the L2 cache cannot hold cross the memory bus once at least. It may hold others as
    # the program begins or ends, as much as its size: these need not cross.
    operation = graph.operation_of_block[footprints.block]
    of_kernel = graph.kernel[operation] >= 0
    if graph.space is None:
        return _distinct_bytes(footprints.start[of_kernel], footprints.end[of_kernel])
    spaces = [of_kernel & (graph.space[operation] == number) for number in np.unique(graph.space)]
    return sum(_distinct_bytes(footprints.start[s], footprints.end[s]) for s in spaces)


def _distinct_bytes(start: NDArray[np.uint64], end: NDArray[np.uint64]) -> int:
    if not len(start):
        return 0
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.maximum(start[1:], end[:-1])
    return int(end[0] - start[0]) + int((end[1:] - fresh).sum())


def memory_time(n_bytes: int, gb_per_s: float, unit: str, clock_mhz: float | None) -> float | None:
    """Return bytes over 10**9 bytes a second, in a unit of durations; None if it is not a time."""
    microseconds = n_bytes / (gb_per_s * 1e3)
    if unit == "us":
        return microseconds
    if unit == "cycles" and clock_mhz:
        return microseconds * clock_mhz
    return None
