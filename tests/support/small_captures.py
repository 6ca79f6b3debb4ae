"""Captured graphs in a few words: operators and what they read and write."""

from __future__ import annotations

from depgraph.apply.captured import (
    KERNEL,
    LIBRARY,
    TENSOR,
    Allocation,
    Call,
    Captured,
    Node,
    Operand,
    Pointer,
    View,
)
from depgraph.apply.order import chain

SIZE = 4096


def memory(number, owner=TENSOR, start=None):
    """Return an allocation at an address of its own, or at another's."""
    return Allocation((1 + number) << 20 if start is None else start, SIZE, number, owner)


def view(of, first=0, shape=(1024,), strides=(4,), item=4):
    """Return elements of an allocation: of floats, all of them unless told."""
    return View(of.start + first, tuple(shape), tuple(strides), item, of)


def operator(name, reads=(), writes=(), made=(), others=()):
    """Return a call of an operator; whole allocations may stand for views."""

    def operand(each, word, *, is_written):
        return Operand(word, view(each) if isinstance(each, Allocation) else each, is_written)

    operands = [operand(each, "self", is_written=False) for each in reads]
    operands += [operand(each, "", is_written=True) for each in writes]
    return Call(f"aten::{name}" if ":" not in name else name, tuple(operands), others, tuple(made))


def captured(*steps, before=0):
    """Return a graph of steps in a chain: calls, which launch a kernel, nodes, or (call, nodes)."""
    calls, nodes = [], []
    for step in steps:
        if isinstance(step, Node):
            nodes.append(step)
            continue
        call, kernels = step if isinstance(step, tuple) else (step, [kernel()])
        nodes += [
            Node(n.kind, n.name, n.grid, n.block, n.shared, len(calls), n.pointers, n.to_host)
            for n in kernels
        ]
        calls.append(call)
    return Captured(tuple(nodes), tuple(chain(len(nodes))), tuple(calls), before)


def kernel(name="k", *pointers, kind=KERNEL, **more):
    """Return a node that has pointers to allocations, one behind the other."""
    at = tuple(Pointer(8 * i, each) for i, each in enumerate(pointers))
    return Node(kind, name, (1, 1, 1), (32, 1, 1), pointers=at, **more)


def workspace(number):
    """Return what a library keeps."""
    return memory(number, LIBRARY)
