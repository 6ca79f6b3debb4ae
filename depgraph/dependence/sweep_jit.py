"""One sweep over the address space: which sets of blocks depend on which.

At every address, the operations of a program that touch it form a history: for each operation the
set of its blocks that read the byte there and the set that write it. Between two neighbouring range
ends nothing changes, so the sweep visits range ends only, keeps the history, and where a set
changed emits the pairs of sets that now follow one another. Equal sets of blocks are one set, and
equal pairs one pair, wherever in memory they occur.
"""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import compiled, compiled_if_large

READ = 0
WRITE = 1
SYNC_READ = 2
LDGSTS_READ = 3
RAW = 0
WAR = 1
WAW = 2

# What the blocks of an operation do with each other's bytes.
SYNCHRONISES = 1
EXCHANGES = 2

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_SALT_1 = np.uint64(0x9E3779B97F4A7C15)
_SALT_2 = np.uint64(0xD1B54A32D192ED03)

_GAPS = np.array([1, 4, 10, 23, 57, 132, 301, 701, 1577, 3548, 7983, 17961, 40412, 90927])


@compiled_if_large
def _unset(size):
    """Return int32[size] filled with -1."""
    array = np.empty(size, np.int32)
    for i in range(size):
        array[i] = -1
    return array


@compiled_if_large
def mix64(value, salt):
    """Scramble a 64-bit value (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    value = (value + salt) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    value = (value ^ (value >> np.uint64(27))) * _SALT_1
    return value ^ (value >> np.uint64(31))


@compiled_if_large
def _grown_int32(array):
    larger = np.empty(2 * len(array), np.int32)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@compiled_if_large
def _grown_int64(array):
    larger = np.empty(2 * len(array), np.int64)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@compiled_if_large
def _grown_uint64(array):
    larger = np.empty(2 * len(array), np.uint64)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@compiled_if_large
def _lowest_bit(word):
    """Return the index of the lowest set bit of a non-zero word."""
    index = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word & ((_ONE << np.uint64(step)) - _ONE) == _ZERO:
            word >>= np.uint64(step)
            index += step
    return index


@compiled_if_large
def _highest_bit(word):
    """Return the index of the highest set bit of a non-zero word."""
    index = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step) != _ZERO:
            word >>= np.uint64(step)
            index += step
    return index


@compiled_if_large
def _set_member(bits, member, present):
    """Write one member of a two-level bit set: row 0 holds members, row 1 the non-empty words."""
    word = member >> 6
    if present:
        bits[0, word] |= _ONE << np.uint64(member & 63)
        bits[1, word >> 6] |= _ONE << np.uint64(word & 63)
    else:
        bits[0, word] &= ~(_ONE << np.uint64(member & 63))
        if bits[0, word] == _ZERO:
            bits[1, word >> 6] &= ~(_ONE << np.uint64(word & 63))


@compiled_if_large
def _next_member(bits, member):
    """Return the smallest member that is at least `member`, or -1."""
    word = member >> 6
    if word >= bits.shape[1]:
        return -1
    rest = bits[0, word] & (~_ZERO << np.uint64(member & 63))
    if rest != _ZERO:
        return (word << 6) + _lowest_bit(rest)
    word += 1
    summary = word >> 6
    while summary << 6 < bits.shape[1]:
        rest = bits[1, summary]
        if summary == word >> 6:
            rest &= ~_ZERO << np.uint64(word & 63)
        if rest != _ZERO:
            word = (summary << 6) + _lowest_bit(rest)
            return (word << 6) + _lowest_bit(bits[0, word])
        summary += 1
    return -1


@compiled_if_large
def _previous_member(bits, member):
    """Return the largest member that is below `member`, or -1."""
    member -= 1
    if member < 0:
        return -1
    word = member >> 6
    rest = bits[0, word] & (~_ZERO >> np.uint64(63 - (member & 63)))
    if rest != _ZERO:
        return (word << 6) + _highest_bit(rest)
    word -= 1
    if word < 0:
        return -1
    summary = word >> 6
    while summary >= 0:
        rest = bits[1, summary]
        if summary == word >> 6:
            rest &= ~_ZERO >> np.uint64(63 - (word & 63))
        if rest != _ZERO:
            word = (summary << 6) + _highest_bit(rest)
            return (word << 6) + _highest_bit(bits[0, word])
        summary -= 1
    return -1


@compiled_if_large
def _pack(source, target, kind):
    """Pack a pair in 64 bits: source in the upper 31, target in the next 31, kind in the last 2."""
    return (
        (np.uint64(source) << np.uint64(33)) | (np.uint64(target) << np.uint64(2)) | np.uint64(kind)
    )


@compiled_if_large
def _sort_blocks(blocks, low, high):
    """Sort ``blocks[low:high]`` in place (Shell's method with Ciura's gaps, grown by 9/4)."""
    for i in range(low + 1, high):
        if blocks[i] < blocks[i - 1]:
            break
    else:
        return
    # Blocks mostly arrive in order and stand here the other way round.
    i = low
    j = high - 1
    while i < j:
        blocks[i], blocks[j] = blocks[j], blocks[i]
        i += 1
        j -= 1
    for g in range(len(_GAPS) - 1, -1, -1):
        gap = _GAPS[g]
        for i in range(low + gap, high):
            block = blocks[i]
            at = i
            while at >= low + gap and blocks[at - gap] > block:
                blocks[at] = blocks[at - gap]
                at -= gap
            blocks[at] = block


@compiled
def _has_other(block, head, count, readers, writers):
    """Tell whether a block of a list of readers reads what another one, of `writers`, writes."""
    if count[readers] == 0:
        return False
    if count[readers] > 1 or count[writers] > 1:
        return True
    return block[head[readers]] != block[head[writers]]


@compiled_if_large
def sweep_addresses(block, kind, start, end, by_start, by_end, operation_of_block, n_operations):
    """Find the sets of blocks that share bytes, and the pairs of sets that depend on one another.

    For byte b and operation k, let j be the last operation before k that wrote b. Then each block
    of k that reads b follows (RAW) and each that writes b follows (WAW) all blocks of j that wrote
    b; and each that writes b follows (WAR) all blocks that read b in j or between j and k.

    Parameters
    ----------
    block : int32[n]
        Global block number of each range.
    kind : uint8[n]
        `READ`, `WRITE`, `SYNC_READ` or `LDGSTS_READ`; the readers of each kind are a set.
    start, end : uint64[n]
        Byte ranges; those of one block and kind are disjoint and do not touch.
    by_start, by_end : int64[n]
        Order of the ranges by start and by end.
    operation_of_block : int32[n_blocks]
        Operation (in program order) of each block.
    n_operations : int

    Returns
    -------
    set_operation : int32[n_sets]
    set_ldgsts : bool[n_sets]
        Whether the set is one of blocks that read by LDGSTS alone.
    set_offsets : int64[n_sets + 1]
    set_blocks : int32[...]
        Members of each set, in ascending order.
    set_hash : uint64[n_sets, 2]
        Names the members, whatever their order of appearance.
    pairs : uint64[n_pairs]
        Source set, target set and kind of dependence, packed as in `_pack`.
    shared_bytes : int64[n_operations]
        Bytes written by a block and touched by another block of the same operation.
    inside : uint8[n_operations]
        `SYNCHRONISES` where a block reads what another block of the operation writes by an atomic
        or an ordered load, `EXCHANGES` where it reads such bytes by a load.
    """
    n = len(block)
    # Links of the ranges that are open at the current address, one list per operation and kind.
    following = _unset(n)
    preceding = _unset(n)
    head = _unset(4 * n_operations)
    count = np.zeros(4 * n_operations, np.int32)
    hash_1 = np.zeros(4 * n_operations, np.uint64)
    hash_2 = np.zeros(4 * n_operations, np.uint64)
    current = _unset(4 * n_operations)
    touched = np.empty(4 * n_operations, np.int32)
    stamp = np.zeros(4 * n_operations, np.int64)
    since = np.zeros(n_operations, np.uint64)
    is_shared = np.zeros(n_operations, np.bool_)
    shared_bytes = np.zeros(n_operations, np.int64)
    inside = np.zeros(n_operations, np.uint8)

    words = (n_operations >> 6) + 1
    readers = np.zeros((2, words), np.uint64)
    writers = np.zeros((2, words), np.uint64)

    n_sets = 0
    set_label = np.empty(1024, np.int32)  # twice the operation, plus one for LDGSTS
    set_offsets = np.zeros(1025, np.int64)
    set_blocks = np.empty(4096, np.int32)
    set_hash_1 = np.empty(1024, np.uint64)
    set_hash_2 = np.empty(1024, np.uint64)
    set_table = _unset(4096)

    n_pairs = 0
    pairs = np.empty(1024, np.uint64)
    pair_table = _unset(4096)
    # A changed write set is paired with each of three sets of readers at most twice, and with two
    # writers.
    found_pairs = np.empty(6 * n_operations + 4, np.uint64)

    next_start = 0
    next_end = 0
    visit = np.int64(1)
    while next_end < n:
        address = end[by_end[next_end]]
        if next_start < n:
            address = min(address, start[by_start[next_start]])
        n_touched = 0
        while next_end < n and end[by_end[next_end]] == address:
            r = by_end[next_end]
            next_end += 1
            list_ = 4 * operation_of_block[block[r]] + kind[r]
            if preceding[r] >= 0:
                following[preceding[r]] = following[r]
            else:
                head[list_] = following[r]
            if following[r] >= 0:
                preceding[following[r]] = preceding[r]
            count[list_] -= 1
            hash_1[list_] -= mix64(np.uint64(block[r]), _SALT_1)
            hash_2[list_] -= mix64(np.uint64(block[r]), _SALT_2)
            if stamp[list_] != visit:
                stamp[list_] = visit
                touched[n_touched] = list_
                n_touched += 1
        while next_start < n and start[by_start[next_start]] == address:
            r = by_start[next_start]
            next_start += 1
            list_ = 4 * operation_of_block[block[r]] + kind[r]
            following[r] = head[list_]
            preceding[r] = -1
            if head[list_] >= 0:
                preceding[head[list_]] = r
            head[list_] = r
            count[list_] += 1
            hash_1[list_] += mix64(np.uint64(block[r]), _SALT_1)
            hash_2[list_] += mix64(np.uint64(block[r]), _SALT_2)
            if stamp[list_] != visit:
                stamp[list_] = visit
                touched[n_touched] = list_
                n_touched += 1
        visit += 1

        n_changed = 0
        for i in range(n_touched):
            list_ = touched[i]
            operation = list_ >> 2
            found = np.int32(-1)
            if count[list_] > 0:
                label = 2 * operation + (1 if list_ & 3 == LDGSTS_READ else 0)
                mixed = hash_1[list_] ^ (np.uint64(label) * _SALT_2)
                slots = len(set_table)
                slot = np.int64(mix64(mixed, _SALT_1) & np.uint64(slots - 1))
                while set_table[slot] >= 0:
                    s = set_table[slot]
                    if (
                        set_hash_1[s] == hash_1[list_]
                        and set_hash_2[s] == hash_2[list_]
                        and set_label[s] == label
                    ):
                        found = s
                        break
                    slot = (slot + 1) & (slots - 1)
                if found < 0:
                    found = np.int32(n_sets)
                    set_table[slot] = found
                    if n_sets == len(set_label):
                        set_label = _grown_int32(set_label)
                        set_hash_1 = _grown_uint64(set_hash_1)
                        set_hash_2 = _grown_uint64(set_hash_2)
                        set_offsets = _grown_int64(set_offsets)
                    set_label[n_sets] = label
                    set_hash_1[n_sets] = hash_1[list_]
                    set_hash_2[n_sets] = hash_2[list_]
                    at = set_offsets[n_sets]
                    while at + count[list_] > len(set_blocks):
                        set_blocks = _grown_int32(set_blocks)
                    r = head[list_]
                    first = at
                    while r >= 0:
                        set_blocks[at] = block[r]
                        at += 1
                        r = following[r]
                    _sort_blocks(set_blocks, first, at)
                    n_sets += 1
                    set_offsets[n_sets] = at
                    if 2 * n_sets > len(set_table):
                        slots = 4 * len(set_table)
                        set_table = _unset(slots)
                        for s in range(n_sets):
                            mixed = set_hash_1[s] ^ (np.uint64(set_label[s]) * _SALT_2)
                            slot = np.int64(mix64(mixed, _SALT_1) & np.uint64(slots - 1))
                            while set_table[slot] >= 0:
                                slot = (slot + 1) & (slots - 1)
                            set_table[slot] = s
            if found == current[list_]:
                continue
            if is_shared[operation]:
                shared_bytes[operation] += np.int64(address - since[operation])
                is_shared[operation] = False
            appears = found < 0 or current[list_] < 0
            current[list_] = found
            if appears and list_ & 3 == WRITE:
                _set_member(writers, operation, found >= 0)
            elif appears:
                first = 4 * operation
                _set_member(
                    readers,
                    operation,
                    current[first + READ] >= 0
                    or current[first + SYNC_READ] >= 0
                    or current[first + LDGSTS_READ] >= 0,
                )
            touched[n_changed] = list_
            n_changed += 1

        for i in range(n_changed):
            list_ = touched[i]
            operation = np.int64(list_ >> 2)
            writing = current[4 * operation + WRITE]
            since[operation] = address
            is_shared[operation] = False
            if writing >= 0:
                written = 4 * operation + WRITE
                sync = 4 * operation + SYNC_READ
                exchanged = _has_other(
                    block, head, count, 4 * operation + READ, written
                ) or _has_other(block, head, count, 4 * operation + LDGSTS_READ, written)
                if _has_other(block, head, count, sync, written):
                    inside[operation] |= np.uint8(SYNCHRONISES)
                    # An atomic writes what it reads: a block that only reads is a load.
                    exchanged = exchanged or (
                        count[sync] > count[written]
                        or (count[sync] == count[written] and hash_1[sync] != hash_1[written])
                    )
                    is_shared[operation] = True
                if exchanged:
                    inside[operation] |= np.uint8(EXCHANGES)
                is_shared[operation] |= exchanged or count[written] > 1
            before = _previous_member(writers, operation)
            after = _next_member(writers, operation + 1)
            n_found = 0
            if list_ & 3 != WRITE:
                reading = current[list_]
                if reading >= 0 and before >= 0:
                    found_pairs[n_found] = _pack(current[4 * before + WRITE], reading, RAW)
                    n_found += 1
                if reading >= 0 and after >= 0:
                    found_pairs[n_found] = _pack(reading, current[4 * after + WRITE], WAR)
                    n_found += 1
            else:
                if writing >= 0 and before >= 0:
                    found_pairs[n_found] = _pack(current[4 * before + WRITE], writing, WAW)
                    n_found += 1
                latest = operation if writing >= 0 else before
                if latest >= 0 and after >= 0:
                    source = current[4 * latest + WRITE]
                    found_pairs[n_found] = _pack(source, current[4 * after + WRITE], WAW)
                    n_found += 1
                # Readers since the writer before; up to the next writer, which may read as well.
                reader = _next_member(readers, max(before, 0))
                while reader >= 0 and (after < 0 or reader <= after):
                    for reads in (READ, SYNC_READ, LDGSTS_READ):
                        at_reader = current[4 * reader + reads]
                        if at_reader < 0:
                            continue
                        if writing >= 0 and reader < operation:
                            found_pairs[n_found] = _pack(at_reader, writing, WAR)
                            n_found += 1
                        if latest >= 0 and reader > operation:
                            source = current[4 * latest + WRITE]
                            found_pairs[n_found] = _pack(source, at_reader, RAW)
                            n_found += 1
                        if after >= 0 and reader < after and (writing < 0 or reader >= operation):
                            found_pairs[n_found] = _pack(at_reader, current[4 * after + WRITE], WAR)
                            n_found += 1
                    reader = _next_member(readers, reader + 1)

            for at in range(n_found):
                key = found_pairs[at]
                slots = len(pair_table)
                slot = np.int64(mix64(key, _SALT_1) & np.uint64(slots - 1))
                while pair_table[slot] >= 0 and pairs[pair_table[slot]] != key:
                    slot = (slot + 1) & (slots - 1)
                if pair_table[slot] >= 0:
                    continue
                if n_pairs == len(pairs):
                    pairs = _grown_uint64(pairs)
                pairs[n_pairs] = key
                pair_table[slot] = n_pairs
                n_pairs += 1
                if 2 * n_pairs > slots:
                    slots *= 4
                    pair_table = _unset(slots)
                    for p in range(n_pairs):
                        slot = np.int64(mix64(pairs[p], _SALT_1) & np.uint64(slots - 1))
                        while pair_table[slot] >= 0:
                            slot = (slot + 1) & (slots - 1)
                        pair_table[slot] = p

    set_hash = np.empty((n_sets, 2), np.uint64)
    set_operation = np.empty(n_sets, np.int32)
    set_ldgsts = np.empty(n_sets, np.bool_)
    for s in range(n_sets):
        set_operation[s] = set_label[s] >> 1
        set_ldgsts[s] = set_label[s] & 1 == 1
        set_hash[s, 0] = set_hash_1[s]
        set_hash[s, 1] = set_hash_2[s]
    return (
        set_operation,
        set_ldgsts,
        set_offsets[: n_sets + 1],
        set_blocks[: set_offsets[n_sets]],
        set_hash,
        pairs[:n_pairs],
        shared_bytes,
        inside,
    )
