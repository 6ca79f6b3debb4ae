"""Hashes of numbers, for compiled tables."""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import compiled_helper

SALT = np.uint64(0x9E3779B97F4A7C15)
OTHER_SALT = np.uint64(0xD1B54A32D192ED03)


@compiled_helper
def mix64(value, salt):
    """Scramble a 64-bit value (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    value = (value + salt) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    value = (value ^ (value >> np.uint64(27))) * SALT
    return value ^ (value >> np.uint64(31))
