"""Longest common subsequence of two long sequences, 64 cells of the table at a time."""

import numpy as np

from depgraph.system.compiled import compiled

_WORD = 64
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@compiled
def longest_common_subsequence(a, b, n_tokens):
    """Return for each element of `a` its partner in a longest common subsequence with `b`, or -1.

    Divide and conquer over `a` (Hirschberg, CACM 18(6), 1975) with rows of the table of lengths
    as bit vectors (Hyyrö, Bit-parallel LCS-length computation revisited, AWOCA 2004): time
    O(len(a) * len(b) / 64) whatever the sequences look like, memory O(len(a) + len(b) + n_tokens).
    Common beginnings and ends cost linear time. Elements are tokens from 0 to `n_tokens` - 1.
    """
    partner = np.full(len(a), -1, np.int64)
    by_split = np.zeros(len(b) + 1, np.int64)
    by_rest = np.zeros(len(b) + 1, np.int64)
    list_of = np.full(n_tokens, -1, np.int64)
    # Every piece cuts `a` in half, so that the pieces in waiting are few.
    waiting = np.empty((2 * _WORD + 2, 4), np.int64)
    waiting[0, 0], waiting[0, 1] = 0, len(a)
    waiting[0, 2], waiting[0, 3] = 0, len(b)
    n_waiting = 1
    while n_waiting:
        n_waiting -= 1
        a_low, a_high = waiting[n_waiting, 0], waiting[n_waiting, 1]
        b_low, b_high = waiting[n_waiting, 2], waiting[n_waiting, 3]
        while a_low < a_high and b_low < b_high and a[a_low] == b[b_low]:
            partner[a_low] = b_low
            a_low += 1
            b_low += 1
        while a_low < a_high and b_low < b_high and a[a_high - 1] == b[b_high - 1]:
            a_high -= 1
            b_high -= 1
            partner[a_high] = b_high
        if a_low == a_high or b_low == b_high:
            continue
        if a_high - a_low == 1:
            for j in range(b_low, b_high):
                if b[j] == a[a_low]:
                    partner[a_low] = j
                    break
            continue
        if b_high - b_low == 1:
            for i in range(a_low, a_high):
                if a[i] == b[b_low]:
                    partner[i] = b_low
                    break
            continue
        middle = (a_low + a_high) // 2
        width = b_high - b_low
        by_split[: width + 1] = 0
        by_rest[: width + 1] = 0
        _add_lengths(a[a_low:middle], b[b_low:b_high], list_of, by_split[: width + 1])
        # Copies: of arrays that run backwards numba would compile a function of its own.
        backwards = a[middle:a_high][::-1].copy(), b[b_low:b_high][::-1].copy()
        _add_lengths(backwards[0], backwards[1], list_of, by_rest[: width + 1])
        for j in range(width + 1):
            by_split[j] += by_rest[width - j]
        split = b_low + np.argmax(by_split[: width + 1])
        waiting[n_waiting, 0], waiting[n_waiting, 1] = a_low, middle
        waiting[n_waiting, 2], waiting[n_waiting, 3] = b_low, split
        waiting[n_waiting + 1, 0], waiting[n_waiting + 1, 1] = middle, a_high
        waiting[n_waiting + 1, 2], waiting[n_waiting + 1, 3] = split, b_high
        n_waiting += 2
    return partner


@compiled
def _add_lengths(a, b, list_of, lengths):
    """Add, for each j up to len(b), the length of a common subsequence of `a` and ``b[:j]``.

    A token that fills many words of a row keeps its row of bits, another one a list of places:
    either is read in the time that a row takes, and all take less memory than 64 rows. `list_of`
    holds -1 for each token, and so it does again afterwards.
    """
    m = len(b)
    words = (m + _WORD - 1) // _WORD
    offsets = np.zeros(m + 1, np.int64)
    n_lists = 0
    for token in b:
        if list_of[token] < 0:
            list_of[token] = n_lists
            n_lists += 1
        offsets[list_of[token] + 1] += 1
    for at in range(n_lists):
        offsets[at + 1] += offsets[at]
    fill = offsets[:n_lists].copy()
    places = np.empty(m, np.int64)
    for j in range(m):
        at = list_of[b[j]]
        places[fill[at]] = j
        fill[at] += 1
    row_of = np.full(n_lists, -1, np.int64)
    n_rows = 0
    for at in range(n_lists):
        if offsets[at + 1] - offsets[at] > words:
            row_of[at] = n_rows
            n_rows += 1
    rows = np.zeros((n_rows + 1, words), np.uint64)  # the last is scratch
    for at in range(n_lists):
        if row_of[at] >= 0:
            for k in range(offsets[at], offsets[at + 1]):
                rows[row_of[at], places[k] // _WORD] |= _ONE << np.uint64(places[k] % _WORD)

    # A bit is clear where the length grows by one from one column to the next.
    vector = np.full(words, _ALL, np.uint64)
    for token in a:
        at = list_of[token]
        if at < 0:
            continue
        is_list = row_of[at] < 0
        row = n_rows if is_list else row_of[at]
        if is_list:
            for k in range(offsets[at], offsets[at + 1]):
                rows[row, places[k] // _WORD] |= _ONE << np.uint64(places[k] % _WORD)
        carry = _ZERO
        for word in range(words):
            value, mask = vector[word], rows[row, word]
            half = value + (value & mask)
            total = half + carry
            carry = _ONE if half < value or total < half else _ZERO
            vector[word] = total | (value & ~mask)
        if is_list:
            for k in range(offsets[at], offsets[at + 1]):
                rows[row, places[k] // _WORD] = _ZERO

    length = 0
    for j in range(m):
        if not (vector[j // _WORD] >> np.uint64(j % _WORD)) & _ONE:
            length += 1
        lengths[j + 1] += length
    for token in b:
        list_of[token] = -1
