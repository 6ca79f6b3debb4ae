"""Dataflow: a block as soon as those it depends on have ended; learned, and without limits, too."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from depgraph.errors import ModelError, NotApplicableError
from depgraph.mechanisms.base import Availability, Mechanism, Remembered, word
from depgraph.mechanisms.costs import Cost, ahead
from depgraph.schedule.policy import PRIORITIES, Gates, Rules
from depgraph.schedule.simulate import run_rules
from depgraph.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.mechanisms.costs import Charges
    from depgraph.mechanisms.relative import RelativeLesson
    from depgraph.scenario.scenario import Scenario

DEFAULT_PRIORITY = "oldest-first"
BEST = "best priority"
EDGES, RELATIVE = "edges", "relative"
# A launch is compared with earlier ones by up to this many kernels before it, a power of two.
_LONGEST_CONTEXT = 64


class Dataflow(Mechanism):
    """All kernels of the program in one pool.

    Parameters
    ----------
    priority : {"oldest-first", "newest-first", "longest-path-first", "best priority"}
        Which of the blocks that are ready goes first; the best is that of the shortest schedule.
    """

    name = "dataflow"
    signature = "dataflow(oldest-first|newest-first|longest-path-first|best)"
    takes = (word,)
    rule = (
        "a block starts once all blocks that it depends on have ended; waiting blocks hold no "
        "slot; of those that are ready the oldest (default), the newest, or the one with the "
        "longest path to the end goes first; best: whichever of the three is fastest"
    )
    cost = "launches: the host issues each kernel, ahead of the GPU; no gaps"
    availability = Availability.HARDWARE
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def __init__(self, priority: str = DEFAULT_PRIORITY) -> None:
        if priority == "best":
            priority = BEST
        if priority not in (*PRIORITIES, BEST):
            raise ModelError(f"priority {priority!r}: give one of {', '.join(PRIORITIES)}, best")
        self.priority = priority

    @property
    def label(self) -> str:
        """The name with the priority."""
        return f"{self.name} ({self.priority})"

    @classmethod
    def every(cls) -> Sequence[Mechanism]:
        """Return the plain one and the best."""
        return [cls(), cls(BEST)]

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Order ready blocks by the priority."""
        rules = Rules(strict=False, enter=ahead(program, charges).enter)
        graph, durations = program.graph, program.durations
        if self.priority != BEST:
            return replace(rules, order=PRIORITIES[self.priority](graph, durations))
        shortest = {}
        for name, priority in PRIORITIES.items():
            ordered = replace(rules, order=priority(graph, durations))
            plan = run_rules(name, ordered, graph, durations, program.resources, program.sms)
            shortest[name] = plan.makespan, ordered
        best = min(shortest, key=lambda name: shortest[name][0])
        return shortest[best][1].assuming(f"the best of three priorities: {best}")


class Ideal(Mechanism):
    """Dataflow on unlimited SMs: the critical path."""

    name = "ideal"
    rule = "a block starts once all blocks that it depends on have ended, on unlimited SMs"
    availability = Availability.LIMIT
    source = "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts)"

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Take away the limit on SMs."""
        del program, charges
        return Rules(unlimited=True, assumptions=("unlimited SMs: no utilization",))


class DataflowLearned(Mechanism):
    """Dataflow whose dependences are learned from a kernel's first launch.

    Parameters
    ----------
    what : {"edges", "relative"}
        What is learned: edges by distances in kernels, or footprints relative to buffers, which
        are compared as the kernel comes.
    """

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
        self._relative = Remembered(_relative_lesson)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Put a barrier before each kernel whose dependences are not known."""
        if self.what == RELATIVE:
            return self._relative_rules(program, charges)
        lesson = self._lesson(program)
        barrier = program.is_kernel & ~lesson.learned
        gap = barrier * charges.launches.gap.value
        gap[np.flatnonzero(program.is_kernel)[:1]] = 0.0  # paid for by the first launch
        return Rules(
            waits_for_all=barrier,
            enter=ahead(program, charges).enter,
            launch=gap,
            strict=False,
            assumptions=(lesson.describe(int(program.is_kernel.sum())),),
        )

    def _relative_rules(self, program: Scenario, charges: Charges) -> Rules:
        """Put a barrier before and after each kernel whose footprints are not known."""
        lesson = self._relative(program)
        barrier = program.is_kernel & ~lesson.learned
        gap = barrier * charges.launches.gap.value
        gap[np.flatnonzero(program.is_kernel)[:1]] = 0.0  # paid for by the first launch
        last = np.maximum.accumulate(np.where(barrier, np.arange(len(barrier)), -1))
        after = np.flatnonzero(last[:-1] >= 0)
        redo = 1 + lesson.late * charges.number("redo")
        return Rules(
            waits_for_all=barrier,
            gates=Gates.between(last[after], after + 1),
            enter=ahead(program, charges).enter,
            launch=gap,
            strict=False,
            durations=program.durations * redo[program.graph.operation_of_block],
            assumptions=(lesson.describe(int(program.is_kernel.sum())),),
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


def _relative_lesson(program: Scenario) -> RelativeLesson:
    from depgraph.mechanisms.relative import relative_lesson

    return relative_lesson(program, _teachers(program))


def _teachers(program: Scenario) -> list[int | None]:
    """Return for each kernel which of the kernels, counted without copies, teaches it."""
    if not program.functions or program.block is None:
        raise NotApplicableError("dataflow-learned needs the names of the kernels")
    kernels = np.flatnonzero(program.is_kernel)
    return _most_similar(_identities(program, kernels, program.block))


def _identities(
    program: Scenario, kernels: NDArray[np.intp], blocks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give equal numbers to launches of the same function, grid and block."""
    numbers: dict[tuple[str, bytes, bytes], int] = {}
    found = []
    for k in kernels.tolist():
        launch = program.functions[k], program.shape[k].tobytes(), blocks[k].tobytes()
        found.append(numbers.setdefault(launch, len(numbers)))
    return np.array(found, np.int64)


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
