"""Bloom filters of many owners side by side, one bit of each owner a word: filled, and asked."""

import numpy as np

from depgraph.graph.graph_jit import OTHER_SALT, SALT, mix64
from depgraph.system.compiled import compiled, compiled_helper

_ONE = np.uint64(1)


@compiled_helper
def filter_bit(key, hash_, bits):
    """Return the bit that hash `hash_` gives a key; any two hashes are independent."""
    salt = mix64(np.uint64(hash_), OTHER_SALT)
    return np.int64(mix64(key ^ salt, SALT + salt) % np.uint64(bits))


@compiled_helper
def _find_bits(key, bits, hashes, at):
    """Note in `at` the bits that a key has; without hashes each key has a bit of its own."""
    at[0] = key
    for hash_ in range(hashes):
        at[hash_] = filter_bit(key, hash_, bits)


@compiled
def fill_filters(unit, kind, first, last, owner, bits, hashes, words):
    """Return for each kind and filter bit which owners have it set: uint64[2, bits, words]."""
    # Ranges of keys, both ends included: unit int32[n], kind uint8[n], first and last uint64[n].
    # owner: of each unit.
    filters = np.zeros((2, bits, words), np.uint64)
    at = np.empty(max(hashes, 1), np.int64)
    for i in range(len(unit)):
        k = owner[unit[i]]
        mark = _ONE << np.uint64(k & 63)
        key = first[i]
        while key <= last[i]:
            _find_bits(key, bits, hashes, at)
            for place in at:
                filters[kind[i], place, k >> 6] |= mark
            key += _ONE
    return filters


@compiled
def ask_each(unit, kind, first, last, own, filters, hashes, among, found):
    """Note in `found` whose filters answer yes to a unit: uint64[n_units, words]."""
    # Asks for ranges of kind `own`; filters: uint64[bits, words], of the kind of the others.
    # among: uint64[n_units, words]: the owners that a unit asks about.
    bits, words = filters.shape
    at = np.empty(max(hashes, 1), np.int64)
    asking = -1
    used = 0  # words in which the unit that asks has owners to ask about
    for i in range(len(unit)):
        if kind[i] != own:
            continue
        u = unit[i]
        if u != asking:
            asking, used = u, words
            while used > 0 and among[u, used - 1] == 0:
                used -= 1
        key = first[i]
        while key <= last[i] and used > 0:
            _find_bits(key, bits, hashes, at)
            for word in range(used):
                answer = among[u, word] & filters[at[0], word]
                for n in range(1, hashes):
                    answer &= filters[at[n], word]
                found[u, word] |= answer
            key += _ONE


@compiled
def ask_all(unit, kind, first, last, own, filters, hashes, among, found):
    """Note in `found` which units one filter over all of `among` answers yes to: bool[n_units]."""
    # As `ask_each`, but a bit may be set by one owner and another bit by another.
    bits, words = filters.shape
    at = np.empty(max(hashes, 1), np.int64)
    for i in range(len(unit)):
        u = unit[i]
        if kind[i] != own or found[u]:
            continue
        key = first[i]
        while key <= last[i] and not found[u]:
            _find_bits(key, bits, hashes, at)
            is_set = True
            for place in at:
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


@compiled
def report_sharing(key, owner, kind, own, others, among, found):
    """Note in `found` who `among` others touched a key that an owner touches; keys ascend."""
    words = found.shape[1]
    touched = np.zeros(words, np.uint64)
    low = 0
    while low < len(key):
        high = low
        while high < len(key) and key[high] == key[low]:
            high += 1
        n_others = 0
        for i in range(low, high):
            if kind[i] == others:
                touched[owner[i] >> 6] |= _ONE << np.uint64(owner[i] & 63)
                n_others += 1
        for i in range(low, high):
            if kind[i] == own and n_others > 0:
                k = owner[i]
                for word in range(words):
                    found[k, word] |= touched[word] & among[k, word]
        for i in range(low, high):
            touched[owner[i] >> 6] = np.uint64(0)
        low = high
