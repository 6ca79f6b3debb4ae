"""Lists in two arrays, see `depgraph.graph.lists`: turned round, or numbered by a hash."""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import compiled_helper, compiled_if_large

SALT = np.uint64(0x9E3779B97F4A7C15)
OTHER_SALT = np.uint64(0xD1B54A32D192ED03)


@compiled_helper
def mix64(value, salt):
    """Scramble a 64-bit value (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    value = (value + salt) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    value = (value ^ (value >> np.uint64(27))) * SALT
    return value ^ (value >> np.uint64(31))


@compiled_if_large
def invert_lists(offsets, values, n_values):
    """For each value below `n_values`, list the lists it stands in (ascending)."""
    new_offsets = np.zeros(n_values + 1, np.int64)
    for value in values:
        new_offsets[value + 1] += 1
    for value in range(n_values):
        new_offsets[value + 1] += new_offsets[value]
    fill = new_offsets[:-1].copy()
    lists = np.empty(len(values), np.int32)
    for i in range(len(offsets) - 1):
        for at in range(offsets[i], offsets[i + 1]):
            lists[fill[values[at]]] = i
            fill[values[at]] += 1
    return new_offsets, lists


@compiled_if_large
def intern_lists(offsets, values, label):
    """Give lists numbers, equal ones with equal labels the same; return also the first of each."""
    n = len(offsets) - 1
    slots = 16
    while slots < 2 * n:
        slots *= 2
    table = np.zeros(slots, np.int32)  # a number plus one, 0 for none
    number = np.empty(n, np.int32)
    first = np.empty(n, np.int64)
    distinct = 0
    for i in range(n):
        mixed = mix64(np.uint64(label[i]), SALT)
        for at in range(offsets[i], offsets[i + 1]):
            mixed = mix64(mixed ^ np.uint64(values[at]), SALT)
        slot = np.int64(mixed & np.uint64(slots - 1))
        size = offsets[i + 1] - offsets[i]
        found = -1
        while table[slot] > 0:
            other = first[table[slot] - 1]
            same = label[other] == label[i] and offsets[other + 1] - offsets[other] == size
            at = 0
            while same and at < size:
                same = values[offsets[other] + at] == values[offsets[i] + at]
                at += 1
            if same:
                found = table[slot] - 1
                break
            slot = (slot + 1) & (slots - 1)
        if found < 0:
            found = distinct
            first[distinct] = i
            distinct += 1
            table[slot] = distinct
        number[i] = found
    return number, first[:distinct]
