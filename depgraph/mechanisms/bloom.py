"""Dataflow whose dependences are what Bloom filters over touched lines report."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError, NotApplicableError
from depgraph.footprint.footprints import Footprints
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.builder import GraphBuilder, in_order, with_possible_joins_of
from depgraph.graph.dependences import tracked_kinds
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Mechanism,
    Numbered,
    Remembered,
    ahead,
    whole_numbers,
)
from depgraph.mechanisms.filters_jit import ask_each, fill_filters, report_sharing
from depgraph.mechanisms.hints import footprints_for, in_spaces
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Rules
from depgraph.trace.records import READ, WRITE

LINE_BYTES = 128
MOST_HASHES = 64
MOST_FILTER_BYTES = 1 << 30
MOST_WORK = 4_000_000_000  # words looked at; about as many nanoseconds
_MOST_CELLS = 1 << 22
KINDS = (("RAW", READ, WRITE), ("WAR", WRITE, READ), ("WAW", WRITE, WRITE))


class DataflowBloom(Numbered):
    """Dataflow with a filter of reads and one of writes for each block."""

    name = "dataflow-bloom"
    signature = "dataflow-bloom(m,k)"
    rule = (
        "as dataflow, but a block depends on every older block whose Bloom filter of m bits and k "
        "hashes over touched lines answers yes; false positives add edges"
    )
    cost = "two filters a block; launches as dataflow"
    availability = Availability.HARDWARE
    source = "Bloom, CACM 13(7), 1970; lines of 128 bytes"
    usual_sweep = ((1 << 8, 4), (1 << 10, 4), (1 << 12, 4), (1 << 14, 4))

    def __init__(self, bits: int, hashes: int) -> None:
        super().__init__(bits, hashes)
        self.bits, self.hashes = bits, hashes
        self.freedom = f"{self.name}, {hashes} hashes", bits
        self._asked = Remembered(self._ask)

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read bits and hashes."""
        bits, hashes = whole_numbers(cls, parameters, 2)
        if hashes > MOST_HASHES:
            raise ModelError(f"{cls.name}: {hashes} hashes; give 1 to {MOST_HASHES}")
        return cls(bits, hashes)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Take the dependences from filters."""
        reported, answers = self._asked(program)
        return Rules(
            graph=reported,
            enter=ahead(program, charges).enter,
            strict=False,
            assumptions=(answers.describe(),),
        )

    def _ask(self, program: Scenario) -> tuple[BlockGraph, Answers]:
        footprints = footprints_for(self.name, program)
        answers = ask_filters(program.graph, footprints, self.bits, self.hashes)
        return reported_graph(program.graph, answers), answers


# A filter of m bits with n lines and k hashes answers yes for a line that is not in it with
# probability ``(1 - exp(-k * n / m)) ** k`` (Bloom 1970).
@dataclass(frozen=True, slots=True)
class Answers:
    """Which older blocks the filters of all blocks report, and how many of them there are."""

    reported: NDArray[np.uint64]  # [n_blocks, words]: a bit for each block, 64 a word
    true: int  # pairs of blocks that are edges of the graph
    implied: int  # others whose order follows from edges
    false: int  # the rest
    sharing: int  # of the false ones, those that share a line, if no byte that makes an edge
    collisions: int  # pairs that share no line, implied ones too: hashes alone are to blame
    expected: float  # how many of these the formula expects

    def describe(self) -> str:
        """Say it in a sentence."""
        return (
            f"pairs of blocks reported: {self.true + self.implied + self.false}, {self.true} true, "
            f"{self.implied} implied by others, {self.false} false, of which {self.sharing} share "
            f"a line of {LINE_BYTES} bytes; {self.collisions} by colliding hashes only, where "
            f"the formula expects {self.expected:.4g}"
        )


class _Lines(NamedTuple):
    """The lines that each block reads and writes, once each, and what filters need to be asked."""

    block: NDArray[np.int32]
    kind: NDArray[np.uint8]
    first: NDArray[np.uint64]
    last: NDArray[np.uint64]


def _lines_of(graph: BlockGraph, footprints: Footprints) -> _Lines:
    touched, size = in_spaces(graph, footprints), np.uint64(LINE_BYTES)
    first, last = touched.start // size, (touched.end - np.uint64(1)) // size
    order = np.lexsort((first, touched.access, touched.block))
    block, kind = touched.block[order], touched.access[order]
    first, last = first[order], last[order]
    # Ranges of a block do not overlap, but one may begin in the line in which another ends.
    follows = (np.diff(block) == 0) & (np.diff(kind) == 0)
    first[1:] = np.where(follows, np.maximum(first[1:], last[:-1] + np.uint64(1)), first[1:])
    kept = first <= last
    return _Lines(block[kept], kind[kept], first[kept], last[kept])


def ask_filters(graph: BlockGraph, footprints: Footprints, bits: int, hashes: int) -> Answers:
    """Find the dependences that Bloom filters of so many bits and hashes each report."""
    lines = _lines_of(graph, footprints)
    n_lines = int((lines.last - lines.first + np.uint64(1)).sum())
    words = (graph.n_blocks + 63) // 64
    if 2 * bits * words * 8 > MOST_FILTER_BYTES or n_lines * words * hashes > MOST_WORK:
        raise NotApplicableError(
            f"dataflow-bloom compares every pair of blocks, too many for {graph.n_blocks} blocks "
            f"and filters of {bits} bits; pick fewer kernels with extract --kernels A:B"
        )
    older = lowest_bits(graph.first_block[:-1], words)[graph.operation_of_block]
    reported, sharing = np.zeros_like(older), np.zeros_like(older)
    blocks = np.arange(graph.n_blocks, dtype=np.int32)
    touches = _expanded(lines)
    with np.errstate(over="ignore"):
        filters = fill_filters(*lines, blocks, bits, hashes, words)
        for kind, own, others in KINDS:
            if kind in tracked_kinds(graph.kinds):
                ask_each(*lines, own, filters[others], hashes, older, reported)
                report_sharing(*touches, own, others, older, sharing)
    edges, ordered = _edges_and_order(graph.certain())
    false = reported & ~ordered
    collisions = reported & ~sharing
    return Answers(
        reported=reported,
        true=count_bits(reported & edges),
        implied=count_bits(reported & ordered & ~edges),
        false=count_bits(false),
        sharing=count_bits(false & sharing),
        collisions=count_bits(collisions),
        expected=_expected(graph, lines, sharing, bits, hashes),
    )


def _expanded(lines: _Lines) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.uint8]]:
    """Return every touch of a line, by line: line, block, kind."""
    counts = (lines.last - lines.first + np.uint64(1)).astype(np.int64)
    offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    line = np.repeat(lines.first, counts) + offset.astype(np.uint64)
    order = np.argsort(line, kind="stable")
    block, kind = np.repeat(lines.block, counts), np.repeat(lines.kind, counts)
    return line[order], block[order], kind[order]


def lowest_bits(counts: NDArray[np.integer[Any]], words: int) -> NDArray[np.uint64]:
    """Return rows of words in which the first so many bits are set: uint64[len(counts), words]."""
    bits = np.clip(counts[:, None] - 64 * np.arange(words), 0, 64).astype(np.uint64)
    partly = (np.uint64(1) << (bits & np.uint64(63))) - np.uint64(1)
    return np.where(bits == np.uint64(64), ~np.uint64(0), partly)


def count_bits(bits: NDArray[np.uint64]) -> int:
    """Return how many bits are set in words."""
    return int(np.bitwise_count(bits).sum())


def _edges_and_order(graph: BlockGraph) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return which blocks each block depends on, and which come before it by any path."""
    words = (graph.n_blocks + 63) // 64
    edges = np.zeros((graph.n_blocks, words), np.uint64)
    ordered = np.zeros_like(edges)
    for j in range(len(graph.join_kind)):  # in the order of their targets
        sources = graph.blocks_of(graph.source_lists, j)
        targets = graph.blocks_of(graph.target_lists, j)
        own = np.zeros(words, np.uint64)
        np.bitwise_or.at(own, sources >> 6, np.uint64(1) << (sources & 63).astype(np.uint64))
        edges[targets] |= own
        ordered[targets] |= own | np.bitwise_or.reduce(ordered[sources], axis=0)
    return edges, ordered


def _expected(
    graph: BlockGraph, lines: _Lines, sharing: NDArray[np.uint64], bits: int, hashes: int
) -> float:
    """Return how many pairs that share no line the filters are expected to report."""
    counts = np.zeros((2, graph.n_blocks))
    np.add.at(counts, (lines.kind, lines.block), (lines.last - lines.first + np.uint64(1)))
    with np.errstate(divide="ignore"):
        # Logarithm of the probability that one line is not reported by the filter of each block.
        silent = np.log1p(-((1 - np.exp(-hashes * counts / bits)) ** hashes))
    expected = 0.0
    for k in range(1, graph.n_operations):
        first, last = graph.first_block[k : k + 2].tolist()
        step = max(1, _MOST_CELLS // max(first, 1))
        for low in range(first, last, step):
            high = min(low + step, last)
            log = np.zeros((high - low, first))
            for kind, own, others in KINDS:
                asked = np.flatnonzero(counts[own, low:high])
                if kind in tracked_kinds(graph.kinds):
                    log[asked] += np.outer(counts[own, low:high][asked], silent[others, :first])
            shared = np.unpackbits(sharing[low:high].view(np.uint8), axis=1, bitorder="little")
            expected += float((-np.expm1(log) * (shared[:, :first] == 0)).sum())
    return expected


def reported_graph(graph: BlockGraph, answers: Answers) -> BlockGraph:
    """Return the graph whose edges are what filters report."""
    reported = answers.reported
    builder = GraphBuilder(graph.kernel.tolist(), np.diff(graph.first_block).tolist())
    for k in range(graph.n_operations):
        low, high = graph.first_block[k : k + 2]
        rows, inverse = np.unique(reported[low:high], axis=0, return_inverse=True)
        for i, row in enumerate(rows):
            blocks = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            blocks = blocks.astype(np.int32)
            targets = in_order((low + np.flatnonzero(inverse.reshape(-1) == i)).astype(np.int32))
            cuts = 1 + np.flatnonzero(np.diff(graph.operation_of_block[blocks]))
            ends = [*cuts.tolist(), len(blocks)] if len(blocks) else []
            for first, end in itertools.pairwise([0, *ends]):
                builder.add("RAW", blocks[first:end], targets)
    return with_possible_joins_of(builder.build(graph.kinds), graph)
