"""The critical path where blocks may wait anywhere inside, not only before they start."""

from __future__ import annotations

import numpy as np

from depgraph.system.compiled import compiled_if_large


@compiled_if_large
def intra_block_finish(
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
    join_need,
    member_need,
    member_done,
):
    """Return when each block ends at the earliest, with unlimited SMs and waits inside blocks.

    A block that has to wait after a share q of its work goes on from there once what it waits for
    is ready. It reaches share p at the latest of p times its duration and, for every wait at a
    share q below p, that wait's end plus (p - q) times its duration.

    Parameters
    ----------
    durations : float64[n_blocks]
    first_block, set_operation, set_offsets, set_blocks, join_target_operation, source_offsets,
    sources, target_offsets, targets
        Of the block graph.
    join_need : float64[n_joins] or float64[0]
        Share of a target's work before it needs the join.
    member_need : float64[n_set_blocks] or float64[0]
        The same for each member of a target set; the larger counts.
    member_done : float64[n_set_blocks] or float64[0]
        Share of a source's work that others wait for; default all.

    Returns
    -------
    float64[n_blocks]
    """
    n_sets = len(set_operation)
    finish = np.zeros(len(durations), np.float64)
    set_time = np.zeros(n_sets, np.float64)
    next_join = 0
    next_set = 0
    for operation in range(len(first_block) - 1):
        low = first_block[operation]
        n_blocks = first_block[operation + 1] - low
        first_join = next_join
        while next_join < len(join_target_operation) and (
            join_target_operation[next_join] == operation
        ):
            next_join += 1
        offsets = np.zeros(n_blocks + 1, np.int64)
        for j in range(first_join, next_join):
            for t in range(target_offsets[j], target_offsets[j + 1]):
                for at in range(set_offsets[targets[t]], set_offsets[targets[t] + 1]):
                    offsets[set_blocks[at] - low + 1] += 1
        for block in range(n_blocks):
            offsets[block + 1] += offsets[block]
        fill = offsets[:-1].copy()
        # The moment from which a block would have to run without a stop, for each of its waits.
        since = np.empty(offsets[n_blocks], np.float64)
        need = np.empty(offsets[n_blocks], np.float64)
        for j in range(first_join, next_join):
            ready = 0.0
            for s in range(source_offsets[j], source_offsets[j + 1]):
                ready = max(ready, set_time[sources[s]])
            for t in range(target_offsets[j], target_offsets[j + 1]):
                for at in range(set_offsets[targets[t]], set_offsets[targets[t] + 1]):
                    share = 0.0
                    if len(join_need) > 0:
                        share = join_need[j]
                    if len(member_need) > 0:
                        share = max(share, member_need[at])
                    block = set_blocks[at]
                    since[fill[block - low]] = ready - share * durations[block]
                    need[fill[block - low]] = share
                    fill[block - low] += 1
        for block in range(n_blocks):
            begin = 0.0
            for i in range(offsets[block], offsets[block + 1]):
                begin = max(begin, since[i])
            finish[low + block] = begin + durations[low + block]
        while next_set < n_sets and set_operation[next_set] == operation:
            latest = 0.0
            for at in range(set_offsets[next_set], set_offsets[next_set + 1]):
                block = set_blocks[at]
                time = finish[block]
                if len(member_done) > 0 and member_done[at] < 1:
                    done = member_done[at]
                    begin = 0.0
                    for i in range(offsets[block - low], offsets[block - low + 1]):
                        if need[i] < done:
                            begin = max(begin, since[i])
                    time = begin + done * durations[block]
                latest = max(latest, time)
            set_time[next_set] = latest
            next_set += 1
    return finish
