"""ACS: kernels out of order, found independent by their byte ranges at run time."""

from collections.abc import Collection
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import NotApplicableError
from depgraph.footprint.footprints import Footprints
from depgraph.graph.block_graph import BlockGraph, dependent_operations
from depgraph.graph.dependences import KIND_NAMES, tracked_kinds
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Cost,
    Launching,
    Mechanism,
    Numbered,
    Remembered,
    gated,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, Gates, Rules
from depgraph.system.text import counted
from depgraph.trace.records import READ, WRITE

_PAPER = "Durvasula et al., ACS: Concurrent kernel execution on irregular, input-dependent graphs"
_KINDS = {"RAW": (WRITE, READ), "WAR": (READ, WRITE), "WAW": (WRITE, WRITE)}
# More operations than this: the paths between them are not worked out to say what ranges add.
_MOST_EXPLAINED = 8000


class AcsSoftware(Numbered):
    """ACS with the window in software: host threads launch and synchronise."""

    name = "acs-sw"
    signature = "acs-sw(N)"
    rule = (
        "a kernel starts once no older kernel that it conflicts with is unfinished; kernels enter "
        "a window of N = 32 in launch order and leave it in any; two kernels conflict if a byte "
        "range that one writes overlaps one of the other's, each known by a few ranges"
    )
    cost = (
        "a check as a kernel enters; launches: the host issues each kernel, gap and a "
        "synchronisation once it may start"
    )
    availability = Availability.CODE
    source = _PAPER
    usual = (32,)
    more_is_freer = True
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "launch", 1.0, "launches", "instead of what the launch model says, its gap and a "
            "synchronisation: a time to launch and synchronise, once a kernel may start",
            f"--launch; {_PAPER}: 5 to 20 us a kernel", is_launch=True,
        ),
        Cost(
            "check", 0.51, "us", "comparing a kernel with those in the window, one at a time; as "
            "long as that for N = 32, 0.41 us for 16, in line with these for others",
            f"{_PAPER}: with 6 segments",
        ),
        Cost(
            "segments", 6, "count", "byte ranges that get_addresses gives of what a kernel reads, "
            "and of what it writes; 0 for exact footprints",
            f"{_PAPER}: the check was measured with 6",
        ),
    )  # fmt: skip

    slower_because = f"its check takes longer, or {Mechanism.slower_because}"

    def __init__(self, window: int = 32) -> None:
        super().__init__(window)
        self.window = window
        self._conflicts: dict[int, Remembered[tuple[Gates, str]]] = {}  # by number of segments

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by older ones in the window that it conflicts with."""
        n = program.graph.n_operations
        segments = int(charges.number("segments"))
        if segments not in self._conflicts:
            self._conflicts[segments] = Remembered(partial(_conflicts, segments=segments))
        gates, note = self._conflicts[segments](program)
        notes = [note]
        waits_for_all = np.zeros(n, np.bool_)
        if program.opaque.any():
            # Each operation waits for the last opaque one before it, which waits for all before.
            waits_for_all, opaque = program.opaque, np.flatnonzero(program.opaque)
            later = np.arange(opaque[0] + 1, n)
            gates += Gates.between(opaque[np.searchsorted(opaque, later) - 1], later, ALL_ENDED)
            notes.append(
                f"opaque kernels, which conflict with all others: {int(program.opaque.sum())}"
            )
        enter, launch = self._times(charges)
        return gated(
            Launching(program.is_kernel * enter, program.is_kernel * launch),
            gates,
            waits_for_all=waits_for_all,
            window=self.window,
            assumptions=tuple(notes),
        )

    def _times(self, charges: Charges) -> tuple[float, float]:
        """Return what a kernel needs to enter the window, and to start."""
        check = charges.time("check", default=check_time(self.window))
        if charges.is_given("launch"):
            return check, charges.time("launch")
        model = charges.launches
        return check + model.host.value, model.gap.value + model.sync.value


class AcsHardware(AcsSoftware):
    """ACS with the window in the GPU's command processor."""

    name = "acs-hw"
    signature = "acs-hw(N)"
    cost = "launches: the host issues each kernel; 50 to 100 ns a kernel in place of the gap"
    availability = Availability.HARDWARE
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "launch", 50.0, "ns", "dispatching a kernel",
            f"{_PAPER}: 50 to 100 ns a kernel; the low end", is_launch=True,
        ),
        Cost("check", 0.0, "us", "in hardware, beside other work", _PAPER),
        AcsSoftware.costs[2],
    )  # fmt: skip
    slower_because = Mechanism.slower_because

    def _times(self, charges: Charges) -> tuple[float, float]:
        return charges.time("check") + charges.launches.host.value, charges.time("launch")


def check_time(window: int) -> float:
    """Return the microseconds that comparing a kernel with a full window takes."""
    # A line through the two published times: 0.41 us at 16 kernels, 0.51 us at 32.
    return 0.31 + 0.1 * window / 16


def _conflicts(program: Scenario, segments: int) -> tuple[Gates, str]:
    """Return which operations wait for which, and how that was found."""
    graph = program.graph
    source, target = dependent_operations(graph)
    kinds = ", ".join(kind for kind in KIND_NAMES if kind in graph.kinds)
    exact = f"conflicts: kernels that share written bytes, exact footprints ({kinds})"
    footprints = None
    if segments and program.read_footprints is not None:
        try:
            footprints = program.read_footprints()
        except NotApplicableError as error:
            exact += f": {error}"
    if footprints is None or not len(footprints):
        return Gates.between(source, target, ALL_ENDED), exact
    seen_source, seen_target = segment_conflicts(graph, footprints, segments, graph.kinds)
    note = (
        f"conflicts: kernels known by {segments} byte ranges each that they read, and {segments} "
        f"that they write ({kinds})"
    )
    if graph.n_operations <= _MOST_EXPLAINED:
        before = ordered_pairs(graph.n_operations, source, target)
        added = int((~before[seen_source, seen_target]).sum())
        note += f": {counted(len(seen_source), 'pair')}, {added} not dependent"
    n = graph.n_operations
    # What the graph orders beyond that, such as a copy, is kept.
    key = np.unique(
        np.concatenate([source, seen_source]).astype(np.int64) * n
        + np.concatenate([target, seen_target])
    )
    return Gates.between(key // n, key % n, ALL_ENDED), note


def kernel_segments(
    graph: BlockGraph, footprints: Footprints, kind: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Cover each operation's bytes by `most` ranges, ascending; the widest holes stay open."""
    chosen = footprints.access == kind
    operation = graph.operation_of_block[footprints.block[chosen]].astype(np.int64)
    start, end = footprints.start[chosen], footprints.end[chosen]
    order = np.lexsort((start, operation))
    operation, start, end = operation[order], start[order], end[order]
    if not len(operation):
        return operation, start, end
    begins = np.diff(operation, prepend=-1) > 0
    firsts = np.flatnonzero(begins)
    reached = end.copy()  # the furthest end so far of each operation
    for low, high in zip(firsts, np.append(firsts[1:], len(end)), strict=True):
        np.maximum.accumulate(end[low:high], out=reached[low:high])
    hole = np.zeros(len(start), np.uint64)
    apart = ~begins[1:] & (start[1:] > reached[:-1])
    hole[1:][apart] = start[1:][apart] - reached[:-1][apart]
    # Of each operation the `most` - 1 widest holes, the earlier of equal ones.
    by_width = np.lexsort((np.arange(len(hole)), np.iinfo(np.uint64).max - hole, operation))
    first = np.searchsorted(operation, operation)
    rank = np.empty(len(hole), np.int64)
    rank[by_width] = np.arange(len(hole)) - first[by_width]
    cut = begins | ((hole > 0) & (rank < most - 1))
    at = np.flatnonzero(cut)
    last = np.append(at[1:], len(start)) - 1
    return operation[at], start[at], reached[last]


def segment_conflicts(
    graph: BlockGraph, footprints: Footprints, most: int, kinds: Collection[str]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the pairs of operations, older first, whose ranges overlap and one of which writes."""
    n = graph.n_operations
    segments = {kind: kernel_segments(graph, footprints, kind, most) for kind in (READ, WRITE)}
    keys = [np.empty(0, np.int64)]
    for kind in tracked_kinds(kinds):
        older, newer = _KINDS[kind]
        a, b = _overlaps(segments[older], segments[newer])
        forward = a < b
        if graph.space is not None:
            forward &= graph.space[a] == graph.space[b]
        keys.append(np.unique(a[forward] * n + b[forward]))
    key = np.unique(np.concatenate(keys))
    return (key // n).astype(np.int32), (key % n).astype(np.int32)


def _overlaps(
    one: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]],
    other: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operations of all pairs of ranges, one from each side, that overlap."""
    pairs = []
    # A range overlaps those that start inside it, and those inside which it starts.
    for inside, around, is_swapped in ((other, one, False), (one, other, True)):
        order = np.argsort(inside[1], kind="stable")
        starts = inside[1][order]
        low = np.searchsorted(starts, around[1], side="right" if is_swapped else "left")
        high = np.searchsorted(starts, around[2], side="left")
        counts = np.maximum(high - low, 0)
        outer = np.repeat(around[0], counts)
        offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        inner = inside[0][order][np.repeat(low, counts) + offset]
        pairs.append((inner, outer) if is_swapped else (outer, inner))
    first, second = zip(*pairs, strict=True)
    return np.concatenate(first), np.concatenate(second)


def ordered_pairs(
    n: int, source: NDArray[np.int32], target: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which operations come before which by a path of dependences: bool[n, n]."""
    before = np.zeros((n, n), np.bool_)
    order = np.argsort(target, kind="stable")
    sources = source[order]
    offsets = np.searchsorted(target[order], np.arange(n + 1))
    for k in range(n):
        own = sources[offsets[k] : offsets[k + 1]]
        if len(own):
            before[k] = before[own].any(axis=0)
            before[k, own] = True
    return before.T
