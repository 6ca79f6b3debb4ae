"""The edges between two operations: counted, compared and written out, without holding them all.

`graph` is the `GraphArrays` of a block graph, `groups` the `Groups` of the operation that waits,
`source` the operation that it waits for. A *code* of `kinds.CODES` says what an edge rests on; a
*mask* has a bit for each.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.graph_jit import SALT, intern_lists, mix64
from depgraph.system.arrays import Blocks, Offsets
from depgraph.system.compiled import compiled, compiled_if_large


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
