"""What lies in reused memory: values, the nodes that use them, and which may have own memory.

A *value* is what nodes write at some bytes and read there until others write them anew. Values
that a node reaches through the same pointer, or two into the same allocation, move together. A
value that gets memory of its own leaves its WAR and WAW dependences behind; its pointers are
changed in the nodes' parameters.

Blocks of a GEMM whose sum is split add to each other's partial sums, in turn. What a block of a
node writes without reading it, and others read, is *handed on* inside the node. It is a value of
the node's own where none has written before, or what that one wrote was handed on as well. That
nothing is read which was there before is for the comparison of results to show: what has moved is
full of something else before each run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from depgraph.apply.byte_ranges import joined, meets, within, without
from depgraph.footprint.footprints import join_footprints
from depgraph.trace.records import SYNC_READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from depgraph.apply.byte_ranges import Ranges
    from depgraph.apply.captured import Captured
    from depgraph.apply.order import Edge
    from depgraph.footprint.footprints import Footprints

ALIGNMENT = 512
"""Values keep their place within so many bytes: that of PyTorch's allocations."""
_MOST_PIECES = 4_000_000
_NEVER = -1  # wrote what was there before the graph ran
_HOME = -1


@dataclass(slots=True)
class Value:
    """Bytes that nodes use together, from a first write until they are written anew.

    Attributes
    ----------
    number : int
    nodes : tuple of int
    words : dict
        From a node to the (parameter, byte) of its words that point into the value.
    start, end : int
        The bytes, of the recorded addresses.
    can_move : bool
        Whether memory of its own changes nothing else: it is neither there before the graph runs
        nor needed after, and every node reaches it by a pointer among its parameters.
    is_handed_on : bool
        Whether that rests on a node reading only what it has handed on itself.
    """

    number: int
    nodes: tuple[int, ...]
    words: dict[int, tuple[tuple[int, int], ...]]
    start: int
    end: int
    can_move: bool
    is_handed_on: bool = False

    @property
    def size(self) -> int:
        """Bytes of memory that it takes of its own."""
        return -(-(self.end - self.base) // ALIGNMENT) * ALIGNMENT

    @property
    def base(self) -> int:
        """Where it begins, rounded down."""
        return self.start // ALIGNMENT * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Stay:
    """A value at some bytes.

    Attributes
    ----------
    value : int
        Number of the value.
    writer : int
        The first node that writes it there; -1 for what was there before.
    nodes : tuple of int
        All that use it there.
    """

    value: int
    writer: int
    nodes: tuple[int, ...]


@dataclass(slots=True)
class Reuse:
    """The WAR and WAW dependences between nodes that rest on where values lie.

    Attributes
    ----------
    values : tuple of Value
    histories : set of tuple of Stay
        What lies at the same bytes, one value after another; each history once.
    true : set of (int, int)
        Pairs of nodes with a dependence that no memory takes away.
    last : tuple of (int, int, int)
        Start and end of bytes, and the value that lies there in the end.
    """

    values: tuple[Value, ...] = ()
    histories: set[tuple[Stay, ...]] = field(default_factory=set)
    true: set[Edge] = field(default_factory=set)
    last: tuple[tuple[int, int, int], ...] = ()

    def left_empty(self, moved: Collection[int]) -> list[tuple[int, int]]:
        """Return the bytes that have another content in the end if some values have own memory."""
        return [(start, end) for start, end, value in self.last if value in moved]

    def edges(self, moved: Collection[int] = ()) -> set[Edge]:
        """Return the WAR and WAW dependences that are left once some values have own memory."""
        found: set[Edge] = set()
        for history in self.histories:
            last: dict[int, Stay] = {}
            for stay in history:
                place = stay.value if stay.value in moved else _HOME
                if place in last:
                    found.update((node, stay.writer) for node in last[place].nodes)
                last[place] = stay
        return {(source, target) for source, target in found if source < target}


@dataclass(frozen=True, slots=True)
class Touched:
    """What nodes touch, one row a range.

    Attributes
    ----------
    node : int32[n]
        By increasing number.
    is_write : bool[n]
    start, end : uint64[n]
    handed_on : mapping
        From nodes to the bytes that their blocks hand on to each other.
    """

    node: NDArray[np.int32]
    is_write: NDArray[np.bool_]
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    handed_on: Mapping[int, Ranges] = field(default_factory=dict)

    def regions(self, captured: Captured) -> dict[int, set[int]]:
        """Return the regions of a graph that each node touches."""
        found: dict[int, set[int]] = {}
        for number, region in enumerate(captured.regions):
            end = region.start + region.size
            inside = (self.start < end) & (self.end > region.start)
            for node in np.unique(self.node[inside]).tolist():
                found.setdefault(node, set()).add(number)
        return found

    def starts(self, node: int) -> list[int]:
        """Return where the ranges begin that a node touches."""
        starts: list[int] = np.unique(self.start[self._rows_of(node)]).tolist()
        return starts

    def tied(self, node: int, words: Sequence[int]) -> list[int]:
        """Return a number for each of a node's pointers, the same for those that move together.

        The later of two moves with the one before if a range that the node touches goes on across
        it, unless an allocation can begin there.

        Parameters
        ----------
        words : sequence of int
            The pointers, ascending.
        """
        rows = self._rows_of(node)
        known = np.array(words, np.uint64)
        begun = np.searchsorted(np.sort(self.start[rows]), known)
        ended = np.searchsorted(np.sort(self.end[rows]), known, "right")
        numbers: list[int] = np.cumsum((begun == ended) | (known % ALIGNMENT == 0)).tolist()
        return numbers

    def _rows_of(self, node: int) -> slice:
        low, high = np.searchsorted(self.node, [node, node + 1])
        return slice(int(low), int(high))


def touched_by_nodes(
    footprints: Footprints,
    operation_of_block: NDArray[np.int32],
    node_of: Mapping[int, int],
    n: int,
) -> Touched:
    """Return what nodes touch.

    Parameters
    ----------
    footprints : Footprints
        Of blocks.
    node_of : mapping
        From operations to nodes; others are left out.
    n : int
        Number of nodes.
    """
    place = np.full(int(operation_of_block.max(initial=-1)) + 1, -1, np.int32)
    place[list(node_of)] = list(node_of.values())
    nodes = place[operation_of_block[footprints.block]]
    mine = np.flatnonzero(nodes >= 0)
    found = join_footprints(
        nodes[mine], footprints.access[mine], footprints.start[mine], footprints.end[mine], n
    )
    ordering = np.unique(nodes[mine][footprints.kind[mine] == SYNC_READ]).tolist()
    handed_on = {node: _handed_on(footprints, np.flatnonzero(nodes == node)) for node in ordering}
    return Touched(found.block, found.kind == WRITE, found.start, found.end, handed_on)


def _handed_on(footprints: Footprints, rows: NDArray[np.int64]) -> Ranges:
    """Return the bytes of a kernel that some blocks read and another writes without reading."""
    pairs = np.stack([footprints.start[rows], footprints.end[rows]], axis=1).astype(np.int64)
    is_write = footprints.kind[rows] == WRITE
    found = within(joined(pairs[~is_write]), joined(pairs[is_write]))
    if not len(found):
        return found
    near = meets(pairs, found)
    pairs, is_write = pairs[near], is_write[near]
    # Laid out block after block, only ranges of the same one have bytes in common.
    low = int(pairs.min())
    length = int(pairs.max()) - low + 1
    block = footprints.block[rows[near]].astype(np.int64)
    pairs += (length * (block - block.min()) - low)[:, None]
    begun = without(joined(pairs[is_write]), joined(pairs[~is_write]))
    begun += (low - begun[:, 0] // length * length)[:, None]
    return within(found, joined(begun))


def find_reuse(captured: Captured, touched: Touched, fixed: Collection[int]) -> Reuse:
    """Find the values that nodes use, and what rests on where they lie.

    Parameters
    ----------
    captured : Captured
        As it was recorded.
    fixed : collection of int
        Nodes of which not all is known: what they use never moves.

    Returns
    -------
    Reuse
        Empty where there is too much to look at.
    """
    rows = np.arange(len(touched.node))
    cuts = [
        value
        for node in captured.nodes
        for _, _, value in node.words
        if any(value in region for region in captured.regions if region.is_own)
    ]
    cuts += [at for region in captured.kept for at in (region.start, region.start + region.size)]
    handed_on = [ranges.ravel().astype(np.uint64) for ranges in touched.handed_on.values()]
    bounds = np.unique(
        np.concatenate([touched.start, touched.end, np.array(cuts, np.uint64), *handed_on])
    )
    first = np.searchsorted(bounds, touched.start)
    count = np.searchsorted(bounds, touched.end) - first
    if int(count.sum()) > _MOST_PIECES:
        return Reuse()
    row = np.repeat(rows, count)
    piece = (
        np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    )
    order = np.lexsort((touched.is_write[row], touched.node[row], piece))
    return _Values(captured, touched, fixed, bounds.tolist()).found(
        zip(
            piece[order].tolist(),
            touched.node[row[order]].tolist(),
            touched.is_write[row[order]].tolist(),
            strict=True,
        )
    )


class _Values:
    """Goes through the bytes of the graph's memory, in pieces that are used alike."""

    def __init__(
        self,
        captured: Captured,
        touched: Touched,
        fixed: Collection[int],
        bounds: Sequence[int],
    ) -> None:
        self._bounds = bounds
        self._fixed = fixed
        self._handed_on = {node: each.T.tolist() for node, each in touched.handed_on.items()}
        self._kept = captured.kept
        self._own = [region for region in captured.regions if region.is_own]
        self._words = [
            sorted({value for _, _, value in node.words if self._is_own(value)})
            for node in captured.nodes
        ]
        self._pointers = [touched.tied(node, words) for node, words in enumerate(self._words)]
        # Of each node and pointer, where it stands among the parameters.
        self._places = [defaultdict[int, list[tuple[int, int]]](list) for _ in captured.nodes]
        self._number_of = [
            dict(zip(words, numbers, strict=True))
            for words, numbers in zip(self._words, self._pointers, strict=True)
        ]
        self._count = [Counter(value for _, _, value in node.words) for node in captured.nodes]
        for number, node in enumerate(captured.nodes):
            known = self._number_of[number]
            for parameter, byte, value in node.words:
                if value in known:
                    self._places[number][known[value]].append((parameter, byte))
        # A tree of what moves together: each entry names one nearer the root.
        self._parent: list[int] = []
        self._by_pointer: dict[tuple[int, int], int] = {}
        self._uses: list[tuple[int, int, int, int]] = []  # value, node, pointer or -1, piece
        self._stays: set[int] = set()
        self._guessed: set[int] = set()
        self._histories: set[tuple[tuple[int, int, tuple[int, ...]], ...]] = set()
        self._true: set[Edge] = set()
        self._last: list[tuple[int, int]] = []  # piece, value

    def found(self, pieces: Iterator[tuple[int, int, bool]]) -> Reuse:
        """Go through the pieces, each with its nodes in order, reads before writes."""
        current = -1
        uses: list[tuple[int, bool]] = []
        for piece, node, is_write in pieces:
            if piece != current:
                self._go_through(current, uses)
                current, uses = piece, []
            uses.append((node, is_write))
        self._go_through(current, uses)
        return self._result()

    def _go_through(self, piece: int, uses: list[tuple[int, bool]]) -> None:
        """Follow one piece of memory through the graph."""
        if piece < 0:
            return
        if not self._is_own(self._bounds[piece]) and not any(is_write for _, is_write in uses):
            return  # constants
        value = before_all = self._new()
        self._stays.add(value)
        writer, is_free = _NEVER, True  # is_free: no node means another to read what is there
        is_read_first = False
        history: list[tuple[int, int, list[int]]] = [(value, writer, [])]
        at = 0
        while at < len(uses):
            node, is_write = uses[at]
            reads = not is_write
            writes = is_write or (at + 1 < len(uses) and uses[at + 1] == (node, True))
            at += 1 + (reads and writes)
            hands_on = reads and writes and self._hands_on(node, piece)
            reads = reads and not (hands_on and is_free)
            is_read_first |= reads and writer == _NEVER
            if writes and not reads:
                value = self._new()
                history.append((value, node, []))
                if hands_on:
                    self._guessed.add(value)
            self._use(value, node, piece)
            if reads and writer != _NEVER:
                self._true.add((writer, node))
            if writes:
                # Those that read it, or wrote another part of it, come before.
                self._true.update((other, node) for other in history[-1][2])
                writer, is_free = node, hands_on
            history[-1][2].append(node)
        # What is read first is what the run before has left.
        if is_read_first or any(self._bounds[piece] in region for region in self._kept):
            self._stays.update((before_all, value))
        self._last.append((piece, value))
        self._histories.add(tuple((v, first, tuple(nodes)) for v, first, nodes in history if nodes))

    def _use(self, value: int, node: int, piece: int) -> None:
        """Note that a node uses a value; all it reaches by one pointer moves together."""
        address = self._bounds[piece]
        at = bisect_right(self._words[node], address) - 1
        pointer = self._pointers[node][at] if at >= 0 and self._is_own(address) else -1
        self._uses.append((value, node, pointer, piece))
        if pointer < 0 or node in self._fixed:
            self._stays.add(value)
        if pointer >= 0:
            self._join(value, self._by_pointer.setdefault((node, pointer), value))

    def _unused(self, nodes: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
        """Return node and number of pointers into bytes, or to their end, that reach nothing."""
        for node in nodes:
            words = self._words[node]
            for at in range(bisect_left(words, start), bisect_right(words, end)):
                pointer = self._pointers[node][at]
                if (node, pointer) not in self._by_pointer:
                    yield node, pointer

    def _hands_on(self, node: int, piece: int) -> bool:
        starts, ends = self._handed_on.get(node, ((), ()))
        at = bisect_right(starts, self._bounds[piece]) - 1
        return at >= 0 and self._bounds[piece] < ends[at]

    def _is_own(self, address: int) -> bool:
        return any(address in region for region in self._own)

    def _new(self) -> int:
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _root(self, value: int) -> int:
        while self._parent[value] != value:
            self._parent[value] = self._parent[self._parent[value]]
            value = self._parent[value]
        return value

    def _join(self, one: int, other: int) -> None:
        self._parent[self._root(one)] = self._root(other)

    def _result(self) -> Reuse:
        number: dict[int, int] = {}
        words: list[dict[int, set[tuple[int, int]]]] = []
        ends: list[list[int]] = []
        for value, node, pointer, piece in self._uses:
            at = number.setdefault(self._root(value), len(number))
            low, high = self._bounds[piece], self._bounds[piece + 1]
            if at == len(words):
                words.append({})
                ends.append([low, high])
            ends[at] = [min(low, ends[at][0]), max(high, ends[at][1])]
            words[at].setdefault(node, set()).update(self._places[node].get(pointer, ()))
        stays, guessed = (
            {number[root] for root in map(self._root, chosen) if root in number}
            for chosen in (self._stays, self._guessed)
        )
        nodes = [tuple(sorted(found)) for found in words]
        stays |= _overlapping(nodes, ends)
        follows: dict[tuple[int, int], int] = {}
        for at, (start, end) in enumerate(ends):
            for node, pointer in self._unused(nodes[at], start, end):
                words[at][node].update(self._places[node][pointer])
                if follows.setdefault((node, pointer), at) != at:
                    stays |= {at, follows[node, pointer]}
            for node in nodes[at]:
                # The end of one value may be the start of another: which is meant by which of two?
                pointer = self._number_of[node].get(end, -1)
                if (node, pointer) in self._by_pointer and self._count[node][end] > 1:
                    stays |= {at, number[self._root(self._by_pointer[node, pointer])]}
        values = tuple(
            Value(
                number=at,
                nodes=nodes[at],
                words={node: tuple(sorted(found)) for node, found in words[at].items()},
                start=ends[at][0],
                end=ends[at][1],
                can_move=at not in stays,
                is_handed_on=at in guessed,
            )
            for at in range(len(words))
        )
        histories = {
            tuple(Stay(number[self._root(v)], first, nodes) for v, first, nodes in history)
            for history in self._histories
        }
        last: list[tuple[int, int, int]] = []
        for piece, value in self._last:
            start, end, at = self._bounds[piece], self._bounds[piece + 1], number[self._root(value)]
            if last and last[-1][1:] == (start, at):
                start = last.pop()[0]
            last.append((start, end, at))
        return Reuse(values, histories, self._true, tuple(last))


def _overlapping(nodes: Sequence[Sequence[int]], ends: Sequence[Sequence[int]]) -> set[int]:
    """Return values between whose bytes others lie that are used meanwhile.

    No allocator does that: some node reaches a part of them by a pointer that is not among its
    parameters.
    """
    found: set[int] = set()
    order = sorted(range(len(ends)), key=lambda at: ends[at][0])
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            if ends[other][0] >= ends[one][1]:
                break
            if nodes[one][0] <= nodes[other][-1] and nodes[other][0] <= nodes[one][-1]:
                found |= {one, other}
    return found
