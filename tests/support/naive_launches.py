"""Slow twin of schedules with child kernels: kernels one after another, plain lists and loops."""

import heapq
from itertools import groupby

import numpy as np

from depgraph.graph.program import JOIN_BLOCK, JOIN_KERNEL
from depgraph.schedule.policy import DECIDE, INLINE

END, REACHED, THROUGH, COMES, OVER = range(5)


def instructions_of(launches):
    """Return for each block its warps, for each warp its instructions: lists of launches."""
    warps = {}
    for i in range(len(launches)):
        warps.setdefault((int(launches.block[i]), int(launches.warp[i])), []).append(i)
    found = {}
    for (block, warp), own in warps.items():
        apart = (lambda i: i) if warp < 0 else (lambda i: float(launches.at[i]))
        found.setdefault(block, []).append([list(g) for _, g in groupby(own, key=apart)])
    return found


def run(rules, graph, durations, resources, sms):  # noqa: C901, PLR0912, PLR0915 - one loop over time
    """Return the ends of blocks and of child blocks, which launches were made, and the last end."""
    given = rules.launches
    operation = graph.operation_of_block
    instructions = instructions_of(given)
    numbers = {}
    for block in sorted(instructions):
        for warp in instructions[block]:
            for instruction in warp:
                numbers[tuple(instruction)] = len(numbers)
    free = [np.array(resources.capacity) for _ in range(sms)]
    events, waiting, queues = [], [], [[] for _ in range(rules.queues)]
    ends, child_ends, place, started = {}, {}, {}, {}
    launched = [False] * len(given)
    streams = {}
    for i in range(len(given)):
        own = ("own", i) if given.stream[i] < 0 else ("shared", int(given.stream[i]))
        streams[i] = (int(given.block[i]), *own)
    by_number = sorted(
        streams.values(),
        key=lambda s: (s[0], -1 - s[2] if s[1] == "own" else s[2]),
    )
    queue_of = {s: n % rules.queues for n, s in enumerate(dict.fromkeys(by_number))}
    running_streams, intervals = set(), []
    state = {"pending": 0, "kernel": 0, "turn": 0, "free": 0.0, "over": 0.0}
    left = set()  # children that their kernels wait for
    blocks_left = {}
    warps_left, finish, awaited = {}, {}, {}

    def need(key):
        block = key if isinstance(key, int) else int(given.block[key[0]])
        return resources.placed[operation[block]]

    def hosts(sm, key):
        fits = [f // n for f, n in zip(free[sm], need(key), strict=True) if n]
        most = min(fits)
        return most if most >= 1 else -1

    def place_all(now):
        waiting.sort()
        while waiting:
            key = waiting[0][1]
            best = max(range(sms), key=lambda sm: (hosts(sm, key), -sm))
            if hosts(best, key) < 0:
                return
            waiting.pop(0)
            free[best] = free[best] - need(key)
            place[key], started[key] = best, now
            begin(key, now)
            if not isinstance(key, int) and key[1] == given.child_grid[key[0]] - 1:
                queue = queues[queue_of[streams[key[0]]]]
                queue.pop(0)
                open_head(queue)
                waiting.sort()

    def begin(key, now):
        if not isinstance(key, int):
            intervals.append((now, None))
            heapq.heappush(events, (now + given.child_duration[key[0]], END, (1, *key), None))
        elif key not in instructions:
            heapq.heappush(events, (now + durations[key], END, (0, key), None))
        else:
            warps_left[key] = len(instructions[key])
            for warp in instructions[key]:
                reach(warp, 0, now + given.at[warp[0][0]] * durations[key])

    def reach(warp, step, time):
        heapq.heappush(events, (time, REACHED, (numbers[tuple(warp[step])],), (warp, step)))

    def go_on(warp, step, now):
        block = int(given.block[warp[0][0]])
        now += max((given.inline[i] for i in warp[step] if not launched[i]), default=0.0)
        at = given.at[warp[step][0]] * durations[block]
        if step + 1 < len(warp):
            reach(warp, step + 1, now + (given.at[warp[step + 1][0]] * durations[block] - at))
            return
        finish[block] = max(finish.get(block, 0.0), now + (durations[block] - at))
        warps_left[block] -= 1
        if warps_left[block] == 0:
            heapq.heappush(events, (finish[block], END, (0, block), None))

    def open_head(queue):
        if queue and streams[queue[0]] not in running_streams:
            running_streams.add(streams[queue[0]])
            state["turn"] += 1
            waiting.extend(
                ((1, state["turn"], index), (queue[0], index))
                for index in range(given.child_grid[queue[0]])
            )

    def enqueue(child):
        queue = queues[queue_of[streams[child]]]
        queue.append(child)
        if len(queue) == 1:
            open_head(queue)

    def send(child, now):
        if not rules.dispatch:
            enqueue(child)
            return
        state["free"] = max(state["free"], now) + rules.dispatch
        heapq.heappush(events, (state["free"], COMES, (child,), None))

    def pays_off(child, now):
        time = rules.stall + rules.lane_stall * given.lanes[child]
        low = max(0.0, now - rules.window)
        past = [(b, e) for b, e in intervals if e is not None]
        area = sum(max(0.0, min(now, now if e is None else e) - max(low, b)) for b, e in intervals)
        if past and area > 0:
            mean = sum(e - b for b, e in past) / len(past)
            time += (state["pending"] + given.child_grid[child]) * mean * (now - low) / area
        return time < given.inline[child]

    def launch(warp, step, now):
        for i in warp[step]:
            mode = rules.mode[i]
            if mode == INLINE or (mode == DECIDE and not pays_off(i, now)):
                continue
            launched[i] = True
            state["pending"] += given.child_grid[i]
            left.add(i)
            blocks_left[i] = int(given.child_grid[i])
        made = [i for i in warp[step] if launched[i]]
        awaited[warp[step][0]] = sum(given.join[i] == JOIN_BLOCK for i in made)
        if not made:
            go_on(warp, step, now)
            return
        lanes = sum(given.lanes[i] for i in made)
        time = now + rules.stall + rules.lane_stall * lanes
        heapq.heappush(events, (time, THROUGH, (numbers[tuple(warp[step])],), (warp, step)))

    def through(warp, step, now):
        for i in warp[step]:
            if launched[i] and given.join[i] != JOIN_KERNEL:
                send(i, now)
        if not awaited[warp[step][0]]:
            go_on(warp, step, now)

    def end_child(child, now):
        running_streams.discard(streams[child])
        open_head(queues[queue_of[streams[child]]])
        if given.join[child] == JOIN_BLOCK:
            for warp in instructions[int(given.block[child])]:
                for step, instruction in enumerate(warp):
                    if child in instruction:
                        awaited[instruction[0]] -= 1
                        if not awaited[instruction[0]]:
                            go_on(warp, step, now)

    def own_blocks():
        k = state["kernel"]
        return range(*graph.first_block[k : k + 2]) if k < graph.n_operations else range(0)

    def start_kernel():
        waiting.extend(((0, block, 0), block) for block in own_blocks())

    def forget(child, now):
        left.remove(child)
        state["over"] = now

    start_kernel()
    now = 0.0
    while True:
        place_all(now)
        if not events:
            return ends, child_ends, launched, state["over"]
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, key, what = heapq.heappop(events)
            if kind == REACHED:
                launch(*what, now)
            elif kind == THROUGH:
                through(*what, now)
            elif kind == COMES:
                enqueue(key[0])
            elif kind == OVER:
                forget(key[0], now)
            else:
                block = key[1] if key[0] == 0 else key[1:]
                free[place[block]] = free[place[block]] + need(block)
                if key[0] == 0:
                    ends[block] = now
                else:
                    child_ends[block] = now
                    intervals.remove((started[block], None))
                    intervals.append((started[block], now))
                    state["pending"] -= 1
                    blocks_left[block[0]] -= 1
                    if blocks_left[block[0]] == 0:
                        end_child(block[0], now)
                        if rules.finish:
                            heapq.heappush(events, (now + rules.finish, OVER, block[:1], None))
                        else:
                            forget(block[0], now)
                own = own_blocks()
                if key[0] == 0 and all(b in ends for b in own):
                    for i in range(len(given)):
                        if given.block[i] in own and launched[i] and given.join[i] == JOIN_KERNEL:
                            send(i, now)
            mine = own_blocks()
            if (
                mine
                and all(b in ends for b in mine)
                and not any(given.block[i] in mine for i in left)
            ):
                state["kernel"] += 1
                start_kernel()


def branches(times, path, fork, sources_of):
    """Return what `continue_branches` does, from a list of sources for each operation."""
    latency, ended, branch = [0.0] * len(times), list(times), list(range(len(times)))
    continued = set()
    for k, sources in enumerate(sources_of):
        if not sources:
            continue
        free = [s for s in sources if s not in continued]
        last = max(free, key=lambda s: ended[s], default=None)  # the first of equals
        if last is not None:
            continued.add(last)
            branch[k] = branch[last]
        ready = max(ended[s] + (path[k] if s == last else fork[k]) for s in sources)
        latency[k] = ready - max(ended[s] for s in sources)
        ended[k] += ready
    return latency, branch
