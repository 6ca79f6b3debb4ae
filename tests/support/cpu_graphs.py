"""Graphs of a GPU that is not there: PyTorch's operators on the CPU, each a node, in any order."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from depgraph.apply.captured import KERNEL, TENSOR, Allocation, Call, Captured, Node
from depgraph.apply.order import masks_of, reduced
from depgraph.torch.operator_log import OperatorLog

CPU = torch.device("cpu")


class Recorder(OperatorLog):
    """Notes operators so that they can be called again on the same memory."""

    def __init__(self):
        super().__init__(CPU, most_bytes=1 << 30)
        self.again = {}
        self.held = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        place = len(self.calls)
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.calls) == place + 1:  # else it called others, which were noted
            self.held.append((args, kwargs, made))
            results = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
            if any(operand.is_written for operand in self.calls[place].operands):
                self.again[place] = (func, args, kwargs or {}, results)
        return made


@dataclass
class CpuProgram:
    """A function's operators, and what they are called on."""

    captured: Captured
    nodes: list
    outputs: object
    outside: dict

    def run(self, order):
        """Call the operators again in some order."""
        with torch.no_grad():
            for node in order:
                func, args, kwargs, results = self.nodes[node]
                made = func(*args, **kwargs)
                new = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
                for old, value in zip(results, new, strict=True):
                    if old is not value and old.data_ptr() != value.data_ptr():
                        old.detach().copy_(value)

    @contextmanager
    def graph(self, edges, late):
        """Make a graph: nodes that may run last do, and those that are late even more so."""
        n = len(self.nodes)
        _, closed = reduced(masks_of(n, [(a, b) for a, b in edges if a < b]))
        if any(a > b for a, b in edges):  # a line in another order
            yield [edges[0][0], *(b for _, b in edges)]
            return
        order, ran = [], 0
        while len(order) < n:
            free = [i for i in range(n) if not ran >> i & 1 and closed[i] & ~ran == 0]
            node = max(free, key=lambda i: (i not in late, i))
            order.append(node)
            ran |= 1 << node
        yield order


def captured_on_cpu(function):
    """Run a function of no arguments, and return its operators as a program."""
    log = Recorder()
    with log:
        outputs = function()
    numbers = {}

    def numbered(memory):
        number = numbers.setdefault(memory.start, len(numbers))
        return Allocation(memory.start, max(memory.size, 1), number, TENSOR)

    def known(operand):
        return replace(operand, view=replace(operand.view, memory=numbered(operand.view.memory)))

    for at, tensor in log.outside.items():
        numbered(Allocation(at, tensor.untyped_storage().nbytes()))
    before = len(numbers)
    calls, nodes, again = [], [], []
    for place, seen in enumerate(log.calls):
        others = tuple(map(numbered, seen.others))
        calls.append(Call(seen.name, tuple(map(known, seen.operands)), others))
        if place in log.again:
            nodes.append(Node(KERNEL, seen.name, call=place))
            again.append(log.again[place])
    edges = tuple((i, i + 1) for i in range(len(nodes) - 1))
    captured = Captured(tuple(nodes), edges, tuple(calls), before)
    program = CpuProgram(captured, again, outputs, log.outside)
    program.held = log
    return program
