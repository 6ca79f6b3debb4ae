"""The kinds of dependence, what one may rest on, both in one number, and how much is uncertain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.system.text import counted, kernels_text
from depgraph.trace.records import RANGE, TILES

if TYPE_CHECKING:
    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel

KIND_NAMES = ("RAW", "WAR", "WAW", "REUSE")
RAW, WAR, WAW, REUSE = range(4)
"""REUSE: memory was freed between the two accesses, whatever they do. The order is the allocator's:
no data go from one to the other."""
ALL_KINDS = frozenset(KIND_NAMES)
KINDS_WITHOUT_FREES = ALL_KINDS - {"REUSE"}
"""What is looked for where the input knows of no frees."""


def tracked_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return the kinds that who watches addresses alone looks for: a free tells him nothing."""
    return KINDS_WITHOUT_FREES if "REUSE" in kinds else frozenset(kinds)


class Basis(IntEnum):
    """What a join rests on: the first two make it certain, the others only possible."""

    SEEN = 0  # accesses in the trace
    LDGSTS = 1  # reads by LDGSTS alone, of which some may only fill shared memory with zeros
    OPAQUE = 2  # a kernel whose accesses the trace cannot show
    UNIT = 3  # a kernel whose blocks wait for one another
    RANGE = 4  # what a kernel writes out of sight, somewhere in known memory
    TILES = 5  # what a block writes out of sight, inferred from what it reads


BASIS_NAMES = ("seen", "ldgsts", "opaque", "unit", "range", "tiles")

# By kind and basis: the codes of compiled code. Four for what was seen, four for what rests on
# LDGSTS alone, four for what is only possible; in each four the kinds in their order.
_STRENGTH = np.array([0, 1, 2, 2, 2, 2], np.uint8)
CODES = np.arange(4, dtype=np.uint8)[:, None] + 4 * _STRENGTH
KIND_OF_CODE = np.tile(np.arange(4, dtype=np.uint8), 3)
LDGSTS_CODES = (4, 5, 6, 7)
FIRST_POSSIBLE_CODE = 8

# Whether blocks of a kernel wait for one another, by what they do with each other's bytes.
FOUND = "found"
SUSPECTED = "suspected"


class Uncertainty(NamedTuple):
    """What of a program is not certain, counted."""

    opaque: tuple[int, ...]  # kernels whose accesses the trace cannot show
    # Kernels that write out of sight, to memory that is known, and to tiles that are inferred.
    ranged: tuple[int, ...]
    inferred: tuple[int, ...]
    # Kernels whose blocks wait for one another, and those that only may.
    units: tuple[int, ...]
    suspected: tuple[int, ...]
    edges: int  # certain edges, each kind by itself
    ldgsts_edges: int  # of those the ones that rest on LDGSTS reads alone
    possible_edges: int  # edges of any kind that are only possible

    @property
    def notes(self) -> tuple[str, ...]:
        """What that means for bounds and schedules, a sentence each."""
        notes = []
        if self.opaque:
            notes.append(
                f"{kernels_text(self.opaque)} may touch memory that the trace does not show "
                "(opaque): all kernels before and after may depend on "
                + ("it" if len(self.opaque) == 1 else "them")
                + "; bounds ignore that, schedules obey it"
            )
        if self.ranged:
            notes.append(
                f"each block of {kernels_text(self.ranged)} may write more than the trace shows, "
                "in memory that is known; bounds ignore that, schedules obey it"
            )
        if self.inferred:
            notes.append(
                f"{kernels_text(self.inferred)} store by TMA: which block stores which tile is "
                "inferred from the tiles that it loads, by which each element is stored once; "
                "bounds ignore that, schedules obey it"
            )
        if self.units:
            notes.append(
                f"blocks of {kernels_text(self.units)} wait for each other inside the kernel: in "
                "schedules others wait for all of it, in bounds not; block times include waiting"
            )
        if self.suspected:
            notes.append(
                f"blocks of {kernels_text(self.suspected)} share counters (atomics) but do not "
                "read what others wrote: they are assumed to be independent"
            )
        if self.ldgsts_edges:
            notes.append(
                f"{self.ldgsts_edges} of {counted(self.edges, 'edge')} (by kind) rest only on "
                "reads by LDGSTS (cp.async). Zero-fills look like reads; use `depgraph record`"
            )
        return tuple(notes)


def uncertainty(kernels: Sequence[Kernel], pairs: Sequence[PairSummary]) -> Uncertainty:
    """Count what of a program is not certain; `pairs` are of the graph whose edges are meant."""
    few = [k for k in kernels if k.leaves_open]
    return Uncertainty(
        opaque=tuple(k.kernel for k in few if k.is_opaque),
        ranged=tuple(k.kernel for k in few if k.reach == RANGE),
        inferred=tuple(k.kernel for k in few if k.reach == TILES),
        units=tuple(k.kernel for k in few if k.waits_inside == FOUND),
        suspected=tuple(k.kernel for k in few if k.waits_inside == SUSPECTED),
        edges=sum(p.raw + p.war + p.waw for p in pairs),
        ldgsts_edges=sum(p.ldgsts for p in pairs),
        possible_edges=sum(p.possible for p in pairs),
    )
