"""What a profile answers without a trace: is the GPU idle, why, and what would launches less cost.

Nothing here knows which kernel depends on which: kernels that ran one after another are taken to
have to, and what they could gain side by side is only said from above.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.activity import TIMELINE, Activity, activity_of
from depgraph.analysis.next_steps import LAUNCH_BOUND, PROFILER_SLOWS
from depgraph.analysis.step_times import (
    US,
    Spent,
    Window,
    of_one_gpu,
    spent_in,
    utilization_of,
    windows_of,
    without_profiler,
)
from depgraph.errors import ModelError, ProfileError
from depgraph.gpu.model import DEFAULT_GPU, Gpu, load_gpu
from depgraph.scenario.contention import trust_in
from depgraph.system.text import counted
from depgraph.system.time_units import ratio
from depgraph.timing.launch_model import OF_GPU, LaunchChoice, launch_model
from depgraph.timing.profile import UNKNOWN, KernelProfile

_AMD_GPU, _AMD_NAMES = "MI300X", ("AMD ", "Radeon", "gfx")


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
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(profile.name):
        rows[name].append(row)
    total = float(profile.duration.sum())
    functions = []
    for name, own in rows.items():
        time = float(profile.duration[own].sum())
        busy = float((profile.duration[own] * used[own]).sum())
        share = None if np.isnan(busy) else ratio(busy, time)
        functions.append(FunctionTime(name, len(own), time / US, ratio(time, total), share))
    return tuple(sorted(functions, key=lambda each: -each.time))
