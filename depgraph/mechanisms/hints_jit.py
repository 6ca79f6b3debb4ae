"""Filters over what operations hint at: for each bit, which operations set it."""

from __future__ import annotations

import numpy as np

from depgraph.mechanisms.bloom_jit import filter_bit
from depgraph.system.compiled import compiled, compiled_helper

_ONE = np.uint64(1)


@compiled_helper
def place_of(key, hash_, bits, hashes):
    """Return the bit that a hash gives a key; without hashes each key has a bit of its own."""
    if hashes == 0:
        return np.int64(key)
    return filter_bit(key, hash_, bits)


@compiled
def fill_by_operation(unit, kind, first, last, operation, bits, hashes, words):
    """Return for each kind and bit which operations have it set: uint64[2, bits, words]."""
    # Ranges of keys, both ends included: unit int32[n], kind uint8[n], first and last uint64[n].
    filters = np.zeros((2, bits, words), np.uint64)
    for i in range(len(unit)):
        k = operation[unit[i]]
        mark = _ONE << np.uint64(k & 63)
        key = first[i]
        while key <= last[i]:
            for hash_ in range(max(hashes, 1)):
                filters[kind[i], place_of(key, hash_, bits, hashes), k >> 6] |= mark
            key += _ONE
    return filters


@compiled
def ask_each(unit, kind, first, last, own, filters, hashes, among, found):
    """Note in `found` whose filters answer yes to a unit: uint64[n_units, words]."""
    # Asks for ranges of kind `own`; filters: uint64[bits, words], of the kind of the others.
    # among: uint64[n_units, words]: the operations that a unit asks about.
    bits, words = filters.shape
    for i in range(len(unit)):
        if kind[i] != own:
            continue
        u = unit[i]
        key = first[i]
        while key <= last[i]:
            for word in range(words):
                answer = among[u, word]
                for hash_ in range(max(hashes, 1)):
                    if answer == 0:
                        break
                    answer &= filters[place_of(key, hash_, bits, hashes), word]
                found[u, word] |= answer
            key += _ONE


@compiled
def ask_all(unit, kind, first, last, own, filters, hashes, among, found):
    """Note in `found` which units one filter over all of `among` answers yes to: bool[n_units]."""
    # As `ask_each`, but a bit may be set by one operation and another bit by another.
    bits, words = filters.shape
    for i in range(len(unit)):
        u = unit[i]
        if kind[i] != own or found[u]:
            continue
        key = first[i]
        while key <= last[i] and not found[u]:
            is_set = True
            for hash_ in range(max(hashes, 1)):
                place = place_of(key, hash_, bits, hashes)
                is_here = False
                for word in range(words):
                    if filters[place, word] & among[u, word]:
                        is_here = True
                        break
                if not is_here:
                    is_set = False
                    break
            found[u] = is_set
            key += _ONE
