"""The factored block graph: joining equal source lists, expanding edges, the critical path."""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import compiled, compiled_if_large

_SALT_1 = np.uint64(0x9E3779B97F4A7C15)


@compiled_if_large
def mix64(value, salt):
    """Scramble a 64-bit value (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    value = (value + salt) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    value = (value ^ (value >> np.uint64(27))) * _SALT_1
    return value ^ (value >> np.uint64(31))


@compiled_if_large
def _unset(size):
    """Return int32[size] filled with -1."""
    array = np.empty(size, np.int32)
    for i in range(size):
        array[i] = -1
    return array


@compiled_if_large
def _begins(offsets):
    """Return where each list begins, to be counted up while the lists are filled."""
    begins = np.empty(len(offsets) - 1, np.int64)
    for i in range(len(begins)):
        begins[i] = offsets[i]
    return begins


@compiled_if_large
def gather_lists(offsets, values, chosen):
    """Concatenate the chosen lists of a (offsets, values) pair; return the new pair."""
    new_offsets = np.zeros(len(chosen) + 1, np.int64)
    for i in range(len(chosen)):
        new_offsets[i + 1] = new_offsets[i] + offsets[chosen[i] + 1] - offsets[chosen[i]]
    new_values = np.empty(new_offsets[-1], values.dtype)
    for i in range(len(chosen)):
        low = offsets[chosen[i]]
        for at in range(new_offsets[i + 1] - new_offsets[i]):
            new_values[new_offsets[i] + at] = values[low + at]
    return new_offsets, new_values


@compiled_if_large
def invert_lists(offsets, values, n_values):
    """For each value below `n_values`, list the lists it stands in (ascending)."""
    new_offsets = np.zeros(n_values + 1, np.int64)
    for value in values:
        new_offsets[value + 1] += 1
    for value in range(n_values):
        new_offsets[value + 1] += new_offsets[value]
    fill = _begins(new_offsets)
    lists = np.empty(len(values), np.int32)
    for i in range(len(offsets) - 1):
        for at in range(offsets[i], offsets[i + 1]):
            lists[fill[values[at]]] = i
            fill[values[at]] += 1
    return new_offsets, lists


@compiled_if_large
def intern_lists(offsets, values, label):
    """Give lists numbers, equal ones where lists and labels are equal.

    Parameters
    ----------
    offsets, values : int64[n + 1], int32[...]
        The lists.
    label : int64[n]

    Returns
    -------
    number : int32[n]
    first : int64[n_distinct]
        The first list of each number.
    """
    n = len(offsets) - 1
    slots = 16
    while slots < 2 * n:
        slots *= 2
    table = _unset(slots)
    number = np.empty(n, np.int32)
    first = np.empty(n, np.int64)
    distinct = 0
    for i in range(n):
        mixed = mix64(np.uint64(label[i]), _SALT_1)
        for at in range(offsets[i], offsets[i + 1]):
            mixed = mix64(mixed ^ np.uint64(values[at]), _SALT_1)
        slot = np.int64(mixed & np.uint64(slots - 1))
        size = offsets[i + 1] - offsets[i]
        found = -1
        while table[slot] >= 0:
            other = first[table[slot]]
            same = label[other] == label[i] and offsets[other + 1] - offsets[other] == size
            at = 0
            while same and at < size:
                same = values[offsets[other] + at] == values[offsets[i] + at]
                at += 1
            if same:
                found = table[slot]
                break
            slot = (slot + 1) & (slots - 1)
        if found < 0:
            found = distinct
            table[slot] = distinct
            first[distinct] = i
            distinct += 1
        number[i] = found
    return number, first[:distinct]


@compiled_if_large
def group_targets(
    low_join, high_join, target_offsets, targets, set_offsets, set_blocks, first_block, n_blocks
):
    """Group the target blocks of some joins by the list of joins they wait for.

    Parameters
    ----------
    low_join, high_join : int
        A range of joins with one target operation.
    target_offsets, targets : int64[n_joins + 1], int32[...]
        Target sets of each join.
    set_offsets, set_blocks : int64[n_sets + 1], int32[...]
    first_block, n_blocks : int
        The blocks of the target operation.

    Returns
    -------
    group_joins_offsets, group_joins : lists of joins, one a group
    member_offsets, members : lists of global block numbers, one a group
    """
    offsets = np.zeros(n_blocks + 1, np.int64)
    last = _unset(n_blocks)
    for j in range(low_join, high_join):
        for t in range(target_offsets[j], target_offsets[j + 1]):
            for at in range(set_offsets[targets[t]], set_offsets[targets[t] + 1]):
                block = set_blocks[at] - first_block
                if last[block] != j:
                    last[block] = j
                    offsets[block + 1] += 1
    for block in range(n_blocks):
        offsets[block + 1] += offsets[block]
    lists = np.empty(offsets[n_blocks], np.int32)
    fill = _begins(offsets)
    for block in range(n_blocks):
        last[block] = -1
    for j in range(low_join, high_join):
        for t in range(target_offsets[j], target_offsets[j + 1]):
            for at in range(set_offsets[targets[t]], set_offsets[targets[t] + 1]):
                block = set_blocks[at] - first_block
                if last[block] != j:
                    last[block] = j
                    lists[fill[block]] = j
                    fill[block] += 1
    number, first = intern_lists(offsets, lists, np.zeros(n_blocks, np.int64))
    joins_offsets, joins = gather_lists(offsets, lists, first)
    member_offsets = np.zeros(len(first) + 1, np.int64)
    for block in range(n_blocks):
        member_offsets[number[block] + 1] += 1
    for g in range(len(first)):
        member_offsets[g + 1] += member_offsets[g]
    members = np.empty(n_blocks, np.int32)
    fill = _begins(member_offsets)
    for block in range(n_blocks):
        members[fill[number[block]]] = first_block + block
        fill[number[block]] += 1
    return joins_offsets, joins, member_offsets, members


@compiled_if_large
def union_sources(
    joins, join_code, source_offsets, sources, set_offsets, set_blocks, first_block, codes, found
):
    """Collect the source blocks of some joins with the kinds of dependence on each.

    Parameters
    ----------
    joins : int32[n]
        Joins with one source operation, whose blocks start at `first_block`.
    join_code : uint8[n_joins]
        RAW, WAR and WAW seen (0 to 2), RAW and WAR that rest on LDGSTS alone (3, 4), and the
        three where they are only possible (5 to 7).
    codes : uint8[blocks of the source operation]
        Scratch, all zero; bit k is set for code k. The caller resets the entries in `found`.
    found : int32[blocks of the source operation]
        Receives the distinct sources (global block numbers), in order of discovery.

    Returns
    -------
    int
        The number of distinct sources.
    """
    n = 0
    for j in joins:
        bit = np.uint8(1 << join_code[j])
        for s in range(source_offsets[j], source_offsets[j + 1]):
            for at in range(set_offsets[sources[s]], set_offsets[sources[s] + 1]):
                block = set_blocks[at]
                if codes[block - first_block] == 0:
                    found[n] = block
                    n += 1
                codes[block - first_block] |= bit
    return n


@compiled
def strongest_codes(mask):
    """Keep of each kind the code that says most: seen, else by LDGSTS, else possible."""
    mask = np.int64(mask)
    certain = mask & 7 | mask >> 3 & 3
    return mask & 7 | (mask >> 3 & 3 & ~mask) << 3 | (mask >> 5 & ~certain) << 5


@compiled_if_large
def describe_pair(
    low_join,
    high_join,
    join_code,
    source_offsets,
    sources,
    target_offsets,
    targets,
    set_offsets,
    set_blocks,
    source_first,
    source_blocks,
    target_first,
    target_blocks,
):
    """Count the distinct edges between two operations and measure their pattern.

    Returns
    -------
    counts : int64[9]
        Edges of kind RAW, WAR, WAW, of any kind; target blocks that wait; source blocks waited
        for; largest number of sources of a target; of targets of a source; edges of a kind that
        rest on LDGSTS alone.
    names, sizes : uint64[n], int64[n]
        A hash and the size of the source set of each group of targets; equal sets may recur.
    """
    result = np.zeros(9, np.int64)
    joins_offsets, joins, member_offsets, _ = group_targets(
        low_join, high_join, target_offsets, targets, set_offsets, set_blocks,
        target_first, target_blocks,
    )  # fmt: skip
    n_groups = len(joins_offsets) - 1
    codes = np.zeros(source_blocks, np.uint8)
    found = np.empty(source_blocks, np.int32)
    fan_out = np.zeros(source_blocks, np.int64)
    names = np.empty(n_groups, np.uint64)
    sizes = np.empty(n_groups, np.int64)
    n_names = 0
    for g in range(n_groups):
        if joins_offsets[g] == joins_offsets[g + 1]:
            continue
        n_members = member_offsets[g + 1] - member_offsets[g]
        n_sources = union_sources(
            joins[joins_offsets[g] : joins_offsets[g + 1]], join_code, source_offsets, sources,
            set_offsets, set_blocks, source_first, codes, found,
        )  # fmt: skip
        name = np.uint64(0)
        for i in range(n_sources):
            local = found[i] - source_first
            mask = np.int64(codes[local])
            kinds = mask & 7 | mask >> 3 & 3 | mask >> 5
            ldgsts = mask >> 3 & 3 & ~mask
            for kind in range(3):
                if kinds >> kind & 1:
                    result[kind] += n_members
            result[8] += n_members * ((ldgsts & 1) + (ldgsts >> 1))
            codes[local] = 0
            fan_out[local] += n_members
            name += mix64(np.uint64(found[i]), _SALT_1)
        result[3] += n_members * n_sources
        result[4] += n_members
        result[6] = max(result[6], n_sources)
        names[n_names] = name
        sizes[n_names] = n_sources
        n_names += 1
    for local in range(source_blocks):
        if fan_out[local] > 0:
            result[5] += 1
            result[7] = max(result[7], fan_out[local])
    return result, names[:n_names], sizes[:n_names]


@compiled_if_large
def count_edges_not_in(
    groups_joins_offsets,
    groups_joins,
    number,
    order,
    join_kind,
    source_offsets,
    sources,
    set_offsets,
    set_blocks,
    other_joins_offsets,
    other_joins,
    other_number,
    other_join_kind,
    other_source_offsets,
    other_sources,
    other_set_offsets,
    other_set_blocks,
    source_first,
    source_blocks,
):
    """Count the edges and kinds between two operations that one graph has and another lacks.

    Parameters
    ----------
    groups_joins_offsets, groups_joins, other_joins_offsets, other_joins
        Groups of target blocks in both graphs, as `group_targets` returns them.
    number, other_number : int32[target blocks]
        Group of each target block in both graphs.
    order : int64[target blocks]
        Target blocks with equal groups in both graphs are neighbours in this order.
    """
    n = len(number)
    kinds = np.zeros(source_blocks, np.uint8)
    found = np.empty(source_blocks, np.int32)
    other_kinds = np.zeros(source_blocks, np.uint8)
    other_found = np.empty(source_blocks, np.int32)
    total = np.int64(0)
    at = 0
    while at < n:
        first = at
        g = number[order[first]]
        h = other_number[order[first]]
        while at < n and number[order[at]] == g and other_number[order[at]] == h:
            at += 1
        n_found = union_sources(
            groups_joins[groups_joins_offsets[g] : groups_joins_offsets[g + 1]], join_kind,
            source_offsets, sources, set_offsets, set_blocks, source_first, kinds, found,
        )  # fmt: skip
        n_other = union_sources(
            other_joins[other_joins_offsets[h] : other_joins_offsets[h + 1]], other_join_kind,
            other_source_offsets, other_sources, other_set_offsets, other_set_blocks,
            source_first, other_kinds, other_found,
        )  # fmt: skip
        lacking = np.int64(0)
        for i in range(n_found):
            local = found[i] - source_first
            rest = np.int64(kinds[local] & ~other_kinds[local])
            lacking += (rest & 1) + (rest >> 1 & 1) + (rest >> 2 & 1)
            kinds[local] = 0
        for i in range(n_other):
            other_kinds[other_found[i] - source_first] = 0
        total += lacking * (at - first)
    return total


@compiled_if_large
def fill_edges(
    cursor,
    joins_offsets,
    joins,
    member_offsets,
    members,
    join_code,
    source_offsets,
    sources,
    set_offsets,
    set_blocks,
    source_first,
    source_blocks,
    out_source,
    out_target,
    out_code,
):
    """Write expanded edges of grouped targets into the output arrays until they are full.

    Parameters
    ----------
    cursor : int64[2]
        Group and member to go on with; updated. The group is past the end when all is written.
    joins_offsets, joins, member_offsets, members
        As `group_targets` returns them.
    out_code
        Of each kind the strongest code, see `union_sources` and `strongest_codes`.

    Returns
    -------
    int
        Number of edges written. 0 with groups left means that one block's edges do not fit.
    """
    n = 0
    codes = np.zeros(source_blocks, np.uint8)
    found = np.empty(source_blocks, np.int32)
    capacity = len(out_source)
    while cursor[0] < len(joins_offsets) - 1:
        g = cursor[0]
        if joins_offsets[g] == joins_offsets[g + 1]:
            cursor[0] += 1
            cursor[1] = 0
            continue
        n_sources = union_sources(
            joins[joins_offsets[g] : joins_offsets[g + 1]], join_code, source_offsets, sources,
            set_offsets, set_blocks, source_first, codes, found,
        )  # fmt: skip
        per_member = np.int64(0)
        for i in range(n_sources):
            mask = strongest_codes(codes[found[i] - source_first])
            codes[found[i] - source_first] = mask
            while mask:
                per_member += mask & 1
                mask >>= 1
        at = member_offsets[g] + cursor[1]
        while at < member_offsets[g + 1] and n + per_member <= capacity:
            for i in range(n_sources):
                mask = np.int64(codes[found[i] - source_first])
                code = 0
                while mask:
                    if mask & 1:
                        out_source[n] = found[i]
                        out_target[n] = members[at]
                        out_code[n] = code
                        n += 1
                    mask >>= 1
                    code += 1
            at += 1
        for i in range(n_sources):
            codes[found[i] - source_first] = 0
        if at < member_offsets[g + 1]:
            cursor[1] = at - member_offsets[g]
            return n
        cursor[0] += 1
        cursor[1] = 0
    return n


@compiled_if_large
def earliest_finish(
    durations,
    first_block,
    set_operation,
    set_offsets,
    set_blocks,
    join_target_operation,
    source_offsets,
    sources,
    target_offsets,
    targets,
):
    """Return when each block ends if it starts as soon as all it depends on has ended.

    Parameters
    ----------
    durations : float64[n_blocks]
    first_block : int64[n_operations + 1]
    set_operation : int32[n_sets]
        Ascending.
    join_target_operation : int32[n_joins]
        Ascending.

    Returns
    -------
    finish : float64[n_blocks]
    critical : int32[n_blocks]
        A block that the start of each block waits for last, -1 if it waits for none.
    """
    n_blocks = len(durations)
    n_sets = len(set_operation)
    finish = np.zeros(n_blocks, np.float64)
    critical = _unset(n_blocks)
    latest = _unset(n_sets)
    ready = _unset(n_sets)
    next_join = 0
    next_set = 0
    for operation in range(len(first_block) - 1):
        while next_join < len(join_target_operation) and (
            join_target_operation[next_join] == operation
        ):
            j = next_join
            next_join += 1
            last = np.int32(-1)
            for s in range(source_offsets[j], source_offsets[j + 1]):
                block = latest[sources[s]]
                if last < 0 or finish[block] > finish[last]:
                    last = block
            for t in range(target_offsets[j], target_offsets[j + 1]):
                target = targets[t]
                if ready[target] < 0 or finish[last] > finish[ready[target]]:
                    ready[target] = last
        first_set = next_set
        while next_set < n_sets and set_operation[next_set] == operation:
            last = ready[next_set]
            if last >= 0:
                for at in range(set_offsets[next_set], set_offsets[next_set + 1]):
                    block = set_blocks[at]
                    if critical[block] < 0 or finish[last] > finish[critical[block]]:
                        critical[block] = last
            next_set += 1
        for block in range(first_block[operation], first_block[operation + 1]):
            begin = 0.0
            if critical[block] >= 0:
                begin = finish[critical[block]]
            finish[block] = begin + durations[block]
        for s in range(first_set, next_set):
            last = set_blocks[set_offsets[s]]
            for at in range(set_offsets[s] + 1, set_offsets[s + 1]):
                if finish[set_blocks[at]] > finish[last]:
                    last = set_blocks[at]
            latest[s] = last
    return finish, critical


@compiled_if_large
def longest_tail(
    durations,
    first_block,
    set_operation,
    set_offsets,
    set_blocks,
    join_target_operation,
    source_offsets,
    sources,
    target_offsets,
    targets,
):
    """Return the longest path from the start of each block to the end of the program.

    Parameters as `earliest_finish`.

    Returns
    -------
    float64[n_blocks]
        Including the block's own duration.
    """
    n_sets = len(set_operation)
    after_set = np.zeros(n_sets, np.float64)
    tail = np.zeros(len(durations), np.float64)
    next_join = len(join_target_operation) - 1
    next_set = n_sets - 1
    for operation in range(len(first_block) - 2, -1, -1):
        last_set = next_set
        while next_set >= 0 and set_operation[next_set] == operation:
            for at in range(set_offsets[next_set], set_offsets[next_set + 1]):
                block = set_blocks[at]
                tail[block] = max(tail[block], after_set[next_set])
            next_set -= 1
        for block in range(first_block[operation], first_block[operation + 1]):
            tail[block] += durations[block]
        longest = np.zeros(last_set - next_set, np.float64)
        for s in range(next_set + 1, last_set + 1):
            for at in range(set_offsets[s], set_offsets[s + 1]):
                longest[s - next_set - 1] = max(longest[s - next_set - 1], tail[set_blocks[at]])
        while next_join >= 0 and join_target_operation[next_join] == operation:
            j = next_join
            next_join -= 1
            most = 0.0
            for t in range(target_offsets[j], target_offsets[j + 1]):
                most = max(most, longest[targets[t] - next_set - 1])
            for s in range(source_offsets[j], source_offsets[j + 1]):
                after_set[sources[s]] = max(after_set[sources[s]], most)
    return tail
