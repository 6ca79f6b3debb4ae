"""Describing a captured graph: its nodes, the operators that launched them, and their pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depgraph.apply.captured import (
    COPY,
    KERNEL,
    LIBRARY,
    MEMSET,
    SOURCE,
    TARGET,
    TENSOR,
    Allocation,
    Call,
    Captured,
    Node,
    Operand,
    Pointer,
    View,
)
from depgraph.apply.operators import rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from depgraph.torch.allocations import Timeline
    from depgraph.torch.driver import Driver
    from depgraph.torch.operator_log import SeenCall, SeenTensor

_WORD = 8
_LEAST_ADDRESS, _MOST_ADDRESS = 1 << 20, 1 << 57


def describe(
    driver: Driver,
    handles: Sequence[int],
    edges: Sequence[tuple[int, int]],
    seen: Sequence[SeenCall],
    timeline: Timeline,
    place: int = 0,
) -> Captured:
    """Describe a graph, whose nodes are in the order in which they were launched."""
    memory = _Memory(driver, timeline)
    calls: list[Call] = []
    nodes: list[Node] = []
    for number, call in enumerate(seen):
        (first, begun), (end, ended) = call.begun, call.ended
        nodes += (memory.node(handles[i]) for i in range(len(nodes), first))
        timeline.until(begun)
        given = [memory.operand(tensor) for tensor in call.tensors if tensor.name]
        others = [memory.storage(at) for at in call.others]
        made = timeline.until(ended)
        given += [memory.operand(tensor) for tensor in call.tensors if not tensor.name]
        memory.made_inside |= {each.number for each in made}
        if not others and rule_of(call.name.split(".", maxsplit=1)[0]) is not None:
            memory.known_calls.add(number)
        nodes += (memory.node(handles[i], number) for i in range(len(nodes), end))
        calls.append(Call(call.name, tuple(given), tuple(others), tuple(made)))
    nodes += (memory.node(handles[i]) for i in range(len(nodes), len(handles)))
    number_of = {handle: i for i, handle in enumerate(handles)}
    between = tuple(sorted((number_of[a], number_of[b]) for a, b in edges))
    return memory.finished(nodes, between, calls, place)


class _Memory:
    """Finds the allocations that addresses lie in."""

    def __init__(self, driver: Driver, timeline: Timeline) -> None:
        self._driver = driver
        self._timeline = timeline
        self._foreign: dict[int, Allocation] = {}
        self._tensors: set[int] = set()
        self.made_inside: set[int] = set()  # allocations, by an operator
        self.known_calls: set[int] = set()  # of operators that touch their tensors alone

    def storage(self, at: tuple[int, int]) -> Allocation:
        """Return the allocation of a tensor's storage."""
        found = self._timeline.holding(at[0])
        if found is None and (found := self._outside(at[0])) is None:
            return Allocation(at[0], at[1])
        self._tensors.add(found.number)
        return found

    def operand(self, tensor: SeenTensor) -> Operand:
        """Return a tensor with its memory."""
        strides = tuple(tensor.item * stride for stride in tensor.strides)
        memory = self.storage(tensor.storage)
        view = View(tensor.start, tensor.shape, strides, tensor.item, memory)
        return Operand(tensor.name, view, tensor.is_written)

    def node(self, handle: int, call: int = -1) -> Node:
        """Return a node, and what a kernel has pointers to."""
        kind = self._driver.kind(handle)
        if kind == KERNEL:
            name, grid, block, shared = self._driver.kernel(handle)
            return Node(kind, name, grid, block, shared, call, tuple(self._pointers(handle)))
        if kind == MEMSET:
            ends, to_host = [(TARGET, self._driver.memset(handle))], False
        elif kind == COPY:
            source, target, to_host = self._driver.copy(handle)
            ends = [(SOURCE, source), (TARGET, target)]
        else:
            return Node(kind, call=call)
        found = ((at, self._holding(address)) for at, address in ends)
        ends_ = tuple(Pointer(at, memory) for at, memory in found if memory is not None)
        return Node(kind, call=call, pointers=ends_, to_host=to_host)

    def _pointers(self, handle: int) -> Iterator[Pointer]:
        """Yield what every eight bytes of a kernel's parameters point into, however they lie."""
        for begin, raw in self._driver.parameters(handle):
            if len(raw) < _WORD:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(raw, np.uint8), _WORD)
            words = windows.copy().view("<u8").ravel()
            likely = np.flatnonzero((words >= _LEAST_ADDRESS) & (words < _MOST_ADDRESS))
            for at in likely.tolist():
                memory = self._holding(int(words[at]))
                if memory is not None:
                    yield Pointer(begin + at, memory)

    def _holding(self, address: int) -> Allocation | None:
        found = self._timeline.holding(address)
        if found is None and not self._timeline.is_torchs(address):
            return self._outside(address)
        return found

    def _outside(self, address: int) -> Allocation | None:
        """Return memory that the driver knows and PyTorch does not."""
        if not _LEAST_ADDRESS <= address < _MOST_ADDRESS:
            return None
        known = self._driver.allocation(address)
        if known is None:
            return None
        return self._foreign.setdefault(
            known[0], Allocation(*known, number=-2 - len(self._foreign), owner=LIBRARY)
        )

    def finished(
        self,
        nodes: Sequence[Node],
        edges: tuple[tuple[int, int], ...],
        calls: Sequence[Call],
        place: int,
    ) -> Captured:
        """Return the graph, now that it is known what every allocation was for."""
        kept = self.made_inside - self._timeline.freed

        def own(each: Allocation) -> Allocation:
            owner = each.owner
            if each.number in self._tensors:
                owner = TENSOR
            elif each.number in kept:
                owner = LIBRARY
            return Allocation(each.start, each.size, each.number, owner)

        def pointers(node: Node) -> tuple[Pointer, ...]:
            """Return the pointers that say something: of a known operator those to workspaces."""
            found = dict.fromkeys(Pointer(p.at, own(p.memory)) for p in node.pointers)
            is_known = node.kind == KERNEL and node.call in self.known_calls
            return tuple(p for p in found if not is_known or p.memory.owner == LIBRARY)

        def owned(operand: Operand) -> Operand:
            v = operand.view
            view = View(v.start, v.shape, v.strides, v.item, own(v.memory))
            return Operand(operand.name, view, operand.is_written)

        return Captured(
            nodes=tuple(
                Node(n.kind, n.name, n.grid, n.block, n.shared, n.call, pointers(n), n.to_host)
                for n in nodes
            ),
            edges=edges,
            calls=tuple(
                Call(
                    c.name, tuple(map(owned, c.operands)), tuple(map(own, c.others)),
                    tuple(map(own, c.made)),
                )
                for c in calls
            ),
            before=self._timeline.before,
            call=place,
        )  # fmt: skip
