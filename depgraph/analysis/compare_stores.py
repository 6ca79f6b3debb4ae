"""What changed between two extractions: kernels, dependences between them, bound, utilization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.analysis.bound import bound_one
from depgraph.analysis.kernel_loads import kernel_loads
from depgraph.errors import ModelError
from depgraph.timing.align import align
from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.analysis.outcome import Bound
    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.scenario.scenario import Scenario

METRICS = (
    "upper_bound", "speedup", "utilization", "untraced", "edges", "serial", "launched_serial",
    "critical_path",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two programs, on one GPU size.

    Attributes
    ----------
    scenario : Scenario
    pairs : sequence of PairSummary
    bound : Bound
    kernel_times : dict
        Kernel number to the time that it takes alone.
    """

    scenario: Scenario
    pairs: Sequence[PairSummary]
    bound: Bound
    kernel_times: dict[int, float]

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Its kernels, in launch order."""
        return self.scenario.kernels


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel of either program; None where the other program has no such kernel.

    Attributes
    ----------
    base, new : int or None
        Kernel numbers.
    name : str
    change : str
        "same", "added", "removed", or what is different.
    base_time, new_time : float or None
        Alone on the GPU.
    """

    base: int | None
    new: int | None
    name: str
    change: str
    base_time: float | None
    new_time: float | None


@dataclass(frozen=True, slots=True)
class PairChange:
    """Two kernels whose dependences differ; None where there are none.

    Attributes
    ----------
    source, target : int
        Kernel numbers in the new program where it has both kernels, else in the base.
    side : str
        Which program the numbers are of: "new" or "base".
    base_pattern, new_pattern : str or None
    base_edges, new_edges : int
    """

    source: int
    target: int
    side: str
    base_pattern: str | None
    new_pattern: str | None
    base_edges: int
    new_edges: int


@dataclass(frozen=True, slots=True)
class StoreDiff:
    """What changed.

    Attributes
    ----------
    kernels : tuple of KernelChange
        All kernels of both, in launch order.
    pairs : tuple of PairChange
        Only those that differ.
    metrics : dict
        Name to (base, new).
    notes : tuple of str
        What makes the two hard to compare.
    """

    kernels: tuple[KernelChange, ...]
    pairs: tuple[PairChange, ...]
    metrics: dict[str, tuple[float, float]]
    notes: tuple[str, ...] = ()


def side_of(scenario: Scenario) -> Side:
    """Work out what is compared of one program, on one number of SMs."""
    return Side(
        scenario,
        scenario.graph.pairs(),
        bound_one(scenario),
        {load.kernel: load.time for load in kernel_loads(scenario)},
    )


def metrics_of(
    bound: Bound, kernels: Sequence[Kernel], pairs: Sequence[PairSummary]
) -> dict[str, float]:
    """Return the numbers that a CI can set thresholds on.

    Parameters
    ----------
    bound : Bound
    kernels : sequence of Kernel
    pairs : sequence of PairSummary

    Returns
    -------
    dict
        upper_bound: serial time over lower bound. speedup: serial time over the makespan of the
        best schedule. utilization: of the serial schedule, 0 to 1. untraced: share of the kernels
        with accesses that the trace does not show. edges: distinct edges between blocks. serial,
        launched_serial, critical_path: times, in the unit of the durations; the second with what
        launches cost.
    """
    return {
        "upper_bound": bound.upper_bound,
        "speedup": bound.reached.speedup,
        "utilization": bound.schedules[0].utilization,
        "untraced": sum(k.untraced is not None for k in kernels) / max(1, len(kernels)),
        "edges": sum(p.edges for p in pairs),
        "serial": bound.serial,
        "launched_serial": bound.launched_serial,
        "critical_path": bound.critical_path,
    }


def compare(base: Side, new: Side) -> StoreDiff:
    """Align two programs kernel by kernel and say what changed.

    Kernels are the same if name, grid and block are; of the others between two that are the same,
    those of one function are taken for each other, in launch order.

    Raises
    ------
    ModelError
        If the times of the two are in different units.
    """
    units = base.scenario.unit, new.scenario.unit
    if units[0] != units[1]:
        raise ModelError(
            f"durations of the base are in {units[0]}, of the new program in {units[1]}: give "
            "both --timing and --new-timing, in one unit"
        )
    strict = tuple([(k.name, k.grid, k.block) for k in side.kernels] for side in (base, new))
    lenient = tuple([base_name(k.name) for k in side.kernels] for side in (base, new))
    partner, _ = align([(strict[0], strict[1]), (lenient[0], lenient[1])])
    partners = partner.tolist()
    before = metrics_of(base.bound, base.kernels, base.pairs)
    after = metrics_of(new.bound, new.kernels, new.pairs)
    return StoreDiff(
        tuple(_kernel_changes(base, new, partners)),
        tuple(_pair_changes(base, new, partners)),
        {name: (before[name], after[name]) for name in METRICS},
        _granularity_notes(base.scenario.granularity, new.scenario.granularity),
    )


def _granularity_notes(base: int, new: int) -> tuple[str, ...]:
    if base == new:
        return ()
    note = (
        f"dependences of the base are tracked at granularity {base}, of the new program at {new}: "
        "some differ only by false sharing"
    )
    return (note,)


def _kernel_changes(base: Side, new: Side, partners: Sequence[int]) -> list[KernelChange]:
    changes = []
    next_new = 0

    def added(until: int) -> None:
        for kernel in new.kernels[next_new:until]:
            time = new.kernel_times.get(kernel.kernel)
            changes.append(KernelChange(None, kernel.kernel, kernel.name, "added", None, time))

    for kernel, partner in zip(base.kernels, partners, strict=True):
        time = base.kernel_times.get(kernel.kernel)
        if partner < 0:
            changes.append(KernelChange(kernel.kernel, None, kernel.name, "removed", time, None))
            continue
        added(partner)
        next_new = partner + 1
        other = new.kernels[partner]
        changes.append(
            KernelChange(
                kernel.kernel, other.kernel, other.name, _difference(kernel, other), time,
                new.kernel_times.get(other.kernel),
            )
        )  # fmt: skip
    added(len(new.kernels))
    return changes


def _difference(base: Kernel, new: Kernel) -> str:
    different = [
        f"{name} {_text(before)} -> {_text(after)}"
        for name, before, after in (
            ("grid", base.grid, new.grid),
            ("block", base.block, new.block),
            ("registers", base.registers, new.registers),
            ("shared bytes", base.shared_bytes, new.shared_bytes),
            ("stream", base.stream, new.stream),
        )
        if before != after
    ]
    if base.name != new.name:
        different.append("template or arguments")
    return ", ".join(different) or "same"


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _pair_changes(base: Side, new: Side, partners: Sequence[int]) -> list[PairChange]:
    new_number = {
        kernel.kernel: new.kernels[partner].kernel
        for kernel, partner in zip(base.kernels, partners, strict=True)
        if partner >= 0
    }
    before: dict[tuple[int, int, str], PairSummary] = {}
    for pair in base.pairs:
        # Host copies have no names: the i-th is taken for the i-th.
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
