"""What a schedule is for: the graph, its durations, the GPU, and where each of them comes from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from depgraph.bounds import (
    MeasuredSchedule,
    default_gpu,
    fixed_occupancies,
    occupancies,
    work_per_sm,
)
from depgraph.errors import ModelError
from depgraph.fit import fit_profile
from depgraph.gpu import load_gpu
from depgraph.profile import BlockProfile
from depgraph.stated import default_durations
from depgraph.timing import (
    kernel_makespans,
    matched_durations,
    measured_block_durations,
)
from depgraph.traffic import memory_time, touched_bytes
from depgraph.what_if import Program, apply_what_ifs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.bounds import Occupancies
    from depgraph.extraction import Kernel
    from depgraph.fit import Fit
    from depgraph.footprint import Footprints
    from depgraph.gpu import Gpu
    from depgraph.graph import BlockGraph
    from depgraph.match import Match, MeasuredRun
    from depgraph.profile import KernelProfile
    from depgraph.timing import Durations
    from depgraph.what_if import Statement

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Where:
    """Which kernels of a profile count; None for all.

    Attributes
    ----------
    device, process, context, stream : int or None
    iteration : str
        As for `match_profile`.
    """

    device: int | None = None
    process: int | None = None
    context: int | None = None
    stream: int | None = None
    iteration: str = "mean"


@dataclass(frozen=True, slots=True)
class Model:
    """The program, its times and the GPU that a schedule is for.

    Attributes
    ----------
    graph : BlockGraph
        With the resources that a profile knows and the trace does not.
    kernels : sequence of Kernel
    durations : Durations
    occupancy : Occupancies
    launch_gap : float
        In the unit of the durations.
    match : Match or None
        How the profile fits the trace.
    run : MeasuredRun or None
        How the program ran when it was profiled.
    measured : MeasuredSchedule or None
        The same as a schedule beside others.
    memory : float
        Bytes over memory bandwidth, in the unit of the durations; 0 where it does not count.
    fit : Fit or None
        Whether the profile is of this program.
    """

    graph: BlockGraph
    kernels: Sequence[Kernel]
    durations: Durations
    occupancy: Occupancies
    launch_gap: float = 0.0
    match: Match | None = None
    run: MeasuredRun | None = None
    measured: MeasuredSchedule | None = None
    memory: float = 0.0
    fit: Fit | None = None


def build_model(
    graph: BlockGraph,
    kernels: Sequence[Kernel],
    *,
    profile: KernelProfile | BlockProfile | None = None,
    where: Where | None = None,
    allow_mismatch: bool = False,
    measured_sms: int | None = None,
    gpu: Gpu | None = None,
    fixed_occupancy: int | None = None,
    launch_gap: float | Literal["measured"] = 0.0,
    what_ifs: Sequence[Statement] = (),
    memory_gb_per_s: float | Literal["gpu"] | None = None,
    footprints: Callable[[], Footprints] | None = None,
) -> Model:
    """Work out durations and occupancies.

    Parameters
    ----------
    graph : BlockGraph
    kernels : sequence of Kernel
    profile : KernelProfile or BlockProfile, optional
        Measured times; default the instructions that the trace shows.
    where : Where, optional
        Which kernels of the profile count.
    allow_mismatch : bool
        Take what fits of a profile that seems to be of another program, instead of refusing it.
    measured_sms : int, optional
        SMs of the GPU that kernels were measured on; default what the profile says, else those of
        its GPU's model.
    gpu : Gpu, optional
        Whose occupancy limits apply; default the GPU that the profile names, else the one that
        the trace's architecture suggests.
    fixed_occupancy : int, optional
        Resident blocks per SM of every kernel, instead of the GPU's limits.
    launch_gap : float or "measured"
        Time lost before each kernel when run serially, in the unit of the durations; "measured"
        takes the median of the profile.
    what_ifs : sequence of Statement
        What to change of the program, as `parse_what_if` returns it.
    memory_gb_per_s : float or "gpu", optional
        Memory bandwidth, 10**9 bytes a second, or that of the GPU: no schedule is then shorter
        than the bytes that the program touches take.
    footprints : callable, optional
        Returns the footprints of all blocks, at the graph's granularity; needed for what-ifs about
        buffers and for the memory bandwidth.

    Raises
    ------
    ModelError, ProfileError
        If the profile does not fit, or a GPU is not known.
    """
    where = where or Where()
    fit = None if profile is None else fit_profile(profile, kernels, **asdict(where))
    if fit is not None:
        fit.check(allow_mismatch=allow_mismatch)
    match = None if fit is None else fit.match
    filled: tuple[str, ...] = ()
    if match is not None and graph.resources is not None:
        resources, filled = match.fill_resources(graph.resources)
        graph = replace(graph, resources=resources)
    measured_gpu, reason = _measured_gpu(graph, match)
    occupancy = _resident(graph, gpu or measured_gpu, fixed_occupancy)
    notes = filled if gpu else (reason, *filled)
    occupancy = replace(occupancy, assumptions=(*notes, *occupancy.assumptions))
    found = Model(graph, kernels, default_durations(graph), occupancy, 0.0, match, fit=fit)
    if fit is not None and isinstance(profile, BlockProfile):
        found = replace(found, durations=_block_durations(graph, profile, fit))
    elif match is not None:
        found = _with_kernel_times(
            found, match, _resident(graph, measured_gpu, fixed_occupancy), measured_sms
        )
    found = _with_launch_gap(found, launch_gap)
    if memory_gb_per_s is not None:
        found = _with_memory(found, memory_gb_per_s, profile, footprints or _no_footprints)
    if what_ifs:
        found = _with_what_ifs(found, what_ifs, footprints, fixed_occupancy)
    return found


def _no_footprints() -> Footprints:
    message = "this needs the footprints of the blocks: pass footprints=store.footprints"
    raise ModelError(message)


def _with_memory(
    model: Model,
    gb_per_s: float | Literal["gpu"],
    profile: KernelProfile | BlockProfile | None,
    footprints: Callable[[], Footprints],
) -> Model:
    gpu = model.occupancy.gpu
    whose = "as given"
    if gb_per_s == "gpu":
        if gpu.memory_gb_per_s is None:
            message = f"the model of {gpu.name} states no memory bandwidth: give it in GB/s"
            raise ModelError(message)
        gb_per_s, whose = gpu.memory_gb_per_s, f"of {gpu.name}, whatever the number of SMs"
    unit = model.durations.unit
    n_bytes = touched_bytes(footprints(), model.graph)
    clock = None if profile is None else profile.clock_mhz
    time = memory_time(n_bytes, gb_per_s, unit, clock)
    if time is None:
        note = (
            f"the memory bandwidth is left out: durations are {unit}, not times"
            if unit != "cycles"
            else "the memory bandwidth is left out: the profile states no clock for its cycles"
        )
        return replace(model, durations=model.durations.noting(note))
    note = (
        f"memory bandwidth counts: the {n_bytes} distinct bytes that kernels touch take "
        f"{time:.4g} {unit} at {gb_per_s:g} GB/s ({whose})"
    )
    return replace(model, memory=time, durations=model.durations.noting(note))


def _with_what_ifs(
    model: Model,
    what_ifs: Sequence[Statement],
    footprints: Callable[[], Footprints] | None,
    fixed_occupancy: int | None,
) -> Model:
    before = Program(model.graph, model.kernels, model.durations.values, model.launch_gap)
    after = apply_what_ifs(before, what_ifs, footprints or _no_footprints)
    occupancy = _resident(after.graph, model.occupancy.gpu, fixed_occupancy)
    stated = set(_resident(model.graph, model.occupancy.gpu, fixed_occupancy).assumptions)
    kept = tuple(note for note in model.occupancy.assumptions if note not in stated)
    durations = replace(model.durations, values=after.durations)
    return replace(
        model,
        graph=after.graph,
        kernels=after.kernels,
        durations=replace(durations, assumptions=(*after.notes, *durations.assumptions)),
        occupancy=replace(occupancy, assumptions=(*kept, *occupancy.assumptions)),
        launch_gap=after.launch_gap,
        measured=None,
    )


def _resident(graph: BlockGraph, gpu: Gpu, fixed: int | None) -> Occupancies:
    return occupancies(graph, gpu) if fixed is None else fixed_occupancies(graph, fixed, gpu)


def _measured_gpu(graph: BlockGraph, match: Match | None) -> tuple[Gpu, str]:
    """Return the GPU that was profiled, else the one that the trace suggests, and why."""
    name = None if match is None else match.device_name
    if name is None:
        return default_gpu(graph)
    try:
        gpu = load_gpu(name)
    except ModelError:
        gpu, reason = default_gpu(graph)
        return gpu, f"the profile is of {name}, of which there is no model: {reason}"
    return gpu, f"the profile is of {name}: the limits of {gpu.name} are used (--gpu)"


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


def _with_kernel_times(
    model: Model, match: Match, measured_on: Occupancies, measured_sms: int | None
) -> Model:
    graph, gpu = model.graph, measured_on.gpu
    stated = measured_sms or match.measured_sms
    sms = stated or gpu.sms
    durations = matched_durations(graph, match, measured_on.values, sms)
    if stated is None:
        durations = durations.noting(
            f"kernel times are taken to be measured on the {sms} SMs of {gpu.name} (--measured-sms)"
        )
    run = match.measured_run()
    if run is None:
        return replace(model, durations=durations)
    run = replace(run, sms=sms)
    alone = float(kernel_makespans(graph, durations.values, measured_on.values * sms).sum())
    work = work_per_sm(graph, durations.values, measured_on.values) / sms
    wall = run.wall
    measured = MeasuredSchedule(
        sms=sms,
        wall=wall,
        gain=alone / wall if wall > 0 else 1.0,
        utilization=min(1.0, work / wall) if wall > 0 else 0.0,
    )
    return replace(model, durations=durations, run=run, measured=measured)


def _with_launch_gap(model: Model, launch_gap: float | str) -> Model:
    run = model.run
    if launch_gap == MEASURED:
        if run is None:
            message = "a measured launch gap needs a profile that says when kernels started"
            raise ModelError(message)
        note = f"the launch gap is {run.gap:.4g} {run.unit}, the median of the profile"
        return replace(model, launch_gap=run.gap, durations=model.durations.noting(note))
    if run is None:
        return replace(model, launch_gap=float(launch_gap))
    others = f", {run.others} kernels that the trace lacks among them" if run.others else ""
    note = (
        f"measured: {run.wall:.4g} {run.unit} from the first start to the last end{others}; the "
        f"median gap between kernels of {run.gap:.4g} {run.unit} is "
    )
    note += (
        f"not used, but {launch_gap:g} {run.unit}"
        if launch_gap
        else "left out (--launch-gap measured)"
    )
    return replace(model, launch_gap=float(launch_gap), durations=model.durations.noting(note))
