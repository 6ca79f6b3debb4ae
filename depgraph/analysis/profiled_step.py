"""What a profile answers without a trace: is the GPU idle, why, and what would launches less cost.

Nothing here knows which kernel depends on which: kernels that ran one after another are taken to
have to, and what they could gain side by side is only said from above.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.analysis.communication_overlap import kernels_that_communicate, step_of_launches
from depgraph.errors import ModelError, ProfileError
from depgraph.gpu.model import load_gpu
from depgraph.gpu.occupancy import occupancy
from depgraph.gpu.sm_resources import DEFAULT_GPU
from depgraph.scenario.trust import trust_in
from depgraph.system.ratios import ratio
from depgraph.system.text import counted
from depgraph.timing.launch_model import OF_GPU, LaunchChoice, launch_model
from depgraph.timing.profile import UNKNOWN

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.gpu.model import Gpu
    from depgraph.timing.launch_model import LaunchModel
    from depgraph.timing.profile import KernelProfile

LAUNCH_BOUND = 0.25
"""Share of the time that the GPU waits for the host or for launches, from which a program is called
launch-bound."""
_COMPUTE, _TALK, _COPY = range(3)
_US = 1000.0  # ns
_LATENCY = 5000.0  # ns: what was launched later than that may not have reached the GPU
_MOST_THREADS = 1024
_TIMELINE = "give a timeline: a torch.profiler trace, or an Nsight Systems export"


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time of a step goes, in microseconds: the first seven add up to `wall`.

    Attributes
    ----------
    computing : float
        Some kernel computes, whatever else runs.
    communicating : float
        Collectives or peer copies run and nothing computes.
    copying : float
        Only copies within the GPU or to the host, or memsets, run.
    host : float
        Nothing runs: the host has not launched what comes next.
    launching : float
        Nothing runs: what comes next was launched, and the GPU has not started it.
    waiting : float
        Nothing runs: what comes next was launched in time and waits for another stream.
    unexplained : float
        Nothing runs, and the profile has no launch calls.
    wall : float
    kernels : float
        Durations of all kernels, added up.
    side_by_side : float
        Time in which several kernels run.
    as_graph : float
        Predicted time as one CUDA graph, what ran one after another still doing so.
    work : float
        Time that the SMs need for the kernels, if all could run at once; 0 where grids are unknown.
    longest : float
        Of the longest kernel.
    launches : float
        Kernels.
    """

    computing: float = 0.0
    communicating: float = 0.0
    copying: float = 0.0
    host: float = 0.0
    launching: float = 0.0
    waiting: float = 0.0
    unexplained: float = 0.0
    wall: float = 0.0
    kernels: float = 0.0
    side_by_side: float = 0.0
    as_graph: float = 0.0
    work: float = 0.0
    longest: float = 0.0
    launches: float = 0.0

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


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """All launches of one function in the profile.

    Attributes
    ----------
    time : float
        Microseconds, added up over all steps.
    utilization : float or None
        Share of the SMs that its blocks hold while it runs alone, 0 to 1.
    """

    name: str
    launches: int
    time: float
    share: float
    utilization: float | None


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """What a profile alone says of a program.

    Attributes
    ----------
    spent : Spent
        Of the step that is typical.
    step : str
        What the program calls it; empty where no steps are marked.
    steps : int
        Steps that were measured.
    streams : int
        That kernels ran in.
    is_graph : bool
        Whether most kernels were launched as CUDA graphs.
    stated_wall : bool
        Whether the user said how long a step takes without a profiler.
    gpu : str
        Whose launch costs and limits are used.
    sms : int
    functions : tuple of FunctionTime
        Those that take longest first.
    vital, notes : tuple of str
        What was assumed: what changes the answer, and all of it.
    """

    spent: Spent
    step: str
    steps: int
    streams: int
    is_graph: bool
    stated_wall: bool
    gpu: str
    sms: int
    functions: tuple[FunctionTime, ...]
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


@dataclass(frozen=True, slots=True, eq=False)
class _Activity:
    """All that ran on one GPU for one process, by start: times in nanoseconds from the first."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    kind: NDArray[np.int64]
    stream: NDArray[np.int64]
    issued: NDArray[np.float64]  # NaN where the profile has no launch call
    utilization: NDArray[np.float64]  # of the SMs; NaN where it is not known
    step: NDArray[np.int64]  # -1 outside all steps
    steps: tuple[str, ...]

    @property
    def is_kernel(self) -> NDArray[np.bool_]:
        kernels: NDArray[np.bool_] = self.kind != _COPY
        return kernels


def profiled_step(
    profile: KernelProfile,
    *,
    gpu: Gpu | None = None,
    sms: int | None = None,
    launch: LaunchChoice | None = None,
    iteration: str = "median",
    wall: float | None = None,
) -> ProfiledStep:
    """Say what a profile answers without a trace.

    Parameters
    ----------
    profile : KernelProfile
        With the times at which kernels started, on a real GPU.
    gpu : Gpu, optional
        Whose launch costs and limits count; default the one that the profile names, else an H100.
    sms : int, optional
        Of the GPU that was measured; default the profile's, else those of the model.
    launch : LaunchChoice, optional
        What launches cost; default what the GPU's model says.
    iteration : str
        Of several steps the "median", "mean", "min", "last", or a number from 0.
    wall : float, optional
        How long a step takes without a profiler, in microseconds.

    Raises
    ------
    ProfileError
        If the profile has no times of starts, is of a simulator, or lacks that step.
    ModelError
        If `wall` is shorter than what the GPU was busy.
    """
    notes: list[str] = []
    profile = _one_gpu(profile, notes)
    gpu = _gpu(profile, gpu, notes)
    vital = list(notes)
    stated = profile.measured_sms
    sms = sms or (int(stated.max()) if stated is not None and stated.max() > 0 else gpu.sms)
    model = launch_model(launch or LaunchChoice(OF_GPU, {}), unit="us", gpu=gpu)
    activity = _activity(profile, gpu, sms, notes)
    windows = _windows(activity)
    if not windows:
        raise ProfileError(profile.source, "has no kernel that takes any time", _TIMELINE)
    spent = [_spent(activity, rows, begin, end, model) for rows, begin, end in windows]
    chosen, name = _picked(profile, activity, windows, spent, iteration)
    if wall is not None:
        chosen = _without_profiler(chosen, wall)
    elif chosen.host > LAUNCH_BOUND * chosen.wall:
        vital.append("a profiler slows the host: --wall TIME, such as 2.3ms, gives the real time")
        notes.append(vital[-1])
    if np.isnan(activity.issued[activity.is_kernel]).all():
        notes.append("the profile has no launch calls: why the GPU idles is not known")
    notes.append(
        f"a CUDA graph costs {model.graph.value:g} us to launch, {model.node.value:g} us a node "
        f"and {model.path.value:g} us from node to node ({model.path.source}); what ran one after "
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
        sms=sms,
        functions=_functions(profile, gpu, sms),
        vital=tuple(vital),
        notes=(*profile.notes, *notes),
    )


def _one_gpu(profile: KernelProfile, notes: list[str]) -> KernelProfile:
    """Return the part of one process on one device: that whose kernels took longest."""
    if profile.start is None:
        raise ProfileError(profile.source, "does not say when its kernels ran", _TIMELINE)
    if profile.unit != "ns":
        raise ProfileError(profile.source, "is of a simulator", "give measured times")
    if not len(profile):
        raise ProfileError(profile.source, "has no kernels", _TIMELINE)
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


def _gpu(profile: KernelProfile, given: Gpu | None, notes: list[str]) -> Gpu:
    if given is not None:
        return given
    device = profile.devices[0] if profile.devices else 0
    name = profile.device_names.get(device)
    if name is not None:
        try:
            return load_gpu(name)
        except ModelError:
            notes.append(f"there is no model of {name}: launch costs are those of {DEFAULT_GPU}")
    else:
        notes.append(f"the profile names no GPU: launch costs are those of {DEFAULT_GPU} (--gpu)")
    return load_gpu(DEFAULT_GPU)


def _activity(profile: KernelProfile, gpu: Gpu, sms: int, notes: list[str]) -> _Activity:
    """Put kernels, copies and memsets into one order."""
    pattern = kernels_that_communicate()
    parts = [_columns(profile, _COMPUTE, pattern)]
    if profile.memory is not None and profile.memory.start is not None:
        parts.append(_columns(profile.memory, _COPY, pattern))
    starts, duration, kind, stream, issued = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    # Relative to the first, so that nanoseconds since 1970 keep their last digits.
    origin = starts.min()
    start = (starts - origin).astype(np.float64)
    utilization = np.full(len(starts), np.nan)
    utilization[: len(profile)] = _utilization(profile, gpu, sms, notes)
    steps, step = step_of_launches(profile.steps, np.where(issued == UNKNOWN, starts, issued))
    return _Activity(
        start=start[order],
        end=(start + duration)[order],
        kind=kind[order],
        stream=stream[order],
        issued=np.where(issued == UNKNOWN, np.nan, issued - origin)[order],
        utilization=utilization[order],
        step=step[order],
        steps=steps,
    )


def _columns(
    profile: KernelProfile, otherwise: int, communicates: re.Pattern[str]
) -> tuple[NDArray[Any], ...]:
    """Return start, duration, kind, stream and time of the launch call of each row."""
    if profile.start is None:
        raise TypeError("profiles without starts are refused before")
    unknown = np.full(len(profile), UNKNOWN)
    return (
        profile.start,
        profile.duration,
        np.array(
            [_TALK if communicates.match(name) else otherwise for name in profile.name], np.int64
        ),
        unknown if profile.stream is None else profile.stream,
        unknown if profile.issued is None else profile.issued,
    )


def _utilization(
    profile: KernelProfile, gpu: Gpu, sms: int, notes: list[str]
) -> NDArray[np.float64]:
    """Return the share of the SMs that each kernel's blocks hold on average, 0 to 1."""
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


def _windows(activity: _Activity) -> list[tuple[NDArray[np.intp], float, float]]:
    """Return the rows, begin and end of each step: it ends where the next one's work begins."""
    firsts = []
    for step in range(len(activity.steps)):
        rows = np.flatnonzero(activity.step == step)
        if len(rows):
            firsts.append((float(activity.start[rows].min()), float(activity.end[rows].max())))
    firsts = firsts or [(float(activity.start[0]), float(activity.end.max()))]
    begins = sorted(first for first, _ in firsts)
    ends = [*begins[1:], max(last for _, last in firsts)]
    found = [
        (np.flatnonzero((activity.start < end) & (activity.end > begin)), begin, end)
        for begin, end in zip(begins, ends, strict=True)
        if end > begin
    ]
    return [window for window in found if len(window[0])]


def _spent(
    activity: _Activity, rows: NDArray[np.intp], begin: float, end: float, model: LaunchModel
) -> Spent:
    """Say where the time from `begin` to `end` goes."""
    start = np.maximum(activity.start[rows], begin)
    stop = np.minimum(activity.end[rows], end)
    kind = activity.kind[rows]
    own = rows[activity.start[rows] >= begin]  # others began in the step before
    times = np.concatenate([start, stop, [begin, end]])
    order = np.argsort(times, kind="stable")
    length = np.diff(times[order])
    running = []
    for each in (_COMPUTE, _TALK, _COPY):
        change = np.concatenate([(kind == each) * 1, (kind == each) * -1, [0, 0]])
        running.append(np.cumsum(change[order])[:-1])
    computes, talks, copies = (count > 0 for count in running)
    is_idle = ~(computes | talks | copies) & (length > 0)
    at = order[:-1]
    idle = _idle(activity, times[at][is_idle], length[is_idle])
    duration = stop - start
    is_kernel = activity.is_kernel[rows]
    computing = is_kernel & (kind == _COMPUTE)
    used = activity.utilization[rows]
    known = computing & ~np.isnan(used)
    work = float((duration * np.where(known, used, 1.0))[computing].sum()) if known.any() else 0.0
    busy = float(length[computes | talks].sum())
    return Spent(
        computing=float(length[computes].sum()) / _US,
        communicating=float(length[talks & ~computes].sum()) / _US,
        copying=float(length[copies & ~talks & ~computes].sum()) / _US,
        host=idle["host"] / _US,
        launching=idle["launching"] / _US,
        waiting=idle["waiting"] / _US,
        unexplained=idle["unexplained"] / _US,
        wall=(end - begin) / _US,
        kernels=float(duration[is_kernel].sum()) / _US,
        side_by_side=float(length[running[0] + running[1] > 1].sum()) / _US,
        # Kernels that ran in part at once cannot all begin together if they fill the SMs.
        as_graph=max(_as_graph(activity, own, model), min(work, busy) / _US),
        work=work / _US,
        longest=float(duration[is_kernel].max(initial=0.0)) / _US,
        launches=float(activity.is_kernel[own].sum()),
    )


def _idle(
    activity: _Activity, begins: NDArray[np.float64], lengths: NDArray[np.float64]
) -> dict[str, float]:
    """Return the time of gaps by what ends them: a late launch, a slow one, another stream."""
    by_end = np.argsort(activity.end, kind="stable")
    ends = activity.end[by_end]
    found: dict[str, float] = defaultdict(float)
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        following = int(np.searchsorted(activity.start, begin, side="right"))
        if following == len(activity.start):
            found["unexplained"] += length
            continue
        issued = activity.issued[following]
        before = int(np.searchsorted(ends, begin, side="right")) - 1
        same = before >= 0 and activity.stream[by_end[before]] == activity.stream[following]
        if np.isnan(issued):
            found["unexplained"] += length
        elif issued > begin:
            late = min(float(issued) - begin, length)
            found["host"] += late
            found["launching"] += length - late
        else:
            was_free = before >= 0 and not same and begin - float(issued) > _LATENCY
            found["waiting" if was_free else "launching"] += length
    return found


def _as_graph(activity: _Activity, rows: NDArray[np.intp], model: LaunchModel) -> float:
    """Return the time as a CUDA graph, in microseconds.

    What had ended before a kernel began is taken to have to: on one stream this is the chain, and
    costs what `depgraph.mechanisms.serial.serial` says of one.
    """
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
            overlap = max(0.0, float(end[last] - start[row])) / _US
            begin = max(begin, float(new_end[last]) - overlap)
        last_in[int(stream[row])] = row
        if is_kernel[row]:
            nodes += 1
            issued = model.graph.value + nodes * model.node.value
            path = 0.0 if nodes == 1 else model.path.value
            begin = max(begin, issued) + min(path, model.path_share * (end[row] - start[row]) / _US)
        new_end[row] = begin + (end[row] - start[row]) / _US
    return float(new_end.max(initial=0.0))


def _picked(
    profile: KernelProfile,
    activity: _Activity,
    windows: Sequence[tuple[NDArray[np.intp], float, float]],
    spent: Sequence[Spent],
    iteration: str,
) -> tuple[Spent, str]:
    """Return what is taken of several steps, and what that step is called."""
    names = [
        activity.steps[step] if (step := int(activity.step[rows[0]])) >= 0 else ""
        for rows, _, _ in windows
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


def _without_profiler(spent: Spent, wall: float) -> Spent:
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


def _is_graph(profile: KernelProfile) -> bool:
    """Tell whether most kernels share their launch with others: nodes of a CUDA graph."""
    if profile.correlation is None:
        return False
    known = profile.correlation[profile.correlation != UNKNOWN]
    _, counts = np.unique(known, return_counts=True)
    return bool(counts[counts > 1].sum() * 2 > len(profile))


def _functions(profile: KernelProfile, gpu: Gpu, sms: int) -> tuple[FunctionTime, ...]:
    used = _utilization(profile, gpu, sms, [])
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(profile.name):
        rows[name].append(row)
    total = float(profile.duration.sum())
    found = []
    for name, own in rows.items():
        time = float(profile.duration[own].sum())
        busy = float((profile.duration[own] * used[own]).sum())
        share = None if np.isnan(busy) else ratio(busy, time)
        found.append(FunctionTime(name, len(own), time / _US, ratio(time, total), share))
    return tuple(sorted(found, key=lambda each: -each.time))
