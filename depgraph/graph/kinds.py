"""The kinds of dependence, what one may rest on, and both in one number."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

KIND_NAMES = ("RAW", "WAR", "WAW")
ALL_KINDS = frozenset(KIND_NAMES)
RAW, WAR, WAW = range(3)


class Basis(IntEnum):
    """What a join rests on: the first two make it certain, the others only possible."""

    SEEN = 0  # accesses in the trace
    LDGSTS = 1  # reads by LDGSTS alone, of which some may only fill shared memory with zeros
    OPAQUE = 2  # a kernel whose accesses the trace cannot show
    UNIT = 3  # a kernel whose blocks wait for one another


BASIS_NAMES = ("seen", "ldgsts", "opaque", "unit")

# By kind and basis: the codes of compiled code, a bit each of one byte.
CODES = np.array([[0, 3, 5, 5], [1, 4, 6, 6], [2, 2, 7, 7]], np.uint8)
KIND_OF_CODE = np.array([0, 1, 2, 0, 1, 0, 1, 2], np.uint8)
LDGSTS_CODES = (3, 4)
FIRST_POSSIBLE_CODE = 5
