"""A captured graph and the recording of one: the same nodes, and the same memory, or a refusal."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depgraph.apply.captured import COPY, EMPTY, KERNEL, MEMSET
from depgraph.errors import ApplyError
from depgraph.system.text import in_short

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from depgraph.apply.captured import Captured, Node, Region
    from depgraph.apply.values import Touched, Value
    from depgraph.graph.program import Copy, Kernel

Word = tuple[int, int]
_AGAIN = "record the program as it is now"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a recording.

    Attributes
    ----------
    kernel : Kernel or None
        None for a copy or memset.
    what : str
        Which of those it is, in the words of `Copy.what`.
    """

    kernel: Kernel | None
    what: str = ""


def operations_of(kernels: Sequence[Kernel], copies: Sequence[Copy]) -> list[Operation]:
    """Return kernels and copies in program order."""
    placed = [(k.operation, Operation(k)) for k in kernels]
    placed += [(c.operation, Operation(None, c.what)) for c in copies]
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def match_nodes(
    captures: Sequence[Captured], operations: Sequence[Operation], which: int
) -> list[int | None]:
    """Return the operation of a recording that each node of a recorded graph is.

    Parameters
    ----------
    captures : sequence of Captured
        The graphs that were recorded, one after another.
    operations : sequence of Operation
        Of the whole recording.
    which : int
        Place in `captures`.

    Returns
    -------
    list of int or None
        None for what no recording has, such as empty nodes and host functions.

    Raises
    ------
    ApplyError
        If the recording is not of these graphs alone.
    """
    at = 0
    found: list[int | None] = []
    for graph, captured in enumerate(captures):
        for number, node in enumerate(captured.nodes):
            place = None
            if _is_recorded(node):
                if at == len(operations) or not _is_same(node, operations[at]):
                    raise ApplyError(
                        f"the recording is not of the captured graph alone: node {number} is "
                        f"{_node_text(node)}, the recording has {_text(operations, at)}",
                        _AGAIN,
                    )
                place = at
                at += 1
            if graph == which:
                found.append(place)
    if at < len(operations):
        raise ApplyError(
            f"the recording has {len(operations) - at} operations more than the captured graphs",
            _AGAIN,
        )
    return found


def _is_recorded(node: Node) -> bool:
    return node.kind in {KERNEL, MEMSET, COPY}


def _is_same(node: Node, operation: Operation) -> bool:
    kernel = operation.kernel
    if kernel is None:
        return node.kind == (MEMSET if operation.what == "memset" else COPY)
    return (
        node.kind == KERNEL
        and (kernel.mangled_name or kernel.name) == node.name
        and kernel.grid == node.grid
        and kernel.block == node.block
    )


def _node_text(node: Node) -> str:
    if node.kind != KERNEL:
        return f"a {node.kind}"
    return f"{in_short(node.name)} <<<{node.grid}, {node.block}>>>"


def _text(operations: Sequence[Operation], at: int) -> str:
    if at == len(operations):
        return "no more"
    kernel = operations[at].kernel
    if kernel is None:
        return f"a {operations[at].what}"
    name = kernel.mangled_name or kernel.name
    return f"{in_short(name)} <<<{kernel.grid}, {kernel.block}>>>"


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the memory of a recorded graph is in one that was captured later.

    Attributes
    ----------
    recorded : Captured
        With those words alone that are pointers in both graphs.
    captured : Captured
    region : mapping
        From a place in `recorded.regions` to one in `captured.regions`.
    """

    recorded: Captured
    captured: Captured
    region: Mapping[int, int]

    def shift_of(self, region: int) -> int:
        """Return how far a region of the recording has moved."""
        there = self.captured.regions[self.region[region]]
        return there.start - self.recorded.regions[region].start

    def words_of(self, values: Iterable[Value], base: int) -> dict[int, dict[Word, int]]:
        """Return what to write into nodes so that values have memory of their own.

        Parameters
        ----------
        values : iterable of Value
        base : int
            Address of that memory; the values lie there one after another.

        Returns
        -------
        dict
            From a node to a parameter and byte, to the value to write.
        """
        found: dict[int, dict[Word, int]] = {}
        for value in values:
            region = self.recorded.region_of(value.start)
            if region is None:
                message = "a value outside of all regions cannot move"
                raise ValueError(message)
            by = base - value.base - self.shift_of(region)
            base += value.size
            for node, words in value.words.items():
                now = {(p, byte): old for p, byte, old in self.captured.nodes[node].words}
                found.setdefault(node, {}).update({word: now[word] + by for word in words})
        return found


def match_memory(recorded: Captured, captured: Captured, touched: Touched) -> Placed:
    """Find which memory of a recorded graph is which of one that was captured later.

    Parameters
    ----------
    touched : Touched
        What the recorded nodes touch. A word is a pointer if it points to something that its node
        touches; others, such as what is left in the gaps of a structure, may differ.

    Raises
    ------
    ApplyError
        If the graphs differ, or their memory is laid out in another way.
    """
    _refuse_other_nodes(recorded, captured)
    regions = _regions(recorded, captured, touched)
    nodes = []
    for number, (old, new) in enumerate(zip(recorded.nodes, captured.nodes, strict=True)):
        there = {(parameter, byte): value for parameter, byte, value in new.words}
        kept = []
        for word in old.words:
            region = recorded.region_of(word[2])
            if region in regions:
                other = captured.regions[regions[region]].start
                if there.get(word[:2]) == word[2] - recorded.regions[region].start + other:
                    kept.append(word)
        starts = [at for at in touched.starts(number) if recorded.region_of(at) in regions]
        kept_values = {word[2] for word in kept}
        for start in starts:
            pointer = _pointer_of(recorded, old, start)
            if pointer is not None and pointer not in kept_values:
                raise ApplyError(
                    f"another program: the memory of node {number} ({in_short(old.label)}) is laid "
                    "out in another way than it was recorded",
                    _AGAIN,
                )
        nodes.append(replace(old, words=tuple(kept)))
    return Placed(replace(recorded, nodes=tuple(nodes)), captured, regions)


def _refuse_other_nodes(recorded: Captured, captured: Captured) -> None:
    if recorded.most_bytes != captured.most_bytes:
        raise ApplyError(
            f"recorded with max_extra_memory={recorded.most_bytes}, not {captured.most_bytes}",
            "give the same, or record the program again",
        )
    if len(recorded.nodes) != len(captured.nodes):
        raise ApplyError(
            f"another program: {len(captured.nodes)} nodes were captured, {len(recorded.nodes)} "
            "recorded",
            _AGAIN,
        )
    if recorded.edges != captured.edges:
        raise ApplyError("another program: it uses its streams in another way", _AGAIN)
    for number, (old, new) in enumerate(zip(recorded.nodes, captured.nodes, strict=True)):
        if replace(old, words=()) != replace(new, words=()):
            raise ApplyError(
                f"another program: node {number} is {_node_text(new)}, recorded was "
                f"{_node_text(old)}",
                _AGAIN,
            )


def _regions(recorded: Captured, captured: Captured, touched: Touched) -> dict[int, int]:
    """Find the region that each one has become: the one that most pointers point into."""
    reached = touched.regions(recorded)
    votes: dict[int, Counter[int]] = {}
    for number, (old, new) in enumerate(zip(recorded.nodes, captured.nodes, strict=True)):
        there = {(parameter, byte): value for parameter, byte, value in new.words}
        for parameter, byte, value in old.words:
            region, address = recorded.region_of(value), there.get((parameter, byte))
            if region is None or address is None or region not in reached.get(number, ()):
                continue
            other = captured.region_of(address)
            if other is not None and _is_same_place(
                value, recorded.regions[region], address, captured.regions[other]
            ):
                votes.setdefault(region, Counter())[other] += 1
    found = {region: count.most_common(1)[0][0] for region, count in votes.items()}
    if len(set(found.values())) < len(found):
        raise ApplyError(
            "another program: tensors that were apart when it was recorded share memory", _AGAIN
        )
    return found


def _is_same_place(value: int, region: Region, address: int, other: Region) -> bool:
    return value - region.start == address - other.start and region.is_own == other.is_own


def _pointer_of(recorded: Captured, node: Node, address: int) -> int | None:
    """Return the pointer by which a node seems to reach an address: the last one before it."""
    values = sorted({value for _, _, value in node.words})
    at = bisect_right(values, address) - 1
    if at < 0 or recorded.region_of(values[at]) != recorded.region_of(address):
        return None
    return values[at]


def is_understood(node: Node) -> bool:
    """Tell whether a node's place may be left to its dependences: the host's are not known."""
    return node.kind == EMPTY or (_is_recorded(node) and not node.to_host)
