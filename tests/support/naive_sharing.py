"""The slow twin of schedules in which blocks that share an SM slow each other."""

import numpy as np
from naive_schedule import gpcs_of


def shared_schedule(graph, durations, resources, sms, sharing, waits_for, ahead=None, cluster=None):  # noqa: C901, PLR0912, PLR0915 - one loop
    """Run whole kernels, each after those it waits for; return start, end and SM of each block.

    With `ahead`, work of each kernel, blocks are placed once all blocks of those that their kernel
    waits for are placed, and do so much work in their places before they wait for the ends.

    Every block that runs is looked at after each end. Blocks of kernels that may start are placed
    in program order, each on the SM that could host most further ones, those of a `cluster` (blocks
    of each kernel that stand together) on SMs of their own in one GPC.
    """
    capacity, need = resources.capacity, resources.placed
    first = graph.first_block
    kernel = graph.operation_of_block
    start, end = np.full(len(durations), np.nan), np.full(len(durations), np.nan)
    sm_of = np.zeros(len(durations), int)
    free = [capacity.copy() for _ in range(sms)]
    running = [{} for _ in range(sms)]  # block -> what is left of its work
    carve_out = [None] * sms
    paused = durations if ahead is None else np.maximum(durations - ahead[kernel], 0.0)
    unplaced = list(range(len(durations)))
    now = taken_back = 0.0  # no sooner are SMs empty that the last kernel placed took
    last = None  # that kernel
    filled_at = 0.0  # no sooner do more blocks go out, after several to an SM that was empty
    cluster = np.ones(len(first), int) if cluster is None else cluster
    gpcs = gpcs_of(resources.gpu, sms)
    large = cluster[cluster > min(map(len, gpcs))] if sharing.cluster_start else []
    sparing = min(large, default=np.inf)  # the smallest cluster that leaves SMs to others
    spared = [sm for gpc in gpcs for sm in gpc if len(gpc) < sparing < np.inf]
    spared_until = -1.0
    part = np.zeros(len(first), int) if sharing.part is None else sharing.part
    smsps = sharing.smsps
    warps = np.ones(len(first), int) if sharing.warps is None else sharing.warps
    next_smsp = [0] * sms  # the sub-partition of each SM that gets the next block's first warp
    loads = {}  # block -> its load of each sub-partition

    def hosts(sm, k):
        if (free[sm] < need[k]).any():
            return 0
        most = [free[sm][r] // need[k][r] for r in range(len(capacity)) if need[k][r]]
        if sharing.carve_outs is not None:
            cuts = sharing.carve_outs
            size = cuts.chosen[k] if carve_out[sm] is None else carve_out[sm]
            if carve_out[sm] is not None and size < cuts.least[k]:
                return 0
            left = size - (capacity[cuts.shared] - free[sm][cuts.shared])
            most.append(left // need[k][cuts.shared] if need[k][cuts.shared] else 1 << 30)
        return max(0, min(most))

    def places_for(k):
        """Return the SMs with room for a block, or those of the GPC with most for a cluster."""
        if cluster[k] == 1:
            return [sm for sm in range(sms) if hosts(sm, k)]
        rooms = [sorted((hosts(sm, k) for sm in gpc), reverse=True) for gpc in gpcs]
        least = [own[cluster[k] - 1] if len(own) >= cluster[k] else 0 for own in rooms]
        return list(gpcs[least.index(max(least))]) if max(least) else []

    def same_sort(k, other):
        cuts = sharing.carve_outs
        alike = (need[k] == need[other]).all() and cluster[k] == cluster[other]
        return alike and (
            cuts is None
            or (cuts.least[k], cuts.chosen[k]) == (cuts.least[other], cuts.chosen[other])
        )

    def over(kernels, times):
        return all((~np.isnan(times[first[k] : first[k + 1]])).all() for k in kernels)

    def left_to_do(sm):
        """Return the blocks that do not wait, and how much each has left until it ends or waits."""
        return {
            block: left if over(waits_for[kernel[block]], end) else left - paused[block]
            for block, left in running[sm].items()
            if over(waits_for[kernel[block]], end) or left > paused[block] + 1e-9
        }

    def slowed(sm, block):
        """Return how many times as long a block takes beside the others of an SM."""
        own = part[kernel[block]]
        held = sum(
            (
                loads[other] * (1 if part[kernel[other]] == own else sharing.across)
                for other in left_to_do(sm)
            ),
            start=np.zeros(smsps),
        )
        times = 1 + sharing.slowdown * held[loads[block] > 0].max()
        if sharing.side is None:
            return times
        here = min((sharing.side[kernel[block]] for block in running[sm]), default=1)
        sides = {sharing.side[kernel[block]] for blocks in running for block in blocks}
        return times * (1 + sharing.beside[here] * (1 - here in sides))

    def next_ends():
        return [
            (now + left * slowed(sm, block), sm, block)
            for sm in range(sms)
            for block, left in left_to_do(sm).items()
        ]

    while True:
        waits = False  # for SMs to be taken back from the last one
        further = {}  # SMs that were empty: blocks that they get at once, but for the first
        is_filling = now < filled_at
        while not is_filling:
            ready = [
                b for b in unplaced
                if over(waits_for[kernel[b]], end if ahead is None else start)
            ]  # fmt: skip
            if not ready:
                break
            block, k = ready[0], kernel[ready[0]]
            among = places_for(k)
            if not among and cluster[k] >= sparing:  # only those of another sort may go past it
                past = [b for b in ready if not same_sort(kernel[b], k)]
                block, k = (past[0], kernel[past[0]]) if past else (block, k)
                if cluster[k] == 1:
                    among = [sm for sm in spared if hosts(sm, k)]
            if not among:
                break
            cuts = sharing.carve_outs
            waits = (
                sharing.take_back > 0 and cuts is not None and last not in {None, k}
                and now < taken_back and not over([last], end)
            )  # fmt: skip
            if waits:
                break
            last, taken_back = k, max(taken_back, now) + sharing.take_back * cluster[k]
            if cluster[k] == 1 and now <= spared_until:
                among = [sm for sm in spared if hosts(sm, k)] or among
            if cluster[k] >= sparing and block == first[k]:
                spared_until = now + sharing.cluster_start
            for mate in range(block, block + cluster[k]):
                sm = max(among, key=lambda sm: (hosts(sm, k), -sm))
                if cluster[k] > 1:
                    among.remove(sm)
                if carve_out[sm] is None and sharing.carve_outs is not None:
                    carve_out[sm] = sharing.carve_outs.chosen[k]
                if need[k].any() and (sm in further or not running[sm]):
                    further[sm] = further.get(sm, -1) + 1
                free[sm] = free[sm] - need[k]
                running[sm][mate] = durations[mate]
                start[mate], sm_of[mate] = now, sm
                dealt = (next_smsp[sm] + np.arange(warps[k])) % smsps
                share = np.bincount(dealt, minlength=smsps) / warps[k]
                loads[mate] = sharing.load[k] * smsps * share
                if need[k].any():
                    next_smsp[sm] = (next_smsp[sm] + (warps[k] % smsps or 1)) % smsps
                unplaced.remove(mate)
        if sharing.carve_outs is not None:
            filled_at = max(filled_at, now + sharing.fill * max(further.values(), default=0))
        ends = next_ends()
        if not ends and not waits and not is_filling:
            return start, end, sm_of
        then, sm, block = min(ends, default=(np.inf, None, None))
        for until, counts in ((taken_back, waits), (filled_at, is_filling)):
            if counts and until <= then:
                then, block = until, None
        for other in range(sms):
            at_work = left_to_do(other)
            running[other] = {
                b: left - (then - now) / slowed(other, b) * (b in at_work)
                for b, left in running[other].items()
            }
        now = then
        if block is None:
            continue
        if not over(waits_for[kernel[block]], end):
            running[sm][block] = paused[block]
            continue
        end[block] = now
        del running[sm][block]
        free[sm] = free[sm] + need[kernel[block]]
        if not running[sm]:
            carve_out[sm] = None
