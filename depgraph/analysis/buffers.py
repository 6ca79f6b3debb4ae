"""Buffers: memory that kernels write, and the dependences that rest on its being used again."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.sweep import build_graph, sweep_spaces
from depgraph.errors import NotApplicableError
from depgraph.footprint.footprints import Footprints, cut_to_spans, join_footprints
from depgraph.graph.block_graph import BlockGraph, assemble, join_order
from depgraph.graph.dependences import ALL_KINDS, KIND_NAMES
from depgraph.graph.graph_jit import SALT, mix64
from depgraph.scenario.scenario import Scenario
from depgraph.system.arrays import concatenate_lists, distinct
from depgraph.system.text import clean_text
from depgraph.trace.records import WRITE, Allocation

BLOCK_BYTES = 512
"""What allocations are rounded up to: ``kMinBlockSize`` of PyTorch's caching allocator."""
_REUSES = ALL_KINDS - {"RAW"}
_NO_BUFFER = -1
_ALLOCATORS_SHOWN = 2


class Buffer(NamedTuple):
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


class Reuse(NamedTuple):
    """The dependences of a program, each but RAW with the buffer that it rests on."""

    buffers: tuple[Buffer, ...]  # all of them, by address
    # certain dependences. One edge stands there once for each buffer that gives it
    graph: BlockGraph
    label: NDArray[np.int64]  # number of the buffer that each join rests on; -1 for RAW


def find_buffers(scenario: Scenario) -> Reuse:
    """Merge the ranges that a program writes into buffers, and find what rests on each."""
    # The input knows no allocations. Written ranges are rounded out to blocks of `BLOCK_BYTES`, and
    # neighbours that the same kernels write are taken for one buffer: two tensors side by side that
    # are always written together count as one, a tensor of which kernels write parts as several.
    if scenario.read_footprints is None:
        message = "buffers need the footprints of the blocks"
        raise NotApplicableError(message)
    graph = scenario.graph
    footprints = scenario.read_footprints().rounded(scenario.granularity, graph.n_blocks)
    spans = _written_together(footprints, graph)
    pieces, buffer = cut_to_spans(footprints, *spans)
    order = np.argsort(buffer, kind="stable")
    pieces, buffer = pieces.take(order), buffer[order]
    parts = _parts(pieces, buffer, spans, scenario)
    return Reuse(_described(pieces, buffer, parts, scenario), *_stacked(scenario, parts))


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
    # A set of operations has the sum of scrambled numbers of its members for a name.
    numbers = mix64(np.arange(graph.n_operations, dtype=np.uint64), SALT)
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


class _Parts(NamedTuple):
    """What rests on buffers, but RAW, as if each had operations and blocks of its own."""

    graph: BlockGraph  # its kernel numbers are those of its operations
    # What these are in the program, and the buffer of each operation.
    operations: NDArray[np.int64]
    blocks: NDArray[np.int64]
    buffer: NDArray[np.int64]


def _parts(
    pieces: Footprints, buffer: NDArray[np.int64],
    spans: tuple[NDArray[np.uint64], NDArray[np.uint64]], scenario: Scenario,
) -> _Parts:  # fmt: skip
    """Sweep over the pieces of buffers once: an operation is another one in each buffer."""
    graph = scenario.graph
    n = graph.n_operations
    blocks, block = np.unique(buffer * graph.n_blocks + pieces.block, return_inverse=True)
    buffer, blocks = np.divmod(blocks, graph.n_blocks)
    operations, operation = np.unique(
        buffer * n + graph.operation_of_block[blocks], return_inverse=True
    )
    frees = graph.frees
    if frees is not None:
        frees, freed = cut_to_spans(frees, *spans)
        place = np.searchsorted(operations, freed * n + frees.block).astype(np.int32)
        frees = replace(frees, block=place).joined(len(operations) + 1)
    buffer, operations = np.divmod(operations, n)
    own = Footprints(block.astype(np.int32), pieces.kind, pieces.start, pieces.end)
    space = None if graph.space is None else graph.space[operations]
    swept = sweep_spaces(own, operation.astype(np.int32), len(operations), space, frees)
    numbers = np.arange(len(operations) + 1, dtype=np.int32)
    found = build_graph(swept, np.searchsorted(operation, numbers), numbers[:-1], frees)
    is_kept = np.array([name in _REUSES & graph.kinds for name in KIND_NAMES])
    return _Parts(found.only_joins(is_kept[found.join_kind]), operations, blocks, buffer)


def _described(
    pieces: Footprints, buffer: NDArray[np.int64], parts: _Parts, scenario: Scenario
) -> tuple[Buffer, ...]:
    """Describe the buffers that these pieces are of, all buffers that there are."""
    graph = scenario.graph
    n_buffers = int(buffer.max(initial=-1)) + 1
    is_write = pieces.kind == WRITE
    writes, of_write = pieces.take(is_write), buffer[is_write]
    key = buffer * graph.n_operations + graph.operation_of_block[pieces.block]
    writers, writer = np.unique(key[is_write], return_inverse=True)
    ends = np.arange(n_buffers + 1)

    def kernels(keys: NDArray[np.int64]) -> list[tuple[int, ...]]:
        buffers, operations = np.divmod(keys, graph.n_operations)
        numbers, bounds = graph.kernel[operations].tolist(), np.searchsorted(buffers, ends).tolist()
        return [tuple(numbers[low:high]) for low, high in pairwise(bounds)]

    def written(of: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        return replace(writes, block=of.astype(np.int32)).joined(n).bytes_per_block(WRITE, n)

    copies = np.zeros(n_buffers, np.int64)
    np.add.at(copies, writers // graph.n_operations, written(writer, len(writers)))
    copies -= written(of_write, n_buffers)
    first = np.searchsorted(of_write, ends[:-1])
    starts = np.minimum.reduceat(writes.start, first).tolist()
    stops = np.maximum.reduceat(writes.end, first).tolist()
    counts = np.zeros((n_buffers, 4), np.int64)
    for pair in parts.graph.pairs():
        counts[parts.buffer[pair.target]] += (1, pair.war, pair.waw, pair.reuse)
    columns = zip(
        starts, stops, kernels(writers), kernels(distinct(key[~is_write])), copies.tolist(),
        *counts.T.tolist(), strict=True,
    )  # fmt: skip
    buffers = (Buffer(number, *row) for number, row in enumerate(columns))
    return tuple(
        b._replace(allocated_by=_allocated_by(scenario.allocations, b.start, b.end))
        for b in buffers
    )


def _allocated_by(allocations: Sequence[Allocation], start: int, end: int) -> tuple[str, ...]:
    """Name what allocated memory between two addresses, each once, in order."""
    there = (a for a in allocations if a.address < end and start < a.address + a.size)
    names = (" at ".join(filter(None, (a.op, a.line))) for a in there)
    return tuple(dict.fromkeys(filter(None, names)))


def _stacked(scenario: Scenario, parts: _Parts) -> tuple[BlockGraph, NDArray[np.int64]]:
    """Put the RAW dependences of a program and what rests on each buffer into one graph."""
    raw = scenario.bound_graph.with_kinds({"RAW"})
    more, operations, blocks, buffer = parts
    n_sets = np.int32(len(raw.set_operation))
    set_operation = np.append(raw.set_operation, operations[more.set_operation].astype(np.int32))
    sets = more.set_offsets, blocks[more.set_blocks].astype(np.int32)
    ends = (
        concatenate_lists([raw.source_lists, (more.source_offsets, more.sources + n_sets)]),
        concatenate_lists([raw.target_lists, (more.target_offsets, more.targets + n_sets)]),
    )
    kind = np.append(raw.join_kind, more.join_kind)
    label = np.append(np.full(len(raw.join_kind), _NO_BUFFER), buffer[more.join_target_operation])
    stacked = assemble(
        raw.kernel,
        raw.first_block,
        (set_operation, *concatenate_lists([raw.set_lists, sets])),
        kind,
        *ends,
    )
    # Labels go where the joins went.
    operation_of = (set_operation[values[offsets[:-1]]] for offsets, values in ends)
    return stacked, label[join_order(kind, None, *operation_of)]
