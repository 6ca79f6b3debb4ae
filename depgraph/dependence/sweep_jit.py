"""One sweep over the address space: which sets of blocks depend on which.

At every address, the operations of a program that touch it form a history: for each operation the
set of its blocks that read the byte there and the set that write it. Between two neighbouring range
ends nothing changes. So `find_changes` visits range ends only and notes which sets change there,
and `pair_changes` keeps the history and emits the pairs of sets that then follow one another. Equal
sets of blocks are one set, and equal pairs one pair, wherever in memory they occur. Where memory
was freed between two accesses, the pair is of kind REUSE, whatever they do.

A *role* is an operation and a kind of access: 4 * operation + kind.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.dependences import KIND_NAMES
from depgraph.graph.graph_jit import OTHER_SALT, SALT, mix64
from depgraph.system.arrays import Addresses, Blocks, Mask, Operations
from depgraph.system.compiled import compiled_helper, compiled_if_large
from depgraph.trace.records import LDGSTS_READ, READ, SYNC_READ, WRITE

# What the blocks of an operation do with each other's bytes.
SYNCHRONISES = 1
EXCHANGES = 2
_SHARES = 4

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
# As plain constants they would have `_pack` compiled once for each.
_RAW, _WAR, _WAW, _REUSE = (np.int64(kind) for kind in range(len(KIND_NAMES)))


class Ranges(NamedTuple):
    """The byte ranges to sweep over."""

    block: Blocks  # global block number
    role: NDArray[np.int32]
    # Those of one block and kind are disjoint and do not touch.
    start: Addresses
    end: Addresses
    # Order by start and by end.
    by_start: NDArray[np.int64]
    by_end: NDArray[np.int64]


class Changes(NamedTuple):
    """Where the set of blocks in a role becomes another one."""

    address: NDArray[np.uint64]  # ascending
    role: NDArray[np.int32]
    set_: NDArray[np.int32]  # number of the set from there on, -1 for none
    # What the blocks of the operation do with each other's bytes from there on: `SYNCHRONISES`,
    # `EXCHANGES` and `_SHARES`, where some write what others touch.
    sharing: NDArray[np.uint8]


class Frees(NamedTuple):
    """Where memory begins and ends that was freed between two operations."""

    address: NDArray[np.uint64]  # ascending
    operation: Operations  # the operation after the free
    begins: Mask  # whether the freed memory begins there; else it ends


class History(NamedTuple):
    """The history of one address."""

    current: NDArray[np.int32]  # [4 * n_operations]: set of blocks in each role, -1 for none
    # [2, words]: bit sets of the operations that read and write it, and before which it was freed.
    readers: NDArray[np.uint64]
    writers: NDArray[np.uint64]
    freed: NDArray[np.uint64]


@compiled_helper
def _doubled(array):
    """Return an array twice as long that begins with the old one."""
    return np.concatenate((array, array))


@compiled_helper
def _set_slot(slots, names, label, hash_1, hash_2):
    """Return the slot of a set, named by a label and two sums over its blocks, or the free one."""
    last = len(slots) - 1
    slot = np.int64(mix64(hash_1 ^ (label * OTHER_SALT), SALT)) & last
    while slots[slot] > 0:
        s = slots[slot] - 1
        if names[s, 1] == hash_1 and names[s, 2] == hash_2 and names[s, 0] == label:
            break
        slot = (slot + 1) & last
    return slot


@compiled_helper
def _has_other(block, head, count, readers, writers):
    """Tell whether a block of a list of readers reads what another one, of `writers`, writes."""
    if count[readers] == 0:
        return False
    if count[readers] > 1 or count[writers] > 1:
        return True
    return block[head[readers]] != block[head[writers]]


@compiled_helper
def _sharing(block, head, count, hash_1, operation):
    """Say what the blocks of an operation, which writes here, do with each other's bytes."""
    written = 4 * operation + WRITE
    sync = 4 * operation + SYNC_READ
    found = 0
    exchanged = _has_other(block, head, count, 4 * operation + READ, written) or _has_other(
        block, head, count, 4 * operation + LDGSTS_READ, written
    )
    if _has_other(block, head, count, sync, written):
        found |= SYNCHRONISES | _SHARES
        # An atomic writes what it reads: a block that only reads is a load.
        exchanged = exchanged or (
            count[sync] > count[written]
            or (count[sync] == count[written] and hash_1[sync] != hash_1[written])
        )
    if exchanged:
        found |= EXCHANGES
    if exchanged or count[written] > 1:
        found |= _SHARES
    return found


@compiled_if_large
def find_changes(ranges, n_operations):
    """Find the sets of blocks that share bytes, and where in memory they do.

    Returns changes; of each set a name, uint64[n_sets, 3]: twice the operation, plus one where its
    blocks read by LDGSTS alone, and two hashes of its members; and these, as lists, in no order.
    """
    block, role_of, start, end, by_start, by_end = ranges
    n = len(block)
    # The ranges that are open at the current address, one linked list a role.
    following = np.empty(n, np.int32)
    preceding = np.empty(n, np.int32)
    head = np.full(4 * n_operations, -1, np.int32)
    count = np.zeros(4 * n_operations, np.int32)
    hash_1 = np.zeros(4 * n_operations, np.uint64)
    hash_2 = np.zeros(4 * n_operations, np.uint64)
    current = np.full(4 * n_operations, -1, np.int32)
    touched = np.empty(4 * n_operations, np.int32)
    is_touched = np.zeros(4 * n_operations, np.bool_)
    n_sets = 0
    names = np.empty((1024, 3), np.uint64)
    offsets = np.zeros(1025, np.int64)
    blocks = np.empty(4096, np.int32)
    slots = np.zeros(4096, np.int32)

    n_changes = 0
    change_address = np.empty(2 * n, np.uint64)
    change_role = np.empty(2 * n, np.int32)
    change_set = np.empty(2 * n, np.int32)
    change_sharing = np.empty(2 * n, np.uint8)

    next_start = 0
    next_end = 0
    while next_end < n:
        address = end[by_end[next_end]]
        if next_start < n:
            address = min(address, start[by_start[next_start]])
        n_touched = 0
        while next_end < n and end[by_end[next_end]] == address:
            r = by_end[next_end]
            next_end += 1
            role = role_of[r]
            if preceding[r] >= 0:
                following[preceding[r]] = following[r]
            else:
                head[role] = following[r]
            if following[r] >= 0:
                preceding[following[r]] = preceding[r]
            count[role] -= 1
            hash_1[role] -= mix64(np.uint64(block[r]), SALT)
            hash_2[role] -= mix64(np.uint64(block[r]), OTHER_SALT)
            if not is_touched[role]:
                is_touched[role] = True
                touched[n_touched] = role
                n_touched += 1
        while next_start < n and start[by_start[next_start]] == address:
            r = by_start[next_start]
            next_start += 1
            role = role_of[r]
            following[r] = head[role]
            preceding[r] = -1
            if head[role] >= 0:
                preceding[head[role]] = r
            head[role] = r
            count[role] += 1
            hash_1[role] += mix64(np.uint64(block[r]), SALT)
            hash_2[role] += mix64(np.uint64(block[r]), OTHER_SALT)
            if not is_touched[role]:
                is_touched[role] = True
                touched[n_touched] = role
                n_touched += 1

        first_change = n_changes
        for i in range(n_touched):
            role = touched[i]
            is_touched[role] = False
            found = np.int32(-1)
            if count[role] > 0:
                label = np.uint64(2 * (role >> 2) + (role & 3 == LDGSTS_READ))
                slot = _set_slot(slots, names, label, hash_1[role], hash_2[role])
                found = np.int32(slots[slot] - 1)
                if found < 0:
                    found = np.int32(n_sets)
                    slots[slot] = n_sets + 1
                    names[n_sets, 0] = label
                    names[n_sets, 1] = hash_1[role]
                    names[n_sets, 2] = hash_2[role]
                    at = offsets[n_sets]
                    while at + count[role] > len(blocks):
                        blocks = _doubled(blocks)
                    r = head[role]
                    while r >= 0:
                        blocks[at] = block[r]
                        at += 1
                        r = following[r]
                    n_sets += 1
                    offsets[n_sets] = at
                    if n_sets == len(names):
                        names = _doubled(names)
                        offsets = _doubled(offsets)
                        slots = np.zeros(2 * len(slots), np.int32)
                        for s in range(n_sets):
                            slot = _set_slot(slots, names, names[s, 0], names[s, 1], names[s, 2])
                            slots[slot] = s + 1
            if found != current[role]:
                current[role] = found
                change_address[n_changes] = address
                change_role[n_changes] = role
                change_set[n_changes] = found
                n_changes += 1

        for i in range(first_change, n_changes):
            operation = change_role[i] >> 2
            change_sharing[i] = 0
            if count[4 * operation + WRITE] > 0:
                change_sharing[i] = _sharing(block, head, count, hash_1, operation)
    changes = Changes(
        change_address[:n_changes],
        change_role[:n_changes],
        change_set[:n_changes],
        change_sharing[:n_changes],
    )
    return changes, names[:n_sets], offsets[: n_sets + 1], blocks


@compiled_if_large
def sum_sharing(changes, n_operations):
    """Sum up what the blocks of each operation do with each other's bytes.

    Returns bytes written by a block and touched by another of the operation; and `SYNCHRONISES`
    where one reads what another writes by an atomic or an ordered load, `EXCHANGES` by a load.
    """
    shared_bytes = np.zeros(n_operations, np.int64)
    inside = np.zeros(n_operations, np.uint8)
    latest = np.full(n_operations, -1, np.int64)
    for i in range(len(changes.role)):
        operation = changes.role[i] >> 2
        before = latest[operation]
        if before >= 0 and changes.sharing[before] & _SHARES:
            shared_bytes[operation] += np.int64(changes.address[i] - changes.address[before])
        latest[operation] = i
        inside[operation] |= changes.sharing[i] & np.uint8(SYNCHRONISES | EXCHANGES)
    return shared_bytes, inside


@compiled_helper
def _lowest_bit(word):
    """Return the index of the lowest set bit of a non-zero word."""
    index = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word & ((_ONE << np.uint64(step)) - _ONE) == _ZERO:
            word >>= np.uint64(step)
            index += step
    return index


@compiled_helper
def _highest_bit(word):
    """Return the index of the highest set bit of a non-zero word."""
    index = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step) != _ZERO:
            word >>= np.uint64(step)
            index += step
    return index


@compiled_helper
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


@compiled_helper
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


@compiled_helper
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


@compiled_helper
def _pack(source, target, kind):
    """Pack a pair in 64 bits: source in the upper 31, target in the next 31, kind in the last 2."""
    return (
        (np.uint64(source) << np.uint64(33)) | (np.uint64(target) << np.uint64(2)) | np.uint64(kind)
    )


@compiled_helper
def _pair_slot(slots, keys, key):
    """Return the slot of a pair in a hash table, or the free one where it belongs."""
    last = len(slots) - 1
    slot = np.int64(mix64(key, SALT)) & last
    while slots[slot] > 0 and keys[slots[slot] - 1] != key:
        slot = (slot + 1) & last
    return slot


@compiled_helper
def _pair(history, source, target, kind):
    """Pack the pair of sets in two roles, of a kind unless the byte was freed between them."""
    freed = _next_member(history.freed, (source >> 2) + 1)
    if 0 <= freed <= target >> 2:
        kind = _REUSE
    return _pack(history.current[source], history.current[target], kind)


@compiled_helper
def _pairs_of_change(history, role, found):
    """Write the pairs of sets that follow one another now that a role has changed; count them."""
    current, readers, writers, _ = history
    operation = np.int64(role >> 2)
    written = 4 * operation + WRITE
    writing = current[written]
    before = _previous_member(writers, operation)
    after = _next_member(writers, operation + 1)
    n = 0
    if role & 3 != WRITE:
        if current[role] >= 0 and before >= 0:
            found[n] = _pair(history, 4 * before + WRITE, role, _RAW)
            n += 1
        if current[role] >= 0 and after >= 0:
            found[n] = _pair(history, role, 4 * after + WRITE, _WAR)
            n += 1
        return n
    if writing >= 0 and before >= 0:
        found[n] = _pair(history, 4 * before + WRITE, written, _WAW)
        n += 1
    latest = operation if writing >= 0 else before
    if latest >= 0 and after >= 0:
        found[n] = _pair(history, 4 * latest + WRITE, 4 * after + WRITE, _WAW)
        n += 1
    # Readers since the writer before; up to the next writer, which may read as well.
    reader = _next_member(readers, max(before, 0))
    while reader >= 0 and (after < 0 or reader <= after):
        for reads in (READ, SYNC_READ, LDGSTS_READ):
            at_reader = 4 * reader + reads
            if current[at_reader] < 0:
                continue
            if writing >= 0 and reader < operation:
                found[n] = _pair(history, at_reader, written, _WAR)
                n += 1
            if latest >= 0 and reader > operation:
                found[n] = _pair(history, 4 * latest + WRITE, at_reader, _RAW)
                n += 1
            if after >= 0 and reader < after and (writing < 0 or reader >= operation):
                found[n] = _pair(history, at_reader, 4 * after + WRITE, _WAR)
                n += 1
        reader = _next_member(readers, reader + 1)
    return n


@compiled_helper
def _change_role(history, role, set_):
    """Put a set of blocks into a role."""
    current, readers, writers, _ = history
    current[role] = set_
    first = role & ~3
    if role & 3 == WRITE:
        _set_member(writers, role >> 2, set_ >= 0)
    else:
        _set_member(
            readers,
            role >> 2,
            current[first + READ] >= 0
            or current[first + SYNC_READ] >= 0
            or current[first + LDGSTS_READ] >= 0,
        )


@compiled_helper
def _roles_of(history, roles):
    """Write the roles in which there are blocks; count them."""
    n = 0
    reader = _next_member(history.readers, 0)
    writer = _next_member(history.writers, 0)
    while reader >= 0 or writer >= 0:
        operation = max(reader, writer) if min(reader, writer) < 0 else min(reader, writer)
        for role in range(4 * operation, 4 * operation + 4):
            if history.current[role] >= 0:
                roles[n] = role
                n += 1
        reader = _next_member(history.readers, operation + 1)
        writer = _next_member(history.writers, operation + 1)
    return n


@compiled_if_large
def pair_changes(changes, frees, n_operations):
    """Find the pairs of sets that depend on one another, packed as in `_pack`.

    For byte b and operation k, let j be the last operation before k that wrote b. Then each block
    of k that reads b follows (RAW) and each that writes b follows (WAW) all blocks of j that wrote
    b; and each that writes b follows (WAR) all blocks that read b in j or between j and k. If b was
    freed between the two operations of a pair, it is of kind REUSE instead.
    """
    address, role_of, set_of, _ = changes
    words = (n_operations >> 6) + 1
    history = History(
        np.full(4 * n_operations, -1, np.int32),
        np.zeros((2, words), np.uint64),
        np.zeros((2, words), np.uint64),
        np.zeros((2, words if len(frees.address) else 0), np.uint64),
    )
    # A changed write set is paired with each of three sets of readers at most twice, and with two
    # writers.
    found = np.empty(6 * n_operations + 4, np.uint64)
    roles = np.empty(4 * n_operations, np.int32)
    n_pairs = 0
    keys = np.empty(1024, np.uint64)
    slots = np.zeros(4096, np.int32)
    low = 0
    next_free = 0
    while low < len(address):
        here = address[low]
        is_freed = next_free < len(frees.address) and frees.address[next_free] <= here
        if is_freed:
            here = frees.address[next_free]
        while next_free < len(frees.address) and frees.address[next_free] == here:
            _set_member(history.freed, frees.operation[next_free], frees.begins[next_free])
            next_free += 1
        high = low
        while high < len(address) and address[high] == here:
            _change_role(history, role_of[high], set_of[high])
            roles[high - low] = role_of[high]
            high += 1
        n_roles = _roles_of(history, roles) if is_freed else high - low
        for i in range(n_roles):
            for at in range(_pairs_of_change(history, roles[i], found)):
                slot = _pair_slot(slots, keys, found[at])
                if slots[slot] > 0:
                    continue
                keys[n_pairs] = found[at]
                n_pairs += 1
                slots[slot] = n_pairs
                if n_pairs == len(keys):
                    keys = _doubled(keys)
                    slots = np.zeros(2 * len(slots), np.int32)
                    for p in range(n_pairs):
                        slots[_pair_slot(slots, keys, keys[p])] = p + 1
        low = high
    return keys[:n_pairs]
