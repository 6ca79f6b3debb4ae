"""Dataflow learned from earlier launches: by edges, or by footprints relative to buffers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError, NotApplicableError
from depgraph.footprint.footprints import Footprints
from depgraph.graph.block_graph import BlockGraph
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Cost,
    Mechanism,
    Remembered,
    ahead,
    word,
)
from depgraph.mechanisms.hints import ALIGNMENT, footprints_for
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Gates, Rules
from depgraph.system.text import counted
from depgraph.trace.records import Allocation

EDGES, RELATIVE = "edges", "relative"
# A launch is compared with earlier ones by up to this many kernels before it, a power of two.
_LONGEST_CONTEXT = 64


class DataflowLearned(Mechanism):
    """Dataflow whose dependences are learned from a kernel's first launch."""

    name = "dataflow-learned"
    signature = "dataflow-learned(edges|relative)"
    takes = (word,)
    rule = (
        "as dataflow, but the dependences of a launch are those of an earlier launch of the same "
        "function, grid and block, the one after the most similar sequence of kernels; a launch "
        "that no earlier one is like keeps its barrier, and so does one whose dependences turn out "
        "to be others; relative: what its blocks touch of each buffer is learned instead, and "
        "compared with what older kernels touch; one that has not been learned has a barrier "
        "before it and after it"
    )
    cost = "a table of what was learned; launches as dataflow, with a gap after each barrier"
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "redo", 1.0, "share", "with relative: what a launch loses of its time if its blocks "
            "turn out to touch other bytes than were learned: it begins again after a barrier",
            "an assumption: that is found at its end, and what it wrote was held back",
        ),
    )  # fmt: skip

    def __init__(self, what: str = EDGES) -> None:
        if what not in (EDGES, RELATIVE):
            raise ModelError(f"{self.name}: {what!r}: give {EDGES} or {RELATIVE}")
        self.what = what
        self.shown = () if what == EDGES else (what,)
        self._lesson = Remembered(learned_kernels)
        self._relative = Remembered(relative_lesson)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Put a barrier before each kernel of which not enough is known."""
        lesson = (self._lesson if self.what == EDGES else self._relative)(program)
        barrier = program.is_kernel & ~lesson.learned
        gap = barrier * charges.launches.gap.value
        gap[np.flatnonzero(program.is_kernel)[:1]] = 0.0  # paid for by the first launch
        rules = Rules(
            waits_for_all=barrier,
            enter=ahead(program, charges).enter,
            launch=gap,
            strict=False,
            assumptions=(lesson.describe(int(program.is_kernel.sum())),),
        )
        if isinstance(lesson, Lesson):
            return rules
        # Nobody knows what such a kernel touches, so there is a barrier after it, too.
        last = np.maximum.accumulate(np.where(barrier, np.arange(len(barrier)), -1))
        after = np.flatnonzero(last[:-1] >= 0)
        redo = 1 + lesson.late * charges.number("redo")
        return replace(
            rules,
            gates=Gates.between(last[after], after + 1),
            durations=program.durations * redo[program.graph.operation_of_block],
        )


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learned, and how often it would have been wrong."""

    learned: NDArray[np.bool_]  # [n_operations]: whether it depends as an earlier launch did
    mistaken: int  # launches whose dependences are others than those that were learned
    missed: int  # edges of those launches that were not learned: blocks would start too early
    needless: int  # edges that were learned and are not there

    def describe(self, kernels: int) -> str:
        """Say it in a sentence."""
        n = int(self.learned.sum())
        share = 100 * n / kernels if kernels else 0.0
        text = f"launches that reuse what an earlier one taught: {n} of {kernels} ({share:.1f} %)"
        if not self.mistaken:
            return f"{text}; none would have learned wrongly"
        return (
            f"{text}; {self.mistaken} more would have been wrong, as their buffers moved: "
            f"{counted(self.missed, 'edge')} missed, {self.needless} needless; they keep their "
            "barriers"
        )


def learned_kernels(program: Scenario) -> Lesson:
    """Find out which operations depend on others as the most similar earlier launch did."""
    # That is the latest earlier one of the same function, grid and block that has most of the
    # kernels before it in common. If the launch depends in the same way on kernels as far
    # before it, whatever the addresses, that was learned rightly.
    graph = program.graph
    kernels = np.flatnonzero(program.is_kernel)
    taught_by = _teachers(program)
    joins_of = np.searchsorted(graph.join_target_operation, np.arange(graph.n_operations + 1))
    learned = np.zeros(graph.n_operations, np.bool_)
    patterns: dict[int, bytes] = {}
    mistaken = missed = needless = 0
    for k, teacher in zip(kernels.tolist(), taught_by, strict=True):
        patterns[k] = _pattern(graph, range(joins_of[k], joins_of[k + 1]))
        if teacher is None:
            continue
        earlier = int(kernels[teacher])
        learned[k] = patterns[k] == patterns[earlier]
        if learned[k]:
            continue
        own, other = (_relative_edges(graph, joins_of, op) for op in (k, earlier))
        lacking, extra = _count_missing(own, other), _count_missing(other, own)
        missed += lacking
        needless += extra
        # The same edges may stand in other joins.
        learned[k] = lacking == extra == 0
        mistaken += not learned[k]
    return Lesson(learned, mistaken, missed, needless)


def _teachers(program: Scenario) -> list[int | None]:
    """Return for each kernel which of the kernels, counted without copies, teaches it."""
    if not program.functions or program.block is None:
        raise NotApplicableError("dataflow-learned needs the names of the kernels")
    numbers: dict[tuple[str, bytes, bytes], int] = {}
    identity = []  # launches of the same function, grid and block have the same number
    for k in np.flatnonzero(program.is_kernel).tolist():
        launch = program.functions[k], program.shape[k].tobytes(), program.block[k].tobytes()
        identity.append(numbers.setdefault(launch, len(numbers)))
    return _most_similar(np.array(identity, np.int64))


def _most_similar(identity: NDArray[np.int64]) -> list[int | None]:
    """Return for each launch the latest earlier one with the longest common past, or None."""
    n = len(identity)
    # After the i-th step, equal numbers mean that 2 ** i kernels up to here are the same.
    contexts = [identity]
    length = 1
    while length < min(_LONGEST_CONTEXT, n):
        current = contexts[-1]
        before = np.concatenate([np.full(min(length, n), -1), current[: max(n - length, 0)]])
        _, joined = np.unique(np.stack([current, before]), axis=1, return_inverse=True)
        contexts.append(joined.reshape(-1).astype(np.int64))
        length *= 2
    latest: list[dict[int, int]] = [{} for _ in contexts]
    found: list[int | None] = []
    for launch in range(n):
        teacher = None
        for context, seen in zip(contexts[::-1], latest[::-1], strict=True):
            key = int(context[launch])
            if teacher is None:
                teacher = seen.get(key)
            seen[key] = launch
        found.append(teacher)
    return found


def _pattern(graph: BlockGraph, joins: range) -> bytes:
    """Describe what an operation waits for, whatever its place in the program."""
    digest = hashlib.sha256()
    for join in sorted(_relative(graph, j) for j in joins):
        digest.update(join)
    return digest.digest()


def _relative(graph: BlockGraph, join: int) -> bytes:
    """Describe a join by distances in kernels and block numbers within them."""
    source, target = graph.join_source_operation[join], graph.join_target_operation[join]
    digest = hashlib.sha256(int(target - source).to_bytes(4))
    for operation, offsets, sets in (
        (source, graph.source_offsets, graph.sources),
        (target, graph.target_offsets, graph.targets),
    ):
        lists = sorted(
            (
                graph.set_blocks[graph.set_offsets[s] : graph.set_offsets[s + 1]]
                - graph.first_block[operation]
            ).tobytes()
            for s in sets[offsets[join] : offsets[join + 1]]
        )
        for blocks in lists:
            digest.update(len(blocks).to_bytes(8) + blocks)
    return digest.digest()


def _relative_edges(
    graph: BlockGraph, joins_of: NDArray[np.intp], operation: int
) -> dict[int, NDArray[np.int64]]:
    """Return the edges into an operation, numbered, by the distance of their source."""
    first, last = graph.first_block[operation : operation + 2].tolist()
    found: dict[int, list[NDArray[np.int64]]] = {}
    for join in range(joins_of[operation], joins_of[operation + 1]):
        source = int(graph.join_source_operation[join])
        sources = graph.blocks_of(graph.source_lists, join)
        targets = graph.blocks_of(graph.target_lists, join)
        edges = (sources - graph.first_block[source])[:, None] * (last - first) + targets - first
        found.setdefault(operation - source, []).append(edges.reshape(-1))
    return {distance: np.unique(np.concatenate(parts)) for distance, parts in found.items()}


def _count_missing(
    in_one: dict[int, NDArray[np.int64]], other: dict[int, NDArray[np.int64]]
) -> int:
    none = np.empty(0, np.int64)
    return sum(
        len(np.setdiff1d(edges, other.get(distance, none), assume_unique=True))
        for distance, edges in in_one.items()
    )


@dataclass(frozen=True, slots=True)
class Touched:
    """What a launch touches of each buffer, from the first byte of it that it touches."""

    sizes: tuple[int, ...]  # bytes from the first to the last, in order of size
    ranges: tuple[bytes, ...]  # digests of what each block reads and writes, in any one order
    n_ranges: int


@dataclass(frozen=True, slots=True)
class RelativeLesson:
    """Which launches touch what an earlier one did, buffers apart."""

    learned: NDArray[np.bool_]  # [n_operations]
    # [n_operations]: its buffers are as large as those that were learned, but its blocks touch
    # other bytes: nobody can tell before they do.
    late: NDArray[np.bool_]
    other_sizes: int  # launches whose buffers have other sizes, which are known as they come
    n_ranges: int  # that are remembered, of all functions

    def describe(self, kernels: int) -> str:
        """Say it in a sentence."""
        n = int(self.learned.sum())
        first = kernels - n - self.other_sizes - int(self.late.sum())
        return (
            f"launches that touch, relative to their buffers, what an earlier one did: {n} of "
            f"{kernels}; {first} came first; {self.other_sizes} were found to be others by the "
            f"sizes of their buffers as they came, {int(self.late.sum())} by a block that touched "
            f"other bytes; byte ranges remembered: {self.n_ranges}"
        )


def relative_lesson(program: Scenario) -> RelativeLesson:
    """Compare what each launch touches with what the one that taught it did."""
    graph = program.graph
    footprints = footprints_for("dataflow-learned(relative)", program)
    kernels = np.flatnonzero(program.is_kernel).tolist()
    taught_by = _teachers(program)
    bounds = np.searchsorted(footprints.block, graph.first_block)
    allocations = program.allocations if graph.space is None else ()
    touched = [
        touched_by(
            footprints.take(slice(bounds[k], bounds[k + 1])), int(graph.first_block[k]),
            [a for a in allocations if a.allocated <= k and (a.freed is None or k < a.freed)],
        )
        for k in kernels
    ]  # fmt: skip
    learned, late = np.zeros((2, graph.n_operations), np.bool_)
    other_sizes = n_ranges = 0
    for k, own, teacher in zip(kernels, touched, taught_by, strict=True):
        if teacher is None:
            n_ranges += own.n_ranges
            continue
        known = touched[teacher]
        learned[k] = own.ranges == known.ranges
        late[k] = not learned[k] and own.sizes == known.sizes
        other_sizes += own.sizes != known.sizes
    # What an opaque kernel touches is not known, so neither is whether it was the same.
    learned &= ~program.opaque
    return RelativeLesson(learned, late & ~program.opaque, other_sizes, n_ranges)


def touched_by(
    footprints: Footprints, first_block: int, allocations: Sequence[Allocation]
) -> Touched:
    """Describe the footprints of a launch, whatever the addresses of its buffers."""
    order = np.argsort(footprints.start, kind="stable")
    start, end = footprints.start[order].astype(np.int64), footprints.end[order].astype(np.int64)
    if not len(start):
        return Touched((), (), 0)
    reached = np.maximum.accumulate(end)
    # What is nearer than that is one buffer where no allocations are known.
    begins = start // ALIGNMENT > (np.append(start[:1], reached[:-1]) - 1) // ALIGNMENT + 1
    begins[0] = True
    for allocation in allocations:
        begins[np.searchsorted(start, allocation.address) :][:1] = True
    buffer = np.cumsum(begins) - 1
    base = start[begins]
    block, access = footprints.block[order] - first_block, footprints.access[order]
    rows = np.stack([buffer, block, access, start - base[buffer], end - base[buffer]])
    rows = rows[:, np.lexsort(rows[::-1])]
    cuts = np.flatnonzero(np.diff(rows[0])) + 1
    each = [np.ascontiguousarray(part[1:]) for part in np.split(rows, cuts, axis=1)]
    return Touched(
        tuple(sorted(int(part[-1].max()) for part in each)),
        tuple(sorted(hashlib.sha256(part.tobytes()).digest() for part in each)),
        rows.shape[1],
    )
