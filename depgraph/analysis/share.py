"""Two programs on one GPU: what sharing it takes, and what it costs each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph.block_graph import BlockGraph
from depgraph.mechanisms.base import Dataflow, Mechanism, Serial, charges_of, run_mechanism, serial
from depgraph.mechanisms.predicted_time import predicted_schedule, predicted_time
from depgraph.mechanisms.shared_gpu import BLOCKS, find_sharing
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Schedule
from depgraph.system.text import ratio


@dataclass(frozen=True, slots=True)
class Side:
    """One of two programs, alone and beside the other."""

    alone: float
    shared: float

    @property
    def slowdown(self) -> float:
        """How many times as long it takes beside the other."""
        return ratio(self.shared, self.alone)


@dataclass(frozen=True, slots=True)
class Times:
    """What one way to share a GPU takes."""

    makespan: float
    in_turn: float  # one program after the other, the kernels of each one after another
    first: Side
    second: Side

    @property
    def speedup(self) -> float:
        """Over one program after the other."""
        return ratio(self.in_turn, self.makespan)


@dataclass(frozen=True, slots=True)
class Shared:
    """One way to share a GPU of one size."""

    sms: float
    how: str
    times: Times  # for fixed durations, in their unit
    predicted_us: Times | None  # with contention and what launches cost; None where not predicted


@dataclass(frozen=True, slots=True)
class Sharing:
    """Two programs on one GPU, in several ways."""

    names: tuple[str, str]
    unit: str
    gpu: str
    dependences: str  # kinds that count, such as "RAW,WAR,WAW"
    has_contention: bool  # whether predictions count it
    rows: tuple[Shared, ...]
    assumptions: tuple[str, ...]


def share_gpu(
    first: tuple[str, Scenario], second: tuple[str, Scenario], sms: Sequence[float], how: str
) -> Sharing:
    """Run two programs side by side."""
    one, other = first[1], second[1]
    both = joined(one, other)
    rows, notes = [], dict.fromkeys(both.assumptions)
    for size in sms:
        programs = one.on(size), other.on(size), both.on(size)
        for way in find_sharing(how, one.graph.n_operations):
            alone = Dataflow() if way.how == BLOCKS else Serial()
            schedule, rules = run_mechanism(way, programs[2], charges_of(way, {}, programs[2]))
            fixed = _times(
                schedule, one.graph.n_blocks, sum(serial(p).makespan for p in programs[:2]),
                [run_mechanism(alone, p, charges_of(alone, {}, p))[0].makespan
                 for p in programs[:2]],
            )  # fmt: skip
            rows.append(Shared(size, way.label, fixed, _predicted(way, alone, *programs)))
            notes |= dict.fromkeys(rules.assumptions)
    return Sharing(
        names=(first[0], second[0]),
        unit=one.unit,
        gpu=one.resources.gpu.name,
        dependences=both.dependences,
        has_contention=both.sharing is not None,
        rows=tuple(rows),
        assumptions=tuple(notes),
    )


def _times(
    schedule: Schedule, split: int, in_turn: float, alone: Iterable[float], us: float = 1.0
) -> Times:
    """Return what a schedule of both says of each; blocks from `split` on are the second's."""
    ends = (float(end.max(initial=0.0)) for end in np.split(schedule.end * us, [split]))
    return Times(schedule.makespan * us, in_turn, *map(Side, alone, ends))


def _predicted(
    way: Mechanism, alone: Mechanism, one: Scenario, other: Scenario, both: Scenario
) -> Times | None:
    us = both.microseconds(1.0)
    if us is None or not both.is_timed:
        return None
    schedule = predicted_schedule(way, both, predicted_time(way, both).time)
    own = [predicted_time(alone, program).time * us for program in (one, other)]
    in_turn = sum(predicted_time(Serial(), program).time * us for program in (one, other))
    return _times(schedule, one.graph.n_blocks, in_turn, own, us)


def joined(one: Scenario, other: Scenario) -> Scenario:
    """Return two programs on one GPU as a scenario, what `other` does behind what `one` does."""
    if one.resources.gpu != other.resources.gpu:
        raise ModelError(
            f"two programs share one GPU, not {one.resources.gpu.name} and "
            f"{other.resources.gpu.name}: pass --gpu"
        )
    if one.unit != other.unit:
        raise ModelError(f"one program's durations are {one.unit}, the other's {other.unit}")
    sources = [each.metadata.get("format") for each in (one, other)]
    if one.unit == "instructions" and None not in sources and sources[0] != sources[1]:
        raise ModelError(
            f"instructions are counted in one way by {sources[0]}, in another by {sources[1]}: "
            "give each program times, or traces of one kind"
        )
    if one.launch != other.launch:
        raise ModelError(
            "each program has launch costs of its own (--launch measured): give --launch gpu, or "
            "times"
        )
    if one.launches is not None or other.launches is not None:
        raise ModelError("programs that launch kernels from the device cannot share a GPU here")
    timing = replace(
        one.timing,
        values=np.append(one.durations, other.durations),
        of_blocks=one.timing.of_blocks and other.timing.of_blocks,
        assumptions=tuple(dict.fromkeys([*one.timing.assumptions, *other.timing.assumptions])),
    )
    if one.contention != other.contention:
        raise ModelError(
            f"contention is {one.contention} for one program and {other.contention} for the other: "
            "pass --contention"
        )
    resources = one.resources.beside(other.resources)
    n_operations = one.graph.n_operations
    behind = [replace(k, operation=k.operation + n_operations) for k in other.kernels]
    both = replace(
        one,
        graph=joined_graph(one.graph, other.graph),
        timing=timing,
        resources_of=lambda _: resources,
        kernels=[*one.kernels, *behind] if one.kernels and other.kernels else (),
        memory=one.memory + other.memory,
        fit=None,
        run=None,
        measured=None,
        read_footprints=None,
        allocations=(),
        alu=None,
        sites={},
    )
    # What comes from the profiles, of which each has its own.
    vars(both)["memory_times"] = np.append(one.memory_times, other.memory_times)
    if both.sharing is not None:
        each = one.contended, other.contended
        lead = [np.broadcast_to(p.sharing.lead, p.graph.n_operations) for p in each if p.sharing]
        work = np.concatenate([p.durations for p in each]), np.concatenate(lead)
        vars(both)["_work_of_blocks"] = vars(both)["_work_in_step"] = work
        vars(both)["kernel_times"] = np.append(one.kernel_times, other.kernel_times)
    return both


def joined_graph(one: BlockGraph, other: BlockGraph) -> BlockGraph:
    """Return what depends on what in both; kernels and copies of `other` get the next numbers."""
    n_kernels = int(one.kernel.max(initial=-1)) + 1
    n_copies = int(-one.kernel.min(initial=0))
    kernel = np.where(other.kernel >= 0, other.kernel + n_kernels, other.kernel - n_copies)
    n_operations, n_blocks = np.int32(one.n_operations), np.int32(one.n_blocks)
    n_sets = np.int32(len(one.set_operation))

    basis = None
    if one.join_basis is not None or other.join_basis is not None:
        basis = np.append(one.basis, other.basis)
    return BlockGraph(
        kernel=np.append(one.kernel, kernel.astype(np.int32)),
        first_block=_offsets(one.first_block, other.first_block),
        set_operation=np.append(one.set_operation, other.set_operation + n_operations),
        set_offsets=_offsets(one.set_offsets, other.set_offsets),
        set_blocks=np.append(one.set_blocks, other.set_blocks + n_blocks),
        join_kind=np.append(one.join_kind, other.join_kind),
        join_source_operation=np.append(
            one.join_source_operation, other.join_source_operation + n_operations
        ),
        join_target_operation=np.append(
            one.join_target_operation, other.join_target_operation + n_operations
        ),
        source_offsets=_offsets(one.source_offsets, other.source_offsets),
        sources=np.append(one.sources, other.sources + n_sets),
        target_offsets=_offsets(one.target_offsets, other.target_offsets),
        targets=np.append(one.targets, other.targets + n_sets),
        join_basis=basis,
        kinds=one.kinds | other.kinds,
    )


def _offsets(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    return np.append(one, other[1:] + one[-1])
