"""Block graphs, compiled: lists in two arrays turned round or numbered, and the longest paths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
