"""The kinds of dependence, what one may rest on, and both in one number."""

from collections.abc import Collection
from enum import IntEnum

import numpy as np

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
