"""Dataflow found by one filter in the stream scheduler, over what unfinished kernels hint at."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError, NotApplicableError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.builder import GraphBuilder, in_order, with_possible_joins_of
from depgraph.graph.dependences import KINDS_WITHOUT_FREES, tracked_kinds
from depgraph.mechanisms import bloom
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Cost,
    Mechanism,
    Remembered,
    ahead,
    whole_number,
)
from depgraph.mechanisms.filters_jit import ask_all, ask_each, fill_filters
from depgraph.mechanisms.hints import GRAINS, TENSOR, Hints, hints_of
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Rules, Schedule
from depgraph.schedule.simulate import run_rules

Words = NDArray[np.uint64]

COUNTING, RING = SORTS = ("counting", "ring")
USUAL = (TENSOR, 1 << 12, 4, 32, RING)
_MOST_BITS = 1 << 26
_MOST_ROUNDS = 64


def _of(kind: str, names: tuple[str, ...], mechanism: str, text: str) -> str:
    if text not in names:
        raise ModelError(f"{mechanism}: {kind} {text!r}: give one of {', '.join(names)}")
    return text


class DataflowHints(Mechanism):
    """Blocks wait for the kernels that a filter over hints reports as their launch is admitted."""

    name = "dataflow-hints"
    signature = "dataflow-hints(tensor|row|block[,bits[,hashes[,window[,ring|counting]]]])"
    takes = (
        partial(_of, "grain", GRAINS), partial(whole_number, least=0, most=_MOST_BITS),
        partial(whole_number, most=bloom.MOST_HASHES), whole_number, partial(_of, "filter", SORTS),
    )  # fmt: skip
    rule = (
        "a launch comes with hints at what it reads and writes: whole tensors, pages that a row of "
        "blocks reaches over, or lines that a block touches; as it is admitted they are looked up "
        "in a filter of what unfinished kernels hinted at, 32 at a time; a block then waits for "
        "each kernel whose filter of the ring says yes, or, with one counting filter, for all of "
        "them; bits = 0: hints without a filter; default (tensor,4096,4,32,ring)"
    )
    cost = "the look-up of each key as a kernel is admitted; launches as dataflow"
    availability = Availability.HARDWARE
    source = (
        "Kuper et al., the dependence tool for Accel-Sim (rkuper/accel-sim-scripts); Bloom, CACM "
        "13(7), 1970; counters as in Fan et al., Summary Cache, IEEE/ACM ToN 8(3), 2000"
    )
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "lookup", 1.0, "cycles", "looking up a key of a launch's hints, one after another; "
            "its hashes at once",
            "an assumption: a key a cycle, at the clock of the GPU's model",
        ),
    )  # fmt: skip
    slower_because = f"its look-ups take longer, or {Mechanism.slower_because}"
    usual_sweep = ((TENSOR, 1 << 8), (TENSOR, 1 << 12), ("row", 1 << 14), ("block", 1 << 16))

    def __init__(
        self, grain: str = USUAL[0], bits: int = USUAL[1], hashes: int = USUAL[2],
        window: int = USUAL[3], sort: str = USUAL[4], hinted: Remembered[HintedWaits] | None = None,
    ) -> None:  # fmt: skip
        self.grain, self.bits, self.hashes = grain, bits, hashes
        self.window, self.sort = window, sort
        given = grain, bits, hashes, window, sort
        unusual = [i for i, value in enumerate(given) if value != USUAL[i]]
        self.shown = given[: 1 + max(unusual, default=0)]
        sweep = f"{self.name}, {grain}, {hashes}, {window}, {sort}"
        self.freedom = sweep, bits or float("inf")  # no filter is the largest
        self._hinted = hinted or Remembered(partial(hinted_waits, grain=grain))
        self._answers = Remembered(self._ask)

    @classmethod
    def of_sizes(
        cls, grain: str, sizes: Sequence[int], hashes: int, window: int, sort: str
    ) -> list[DataflowHints]:
        """Return one with filters of each size; what does not depend on it is found once."""
        hinted = Remembered(partial(hinted_waits, grain=grain))
        return [cls(grain, bits, hashes, window, sort, hinted) for bits in sizes]

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Let each unit of a launch wait for the kernels that the filter reports."""
        hinted = self._hinted(program)
        graph = program.graph
        lookups = hinted.hints.keys_of_operations(graph.n_operations)
        enter = ahead(program, charges).enter + lookups * charges.time("lookup")
        found = self._reported(program, hinted, enter)
        bits = self.filter_bits()
        size = "no filter" if bits is None else f"{bits} bits in all ({bits / 8192:.4g} KiB)"
        figures = hinted.figures(graph, found)
        note = (
            f"{size}; {int(lookups.sum())} look-ups; waits of blocks for unfinished kernels: "
            f"{figures['true']} true, {figures['by_grain']} false by the grain of hints, "
            f"{figures['by_filter']} false by the filter, {figures['missed']} missed"
        )
        if found.is_bounded:
            note += "; taken as if no kernel had ended, as the rounds did not settle"
        return Rules(
            graph=found.graph,
            enter=enter,
            window=self.window,
            strict=False,
            assumptions=(note,),
            figures={"lookups": int(lookups.sum()), **figures, **({"bits": bits} if bits else {})},
        )

    def filter_bits(self) -> int | None:
        """Return how many bits all filters have, of reads and of writes; None without filters."""
        if not self.bits:
            return None
        if self.sort == RING:
            return 2 * self.bits * self.window
        # A counter counts kernels; with a map of bits beside it a kernel counts once.
        return 2 * self.bits * (self.window.bit_length() + 1)

    def _ask(self, program: Scenario) -> tuple[Words, BlockGraph | None]:
        """Return what units wait for, if each kernel has a filter; else the filters themselves.

        The former as a graph, too, which is the same on all GPUs.
        """
        hinted, hashes = self._hinted(program), self.hashes if self.bits else 0
        hints, n = hinted.hints, hinted.n_operations
        waits = hinted.shared
        if self.sort != RING or self.bits:
            filters = filled(hints, n, self.bits or hints.n_keys, hashes)
            if self.sort != RING:
                return filters, None
            waits = waits_on_each(hints, n, filters, hashes, hinted.kinds)
        return waits, waiting_graph(program.graph, hints, waits)

    def _reported(
        self, program: Scenario, hinted: HintedWaits, enter: NDArray[np.float64]
    ) -> Reported:
        """Return what waits for what, and which kernels were unfinished at each look-up."""

        def run(waits: Words, graph: BlockGraph | None = None) -> tuple[BlockGraph, Words]:
            if graph is None:
                graph = waiting_graph(program.graph, hinted.hints, waits)
            rules = Rules(graph=graph, enter=enter, window=self.window, strict=False)
            plan = run_rules(
                self.name, rules, graph, program.durations, program.resources, program.sms
            )
            return graph, unfinished_at(plan, graph, enter, self.window)

        answers, graph_of_answers = self._answers(program)
        if self.sort == RING:
            return Reported(answers, *run(answers, graph_of_answers))
        # Up to the first look-up that another set of unfinished kernels would have answered
        # otherwise a schedule is right: each round makes one more kernel right, most make many.
        wait = partial(hinted.waits_on_all, answers, self.hashes if self.bits else 0)
        n = program.graph.n_operations
        everything = wait(bloom.lowest_bits(np.arange(n), (n + 63) // 64))
        waits = everything
        for _ in range(_MOST_ROUNDS):
            graph, unfinished = run(waits)
            following = wait(unfinished)
            if (following == waits).all():
                return Reported(waits, graph, unfinished)
            waits = following
        return Reported(everything, *run(everything), is_bounded=True)


@dataclass(frozen=True, slots=True)
class Reported:
    """What units wait for, as a graph too, and what was unfinished as each kernel was admitted."""

    waits: Words  # [n_units, words]: operations, 64 a word
    graph: BlockGraph
    unfinished: Words  # [n_operations, words]
    is_bounded: bool = False


@dataclass(frozen=True, slots=True)
class HintedWaits:
    """What the hints of a program say, whatever filters hold them: operations, 64 a word."""

    hints: Hints
    n_operations: int
    shared: Words  # [n_units, words]: older operations whose hints share a key
    edges: Words  # [n_blocks, words]: operations that a block depends on
    kinds: frozenset[str]

    @np.errstate(over="ignore")
    def waits_on_all(self, filters: Words, hashes: int, unfinished: Words) -> Words:
        """Return what units wait for if one filter over unfinished kernels is asked."""
        hints = self.hints
        among = unfinished[hints.operation]
        found = np.zeros(hints.n_units, np.bool_)
        for name, own, others in bloom.KINDS:
            if name in self.kinds:
                ask_all(*hints.ranges, own, filters[others], hashes, among, found)
        # Where times are others than these, what shares a key is waited for all the same.
        return self.shared | np.where(found[:, None], among, np.uint64(0))

    def figures(self, graph: BlockGraph, found: Reported) -> dict[str, int]:
        """Count pairs of a block and an older kernel that was unfinished at the look-up."""
        unit = self.hints.unit_of_block
        there = found.unfinished[graph.operation_of_block]
        waits, shared = found.waits[unit] & there, self.shared[unit]
        return {
            "true": bloom.count_bits(waits & self.edges),
            "by_grain": bloom.count_bits(waits & shared & ~self.edges),
            "by_filter": bloom.count_bits(waits & ~shared & ~self.edges),
            "missed": bloom.count_bits(self.edges & there & ~waits),
        }


def hinted_waits(program: Scenario, grain: str) -> HintedWaits:
    """Compare the hints of all launches at a grain."""
    graph = program.graph
    hints, kinds = hints_of(program, grain), tracked_kinds(graph.kinds)
    filters = filled(hints, graph.n_operations, hints.n_keys, 0)
    shared = waits_on_each(hints, graph.n_operations, filters, 0, kinds)
    edges = edges_by_operation(graph.certain().with_kinds(KINDS_WITHOUT_FREES & graph.kinds))
    return HintedWaits(hints, graph.n_operations, shared, edges, kinds)


@np.errstate(over="ignore")
def filled(hints: Hints, n_operations: int, bits: int, hashes: int) -> Words:
    """Fill filters of so many bits; without hashes each key has its own: uint64[2, bits, words]."""
    words = (n_operations + 63) // 64
    n_asked = int(hints.keys_of_operations(n_operations).sum())
    if (
        16 * words * bits > bloom.MOST_FILTER_BYTES
        or n_asked * words * max(hashes, 1) > bloom.MOST_WORK
    ):
        raise NotApplicableError(
            f"dataflow-hints compares {n_asked} keys with those of {n_operations} kernels "
            "and copies, too many; give a coarser grain, or pick fewer kernels with extract "
            "--kernels A:B"
        )
    filters: Words = fill_filters(*hints.ranges, hints.operation, bits, hashes, words)
    return filters


@np.errstate(over="ignore")
def waits_on_each(
    hints: Hints, n_operations: int, filters: Words, hashes: int, kinds: frozenset[str]
) -> Words:
    """Return what units wait for if the filter of each older operation is asked."""
    older = bloom.lowest_bits(np.arange(n_operations), filters.shape[2])[hints.operation]
    found = np.zeros_like(older)
    for name, own, others in bloom.KINDS:
        if name in kinds:
            ask_each(*hints.ranges, own, filters[others], hashes, older, found)
    return found


def edges_by_operation(graph: BlockGraph) -> Words:
    """Return which operations each block depends on: uint64[n_blocks, words]."""
    edges = np.zeros((graph.n_blocks, (graph.n_operations + 63) // 64), np.uint64)
    for join, source in enumerate(graph.join_source_operation.tolist()):
        targets = graph.blocks_of(graph.target_lists, join)
        edges[targets, source >> 6] |= np.uint64(1 << (source & 63))
    return edges


def waiting_graph(graph: BlockGraph, hints: Hints, waits: Words) -> BlockGraph:
    """Return the graph in which units wait for whole operations, without what follows."""
    builder = GraphBuilder(graph.kernel.tolist(), np.diff(graph.first_block).tolist())
    first = graph.first_block.tolist()
    after_all: list[int] = []  # of each operation: those that all its blocks come after, as bits
    for k in range(graph.n_operations):
        blocks = np.arange(*graph.first_block[k : k + 2], dtype=np.int32)
        rows, row_of = np.unique(waits[hints.unit_of_block[blocks]], axis=0, return_inverse=True)
        common = -1 if len(rows) else 0
        for i, row in enumerate(rows):
            targets = in_order(blocks[row_of.reshape(-1) == i])
            left = int.from_bytes(row.astype("<u8").tobytes(), "little")
            before = 0
            while left := left & ~before:
                source = left.bit_length() - 1
                sources = range(*first[source : source + 2])
                if sources:
                    builder.add("RAW", sources, targets)
                before |= after_all[source] | 1 << source
            common &= before
        after_all.append(common)
    return with_possible_joins_of(builder.build(graph.kinds), graph)


def unfinished_at(
    plan: Schedule, graph: BlockGraph, enter: NDArray[np.float64], window: int
) -> Words:
    """Return which operations had not ended as each was admitted: uint64[n_operations, words]."""
    _, ends = plan.of_operations(graph.first_block)
    unfinished = np.zeros((graph.n_operations, (graph.n_operations + 63) // 64), np.uint64)
    inside: list[tuple[float, int]] = []  # when it ends, and which it is
    now = 0.0
    for k in range(graph.n_operations):
        if len(inside) == window:
            now = max(now, inside[0][0])
        now += enter[k]
        while inside and inside[0][0] <= now:
            heapq.heappop(inside)
        for _, other in inside:
            unfinished[k, other >> 6] |= np.uint64(1 << (other & 63))
        heapq.heappush(inside, (max(ends[k], now), k))
    return unfinished
