"""Buffers: memory that kernels write, and the dependences that rest on its being used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.dependence.sweep import build_graph, sweep_spaces
from depgraph.errors import NotApplicableError
from depgraph.footprint.footprints import Footprints, cut_to_spans, join_footprints, renumbered
from depgraph.graph.builder import assemble, join_order
from depgraph.graph.kinds import ALL_KINDS
from depgraph.graph.lists import concatenate_lists
from depgraph.system.text import clean_text
from depgraph.trace.records import WRITE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.scenario.scenario import Scenario
    from depgraph.trace.records import Allocation

BLOCK_BYTES = 512
"""What allocations are rounded up to: ``kMinBlockSize`` of PyTorch's caching allocator."""
_REUSES = ALL_KINDS - {"RAW"}
_NO_BUFFER = -1
_ALLOCATORS_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of memory that the same kernels write."""

    number: int  # from 0, in the order of the addresses
    # start, end: first byte that is written, and the one after the last
    start: int
    end: int
    # writers, readers: kernel numbers, ``-1 - i`` for copy or memset i, in program order
    writers: tuple[int, ...]
    readers: tuple[int, ...]
    more_bytes: int  # what it takes more if each kernel that writes it has one of its own
    pairs: int  # pairs of kernels with a dependence through it other than RAW
    # war, waw, reuse: distinct edges between blocks through it. Another buffer may give the same
    # edge
    war: int
    waw: int
    reuse: int = 0
    # operators, and lines of the program, that allocated memory there; empty where not known
    allocated_by: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start

    @property
    def is_reused(self) -> bool:
        """Whether a dependence other than RAW rests on it."""
        return self.pairs > 0


def allocators(buffers: Iterable[Buffer]) -> str:
    """Name who allocated buffers, some of them where they are many; empty where nobody knows."""
    names = list(dict.fromkeys(clean_text(name) for b in buffers for name in b.allocated_by))
    more = len(names) - _ALLOCATORS_SHOWN
    return ", ".join(names[:_ALLOCATORS_SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Reuse:
    """The dependences of a program, each but RAW with the buffer that it rests on."""

    buffers: tuple[Buffer, ...]  # all of them, by address
    # certain dependences. One edge stands there once for each buffer that gives it
    graph: BlockGraph
    label: NDArray[np.int64]  # number of the buffer that each join rests on; -1 for RAW


def find_buffers(scenario: Scenario) -> Reuse:
    """Merge the ranges that a program writes into buffers, and find what rests on each.

    The input knows no allocations. Written ranges are rounded out to blocks of `BLOCK_BYTES`, and
    neighbours that the same kernels write are taken for one buffer: two tensors side by side that
    are always written together count as one, a tensor of which kernels write parts as several.
    """
    if scenario.read_footprints is None:
        message = "buffers need the footprints of the blocks"
        raise NotApplicableError(message)
    graph = scenario.graph
    footprints = scenario.read_footprints().rounded(scenario.granularity, graph.n_blocks)
    spans = _written_together(footprints, graph)
    n_buffers = len(spans[0])
    pieces, buffer = cut_to_spans(footprints, *spans)
    order = np.argsort(buffer, kind="stable")
    pieces, buffer = pieces.take(order), buffer[order]
    ends = np.searchsorted(buffer, np.arange(n_buffers + 1))
    found, graphs = [], []
    for number in range(n_buffers):
        own = pieces.take(slice(ends[number], ends[number + 1]))
        described, reuse = _describe(number, own, scenario)
        found.append(described)
        if reuse is not None:
            graphs.append((number, *reuse))
    return Reuse(tuple(found), *_stacked(scenario, graphs))


def _written_together(
    footprints: Footprints, graph: BlockGraph
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the starts and ends of the ranges that one and the same set of operations writes."""
    writes = footprints.take(footprints.kind == WRITE)
    mask = np.uint64(BLOCK_BYTES - 1)
    last = (writes.end - np.uint64(1)) | mask
    of_operation = join_footprints(
        graph.operation_of_block[writes.block],
        writes.kind,
        writes.start & ~mask,
        last + (last != np.iinfo(np.uint64).max),
        graph.n_operations,
    )
    # A set of operations has the sum of random numbers of its members for a name.
    numbers = np.random.default_rng(0).integers(
        1, np.iinfo(np.uint64).max, graph.n_operations, np.uint64
    )
    name = numbers[of_operation.block]
    address = np.concatenate([of_operation.start, of_operation.end])
    change = np.concatenate([name, np.uint64(0) - name])
    order = np.argsort(address, kind="stable")
    address = address[order]
    name = np.cumsum(change[order])
    is_last = np.append(address[1:] != address[:-1], True)[: len(address)]
    address, name = address[is_last], name[is_last]
    # What lies between one address and the next is written by the operations of that name.
    begins = np.append(True, name[1:] != name[:-1])[: len(name)]
    address, name = address[begins], name[begins]
    is_written = np.flatnonzero(name[:-1]) if len(name) else np.empty(0, np.int64)
    return address[is_written], address[is_written + 1]


def _describe(
    number: int, pieces: Footprints, scenario: Scenario
) -> tuple[Buffer, tuple[BlockGraph, NDArray[np.int64], NDArray[np.int64]] | None]:
    """Describe a buffer; return what rests on it, but RAW, as a graph of its blocks, if any.

    That graph comes with the number in the program of each of its operations and of its blocks.
    """
    graph = scenario.graph
    is_write = pieces.kind == WRITE
    operation = graph.operation_of_block[pieces.block]
    writers, readers = np.unique(operation[is_write]), np.unique(operation[~is_write])
    start, end = pieces.start[is_write], pieces.end[is_write]
    of_writer = join_footprints(
        operation[is_write], pieces.kind[is_write], start, end, graph.n_operations
    )
    together = join_footprints(np.zeros(len(start), np.int32), pieces.kind[is_write], start, end, 1)
    copies = sum(
        factor * int((ranges.end - ranges.start).sum())
        for factor, ranges in ((1, of_writer), (-1, together))
    )
    reuse, pairs = None, []
    # What reads freed memory comes by its dependence without another writer.
    is_ordered = writers[-1] > operation.min() or graph.frees is not None
    if is_ordered and _REUSES & graph.kinds:
        reuse = _reuse(pieces, scenario)
        pairs = reuse[0].pairs()
    described = Buffer(
        number=number,
        start=int(start.min()),
        end=int(end.max()),
        writers=tuple(graph.kernel[writers].tolist()),
        readers=tuple(graph.kernel[readers].tolist()),
        more_bytes=copies,
        pairs=len(pairs),
        war=sum(p.war for p in pairs),
        waw=sum(p.waw for p in pairs),
        reuse=sum(p.reuse for p in pairs),
        allocated_by=_allocated_by(scenario.allocations, int(start.min()), int(end.max())),
    )
    return described, reuse if pairs else None


def _reuse(
    pieces: Footprints, scenario: Scenario
) -> tuple[BlockGraph, NDArray[np.int64], NDArray[np.int64]]:
    """Find the dependences but RAW through some bytes, of the blocks that touch them alone."""
    graph = scenario.graph
    blocks, block = np.unique(pieces.block, return_inverse=True)
    operations, member = np.unique(graph.operation_of_block[blocks], return_inverse=True)
    operation: NDArray[np.int32] = member.astype(np.int32)
    own = Footprints(block.astype(np.int32), pieces.kind, pieces.start, pieces.end)
    space = None if graph.space is None else graph.space[operations]
    place = np.searchsorted(operations, np.arange(graph.n_operations + 1)).astype(np.int32)
    frees = renumbered(_frees_in(graph.frees, pieces), place, len(operations))
    swept = sweep_spaces(own, operation, len(operations), space, frees)
    first_block = np.searchsorted(operation, np.arange(len(operations) + 1))
    found = build_graph(swept, first_block, graph.kernel[operations], frees)
    found = found.with_kinds(_REUSES & graph.kinds)
    return found, operations.astype(np.int64), blocks.astype(np.int64)


def _allocated_by(allocations: Sequence[Allocation], start: int, end: int) -> tuple[str, ...]:
    """Name what allocated memory between two addresses, each once, in order."""
    there = (a for a in allocations if a.address < end and start < a.address + a.size)
    names = (" at ".join(filter(None, (a.op, a.line))) for a in there)
    return tuple(dict.fromkeys(filter(None, names)))


def _frees_in(frees: Footprints | None, pieces: Footprints) -> Footprints | None:
    if frees is None:
        return None
    return frees.take((frees.start < pieces.end.max()) & (frees.end > pieces.start.min()))


def _stacked(
    scenario: Scenario,
    graphs: list[tuple[int, BlockGraph, NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[BlockGraph, NDArray[np.int64]]:
    """Put the RAW dependences of a program and what rests on each buffer into one graph."""
    program = scenario.graph
    everything = np.arange(program.n_operations), np.arange(program.n_blocks)
    parts = [(_NO_BUFFER, scenario.bound_graph.with_kinds({"RAW"}), *everything), *graphs]
    set_operations, sets, sources, targets = [], [], [], []
    n_sets = np.int32(0)
    for _, part, operations, blocks in parts:
        set_operations.append(operations[part.set_operation].astype(np.int32))
        sets.append((part.set_offsets, blocks[part.set_blocks].astype(np.int32)))
        sources.append((part.source_offsets, part.sources + n_sets))
        targets.append((part.target_offsets, part.targets + n_sets))
        n_sets += len(part.set_operation)
    set_operation = np.concatenate(set_operations)
    kind = np.concatenate([part.join_kind for _, part, *_ in parts])
    label = np.repeat([number for number, *_ in parts], [len(p.join_kind) for _, p, *_ in parts])
    ends = concatenate_lists(sources), concatenate_lists(targets)
    stacked = assemble(
        program.kernel,
        program.first_block,
        (set_operation, *concatenate_lists(sets)),
        kind,
        *ends,
    )
    # Labels go where the joins went.
    operation_of = (set_operation[values[offsets[:-1]]] for offsets, values in ends)
    return stacked, label[join_order(kind, None, *operation_of)]
