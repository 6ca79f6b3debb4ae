"""Block graphs, compiled: lists in two arrays, the longest paths, and edges, not all held at once.

`graph` is the `GraphArrays` of a block graph, `groups` the `Groups` of an operation that waits,
`source` one that it waits for. A *code*, of `dependences.CODES`, says what an edge rests on;
a *mask* has a bit for each.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.system.arrays import Blocks, FirstBlocks, Offsets, Operations, SetNumbers
from depgraph.system.compiled import compiled, compiled_helper, compiled_if_large


class GraphArrays(NamedTuple):
    """Arrays of a `BlockGraph`, under the same names."""

    first_block: FirstBlocks
    set_operation: Operations
    set_offsets: Offsets
    set_blocks: Blocks
    join_code: NDArray[np.uint8]
    join_source_operation: Operations
    join_target_operation: Operations
    source_offsets: Offsets
    sources: SetNumbers
    target_offsets: Offsets
    targets: SetNumbers


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


@compiled_if_large
def earliest_finish(graph, durations):
    """Return when each block ends at the earliest, and which it waits for last, -1 for none."""
    n_sets = len(graph.set_operation)
    finish = np.zeros(len(durations), np.float64)
    critical = np.full(len(durations), -1, np.int32)
    latest = np.empty(n_sets, np.int32)  # of each set the block that ends last
    ready = np.full(n_sets, -1, np.int32)  # of all sources of each set
    next_join = 0
    next_set = 0
    for operation in range(len(graph.first_block) - 1):
        while next_join < len(graph.join_target_operation) and (
            graph.join_target_operation[next_join] == operation
        ):
            j = next_join
            next_join += 1
            last = np.int32(-1)
            for s in range(graph.source_offsets[j], graph.source_offsets[j + 1]):
                block = latest[graph.sources[s]]
                if last < 0 or finish[block] > finish[last]:
                    last = block
            for t in range(graph.target_offsets[j], graph.target_offsets[j + 1]):
                target = graph.targets[t]
                if ready[target] < 0 or finish[last] > finish[ready[target]]:
                    ready[target] = last
        first_set = next_set
        while next_set < n_sets and graph.set_operation[next_set] == operation:
            last = ready[next_set]
            if last >= 0:
                for at in range(graph.set_offsets[next_set], graph.set_offsets[next_set + 1]):
                    block = graph.set_blocks[at]
                    if critical[block] < 0 or finish[last] > finish[critical[block]]:
                        critical[block] = last
            next_set += 1
        for block in range(graph.first_block[operation], graph.first_block[operation + 1]):
            begin = 0.0
            if critical[block] >= 0:
                begin = finish[critical[block]]
            finish[block] = begin + durations[block]
        for s in range(first_set, next_set):
            last = graph.set_blocks[graph.set_offsets[s]]
            for at in range(graph.set_offsets[s] + 1, graph.set_offsets[s + 1]):
                if finish[graph.set_blocks[at]] > finish[last]:
                    last = graph.set_blocks[at]
            latest[s] = last
    return finish, critical


@compiled_if_large
def longest_tail(graph, durations):
    """Return the longest path from the start of each block, itself included, to the end."""
    n_sets = len(graph.set_operation)
    after_set = np.zeros(n_sets, np.float64)
    tail = np.zeros(len(durations), np.float64)
    next_join = len(graph.join_target_operation) - 1
    next_set = n_sets - 1
    for operation in range(len(graph.first_block) - 2, -1, -1):
        last_set = next_set
        while next_set >= 0 and graph.set_operation[next_set] == operation:
            for at in range(graph.set_offsets[next_set], graph.set_offsets[next_set + 1]):
                block = graph.set_blocks[at]
                tail[block] = max(tail[block], after_set[next_set])
            next_set -= 1
        for block in range(graph.first_block[operation], graph.first_block[operation + 1]):
            tail[block] += durations[block]
        longest = np.zeros(last_set - next_set, np.float64)
        for s in range(next_set + 1, last_set + 1):
            for at in range(graph.set_offsets[s], graph.set_offsets[s + 1]):
                block = graph.set_blocks[at]
                longest[s - next_set - 1] = max(longest[s - next_set - 1], tail[block])
        while next_join >= 0 and graph.join_target_operation[next_join] == operation:
            j = next_join
            next_join -= 1
            most = 0.0
            for t in range(graph.target_offsets[j], graph.target_offsets[j + 1]):
                most = max(most, longest[graph.targets[t] - next_set - 1])
            for s in range(graph.source_offsets[j], graph.source_offsets[j + 1]):
                after_set[graph.sources[s]] = max(after_set[graph.sources[s]], most)
    return tail


class Shares(NamedTuple):
    """Where inside blocks dependences are needed; an empty array where that is not known."""

    # [n_joins]: share of a target's work before it needs the join; default none.
    join_need: NDArray[np.float64]
    # [n_set_blocks]: the same for each member of a target set; the larger counts.
    member_need: NDArray[np.float64]
    # [n_set_blocks]: share of a source's work that others wait for; default all.
    member_done: NDArray[np.float64]


@compiled_if_large
def intra_block_finish(graph, durations, shares):
    """Return when each block ends at the earliest, with unlimited SMs and waits inside blocks.

    A block that has to wait after a share q of its work goes on from there once what it waits for
    is ready. It reaches share p at the latest of p times its duration and, for every wait at a
    share q below p, that wait's end plus (p - q) times its duration.
    """
    n_sets = len(graph.set_operation)
    finish = np.zeros(len(durations), np.float64)
    set_time = np.zeros(n_sets, np.float64)
    next_join = 0
    next_set = 0
    for operation in range(len(graph.first_block) - 1):
        low = graph.first_block[operation]
        n_blocks = graph.first_block[operation + 1] - low
        first_join = next_join
        while next_join < len(graph.join_target_operation) and (
            graph.join_target_operation[next_join] == operation
        ):
            next_join += 1
        offsets = np.zeros(n_blocks + 1, np.int64)
        for t in range(graph.target_offsets[first_join], graph.target_offsets[next_join]):
            target = graph.targets[t]
            for at in range(graph.set_offsets[target], graph.set_offsets[target + 1]):
                offsets[graph.set_blocks[at] - low + 1] += 1
        for block in range(n_blocks):
            offsets[block + 1] += offsets[block]
        fill = offsets[:-1].copy()
        # The moment from which a block would have to run without a stop, for each of its waits.
        since = np.empty(offsets[n_blocks], np.float64)
        need = np.empty(offsets[n_blocks], np.float64)
        for j in range(first_join, next_join):
            ready = 0.0
            for s in range(graph.source_offsets[j], graph.source_offsets[j + 1]):
                ready = max(ready, set_time[graph.sources[s]])
            for t in range(graph.target_offsets[j], graph.target_offsets[j + 1]):
                target = graph.targets[t]
                for at in range(graph.set_offsets[target], graph.set_offsets[target + 1]):
                    share = 0.0
                    if len(shares.join_need) > 0:
                        share = shares.join_need[j]
                    if len(shares.member_need) > 0:
                        share = max(share, shares.member_need[at])
                    block = graph.set_blocks[at]
                    since[fill[block - low]] = ready - share * durations[block]
                    need[fill[block - low]] = share
                    fill[block - low] += 1
        for block in range(n_blocks):
            begin = 0.0
            for i in range(offsets[block], offsets[block + 1]):
                begin = max(begin, since[i])
            finish[low + block] = begin + durations[low + block]
        while next_set < n_sets and graph.set_operation[next_set] == operation:
            latest = 0.0
            for at in range(graph.set_offsets[next_set], graph.set_offsets[next_set + 1]):
                block = graph.set_blocks[at]
                time = finish[block]
                if len(shares.member_done) > 0 and shares.member_done[at] < 1:
                    done = shares.member_done[at]
                    begin = 0.0
                    for i in range(offsets[block - low], offsets[block - low + 1]):
                        if need[i] < done:
                            begin = max(begin, since[i])
                    time = begin + done * durations[block]
                latest = max(latest, time)
            set_time[next_set] = latest
            next_set += 1
    return finish


class Groups(NamedTuple):
    """The blocks of an operation, grouped by the joins that they wait for."""

    number: NDArray[np.int32]  # [blocks of the operation]: group of each block
    join_offsets: Offsets
    joins: NDArray[np.int32]
    member_offsets: Offsets
    members: Blocks


@compiled_if_large
def joins_of_targets(graph, low_join, high_join, target):
    """List the joins of each block of an operation, ascending, of a range that has its target."""
    first_block = graph.first_block[target]
    n_blocks = graph.first_block[target + 1] - first_block
    offsets = np.zeros(n_blocks + 1, np.int64)
    last = np.full(n_blocks, -1, np.int64)
    for j in range(low_join, high_join):
        for t in range(graph.target_offsets[j], graph.target_offsets[j + 1]):
            set_ = graph.targets[t]
            for at in range(graph.set_offsets[set_], graph.set_offsets[set_ + 1]):
                block = graph.set_blocks[at] - first_block
                if last[block] != j:
                    last[block] = j
                    offsets[block + 1] += 1
    for block in range(n_blocks):
        offsets[block + 1] += offsets[block]
        last[block] = -1
    joins = np.empty(offsets[n_blocks], np.int32)
    fill = offsets[:-1].copy()
    for j in range(low_join, high_join):
        for t in range(graph.target_offsets[j], graph.target_offsets[j + 1]):
            set_ = graph.targets[t]
            for at in range(graph.set_offsets[set_], graph.set_offsets[set_ + 1]):
                block = graph.set_blocks[at] - first_block
                if last[block] != j:
                    last[block] = j
                    joins[fill[block]] = j
                    fill[block] += 1
    return offsets, joins


@compiled_if_large
def union_sources(graph, offsets, joins, group, source, masks, found):
    """Collect the blocks that a group waits for in `found`, a mask for each; return how many.

    `offsets` and `joins` list the joins of each group. `masks`, uint16[blocks of `source`], is all
    zero; the caller resets the entries in `found`.
    """
    first_block = graph.first_block[source]
    n = 0
    for i in range(offsets[group], offsets[group + 1]):
        j = joins[i]
        bit = np.uint16(1 << np.int64(graph.join_code[j]))
        for s in range(graph.source_offsets[j], graph.source_offsets[j + 1]):
            set_ = graph.sources[s]
            for at in range(graph.set_offsets[set_], graph.set_offsets[set_ + 1]):
                block = graph.set_blocks[at]
                if masks[block - first_block] == 0:
                    found[n] = block
                    n += 1
                masks[block - first_block] |= bit
    return n


@compiled
def kinds_of(mask):
    """Return a mask of kinds, whatever they rest on."""
    mask = np.int64(mask)
    return (mask | mask >> 4 | mask >> 8) & 15


@compiled
def strongest_codes(mask):
    """Keep of each kind the code that says most: seen, else by LDGSTS, else possible."""
    mask = np.int64(mask)
    seen, ldgsts, possible = mask & 15, mask >> 4 & 15, mask >> 8 & 15
    return seen | (ldgsts & ~seen) << 4 | (possible & ~(seen | ldgsts)) << 8


@compiled
def count_bits(mask):
    """Count the kinds in a mask of kinds."""
    return (mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1) + (mask >> 3 & 1)


@compiled_if_large
def describe_pairs(graph, pairs):
    """Count the distinct edges of some pairs of operations and measure their patterns.

    Rows of `pairs`, int64[n, 4], are a `PairJoins`. Returns int64[n, 11]: edges of kind RAW, WAR,
    WAW, REUSE, of any kind; target blocks that wait; source blocks waited for; largest number of
    sources of a target; of targets of a source; edges of a kind that rest on LDGSTS alone; and 1
    where the sets of blocks that blocks wait for are disjoint or the same.
    """
    result = np.zeros((len(pairs), 11), np.int64)
    for pair in range(len(pairs)):
        low, high, source, target = pairs[pair]
        counts = result[pair]
        offsets, joins = joins_of_targets(graph, low, high, target)
        number, first = intern_lists(offsets, joins, np.zeros(len(offsets) - 1, np.int64))
        members = np.zeros(len(first), np.int64)
        for group in number:
            members[group] += 1
        first_block = graph.first_block[source]
        source_blocks = graph.first_block[source + 1] - first_block
        masks = np.zeros(source_blocks, np.uint16)
        found = np.empty(source_blocks, np.int32)
        fan_out = np.zeros(source_blocks, np.int64)
        set_of = np.empty(source_blocks, np.uint64)
        counts[10] = 1
        for group in range(len(first)):
            n_sources = union_sources(graph, offsets, joins, first[group], source, masks, found)
            n_members = members[group]
            name = np.uint64(0)
            for i in range(n_sources):
                name += mix64(np.uint64(found[i]), SALT)
            for i in range(n_sources):
                local = found[i] - first_block
                mask = np.int64(masks[local])
                kinds = kinds_of(mask)
                for kind in range(4):
                    if kinds >> kind & 1:
                        counts[kind] += n_members
                counts[9] += n_members * count_bits(mask >> 4 & ~mask)
                masks[local] = 0
                if fan_out[local] > 0 and set_of[local] != name:
                    counts[10] = 0
                fan_out[local] += n_members
                set_of[local] = name
            counts[4] += n_members * n_sources
            if n_sources > 0:
                counts[5] += n_members
            counts[7] = max(counts[7], n_sources)
        for local in range(source_blocks):
            if fan_out[local] > 0:
                counts[6] += 1
                counts[8] = max(counts[8], fan_out[local])
    return result


@compiled_if_large
def count_lacking(graph, groups, other, other_groups, source, both):
    """Count the edges and kinds between two operations that one graph has and another lacks.

    Rows of `both` are a group in one graph, a group in the other, and how many blocks are in both.
    """
    first_block = graph.first_block[source]
    source_blocks = graph.first_block[source + 1] - first_block
    masks = np.zeros(source_blocks, np.uint16)
    found = np.empty(source_blocks, np.int32)
    other_masks = np.zeros(source_blocks, np.uint16)
    other_found = np.empty(source_blocks, np.int32)
    total = np.int64(0)
    for row in range(len(both)):
        n_found = union_sources(
            graph, groups.join_offsets, groups.joins, both[row, 0], source, masks, found
        )
        n_other = union_sources(
            other, other_groups.join_offsets, other_groups.joins, both[row, 1], source,
            other_masks, other_found,
        )  # fmt: skip
        lacking = np.int64(0)
        for i in range(n_found):
            local = found[i] - first_block
            lacking += count_bits(kinds_of(masks[local]) & ~kinds_of(other_masks[local]))
            masks[local] = 0
        for i in range(n_other):
            other_masks[other_found[i] - first_block] = 0
        total += lacking * both[row, 2]
    return total


@compiled_if_large
def fill_edges(graph, groups, source, cursor, out):
    """Write source, target and strongest code of edges until `out` is full; return how many.

    `cursor` is the group and member to go on with, past the end when all is written. 0 with groups
    left means that one block's edges do not fit.
    """
    out_source, out_target, out_code = out
    n = 0
    first_block = graph.first_block[source]
    source_blocks = graph.first_block[source + 1] - first_block
    masks = np.zeros(source_blocks, np.uint16)
    found = np.empty(source_blocks, np.int32)
    while cursor[0] < len(groups.join_offsets) - 1:
        g = cursor[0]
        n_sources = union_sources(graph, groups.join_offsets, groups.joins, g, source, masks, found)
        per_member = np.int64(0)
        for i in range(n_sources):
            mask = strongest_codes(masks[found[i] - first_block])
            masks[found[i] - first_block] = mask
            while mask:
                per_member += mask & 1
                mask >>= 1
        at = groups.member_offsets[g] + cursor[1]
        while at < groups.member_offsets[g + 1] and n + per_member <= len(out_source):
            for i in range(n_sources):
                mask = np.int64(masks[found[i] - first_block])
                code = 0
                while mask:
                    if mask & 1:
                        out_source[n] = found[i]
                        out_target[n] = groups.members[at]
                        out_code[n] = code
                        n += 1
                    mask >>= 1
                    code += 1
            at += 1
        for i in range(n_sources):
            masks[found[i] - first_block] = 0
        if at < groups.member_offsets[g + 1]:
            cursor[1] = at - groups.member_offsets[g]
            return n
        cursor[0] += 1
        cursor[1] = 0
    return n
