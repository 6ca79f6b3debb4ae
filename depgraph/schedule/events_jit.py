"""The kinds of events, and the queue of those to come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depgraph.schedule.heaps_jit import pop_time, push_time
from depgraph.system.compiled import compiled_helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Kinds of events, and what is numbered. Of those at one time the kinds come in this order, and the
# lowest numbers of each kind first; only of blocks that trigger the highest.
TRIGGERED = np.int64(0)  # a block has done the share of its work after which it triggers
ENDED = np.int64(1)  # a block
OPENED = np.int64(2)  # an operation: its launch is over, or its turn has come
ENTERED = np.int64(3)  # an operation
REACHED = np.int64(4)  # an instruction that launches child kernels, by its warp
LAUNCHED = np.int64(5)  # an instruction: its launches are through
QUEUED = np.int64(6)  # a child kernel comes to its hardware queue
KNOWN = np.int64(7)  # a child kernel has ended, and its parent knows

_BITS = np.int64(40)  # of a number
_LAST = np.int64((1 << 40) - 1)


class Events(NamedTuple):
    """A heap of what will happen; `Run` knows how much there is."""

    times: NDArray[np.float64]
    codes: NDArray[np.int64]

    @classmethod
    def at_most(cls, n: int) -> Events:
        """Return room for so many events."""
        return cls(np.empty(n, np.float64), np.empty(n, np.int64))


@compiled_helper
def event_code(kind, number):
    """Return an event as one number, by which those of one time are ordered."""
    if kind == TRIGGERED:
        number = _LAST - number
    return kind << _BITS | number


@compiled_helper
def event_of(code):
    """Return the kind and the number of an event."""
    kind = code >> _BITS
    number = code & _LAST
    if kind == TRIGGERED:
        number = _LAST - number
    return kind, number


@compiled_helper
def add_event(run, events, time, kind, number):
    """Let something happen."""
    push_time(events.times, events.codes, run.n_events, time, event_code(kind, number))
    run.n_events += 1


@compiled_helper
def next_event(run, events):
    """Return the next event, off the queue: its time and its code."""
    time, code = pop_time(events.times, events.codes, run.n_events)
    run.n_events -= 1
    return time, code
