"""What changed between two extractions: kernels, dependences between them, bound, utilization."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from depgraph.analysis.bound import bound_one
from depgraph.analysis.findings import Findings
from depgraph.analysis.kernel_groups import kernel_loads
from depgraph.analysis.metrics import METRICS, metrics_of
from depgraph.errors import ModelError
from depgraph.graph.dependences import PairSummary
from depgraph.graph.program import Kernel
from depgraph.scenario.scenario import Scenario
from depgraph.system.text import size_text
from depgraph.timing.align import align
from depgraph.trace.names import base_name

_LEAST_ADDRESS = 1 << 16  # from here on what calls a stream is no number of its own


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel of either program; None where the other program has no such kernel."""

    # base, new: kernel numbers
    base: int | None
    new: int | None
    name: str
    change: str  # "same", "added", "removed", or what is different
    # base_time, new_time: alone on the GPU; of what it replaces, added up
    base_time: float | None
    new_time: float | None
    replaces: tuple[int, ...] = ()  # of an added kernel: those of the base that stood in its place


@dataclass(frozen=True, slots=True)
class PairChange:
    """Two kernels whose dependences differ; None where there are none."""

    # source, target: kernel numbers in the new program where it has both kernels, else in the base
    source: int
    target: int
    side: str  # which program the numbers are of: "new" or "base"
    base_pattern: str | None
    new_pattern: str | None
    base_edges: int
    new_edges: int


@dataclass(frozen=True, slots=True)
class StoreDiff:
    """What changed."""

    kernels: tuple[KernelChange, ...]  # all kernels of both, in launch order
    pairs: tuple[PairChange, ...]  # only those that differ
    metrics: dict[str, tuple[float, float]]  # name to (base, new)
    sms: float
    unit: str  # of all times
    notes: tuple[str, ...] = ()  # what makes the two hard to compare
    # How much each metric differs between two recordings of the base; empty if there is one.
    noise: Mapping[str, float] = field(default_factory=dict)

    def is_noise(self, metric: str) -> bool:
        """Tell whether a metric changes no more than between two recordings of the base."""
        before, after = self.metrics[metric]
        return metric in self.noise and abs(after - before) <= self.noise[metric]


def compare(base: Scenario, new: Scenario, repeat: Scenario | None = None) -> StoreDiff:
    """Align two programs, each on one GPU size, kernel by kernel and say what changed.

    Kernels are the same if name, grid and block are; of the others between two that are the same,
    those of one function are taken for each other, in launch order. What is then left of the base
    between two that have partners is replaced by what is left of the new program there.

    Parameters
    ----------
    base, new : Scenario
        On one number of SMs of one GPU.
    repeat : Scenario, optional
        Another recording of the base: what differs between the two is noise.

    Raises
    ------
    ModelError
        If times are in different units, or are of different GPUs or numbers of SMs.
    """
    _refuse_others(base, new, "new program", "both --timing and --new-timing")
    if repeat is not None:
        times = "--timing, --new-timing and --repeat-timing"
        _refuse_others(base, repeat, "second recording", times)
    sides = base, new
    strict, lenient = (
        tuple([key(k) for k in side.kernels] for side in sides)
        for key in (lambda k: (k.name, k.grid, k.block), lambda k: base_name(k.name))
    )
    partner, _ = align([(strict[0], strict[1]), (lenient[0], lenient[1])])
    partners = partner.tolist()
    before, after = map(metrics_on, sides)
    again = {} if repeat is None else metrics_on(repeat)
    return StoreDiff(
        tuple(_kernel_changes(base, new, partners)),
        tuple(_pair_changes(base, new, partners)),
        {name: (before[name], after[name]) for name in METRICS},
        new.sms,
        new.unit,
        _granularity_notes(base.granularity, new.granularity),
        {name: abs(again[name] - before[name]) for name in METRICS if again},
    )


def _refuse_others(base: Scenario, other: Scenario, called: str, times: str) -> None:
    """Refuse a side that differs from the base in more than the program."""
    if base.unit != other.unit:
        raise ModelError(
            f"durations of the base are in {base.unit}, of the {called} in {other.unit}: give "
            f"{times}, in one unit"
        )
    gpus = base.resources.gpu.name, other.resources.gpu.name
    if gpus[0] != gpus[1]:
        raise ModelError(f"the base is on {gpus[0]}, the {called} on {gpus[1]}: give --gpu")
    if base.sms != other.sms:
        sizes = f"{size_text(base.sms)}, the {called} on {size_text(other.sms)}"
        raise ModelError(f"the base is on {sizes}: give --sms")


def metrics_on(scenario: Scenario) -> dict[str, float]:
    """Return the value of each of `METRICS` for a program on one GPU size."""
    bound = bound_one(scenario)
    return metrics_of(bound, scenario, Findings(scenario, known=(bound,)).renamed)


def _granularity_notes(base: int, new: int) -> tuple[str, ...]:
    if base == new:
        return ()
    note = (
        f"dependences of the base are tracked at granularity {base}, of the new program at {new}: "
        "some differ only by false sharing"
    )
    return (note,)


def _kernel_changes(base: Scenario, new: Scenario, partners: Sequence[int]) -> list[KernelChange]:
    changes = []
    next_new = 0
    streams = _streams_of_new(base, new, partners)
    base_times, new_times = ({k.kernel: k.time for k in kernel_loads(s)} for s in (base, new))

    def added(until: int) -> None:
        for kernel in new.kernels[next_new:until]:
            time = new_times.get(kernel.kernel)
            changes.append(KernelChange(None, kernel.kernel, kernel.name, "added", None, time))

    for kernel, partner in zip(base.kernels, partners, strict=True):
        time = base_times.get(kernel.kernel)
        if partner < 0:
            changes.append(KernelChange(kernel.kernel, None, kernel.name, "removed", time, None))
            continue
        added(partner)
        next_new = partner + 1
        other = new.kernels[partner]
        changes.append(
            KernelChange(
                kernel.kernel, other.kernel, other.name, _difference(kernel, other, streams), time,
                new_times.get(other.kernel),
            )
        )  # fmt: skip
    added(len(new.kernels))
    return _with_replaced(changes)


def _with_replaced(changes: Sequence[KernelChange]) -> list[KernelChange]:
    """Let the first kernel that was added in a place name those that were removed there."""
    result: list[KernelChange] = []
    for has_partner, run in groupby(changes, lambda c: None not in (c.base, c.new)):
        members = list(run)
        removed = tuple(c.base for c in members if c.base is not None)
        replaced = None if has_partner else sum(c.base_time or 0.0 for c in members)
        for change in members:
            if change.new is None or has_partner or not removed:
                result.append(change)
                continue
            result.append(replace(change, replaces=removed, base_time=replaced))
            removed = ()
    return result


def _streams_of_new(base: Scenario, new: Scenario, partners: Sequence[int]) -> dict[int, int]:
    """Return what each stream of the base is called in the new program: addresses may differ."""
    together = Counter(
        (kernel.stream, new.kernels[partner].stream)
        for kernel, partner in zip(base.kernels, partners, strict=True)
        if partner >= 0
    )
    names: dict[int, int] = {}
    for (before, after), _ in together.most_common():
        names.setdefault(before, after)
    return names


def _difference(base: Kernel, new: Kernel, streams: Mapping[int, int]) -> str:
    different = [
        f"{name} {_text(before)} -> {_text(after)}"
        for name, before, after in (
            ("grid", base.grid, new.grid),
            ("block", base.block, new.block),
            ("registers", base.registers, new.registers),
            ("shared bytes", base.shared_bytes, new.shared_bytes),
        )
        if before != after
    ]
    if new.stream != streams[base.stream]:
        is_number = max(base.stream, new.stream) < _LEAST_ADDRESS
        numbers = f"stream {base.stream} -> {new.stream}"
        different.append(numbers if is_number else "another stream")
    if base.name != new.name:
        different.append("template or arguments")
    return ", ".join(different) or "same"


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _pair_changes(base: Scenario, new: Scenario, partners: Sequence[int]) -> list[PairChange]:
    new_number = {
        kernel.kernel: new.kernels[partner].kernel
        for kernel, partner in zip(base.kernels, partners, strict=True)
        if partner >= 0
    }
    before: dict[tuple[int, int, str], PairSummary] = {}
    for pair in base.pairs:
        # Copies and memsets have no names: the i-th is taken for the i-th.
        source = pair.source if pair.source < 0 else new_number.get(pair.source)
        target = pair.target if pair.target < 0 else new_number.get(pair.target)
        if source is None or target is None:
            before[pair.source, pair.target, "base"] = pair
        else:
            before[source, target, "new"] = pair
    after = {(pair.source, pair.target, "new"): pair for pair in new.pairs}
    changes = []
    for key in sorted(before.keys() | after.keys(), key=lambda key: (key[1], key[0], key[2])):
        first, second = before.get(key), after.get(key)
        change = PairChange(
            *key,
            first.pattern.value if first else None,
            second.pattern.value if second else None,
            first.edges if first else 0,
            second.edges if second else 0,
        )
        is_same = change.base_pattern == change.new_pattern
        if not (is_same and change.base_edges == change.new_edges):
            changes.append(change)
    return changes
