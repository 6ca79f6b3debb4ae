"""Bloom filters of all blocks side by side: one bit of each block a word."""

from __future__ import annotations

import numpy as np

from depgraph.graph.lists_jit import OTHER_SALT, SALT, mix64
from depgraph.system.compiled import compiled, compiled_helper

_ONE = np.uint64(1)


@compiled_helper
def filter_bit(line, hash_, bits):
    """Return the bit that hash `hash_` gives a line; any two hashes are independent."""
    salt = mix64(np.uint64(hash_), OTHER_SALT)
    return np.int64(mix64(line ^ salt, SALT + salt) % np.uint64(bits))


@compiled
def fill_filters(block, kind, first_line, last_line, bits, hashes, words):
    """Return for each kind and filter bit which blocks have it set: uint64[2, bits, words]."""
    # Ranges: block int32[n], kind uint8[n], first_line and last_line uint64[n]. Words hold 64
    # blocks.
    filters = np.zeros((2, bits, words), np.uint64)
    for i in range(len(block)):
        word = block[i] >> 6
        mark = _ONE << np.uint64(block[i] & 63)
        line = first_line[i]
        while line <= last_line[i]:
            for hash_ in range(hashes):
                filters[kind[i], filter_bit(line, hash_, bits), word] |= mark
            line += _ONE
    return filters


@compiled
def query_filters(block, kind, first_line, last_line, own, filters, hashes, older_blocks, reported):
    """Note in `reported` which older blocks may have touched a line that a block touches."""
    # Asks for ranges of kind `own`; filters: uint64[bits, words], of the kind of the older
    # blocks. older_blocks: how many belong to older operations. reported: uint64[n_blocks,
    # words], a bit a block.
    bits = len(filters)
    at = np.empty(hashes, np.int64)
    for i in range(len(block)):
        older = older_blocks[block[i]]
        if kind[i] != own or older == 0:
            continue
        line = first_line[i]
        while line <= last_line[i]:
            for hash_ in range(hashes):
                at[hash_] = filter_bit(line, hash_, bits)
            for word in range((older + 63) >> 6):
                found = filters[at[0], word]
                for hash_ in range(1, hashes):
                    found &= filters[at[hash_], word]
                if (word + 1) << 6 > older:
                    found &= (_ONE << np.uint64(older & 63)) - _ONE
                reported[block[i], word] |= found
            line += _ONE


@compiled
def report_sharing(line, block, kind, own, others, older_blocks, reported):
    """Note in `reported` which older blocks touched a line that a block touches; lines ascend."""
    words = reported.shape[1]
    touched = np.zeros(words, np.uint64)
    low = 0
    while low < len(line):
        high = low
        while high < len(line) and line[high] == line[low]:
            high += 1
        n_own = 0
        n_others = 0
        for i in range(low, high):
            if kind[i] == own:
                n_own += 1
            if kind[i] == others:
                touched[block[i] >> 6] |= _ONE << np.uint64(block[i] & 63)
                n_others += 1
        for i in range(low, high):
            older = older_blocks[block[i]]
            if kind[i] != own or n_others == 0:
                continue
            for word in range((older + 63) >> 6):
                found = touched[word]
                if (word + 1) << 6 > older:
                    found &= (_ONE << np.uint64(older & 63)) - _ONE
                reported[block[i], word] |= found
        for i in range(low, high):
            touched[block[i] >> 6] = np.uint64(0)
        low = high
