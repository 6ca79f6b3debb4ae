"""The times of a program: how long blocks run, as stated or counted, and what launches cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.errors import ModelError
from depgraph.gpu.model import DEFAULT_GPU, Gpu, load_gpu
from depgraph.graph.block_graph import BlockGraph
from depgraph.schedule.simulate_jit import serial_schedule
from depgraph.system.text import LONGEST_TIME, convert_time, counted, in_short, read_number

if TYPE_CHECKING:
    from depgraph.timing.measured_run import MeasuredRun

_COUNTED = (
    "a block takes as long as it has traced warp instructions: only ratios mean anything; pass "
    "--timing for times"
)
# Of each time what the model of a GPU calls it, and what people do.
_TIMES = {
    "host": ("launch_host_us", "host"),
    "gap": ("launch_gap_us", "gap of the GPU"),
    "sync": ("launch_sync_us", "synchronisation"),
    "node": ("graph_node_us", "CUDA graph a node"),
    "path": ("graph_path_us", "on a path"),
    "fork": ("graph_fork_us", "from branch to branch"),
    "wide": ("graph_wide_us", "more where more than six wait for one"),
    "root": ("graph_root_us", "a further root"),
    "second": ("graph_second_us", "the second of two roots"),
    "leaf": ("graph_leaf_us", "a further root, for each leaf"),
    "issue": ("graph_issue_us", "of the host, for each root"),
    "graph": ("graph_launch_us", "for launching it"),
    "streamed": ("stream_kernel_us", "a kernel of several streams"),
    "turn": ("stream_turn_us", "the first of a stream, for each pair of streams"),
    "event": ("stream_event_us", "an event between streams"),
}
NONE, OF_GPU, MEASURED = "none", "gpu", "measured"
_BASES = (NONE, OF_GPU, MEASURED)
_THREE = 3
_FORM = "give none, gpu, measured, or HOST,GAP,NODE"
_GIVEN = "as given"


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """What kernels that were not measured are taken to take."""

    # By kernel, alone on the GPU that was measured; where blocks were, the mean of the kernel's.
    times: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # which kernels, and how their times were estimated


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


def median(values: ArrayLike) -> Any:
    """Return the medians of columns, or of numbers, but for NaN; NumPy's imports masked arrays."""
    ordered = np.sort(values, axis=0)  # NaN comes last
    known = np.count_nonzero(~np.isnan(ordered), axis=0, keepdims=True)
    middle = [np.take_along_axis(ordered, place // 2, axis=0)[0] for place in (known - 1, known)]
    return (middle[0] + middle[1]) / 2


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


class LaunchTime(NamedTuple):
    """A time, in the unit of the durations, and where it comes from."""

    value: float = 0.0
    source: str = ""


class LaunchModel(NamedTuple):
    """What starting kernels costs; all times are 0 unless launch costs were asked for."""

    # What the host needs to issue a launch. The launches of a process are issued one after
    # another, ahead of the GPU where kernels are longer.
    host: LaunchTime = LaunchTime()
    # What the GPU needs before a kernel whose launch was issued and whose stream is free.
    gap: LaunchTime = LaunchTime()
    # What it takes the host to see that a kernel has ended and to have the next one started, on
    # top of the gap.
    sync: LaunchTime = LaunchTime()
    # What a CUDA graph needs a node, wherever it stands: its nodes start one after another, each as
    # soon as what it waits for has ended.
    node: LaunchTime = LaunchTime()
    # What a CUDA graph needs between a node and the next of its branch.
    path: LaunchTime = LaunchTime()
    # The same between nodes of different branches, of several roots.
    fork: LaunchTime = LaunchTime()
    wide: LaunchTime = LaunchTime()  # more before each node that waits for one as more than six do
    # What each kernel after the first costs that waits for no other one of its CUDA graph.
    root: LaunchTime = LaunchTime()
    second: LaunchTime = LaunchTime()  # the same where there are two
    # More for each kernel that no other one waits for: each root waits for all of the graph before.
    leaf: LaunchTime = LaunchTime()
    issue: LaunchTime = LaunchTime()  # what the host needs to launch a CUDA graph, for each root
    graph: LaunchTime = LaunchTime()  # what launching a CUDA graph needs, once
    # What the GPU needs to take a kernel from one of several streams, in turns.
    streamed: LaunchTime = LaunchTime()
    turn: LaunchTime = LaunchTime()  # before the first kernels of n streams, n * n times
    event: LaunchTime = LaunchTime()  # a kernel that waits for one of another stream, on top
    # The part of a kernel's time that the path to it takes at most: short kernels hide it.
    path_share: float = math.inf
    notes: tuple[str, ...] = ()  # what the user should know of these times

    @property
    def is_off(self) -> bool:
        """Whether nothing costs anything."""
        return not any(getattr(self, name).value for name in _TIMES)

    @property
    def plain(self) -> float:
        """Time from kernel to kernel of a stream of kernels that take no time themselves."""
        return max(self.host.value, self.gap.value)

    def describe(self, unit: str) -> tuple[str, ...]:
        """Say what launches cost and where that comes from, a sentence each."""
        if self.is_off:
            return self.notes
        by_source: dict[str, list[str]] = {}
        for name, (_, meaning) in _TIMES.items():
            time: LaunchTime = getattr(self, name)
            by_source.setdefault(time.source, []).append(f"{meaning} {time.value:.4g}")
        sentences = (
            f"launch costs in {unit}: {', '.join(times)} ({source})"
            for source, times in by_source.items()
        )
        return (*sentences, *self.notes)

    def of_gap(self, factor: float, time: float) -> LaunchModel:
        """Return the model with host and GPU times multiplied, and a time added to the GPU's."""
        source = "as a what-if says"
        return self._replace(
            host=LaunchTime(self.host.value * factor, source),
            gap=LaunchTime(self.gap.value * factor + time, source),
        )


NO_COSTS = LaunchModel()


class LaunchChoice(NamedTuple):
    """What the user asked for."""

    base: str  # "none", "gpu" or "measured": where times come from that are not given
    times: Mapping[str, float]  # of `LaunchModel` by name, in the unit of the durations


NO_LAUNCHES = LaunchChoice(NONE, {})


def parse_launch(text: str) -> LaunchChoice:
    """Read ``none``, ``gpu``, ``measured``, ``HOST,GAP,NODE``, or words and ``name=TIME``.

    One number is what `gap` was before there were three: what the GPU needs. NODE is what a CUDA
    graph needs for every node, on a path and beside it.

    Raises
    ------
    ModelError
        If it is none of these.
    """
    base, times, plain = "", {}, []
    for part in (p.strip() for p in text.split(",")):
        name, equals, value = part.partition("=")
        if part in _BASES and not base:
            base = part
        elif equals and name.strip() in _TIMES:
            times[name.strip()] = _time(value, text)
        elif equals:
            known = ", ".join(_TIMES)
            found = f"launch costs {in_short(text)!r}: {in_short(name)!r} is none of {known}"
            raise ModelError(found)
        else:
            plain.append(_time(part, text))
    if plain and (base or times or len(plain) not in (1, _THREE)):
        raise ModelError(f"launch costs {in_short(text)!r}: {_FORM}")
    if len(plain) == _THREE:
        times = {"host": plain[0], "gap": plain[1], "node": plain[2], "path": plain[2],
                 "fork": plain[2], "root": plain[2], "second": plain[2]}  # fmt: skip
    elif plain:
        times = dict.fromkeys(("gap", "path", "fork"), plain[0])
    return LaunchChoice(base or NONE, times)


def _time(text: str, whole: str) -> float:
    value = read_number(text, 0.0, LONGEST_TIME)
    if value is None:
        raise ModelError(
            f"launch costs {in_short(whole)!r}: {in_short(text)!r} is not a time from 0 to "
            f"{LONGEST_TIME:g}; {_FORM}"
        )
    return value


def launch_model(
    choice: LaunchChoice,
    *,
    unit: str,
    gpu: Gpu,
    clock_mhz: float | None = None,
    run: MeasuredRun | None = None,
) -> LaunchModel:
    """Work out what launches cost in a unit, by the choice, else by the run or the GPU."""
    model = NO_COSTS
    if choice.base != NONE:
        model = _of_gpu(gpu, unit, clock_mhz or gpu.boost_clock_mhz)
    if choice.base == MEASURED:
        if run is None:
            message = "measured launch costs need a profile that says when kernels started"
            raise ModelError(message)
        model = _of_run(model, run)
    given: dict[str, Any] = {n: LaunchTime(t, _GIVEN) for n, t in choice.times.items()}
    if "path" in given:
        given["path_share"] = math.inf
    return model._replace(**given)


def _of_gpu(gpu: Gpu, unit: str, clock_mhz: float | None) -> LaunchModel:
    """Return the times that the GPU's model states; those it does not state are of the H100."""
    other = load_gpu(DEFAULT_GPU)
    times: dict[str, Any] = {}
    for name, (key, _) in _TIMES.items():
        stated = getattr(gpu, key) is not None
        whose = gpu if stated else other
        value = convert_time(getattr(whose, key), "us", unit, clock_mhz)
        if value is None:
            reason = f"durations are {unit}, no times"
            if unit == "cycles":
                reason = f"the clock of {gpu.name} is not known"
            return NO_COSTS._replace(notes=(f"launch costs are left out: {reason}",))
        source = next((s.title for s in whose.sources if key in s.numbers), "its file")
        of = f"of the {whose.name}" + ("" if stated else f", as the {gpu.name} was not measured")
        times[name] = LaunchTime(value, f"{of}: {source}")
    share = gpu.graph_path_share if gpu.graph_path_us is not None else other.graph_path_share
    return LaunchModel(**times, path_share=math.inf if share is None else share)


def _of_run(model: LaunchModel, run: MeasuredRun) -> LaunchModel:
    """Return the model with what a profile shows of host and GPU."""
    if run.host is not None:
        host = LaunchTime(run.host, "the profile: median time from launch call to launch call")
        if run.queued_gap is None:
            note = "no kernel of the profile was launched before the one before it had ended"
            return model._replace(host=host, notes=(*model.notes, note))
        source = "the profile: median gap before kernels that were launched in time"
        return model._replace(host=host, gap=LaunchTime(run.queued_gap, source))
    if run.gap <= model.gap.value:
        source = "the profile: median gap between kernels, too short to be the host's"
        return model._replace(host=LaunchTime(0.0, source), gap=LaunchTime(run.gap, source))
    note = (
        f"the profile has no launch calls: its gaps, {run.gap:.4g} {run.unit} in the median, are "
        "longer than the GPU's and taken for the host's"
    )
    source = "the profile: median time from kernel start to kernel start"
    host = LaunchTime(run.interval, source)
    return model._replace(host=host, notes=(*model.notes, note))
