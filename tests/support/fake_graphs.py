"""Programs of a GPU that is not there: kernels that mix bytes, in graphs run in any order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from depgraph.apply.byte_ranges import ranges_of, without
from depgraph.apply.captured import COPY, KERNEL, Captured, Node, Region
from depgraph.apply.matching import Placed
from depgraph.apply.plan import Plan
from depgraph.apply.values import Touched, find_reuse

POOL, OTHER = 0x7F0000000000, 0x7E0000000000
SIZE = 16 * 512


@dataclass
class Kernel:
    """What a kernel reads and writes: (place in the pool, size); in other memory if negative.

    What it hands on is written by some of its blocks before others read it.
    """

    reads: list
    writes: list
    hands_on: list = field(default_factory=list)
    is_opaque: bool = False
    hides: bool = False  # its pointers are not among its parameters

    @property
    def ranges(self):
        return self.reads + self.writes + self.hands_on

    def handed_on(self):
        """Return what it writes and reads, but for what it reads of others."""
        handed = ranges_of((at, at + size) for at, size in self.addresses(self.hands_on))
        return without(handed, ranges_of((a, a + n) for a, n in self.addresses(self.reads)))

    def addresses(self, ranges):
        return [(POOL + at if at >= 0 else OTHER - at, size) for at, size in ranges]


@dataclass
class FakeProgram:
    """Kernels in launch order, and the bytes of the pool that outlive a run."""

    kernels: list
    kept: list = field(default_factory=list)

    def captured(self, shift=0):
        nodes = []
        for number, kernel in enumerate(self.kernels):
            starts = [at for at, _ in kernel.addresses(kernel.ranges)]
            words = tuple((i, 0, at + (shift if at >= POOL else 0)) for i, at in enumerate(starts))
            nodes.append(
                Node(
                    KERNEL, f"k{number}", (1, 1, 1), (32, 1, 1), words=() if kernel.hides else words
                )
            )
        return Captured(
            nodes=tuple(nodes),
            edges=tuple((i, i + 1) for i in range(len(nodes) - 1)),
            regions=(Region(POOL + shift, SIZE, is_own=True), Region(OTHER, SIZE, is_own=False)),
            kept=tuple(Region(POOL + shift + at, size, is_own=True) for at, size in self.kept),
        )

    def touched(self):
        """Return what each kernel touches; a recording does not tell ranges that meet apart."""
        rows = []
        for number, kernel in enumerate(self.kernels):
            for is_write, ranges in ((False, kernel.reads), (True, kernel.writes)):
                for at, size in sorted(kernel.addresses(ranges + kernel.hands_on)):
                    start, end = at, at + size
                    if not size:
                        continue  # a pointer that is not used
                    if rows and rows[-1][:2] == (number, is_write) and start <= rows[-1][3]:
                        _, _, start, before = rows.pop()
                        end = max(end, before)
                    rows.append((number, is_write, start, end))
        columns = list(zip(*rows, strict=True)) or [()] * 4
        return Touched(
            np.array(columns[0], np.int32), np.array(columns[1], bool),
            np.array(columns[2], np.uint64), np.array(columns[3], np.uint64),
            {number: kernel.handed_on() for number, kernel in enumerate(self.kernels)},
        )  # fmt: skip

    def needed(self):
        """Return every dependence, byte by byte."""
        found = set()
        writer, readers = {}, {}
        for number, kernel in enumerate(self.kernels):
            handed_on = self._bytes(kernel.hands_on)
            reads, writes = self._bytes(kernel.reads), self._bytes(kernel.writes) | handed_on
            found |= {(writer[byte], number) for byte in reads | writes if byte in writer}
            found |= {(r, number) for byte in writes for r in readers.get(byte, ())}
            for byte in reads:
                readers.setdefault(byte, set()).add(number)
            for byte in writes:
                writer[byte], readers[byte] = number, set()
        return {(a, b) for a, b in found if a != b}

    @staticmethod
    def _bytes(ranges):
        return {byte for at, size in ranges for byte in range(at, at + size)}

    def plan(self):
        captured, touched = self.captured(), self.touched()
        fixed = frozenset(i for i, kernel in enumerate(self.kernels) if kernel.is_opaque)
        return Plan(
            recorded=captured,
            operation=tuple(range(len(self.kernels))),
            needed=frozenset(self.needed()),
            fixed=fixed,
            touched=touched,
            reuse=find_reuse(captured, touched, fixed),
            weights=(5.0,) * len(self.kernels),
        )

    def run(self, order, words=None, shift=0, seed=0):
        """Run the kernels in an order, with changed pointers; return memory, byte by byte."""
        memory = {}

        def at(address):
            return memory.setdefault(address, (address + 31 * seed) % 251)

        for number in order:
            kernel = self.kernels[number]
            ranges = kernel.addresses(kernel.ranges)
            changed = (words or {}).get(number, {})
            starts = [
                changed.get((i, 0), start + (shift if start >= POOL else 0))
                for i, (start, _) in enumerate(ranges)
            ]
            n = len(kernel.reads)
            text = bytes([number % 251])
            for start, (_, size) in list(zip(starts, ranges, strict=True))[:n]:
                text += bytes(at(start + i) for i in range(size))
            for which, (start, (_, size)) in enumerate(list(zip(starts, ranges, strict=True))[n:]):
                digest = hashlib.sha256(text + bytes([which])).digest()
                for i in range(size):
                    memory[start + i] = digest[i % 32]
        return memory

    def results(self, memory, shift=0):
        """Return what outlives a run: what was kept, and other memory."""
        found = {a: v for a, v in memory.items() if OTHER <= a < OTHER + 2 * SIZE}
        for at, size in self.kept:
            for address in range(POOL + at, POOL + at + size):
                if address + shift in memory:
                    found[address] = memory[address + shift]
        return found


def any_order(n, edges, choose):
    """Return the nodes in some order that edges allow."""
    waits = [0] * n
    after = [[] for _ in range(n)]
    for a, b in edges:
        waits[b] += 1
        after[a].append(b)
    ready = [i for i in range(n) if not waits[i]]
    order = []
    while ready:
        node = ready.pop(choose(len(ready)))
        order.append(node)
        for b in after[node]:
            waits[b] -= 1
            if not waits[b]:
                ready.append(b)
    return order


__all__ = ["COPY", "FakeProgram", "Kernel", "Placed", "any_order"]
