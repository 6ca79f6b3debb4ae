"""What a profile answers without a trace: is the GPU idle, why, and what would launches less cost.

Nothing here knows which kernel depends on which: kernels that ran one after another are taken to
have to, and what they could gain side by side is only said from above.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.activity import (
    COMMUNICATE,
    COMPUTE,
    COPY,
    TIMELINE,
    Activity,
    activity_of,
    starts_of,
)
from depgraph.analysis.next_steps import LAUNCH_BOUND, PROFILER_SLOWS
from depgraph.errors import ModelError, ProfileError
from depgraph.gpu.model import DEFAULT_GPU, Gpu, load_gpu
from depgraph.gpu.sm_resources import occupancy
from depgraph.scenario.contention import trust_in
from depgraph.system.arrays import grouped
from depgraph.system.text import counted, ratio
from depgraph.timing.profile import UNKNOWN, KernelProfile
from depgraph.timing.program_times import OF_GPU, LaunchChoice, LaunchModel, launch_model

_MOST_THREADS = 1024
US = 1000.0  # ns
_LATENCY = 5000.0  # ns: what was launched later than that may not have reached the GPU
_AMD_GPU, _AMD_NAMES = "MI300X", ("AMD ", "Radeon", "gfx")


class Window(NamedTuple):
    """The part of a timeline that is one step; times as in `Activity`."""

    rows: NDArray[np.intp]  # that ran in it, some of which began before
    begin: float
    end: float


def of_one_gpu(profile: KernelProfile, notes: list[str]) -> KernelProfile:
    """Return the part of that process and device whose kernels took longest; note the choice."""
    starts_of(profile)
    if not len(profile):
        raise ProfileError(profile.source, "has no kernels", TIMELINE)
    parts = [
        (f"process {process}, device {device}", part)
        for process in profile.processes or (None,)
        for device in profile.devices or (None,)
        if (part := _part(profile, process, device)) is not None
    ]
    longest = max(range(len(parts)), key=lambda at: float(parts[at][1].duration.sum()))
    if len(parts) > 1:
        notes.append(
            f"of {counted(len(parts), 'process', 'processes')} or devices {parts[longest][0]} "
            "counts, whose kernels took longest (--process, --device)"
        )
    return parts[longest][1]


def _part(profile: KernelProfile, process: int | None, device: int | None) -> KernelProfile | None:
    try:
        return profile.only(process=process, device=device)
    except ProfileError:
        return None  # this process has nothing on this device


def utilization_of(
    profile: KernelProfile, gpu: Gpu, sms: int, notes: list[str]
) -> NDArray[np.float64]:
    """Return the share of the SMs that each kernel's blocks hold on average, 0 to 1, else NaN."""
    if profile.grid is None or profile.block is None:
        return np.full(len(profile), np.nan)
    blocks = profile.grid.astype(np.int64).prod(axis=1)
    threads = profile.block.astype(np.int64).prod(axis=1)
    none = np.full(len(profile), UNKNOWN)
    registers = none if profile.registers is None else profile.registers
    shared = none if profile.block_shared_bytes is None else profile.block_shared_bytes
    usable = (profile.grid > 0).all(axis=1) & (threads > 0) & (threads <= _MOST_THREADS)
    launches = np.stack([threads, registers, shared], axis=1)
    kinds, of_kind = np.unique(launches, axis=0, return_inverse=True)
    held = np.ones(len(kinds), np.int64)
    for at, (n_threads, n_registers, n_bytes) in enumerate(kinds.tolist()):
        if 0 < n_threads <= _MOST_THREADS:
            held[at] = occupancy(
                gpu,
                threads=n_threads,
                registers=n_registers if n_registers > 0 else None,
                shared_bytes=n_bytes if n_bytes >= 0 else None,
            ).blocks_per_sm
    slots = held[of_kind.reshape(-1)] * sms
    if profile.registers is None:
        notes.append("registers are not in the profile: they limit no SM")
    return np.where(usable, blocks / (-(-blocks // slots) * slots), np.nan)


def windows_of(activity: Activity) -> list[Window]:
    """Return the steps that were measured: each ends where the next one's work begins."""
    firsts = []
    for step in range(len(activity.steps)):
        rows = np.flatnonzero(activity.step == step)
        if len(rows):
            firsts.append((float(activity.start[rows].min()), float(activity.end[rows].max())))
    firsts = firsts or [(float(activity.start[0]), float(activity.end.max()))]
    begins = sorted(first for first, _ in firsts)
    ends = [*begins[1:], max(last for _, last in firsts)]
    windows = [
        Window(np.flatnonzero((activity.start < end) & (activity.end > begin)), begin, end)
        for begin, end in zip(begins, ends, strict=True)
        if end > begin
    ]
    return [window for window in windows if len(window.rows)]


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time of a step goes, in microseconds: the first seven add up to `wall`."""

    computing: float = 0.0  # some kernel computes, whatever else runs
    communicating: float = 0.0  # collectives or peer copies run and nothing computes
    copying: float = 0.0  # only copies within the GPU or to the host, or memsets, run
    # Nothing runs:
    host: float = 0.0  # the host has not launched what comes next
    launching: float = 0.0  # what comes next was launched, and the GPU has not started it
    waiting: float = 0.0  # what comes next was launched in time and waits for another stream
    unexplained: float = 0.0  # and the profile has no launch calls
    wall: float = 0.0
    kernels: float = 0.0  # durations of all kernels, added up
    side_by_side: float = 0.0  # in which several kernels run
    as_graph: float = 0.0  # predicted as one CUDA graph, what ran one after another still doing so
    # What the SMs need for the kernels, if all could run at once; 0 where grids are unknown.
    work: float = 0.0
    longest: float = 0.0  # of the longest kernel
    launches: float = 0.0  # number of kernels

    @property
    def idle(self) -> float:
        """Time in which nothing runs."""
        return self.host + self.launching + self.waiting + self.unexplained

    @property
    def independent(self) -> float | None:
        """Time below which nothing could come, even if no kernel waited for another."""
        if self.work == 0 and self.computing > 0:
            return None
        return min(max(self.work, self.longest), self.computing + self.communicating)


def spent_in(
    activity: Activity, utilization: NDArray[np.float64], window: Window, model: LaunchModel
) -> Spent:
    """Say where the time of a step goes; `utilization` as `utilization_of` returns it."""
    rows, begin, end = window
    start = np.maximum(activity.start[rows], begin)
    stop = np.minimum(activity.end[rows], end)
    kind = activity.kind[rows]
    own = rows[activity.start[rows] >= begin]  # others began in the step before
    times = np.concatenate([start, stop, [begin, end]])
    order = np.argsort(times, kind="stable")
    length = np.diff(times[order])
    is_kernel = activity.row[rows] >= 0
    running = []
    for each in (kind == COMPUTE, kind == COMMUNICATE, kind == COPY, is_kernel):
        change = np.concatenate([each * 1, each * -1, [0, 0]])
        running.append(np.cumsum(change[order])[:-1])
    computes, communicates, copies, kernels = (count > 0 for count in running)
    is_idle = ~(computes | communicates | copies) & (length > 0)
    at = order[:-1]
    idle = _idle(activity, times[at][is_idle], length[is_idle])
    duration = stop - start
    computing = kind == COMPUTE
    used = utilization[activity.row[rows]]  # of kernels: others do not count
    known = computing & ~np.isnan(used)
    work = float((duration * np.where(known, used, 1.0))[computing].sum()) if known.any() else 0.0
    busy = float(length[kernels].sum())
    return Spent(
        computing=float(length[computes].sum()) / US,
        communicating=float(length[communicates & ~computes].sum()) / US,
        copying=float(length[copies & ~communicates & ~computes].sum()) / US,
        host=idle["host"] / US,
        launching=idle["launching"] / US,
        waiting=idle["waiting"] / US,
        unexplained=idle["unexplained"] / US,
        wall=(end - begin) / US,
        kernels=float(duration[is_kernel].sum()) / US,
        side_by_side=float(length[running[3] > 1].sum()) / US,
        # Kernels that ran in part at once cannot all begin together if they fill the SMs.
        as_graph=max(_as_graph(activity, own, model), min(work, busy) / US),
        work=work / US,
        longest=float(duration[is_kernel].max(initial=0.0)) / US,
        launches=float(activity.is_kernel[own].sum()),
    )


def _idle(
    activity: Activity, begins: NDArray[np.float64], lengths: NDArray[np.float64]
) -> dict[str, float]:
    """Return the time of gaps by what ends them: a late launch, a slow one, another stream."""
    by_end = np.argsort(activity.end, kind="stable")
    ends = activity.end[by_end]
    time_by_cause: dict[str, float] = defaultdict(float)
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        following = int(np.searchsorted(activity.start, begin, side="right"))
        if following == len(activity.start):
            time_by_cause["unexplained"] += length
            continue
        issued = activity.issued[following]
        before = int(np.searchsorted(ends, begin, side="right")) - 1
        same = before >= 0 and activity.stream[by_end[before]] == activity.stream[following]
        if np.isnan(issued):
            time_by_cause["unexplained"] += length
        elif issued > begin:
            late = min(float(issued) - begin, length)
            time_by_cause["host"] += late
            time_by_cause["launching"] += length - late
        else:
            was_free = before >= 0 and not same and begin - float(issued) > _LATENCY
            time_by_cause["waiting" if was_free else "launching"] += length
    return time_by_cause


def _as_graph(activity: Activity, rows: NDArray[np.intp], model: LaunchModel) -> float:
    """Return the time as a CUDA graph, in microseconds."""
    # What had ended before a kernel began is taken to have to: on one stream this is the chain, and
    # costs what `depgraph.mechanisms.base.serial` says of one.
    start, end = activity.start[rows], activity.end[rows]
    is_kernel, stream = activity.is_kernel[rows], activity.stream[rows]
    by_end = np.argsort(end, kind="stable")
    new_end = np.zeros(len(rows))
    last_in: dict[int, int] = {}
    before, reached, nodes = 0, 0.0, 0
    for row in range(len(rows)):
        while before < len(rows) and end[by_end[before]] <= start[row] and by_end[before] < row:
            reached = max(reached, float(new_end[by_end[before]]))
            before += 1
        begin = reached
        last = last_in.get(int(stream[row])) if stream[row] != UNKNOWN else None
        if last is not None:
            # In a stream kernels keep their order, and overlap no more than they did.
            overlap = max(0.0, float(end[last] - start[row])) / US
            begin = max(begin, float(new_end[last]) - overlap)
        last_in[int(stream[row])] = row
        if is_kernel[row]:
            nodes += 1
            issued = model.graph.value + nodes * model.node.value
            path = 0.0 if nodes == 1 else model.path.value
            begin = max(begin, issued) + min(path, model.path_share * (end[row] - start[row]) / US)
        new_end[row] = begin + (end[row] - start[row]) / US
    return float(new_end.max(initial=0.0))


def without_profiler(spent: Spent, wall: float) -> Spent:
    """Return the same for a step that takes `wall`: what differs is how long the host takes."""
    busy = spent.wall - spent.idle
    if wall < busy:
        raise ModelError(
            f"--wall {wall:g} us: kernels and copies of a step alone take {busy:.4g} us; give the "
            "time of one step, on the GPU that was profiled"
        )
    others = spent.wall - spent.host
    if wall >= others:
        return replace(spent, wall=wall, host=wall - others)
    left = (wall - busy) / (others - busy)
    return replace(
        spent, wall=wall, host=0.0, launching=spent.launching * left,
        waiting=spent.waiting * left, unexplained=spent.unexplained * left,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """All launches of one function in the profile."""

    name: str
    launches: int
    time: float  # microseconds, added up over all steps
    share: float
    utilization: float | None  # share of the SMs that its blocks hold while it runs alone, 0 to 1


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """What a profile alone says of a program."""

    spent: Spent  # of the step that is typical
    step: str  # what the program calls it; empty where no steps are marked
    steps: int  # that were measured
    streams: int  # that kernels ran in
    is_graph: bool  # whether most kernels were launched as CUDA graphs
    stated_wall: bool  # whether the user said how long a step takes without a profiler
    gpu: str  # whose launch costs and limits are used
    vendor: str  # of that GPU
    graph: str  # what its vendor calls launches that are submitted as one
    sms: int
    functions: tuple[FunctionTime, ...]  # those that take longest first
    # What was assumed: what changes the answer, and all of it.
    vital: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def now(self) -> float:
        """Time of a step, in microseconds."""
        return self.spent.wall

    @property
    def launch_bound(self) -> bool | None:
        """Whether the GPU waits for launches more than a quarter of the time; None if not known."""
        spent = self.spent
        least = LAUNCH_BOUND * spent.wall
        if spent.host + spent.launching > least:
            return not self.is_graph
        return None if spent.unexplained > least else False


def profiled_step(
    profile: KernelProfile,
    *,
    gpu: Gpu | None = None,
    sms: int | None = None,
    launch: LaunchChoice | None = None,
    iteration: str = "median",
    wall: float | None = None,
) -> ProfiledStep:
    """Say what a profile answers without a trace; `wall` is in us, the GPU else the profile's."""
    notes: list[str] = []
    profile = of_one_gpu(profile, notes)
    gpu = _gpu(profile, gpu, notes)
    vital = list(notes)
    stated = profile.measured_sms
    sms = sms or (int(stated.max()) if stated is not None and stated.max() > 0 else gpu.sms)
    model = launch_model(launch or LaunchChoice(OF_GPU, {}), unit="us", gpu=gpu)
    used = utilization_of(profile, gpu, sms, notes)
    activity = activity_of(profile)
    windows = windows_of(activity)
    if not windows:
        raise ProfileError(profile.source, "has no kernel that takes any time", TIMELINE)
    spent = [spent_in(activity, used, window, model) for window in windows]
    chosen, name = _picked(profile, activity, windows, spent, iteration)
    if wall is not None:
        chosen = without_profiler(chosen, wall)
    elif chosen.host > LAUNCH_BOUND * chosen.wall:
        vital.append(PROFILER_SLOWS)
        notes.append(vital[-1])
    if np.isnan(activity.issued[activity.is_kernel]).all():
        notes.append("the profile has no launch calls: why the GPU idles is not known")
    notes.append(
        f"a {gpu.graph} costs {model.graph.value:g} us to launch, "
        f"{model.node.value:g} us a node and {model.path.value:g} us from node to node "
        f"({model.path.source}); what ran one after "
        "another still does in it, and takes as long as in the profile"
    )
    notes.append(trust_in(gpu, contention=False).caveat)
    return ProfiledStep(
        spent=chosen,
        step=name,
        steps=len(windows),
        streams=len(np.unique(activity.stream[activity.is_kernel])),
        is_graph=_is_graph(profile),
        stated_wall=wall is not None,
        gpu=gpu.name,
        vendor=gpu.vendor,
        graph=gpu.graph,
        sms=sms,
        functions=_functions(profile, used),
        vital=tuple(vital),
        notes=(*profile.notes, *notes),
    )


def _gpu(profile: KernelProfile, given: Gpu | None, notes: list[str]) -> Gpu:
    if given is not None:
        return given
    device = profile.devices[0] if profile.devices else 0
    name = profile.device_names.get(device)
    otherwise = _AMD_GPU if (name or "").startswith(_AMD_NAMES) else DEFAULT_GPU
    if name is not None:
        try:
            return load_gpu(name)
        except ModelError:
            notes.append(f"there is no model of {name}: launch costs are those of {otherwise}")
    else:
        notes.append(f"the profile names no GPU: launch costs are those of {otherwise} (--gpu)")
    return load_gpu(otherwise)


def _picked(
    profile: KernelProfile,
    activity: Activity,
    windows: Sequence[Window],
    spent: Sequence[Spent],
    iteration: str,
) -> tuple[Spent, str]:
    """Return what is taken of several steps, and what that step is called."""
    names = [
        activity.steps[step] if (step := int(activity.step[window.rows[0]])) >= 0 else ""
        for window in windows
    ]
    if not profile.steps:
        names = [""] * len(names)
    by_time = sorted(range(len(spent)), key=lambda at: spent[at].wall)
    # The last step ends with its last kernel, not where a next one begins: seldom the typical one.
    whole = [at for at in by_time if at < len(spent) - 1] or by_time
    if iteration == "mean":
        values = {f.name: float(np.mean([getattr(spent[at], f.name) for at in whole]))
                  for f in fields(Spent)}  # fmt: skip
        return Spent(**values), f"mean of {len(whole)}" if len(whole) > 1 else names[whole[0]]
    chosen = {"median": whole[(len(whole) - 1) // 2], "min": whole[0], "last": len(spent) - 1}
    at = chosen[iteration] if iteration in chosen else int(iteration)
    if at >= len(spent):
        there = f"{counted(len(spent), 'step')}, numbered from 0"
        raise ProfileError(profile.source, f"has no step {at}", f"has {there}")
    return spent[at], names[at]


def _is_graph(profile: KernelProfile) -> bool:
    """Tell whether most kernels share their launch with others: nodes of a CUDA graph."""
    if profile.correlation is None:
        return False
    known = profile.correlation[profile.correlation != UNKNOWN]
    _, counts = np.unique(known, return_counts=True)
    return bool(counts[counts > 1].sum() * 2 > len(profile))


def _functions(profile: KernelProfile, used: NDArray[np.float64]) -> tuple[FunctionTime, ...]:
    total = float(profile.duration.sum())
    functions = []
    for name, own in grouped(range(len(profile)), profile.name.__getitem__).items():
        time = float(profile.duration[own].sum())
        busy = float((profile.duration[own] * used[own]).sum())
        share = None if np.isnan(busy) else ratio(busy, time)
        functions.append(FunctionTime(name, len(own), time / US, ratio(time, total), share))
    return tuple(sorted(functions, key=lambda each: -each.time))
