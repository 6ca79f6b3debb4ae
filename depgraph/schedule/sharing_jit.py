"""How blocks that run on one SM slow each other, and where each SM stands.

All blocks of an SM run at one rate. Its clock counts the work that a block has done which has run
from the beginning: a block ends when the clock reaches where it stood, plus its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.schedule.events_jit import ENDED, TRIGGERED, event_code, event_of, pop_time, push_time
from depgraph.system.compiled import compiled_helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from depgraph.schedule.placed import Placed
    from depgraph.schedule.room_jit import Room

_ONE = np.int64(1)

# Computation, and communication.
SIDE = np.dtype(
    [
        ("beside", np.float64),  # how much longer it takes while the other one runs
        ("active", np.int64),  # blocks that run
    ]
)


class Sharing(NamedTuple):
    """When blocks end that share an SM."""

    sms: NDArray[np.void]
    sides: NDArray[np.void]
    ends: NDArray[np.float64]  # of each SM a heap: where the clock stands at each end and trigger
    codes: NDArray[np.int64]  # of these events
    next: NDArray[np.float64]  # a tree of minima: when the first of each SM is


def sharing_of(operations: NDArray[np.void], room: Room, placed: Placed) -> Sharing:
    """Return SMs on which nothing runs, and write into the operations what they take of one."""
    need, capacity, places, sharing = placed.need, placed.capacity, placed.places, placed.sharing
    sides = np.zeros(2, SIDE)
    sms, most = 1, 1
    if sharing is not None:
        sms = len(room.sms)
        operations["load"] = load = sharing.load
        operations["alone"] = 1 + sharing.slowdown * load
        if sharing.side is not None:
            operations["side"] = sharing.side
            sides["beside"] = sharing.beside
        loaded = need[(load > 0) & need.any(axis=1)]
        # Each block takes something of one resource at least.
        scarce = (loaded > 0).all(axis=0)
        held = capacity[scarce] // loaded[:, scarce].min(axis=0, initial=1 << 62)
        most = int(held.min(initial=1 << 30)) if len(loaded) else 1
        if places is not None:
            most = max(most, places.at_once(need.sum(axis=1) == 0))
        most *= 1 + int((operations["trigger"] < 1).any())
    leaves = 1 << max(0, (sms - 1).bit_length())
    return Sharing(
        sms=room.sms,
        sides=sides,
        ends=np.empty((sms, most + 1), np.float64),
        codes=np.empty((sms, most + 1), np.int64),
        next=np.full(2 * leaves, np.inf),
    )


@compiled_helper
def next_on_sms(run, sharing, operations, blocks):
    """Return the code of what happens next on an SM, off the SM: a block ends, or triggers."""
    sm = _ONE
    while sm < len(sharing.next) // 2:
        sm = 2 * sm if sharing.next[2 * sm] <= sharing.next[2 * sm + 1] else 2 * sm + 1
    sm -= len(sharing.next) // 2
    own = sharing.sms[sm]
    _advance(run, sharing, sm)
    _, code = pop_time(sharing.ends[sm], sharing.codes[sm], own.n_ends)
    own.n_ends -= 1
    kind, block = event_of(code)
    if kind == ENDED:
        operation = operations[blocks.operation[block]]
        own.held -= operation.load
        if own.n_ends == 0:
            own.held = 0.0  # no rounding is carried on
        if run.has_sides:
            _count(run, sharing, operation.side, sm, -_ONE)
    _renew(run, sharing, sm)
    return code


@compiled_helper
def _slowed(run, sharing, sm):
    """Return how many times as long a running block of an SM takes by now."""
    times = 1.0 + run.slowdown * sharing.sms[sm].held
    if run.has_sides:
        side = 0 if sharing.sms[sm].computing > 0 else 1
        if sharing.sides[1 - side].active > 0:
            times *= 1.0 + sharing.sides[side].beside
    return times


@compiled_helper
def _count(run, sharing, side, sm, change):
    """Count a running block of a side; its first and its last change the rates of all SMs."""
    turns = sharing.sides[side].active == max(0, -change)
    if turns:
        for other in range(len(sharing.sms)):
            if sharing.sms[other].n_ends > 0:
                _advance(run, sharing, other)
    sharing.sides[side].active += change
    if side == 0:
        sharing.sms[sm].computing += change
    if turns:
        for other in range(len(sharing.sms)):
            if sharing.sms[other].n_ends > 0:
                _renew(run, sharing, other)


@compiled_helper
def _advance(run, sharing, sm):
    """Let time pass on an SM."""
    own = sharing.sms[sm]
    rate = 1.0 / _slowed(run, sharing, sm)
    own.clock += (run.now - own.since) * rate
    own.since = run.now


@compiled_helper
def _renew(run, sharing, sm):
    """Say when the first block of an SM ends if nothing changes there."""
    own = sharing.sms[sm]
    time = np.inf
    if own.n_ends > 0:
        left = max(0.0, sharing.ends[sm, 0] - own.clock)
        time = own.since + left * _slowed(run, sharing, sm)
    at = len(sharing.next) // 2 + sm
    sharing.next[at] = time
    at >>= 1
    while at > 0:
        sharing.next[at] = min(sharing.next[2 * at], sharing.next[2 * at + 1])
        at >>= 1


@compiled_helper
def begin_beside(run, sharing, operations, blocks, block):
    """Let a block run on its SM, beside others; what it did before it waited counts as done."""
    sm = np.int64(blocks.sm[block])
    operation, own = operations[blocks.operation[block]], sharing.sms[sm]
    _advance(run, sharing, sm)
    if run.has_sides:
        _count(run, sharing, operation.side, sm, _ONE)
    own.held += operation.load
    rate = 1.0 / _slowed(run, sharing, sm)
    # As much as it could do before it had to wait, and no more than it had time for.
    rate_alone = 1.0 / (1.0 + run.slowdown * operation.load)
    done = min(
        (run.now - blocks.earliest[block]) * rate_alone, (run.now - blocks.start[block]) * rate
    )
    left = max(0.0, blocks.duration[block] - done)
    _add_end(sharing, sm, left, event_code(ENDED, block))
    if operation.trigger < 1:
        left = max(0.0, left - (1 - operation.trigger) * blocks.duration[block])
        _add_end(sharing, sm, left, event_code(TRIGGERED, block))
    _renew(run, sharing, sm)


@compiled_helper
def _add_end(sharing, sm, left, code):
    """Have a running block end, or trigger, when so much of its work is done."""
    own = sharing.sms[sm]
    push_time(sharing.ends[sm], sharing.codes[sm], own.n_ends, own.clock + left, code)
    own.n_ends += 1
