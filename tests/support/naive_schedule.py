"""Slow twins of the compiled schedules: expanded edges, plain loops, nothing clever."""

import math
from dataclasses import replace

import numpy as np

from depgraph.schedule.policy import ALL_ENDED, ALL_PLACED, ALL_TRIGGERED, HOLDS, PLACES


def waits_of(graph, rules):
    """Return for each block what it waits for before it is placed, and while it is."""
    gates = np.broadcast_to(rules.joins, len(graph.join_kind))
    before = [[] for _ in range(graph.n_blocks)]
    inside = [[] for _ in range(graph.n_blocks)]
    for j, gate in enumerate(gates):
        sources = {b for s in join_sets(graph, j, "source") for b in members(graph, s)}
        for t in join_sets(graph, j, "target"):
            for at in range(graph.set_offsets[t], graph.set_offsets[t + 1]):
                need = 0.0 if rules.join_need is None else rules.join_need[j]
                if rules.member_need is not None:
                    need = max(need, rules.member_need[at])
                if gate == PLACES:
                    before[graph.set_blocks[at]].append(sources)
                elif gate == HOLDS:
                    inside[graph.set_blocks[at]].append((sources, need))
    return before, inside


def join_sets(graph, join, side):
    offsets = graph.source_offsets if side == "source" else graph.target_offsets
    sets = graph.sources if side == "source" else graph.targets
    return sets[offsets[join] : offsets[join + 1]].tolist()


def members(graph, set_):
    return graph.set_blocks[graph.set_offsets[set_] : graph.set_offsets[set_ + 1]].tolist()


def run_rules(rules, graph, durations, resources, sms):  # noqa: C901, PLR0912, PLR0915 - one loop over time
    """Return start and end of every block, as `depgraph.schedule.simulate.run_rules` would."""
    graph = rules.graph or graph
    durations = durations if rules.durations is None else rules.durations
    n, k = graph.n_blocks, graph.n_operations
    need, capacity = resources.placed, resources.capacity
    if rules.workers:
        need, capacity = (graph.kernel >= 0).astype(int)[:, None], np.array([rules.workers])
    if rules.unlimited or math.isinf(sms):
        need, capacity, sms = np.zeros((k, 1), int), np.ones(1, int), 1
        rules = replace(rules, cluster=1)
    op_of = graph.operation_of_block
    blocks = [range(graph.first_block[i], graph.first_block[i + 1]) for i in range(k)]
    before, inside = waits_of(graph, rules)
    order = list(range(n)) if rules.order is None else rules.order.tolist()
    launch = np.broadcast_to(rules.launch, k)
    trigger = np.broadcast_to(rules.trigger, k)
    cluster = np.broadcast_to(rules.cluster, k)
    gpcs = gpcs_of(resources.gpu, sms)
    enter = np.broadcast_to(rules.enter, k)
    starting = np.broadcast_to(rules.starting, k)
    entry = list(range(k)) if rules.entry is None else rules.entry.tolist()
    waits_all = np.broadcast_to(rules.waits_for_all, k)
    gates = [
        (int(s), int(t), int(e), bool(h), float(x))
        for s, t, e, h, x in zip(
            rules.gates.source, rules.gates.target, rules.gates.event, rules.gates.holds,
            rules.gates.lead, strict=True,
        )
    ]  # fmt: skip
    start, end, sm = [None] * n, [None] * n, [None] * n
    triggers = [None] * n
    ended, on = set(), {}
    places = rules.places
    if places is not None:
        need = np.where(places.first[:, None] < sms, need, 0)
        link_free = places.capacity.copy()
        n_sms, sms = sms, sms + 1
    free = [np.array(capacity) for _ in range(sms)]
    entered, opens_at, known_at, known, came = {}, {}, {}, [], {}
    next_op, busy_until, starts_free = 0, 0.0, 0.0
    placed_at, ended_at = {}, {}
    now = 0.0

    def event_time(op, event):
        if event == ALL_TRIGGERED and trigger[op] < 1:
            times = [triggers[b] for b in blocks[op]]
            return None if None in times or max(times) > now else max(times)
        return (placed_at if event == ALL_PLACED else ended_at).get(op)

    def last_gate(op):
        """Return what comes last of what happens now and lets an operation open, to sort by."""
        if entered.get(op) == now and enter[op] > 0:
            return 2, op, 0
        own = [(s, g, e) for g, (s, t, e, h, _) in enumerate(gates) if t == op and not h]
        return max(((1, s, g) for s, g, e in own if event_time(s, e) == now), default=(0, op, 0))

    def as_it_came(op):
        """Return what to sort operations by that open now: gates, times that are over, entering."""
        if known_at[op] < now:
            return 2, known.index(op), 0
        kind, *rest = last_gate(op)
        return (4, entry.index(op), 0) if kind == 0 else (2 * kind - 1, *rest)

    def next_turn(op, time):
        turns, length = rules.turns
        if turns <= 1:
            return time
        begin = rules.turn[op] * length
        while begin + length <= time:
            begin += turns * length
        return max(time, begin)

    def overlap(a, b):
        return places.first[a] <= places.last[b] and places.first[b] <= places.last[a]

    def has_link(op):
        return places.link[op] < 0 or link_free[places.link[op]] >= places.taken[op]

    def use_link(op, times):
        if places is not None and places.link[op] >= 0:
            link_free[places.link[op]] -= times * places.taken[op]

    def hosts(s, op):
        if places is not None and not places.first[op] <= s <= places.last[op]:
            return -1
        fits = [f // x for f, x in zip(free[s], need[op], strict=True) if x]
        most = min(fits, default=math.inf)
        return most if most >= 1 else -1

    def may_be_placed(block):
        op = op_of[block]
        if op not in opens_at or opens_at[op] > now:
            return False
        if not all(sources <= ended for sources in before[block]):
            return False
        if rules.stages_ahead:
            first = min((rules.stage[b] for b in range(n) if b not in ended), default=0)
            return rules.stage[block] < first + rules.stages_ahead
        return True

    def let_run():
        """Let placed blocks run once all they wait for is there."""
        found = False
        for block in range(n):
            if start[block] is None or end[block] is not None:
                continue
            op = op_of[block]
            held = [(s, e, x) for s, t, e, h, x in gates if t == op and h]
            if any(event_time(s, e) is None for s, e, _ in held):
                continue
            if not all(sources <= ended for sources, _ in inside[block]):
                continue
            begin = start[block]
            for s, e, lead in held:
                begin = max(begin, event_time(s, e) - min(lead, durations[block]))
            for sources, share in inside[block]:
                ready = max(end[b] for b in sources)
                begin = max(begin, ready - share * durations[block])
            end[block] = begin + durations[block]
            triggers[block] = max(now, begin + trigger[op] * durations[block])
            found = True
        return found

    while len(ended) < n:
        changed = True
        while changed:
            changed = False
            # Enter and open operations.
            while next_op < k and busy_until <= now:
                if rules.window:
                    oldest = min((o for o in range(k) if o not in ended_at), default=k)
                    inside_now = next_op - (oldest if rules.in_order else len(ended_at))
                    if inside_now >= rules.window:
                        break
                busy_until = now + enter[entry[next_op]]
                entered[entry[next_op]] = busy_until
                next_op += 1
                changed = True
            for op in sorted(range(k), key=last_gate):
                if op in opens_at or entered.get(op, math.inf) > now:
                    continue
                if waits_all[op] and any(o not in ended_at for o in range(op)):
                    continue
                if all(
                    event_time(s, e) is not None for s, t, e, h, _ in gates if t == op and not h
                ):
                    begin = now + launch[op]
                    if starting[op] and last_gate(op)[0] > 0:
                        begin = max(begin, starts_free)
                        starts_free = begin + starting[op]
                    opens_at[op], known_at[op] = next_turn(op, begin), now
                    changed = True
            for op in sorted(opens_at, key=as_it_came):
                if op not in known:
                    known.append(op)
            for op in sorted((o for o in opens_at if opens_at[o] <= now), key=as_it_came):
                came.setdefault(op, len(came) if rules.first_come else 0)
            # Place blocks, best first.
            stuck = []
            for block in sorted(order, key=lambda b: came.get(op_of[b], k)):
                if start[block] is not None or not may_be_placed(block):
                    continue
                op = op_of[block]
                if places is None and stuck and need[op].any():
                    continue
                if places is not None and (
                    not has_link(op) or any(overlap(op, other) for other in stuck)
                ):
                    continue
                size = cluster[op]
                # The room on each of a cluster's SMs: of as many as it has blocks.
                room = [sorted((hosts(s, op) for s in gpc), reverse=True) for gpc in gpcs]
                room = [own[size - 1] if len(own) >= size else -1 for own in room]
                gpc = list(gpcs[room.index(max(room))] if size > 1 else range(sms))
                if (max(room) if size > 1 else max(hosts(s, op) for s in gpc)) < 1:
                    stuck += [op] * rules.strict
                    continue
                for mate in range(block, block + size):
                    best = max(gpc, key=lambda s: (hosts(s, op), -s))
                    if size > 1:
                        gpc.remove(best)
                    free[best] = free[best] - need[op]
                    use_link(op, 1)
                    start[mate], sm[mate] = now, best if places is None else min(best, n_sms - 1)
                    on[mate] = best
                if all(start[b] is not None for b in blocks[op]):
                    placed_at[op] = now
                changed = True
                break
            changed = let_run() or changed
        times = [end[b] for b in range(n) if end[b] is not None and b not in ended]
        times += [t for t in (*entered.values(), *opens_at.values()) if t > now]
        times += [t for t, op in zip(triggers, op_of, strict=True) if trigger[op] < 1 and t]
        times = [t for t in times if t > now]
        if not times:
            return start, end, sm
        now = min(times)
        let_run()  # what is triggered now
        # What ends now may let others end now too; only then are blocks placed.
        while just_ended := [b for b in range(n) if end[b] == now and b not in ended]:
            for block in just_ended:
                ended.add(block)
                free[on[block]] = free[on[block]] + need[op_of[block]]
                use_link(op_of[block], -1)
            for op in range(k):
                if op not in ended_at and all(b in ended for b in blocks[op]):
                    ended_at[op] = now
            let_run()
    return start, end, sm


def gpcs_of(gpu, sms):
    """Return the SMs of each GPC."""
    sizes = list(gpu.gpc_sms or ())
    if sum(sizes) != sms:
        n = math.ceil(sms / max(sizes, default=18))
        sizes = [sms * (g + 1) // n - sms * g // n for g in range(n)]
    first = [sum(sizes[:g]) for g in range(len(sizes))]
    return [range(f, f + size) for f, size in zip(first, sizes, strict=True)]


def intra_block_finish(graph, durations, join_need=None):
    """Return when each block ends with unlimited SMs and waits inside blocks."""
    waits = [[] for _ in range(graph.n_blocks)]  # (pairs of source block and share, need)
    for j in range(len(graph.join_kind)):
        sources = []
        for s in join_sets(graph, j, "source"):
            for at in range(graph.set_offsets[s], graph.set_offsets[s + 1]):
                done = (
                    1.0 if graph.last_use is None or join_need is not None else graph.last_use[at]
                )
                sources.append((graph.set_blocks[at], done))
        for t in join_sets(graph, j, "target"):
            for at in range(graph.set_offsets[t], graph.set_offsets[t + 1]):
                if join_need is not None:
                    need = join_need[j]
                else:
                    need = 0.0 if graph.first_use is None else graph.first_use[at]
                waits[graph.set_blocks[at]].append((sources, need))

    def reached(block, share):
        """Return when a block has done a share of its work."""
        time = share * durations[block]
        for sources, need in waits[block]:
            if need < share or share >= 1:
                ready = max(reached(b, done) for b, done in sources)
                time = max(time, ready + (share - need) * durations[block])
        return time

    return [reached(block, 1.0) for block in range(graph.n_blocks)]


def bloom_bits(line, bits, hashes):
    """Return the bits of a line in a Bloom filter."""
    return {bloom_bit(line, h, bits) for h in range(hashes)}


def bloom_bit(line, hash_, bits):
    """Return the bit that one hash gives a line."""
    word = 2**64 - 1

    def mix(value, salt):
        value = (value + salt) * 0xBF58476D1CE4E5B9 & word
        value = (value ^ value >> 30) * 0x94D049BB133111EB & word
        value = (value ^ value >> 27) * 0x9E3779B97F4A7C15 & word
        return value ^ value >> 31

    salt = mix(hash_, 0xD1B54A32D192ED03)
    return mix(line ^ salt, 0x9E3779B97F4A7C15 + salt & word) % bits


__all__ = ["ALL_ENDED", "bloom_bits", "intra_block_finish", "run_rules"]
