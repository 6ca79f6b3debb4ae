"""Which buffers to rename: small sets of them, and what the bound becomes without their reuse."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.analysis.bound import limits_of
from depgraph.analysis.buffers import BLOCK_BYTES, Buffer, Reuse, allocators, find_buffers
from depgraph.analysis.next_steps import Invocation, Step
from depgraph.graph.graph_jit import earliest_finish, invert_lists
from depgraph.scenario.scenario import Scenario
from depgraph.system.arrays import gather_lists
from depgraph.system.text import ratio

SHARES = (0.5, 0.9, 1.0)
"""Parts of the possible speedup that a set of buffers is looked for."""
_MOST_NAMED = 4
_CLOSE = 1e-9
_RAW = -1


class BufferSet(NamedTuple):
    """Buffers that are worth renaming together."""

    buffers: tuple[int, ...]  # numbers of buffers, none of which can be left out
    upper_bound: float  # on the speedup, without the dependences through them but RAW
    critical_path: float
    more_bytes: int  # memory that it takes, at most: one copy for each kernel that writes a buffer
    what_ifs: tuple[str, ...]  # the same as statements of ``--what-if``


class Renaming(NamedTuple):
    """What renaming buffers would bring on one GPU size."""

    buffers: tuple[Buffer, ...]  # by address
    # upper bound on the speedup with each of them renamed alone
    upper_bound_alone: tuple[float, ...]
    sets: tuple[BufferSet, ...]  # from small to large; empty where renaming brings nothing
    # upper_bound, renamed_upper_bound: upper bound with no buffer renamed, and with all
    upper_bound: float
    renamed_upper_bound: float
    sms: float

    @property
    def ranked(self) -> list[Buffer]:
        """Buffers that are reused: those of the smallest sets first, then what brings most."""
        place = {n: at for at, found in reversed(list(enumerate(self.sets))) for n in found.buffers}
        return sorted(
            (b for b in self.buffers if b.is_reused),
            key=lambda b: (
                place.get(b.number, len(self.sets)),
                -self.upper_bound_alone[b.number],
                -(b.war + b.waw + b.reuse),
                b.number,
            ),
        )


def study_renaming(scenario: Scenario) -> Renaming:
    """Find the buffers of a program, and small sets of them that keep blocks waiting.

    What lies on the critical path is renamed until the path has RAW dependences alone, or the work
    is longer; then what is not needed for that, or for a part of it, is taken back.
    `NotApplicableError` if there are no footprints, or buffers have been renamed already.
    """
    reuse = find_buffers(scenario)
    limits = limits_of(scenario)
    paths = _Paths(reuse, scenario.durations, max(limits.work, limits.memory))

    def speedup(length: float) -> float:
        return ratio(limits.serial, max(length, paths.floor))

    everything = frozenset(b.number for b in reuse.buffers)
    before = paths.length(frozenset())
    alone = dict.fromkeys(everything, before)
    for number in paths.sole_supports():
        alone[number] = paths.length(frozenset({number}))
    return Renaming(
        buffers=reuse.buffers,
        upper_bound_alone=tuple(speedup(alone[b.number]) for b in reuse.buffers),
        sets=tuple(
            BufferSet(
                buffers=numbers,
                upper_bound=speedup(length),
                critical_path=length,
                more_bytes=sum(reuse.buffers[n].more_bytes for n in numbers),
                what_ifs=what_ifs([reuse.buffers[n] for n in numbers]),
            )
            for numbers, length in _sets(paths, reuse.buffers)
        ),
        upper_bound=speedup(before),
        renamed_upper_bound=speedup(paths.length(everything)),
        sms=scenario.sms,
    )


def named(found: BufferSet) -> str:
    """Name the buffers of a set by the numbers that tables give them."""
    if len(found.buffers) > _MOST_NAMED:
        return f"these {len(found.buffers)} buffers"
    return f"buffer{'s' * (len(found.buffers) > 1)} {', '.join(map(str, found.buffers))}"


def renaming_steps(renaming: Renaming, invocation: Invocation) -> list[Step]:
    """Return the commands that show what the sets of buffers would bring."""
    steps = []
    for each in renaming.sets:
        these = named(each)
        if names := allocators(renaming.buffers[n] for n in each.buffers):
            these += f" (allocated by {names})"
        words = [word for text in each.what_ifs for word in ("--what-if", text)]
        steps.append(
            Step(
                f"see the program with {these} renamed:",
                invocation.command("bound", "--sms", f"{renaming.sms:g}", *words),
            )
        )
    return steps


def what_ifs(buffers: Sequence[Buffer]) -> tuple[str, ...]:
    """Return the statements that rename buffers, side by side ones together."""
    kinds = "war,waw,reuse" if any(b.reuse for b in buffers) else "war,waw"
    spans: list[list[int]] = []
    for buffer in sorted(buffers, key=lambda b: b.start):
        if spans and -(-spans[-1][1] // BLOCK_BYTES) == buffer.start // BLOCK_BYTES:
            spans[-1][1] = buffer.end
        else:
            spans.append([buffer.start, buffer.end])
    return tuple(f"buffer={low:#x}:{high:#x} drop={kinds}" for low, high in spans)


def _sets(paths: "_Paths", buffers: Sequence[Buffer]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield sets of buffers that bring a part of what all would, and the path that remains."""
    chosen = paths.greedy()
    before, after = (max(paths.length(s), paths.floor) for s in (frozenset[int](), chosen))
    if after <= 0 or before <= after * (1 + _CLOSE):
        return
    # What takes most memory is taken back first.
    order = sorted(chosen, key=lambda n: (-buffers[n].more_bytes, n))
    known: set[tuple[int, ...]] = set()
    for share in SHARES:
        # Speedups are inverse to times.
        longest = 1 / (1 / before + share * (1 / after - 1 / before))
        numbers = paths.reduced(order, longest)
        if numbers not in known:
            known.add(numbers)
            yield numbers, paths.length(frozenset(numbers))


class _Paths:
    """Critical paths with some buffers renamed; no schedule is shorter than `floor`."""

    def __init__(self, reuse: Reuse, durations: NDArray[np.float64], floor: float) -> None:
        self._graph, self._label = reuse.graph, reuse.label
        self._durations = durations
        self.floor = floor
        graph = reuse.graph
        self._sets_of_block = invert_lists(graph.set_offsets, graph.set_blocks, graph.n_blocks)
        self._known: dict[frozenset[int], float] = {}

    def length(self, renamed: frozenset[int]) -> float:
        """Return the critical path with some buffers renamed."""
        if renamed not in self._known:
            self._finish(renamed)
        return self._known[renamed]

    def _finish(
        self, renamed: frozenset[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int64]]:
        """Return when blocks end, what they wait for last, and the joins that are left."""
        graph = self._graph
        kept = np.flatnonzero(~np.isin(self._label, np.array(sorted(renamed), np.int64)))
        source_offsets, sources = gather_lists(graph.source_offsets, graph.sources, kept)
        target_offsets, targets = gather_lists(graph.target_offsets, graph.targets, kept)
        left = graph.arrays._replace(
            join_code=graph.join_code[kept],
            join_source_operation=graph.join_source_operation[kept],
            join_target_operation=graph.join_target_operation[kept],
            source_offsets=source_offsets,
            sources=sources,
            target_offsets=target_offsets,
            targets=targets,
        )
        finish, critical = earliest_finish(left, self._durations)
        self._known[renamed] = float(finish.max(initial=0.0))
        return finish, critical, kept

    def supports(self, renamed: frozenset[int]) -> list[set[int]]:
        """Return for each step of a critical path the buffers it rests on, and -1 for RAW."""
        finish, critical, kept = self._finish(renamed)
        if not len(finish):
            return []
        path = [int(np.argmax(finish))]
        while critical[path[-1]] >= 0:
            path.append(int(critical[path[-1]]))
        path.reverse()
        graph = self._graph
        operation = graph.operation_of_block[path].astype(np.int64)
        # Joins are sorted by target, then by source.
        pair = graph.join_target_operation[kept].astype(np.int64) * graph.n_operations
        pair += graph.join_source_operation[kept]
        steps = operation[1:] * graph.n_operations + operation[:-1]
        lows, highs = (np.searchsorted(pair, steps, side).tolist() for side in ("left", "right"))
        return [
            self._labels(*step, kept[low:high])
            for step, low, high in zip(pairwise(path), lows, highs, strict=True)
        ]

    def _labels(self, source: int, target: int, joins: NDArray[np.int64]) -> set[int]:
        graph = self._graph
        labels = set(self._label[joins].tolist())
        if len(labels) > 1:
            for offsets, sets, block in (
                (graph.source_offsets, graph.sources, source),
                (graph.target_offsets, graph.targets, target),
            ):
                joins = joins[self._holds(offsets, sets, joins, block)]
            labels = set(self._label[joins].tolist())
        return labels

    def _holds(
        self, offsets: NDArray[np.int64], sets: NDArray[np.int32], joins: NDArray[np.int64],
        block: int,
    ) -> NDArray[np.bool_]:  # fmt: skip
        """Tell which joins have a set that a block is in."""
        begins, inverse = self._sets_of_block
        own = inverse[begins[block] : begins[block + 1]]
        lists, members = gather_lists(offsets, sets, joins)
        is_own = np.append(0, np.cumsum(np.isin(members, own)))
        holds: NDArray[np.bool_] = is_own[lists[1:]] > is_own[lists[:-1]]
        return holds

    def sole_supports(self) -> set[int]:
        """Return the buffers without which a step of the critical path would not be there."""
        steps = self.supports(frozenset())
        return {next(iter(labels)) for labels in steps if len(labels) == 1} - {_RAW}

    def greedy(self) -> frozenset[int]:
        """Rename what lies on the critical path until that helps no more."""
        renamed: frozenset[int] = frozenset()
        while True:
            steps = self.supports(renamed)
            more = {n for labels in steps if _RAW not in labels for n in labels}
            if not more or self.length(renamed) <= self.floor * (1 + _CLOSE):
                return renamed
            renamed |= more

    def reduced(self, order: Sequence[int], longest: float) -> tuple[int, ...]:
        """Leave out buffers, in an order, as long as the path stays within a length."""
        kept = list(order)
        size = max(1, len(kept) // 2)
        while True:
            at = 0
            while at < len(kept):
                rest = kept[:at] + kept[at + size :]
                if max(self.length(frozenset(rest)), self.floor) <= longest * (1 + _CLOSE):
                    kept = rest
                else:
                    at += size
            if size == 1:
                return tuple(sorted(kept))
            size //= 2
