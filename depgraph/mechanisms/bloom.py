"""Dataflow whose dependences are what Bloom filters over touched lines report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.build import GraphBuilder, with_possible_joins_of
from depgraph.errors import ModelError
from depgraph.jit.bloom import fill_filters, query_filters
from depgraph.mechanisms.base import (
    Availability,
    Mechanism,
    NotApplicableError,
    whole_numbers,
)
from depgraph.records import READ, WRITE
from depgraph.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.footprint import Footprints
    from depgraph.graph import BlockGraph
    from depgraph.mechanisms.base import Program
    from depgraph.mechanisms.costs import Charges

LINE_BYTES = 128
SWEEP = ((1 << 8, 4), (1 << 10, 4), (1 << 12, 4), (1 << 14, 4))
_MOST_HASHES = 64
_MOST_FILTER_BYTES = 1 << 30
_MOST_WORK = 4_000_000_000  # words looked at; about as many nanoseconds
_KINDS = (("RAW", READ, WRITE), ("WAR", WRITE, READ), ("WAW", WRITE, WRITE))


class DataflowBloom(Mechanism):
    """Dataflow with a filter of reads and one of writes for each block.

    Parameters
    ----------
    bits, hashes : int
        Of each filter.
    """

    name = "dataflow-bloom"
    signature = "dataflow-bloom(m,k)"
    rule = (
        "as dataflow, but a block depends on every older block whose Bloom filter of m bits and k "
        "hashes over touched lines answers yes; false positives add edges"
    )
    cost = "two filters a block"
    availability = Availability.HARDWARE
    source = "Bloom, CACM 13(7), 1970; lines of 128 bytes"

    def __init__(self, bits: int, hashes: int) -> None:
        self.bits, self.hashes = bits, hashes

    @property
    def label(self) -> str:
        """The name with the size of the filters."""
        return f"{self.name}({self.bits},{self.hashes})"

    @classmethod
    def variants(cls) -> Sequence[Mechanism]:
        """Return a sweep of filter sizes."""
        return [cls(*size) for size in SWEEP]

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read bits and hashes."""
        bits, hashes = whole_numbers(cls, parameters, 2)
        if hashes > _MOST_HASHES:
            raise ModelError(f"{cls.name}: {hashes} hashes; give 1 to {_MOST_HASHES}")
        return cls(bits, hashes)

    def rules(self, program: Program, charges: Charges) -> Rules:
        """Take the dependences from filters."""
        del charges
        if program.read_footprints is None:
            raise NotApplicableError(f"{self.name} needs footprints, which only a trace has")
        footprints = program.read_footprints()
        if not len(footprints):
            raise NotApplicableError(f"{self.name} needs footprints, which only a trace has")
        graph = bloom_graph(program.graph, footprints, self.bits, self.hashes)
        true, reported = (sum(p.edges for p in g.pairs()) for g in (program.graph, graph))
        return Rules(
            graph=graph,
            strict=False,
        ).assuming(
            f"{reported} pairs of blocks reported, of which {reported - true} are false or implied "
            "by others"
        )


def bloom_graph(graph: BlockGraph, footprints: Footprints, bits: int, hashes: int) -> BlockGraph:
    """Find the dependences that Bloom filters report.

    Parameters
    ----------
    graph : BlockGraph
        Its blocks and kinds of dependence.
    footprints : Footprints
    bits, hashes : int
        Of each filter, one for the lines that a block reads and one for those it writes.

    Raises
    ------
    NotApplicableError
        If there are too many blocks to look at every pair.
    """
    first, last = footprints.start // LINE_BYTES, (footprints.end - 1) // LINE_BYTES
    lines = int((last - first + 1).sum())
    if graph.space is not None:
        # Lines of other address spaces are other lines; their numbers have 57 bits.
        space = graph.space[graph.operation_of_block[footprints.block]].astype(np.uint64)
        first, last = first + (space << np.uint64(57)), last + (space << np.uint64(57))
    words = (graph.n_blocks + 63) // 64
    if 2 * bits * words * 8 > _MOST_FILTER_BYTES or lines * words * hashes > _MOST_WORK:
        raise NotApplicableError(
            f"dataflow-bloom compares every pair of blocks, too many for {graph.n_blocks} blocks; "
            "pick fewer kernels with extract --kernels A:B"
        )
    with np.errstate(over="ignore"):
        filters = fill_filters(
            footprints.block, footprints.access, first, last, bits, hashes, words
        )
        reported = np.zeros((graph.n_blocks, words), np.uint64)
        for kind, own, others in _KINDS:
            if kind in graph.kinds:
                query_filters(
                    footprints.block, footprints.access, first, last, own, filters[others], hashes,
                    graph.first_block[graph.operation_of_block], reported,
                )  # fmt: skip
    return with_possible_joins_of(_graph_of(graph, reported), graph)


def _graph_of(graph: BlockGraph, reported: NDArray[np.uint64]) -> BlockGraph:
    builder = GraphBuilder(graph.kernel.tolist(), np.diff(graph.first_block).tolist())
    for k in range(graph.n_operations):
        low, high = graph.first_block[k : k + 2]
        rows, inverse = np.unique(reported[low:high], axis=0, return_inverse=True)
        for i, row in enumerate(rows):
            blocks = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            targets = low + np.flatnonzero(inverse.reshape(-1) == i)
            operations = graph.operation_of_block[blocks]
            for source in np.unique(operations):
                builder.add("RAW", blocks[operations == source], targets)
    return builder.build(graph.kinds)
