"""Tables of records; the kinds of events and their queue; heaps, and trees of maxima."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.system.compiled import compiled_helper

Number = TypeVar("Number", bound="np.generic[Any]")


def table(record: np.dtype[np.void], n: int, **columns: ArrayLike) -> NDArray[np.void]:
    """Return `n` records: fields that are not given are 0."""
    made = np.zeros(n, record)
    for name, values in columns.items():
        made[name] = values
    return made


def per(values: ArrayLike | None, default: float, size: int, dtype: type) -> NDArray[Any]:
    """Return a value for each of so many, where one may be said for all, or none."""
    result: NDArray[Any] = np.empty(size, dtype)
    result[:] = default if values is None else values
    return result


def writable(values: NDArray[Number]) -> NDArray[Number]:
    """Return an array that compiled code need not be compiled for once more."""
    return values if values.flags.writeable else values.copy()


@compiled_helper
def push_time(times, items, size, time, item):
    """Add to a binary heap of `size` elements, ordered by (time, item)."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and items[parent] <= item):
            break
        times[at] = times[parent]
        items[at] = items[parent]
        at = parent
    times[at] = time
    items[at] = item


@compiled_helper
def pop_time(times, items, size):
    """Remove the first element of a heap of `size`; return its time and item."""
    size -= 1
    first_time = times[0]
    first_item = items[0]
    time = times[size]
    item = items[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            times[other] < times[child]
            or (times[other] == times[child] and items[other] < items[child])
        ):
            child = other
        if time < times[child] or (time == times[child] and item <= items[child]):
            break
        times[at] = times[child]
        items[at] = items[child]
        at = child
    times[at] = time
    items[at] = item
    return first_time, first_item


@compiled_helper
def push_rank(heap, low, size, rank):
    """Add to the binary heap of `size` ranks that starts at `low`."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[low + parent] <= rank:
            break
        heap[low + at] = heap[low + parent]
        at = parent
    heap[low + at] = rank


@compiled_helper
def pop_rank(heap, low, size):
    """Remove the lowest of the `size` ranks of the heap that starts at `low`."""
    first = heap[low]
    size -= 1
    rank = heap[low + size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[low + child + 1] < heap[low + child]:
            child += 1
        if rank <= heap[low + child]:
            break
        heap[low + at] = heap[low + child]
        at = child
    heap[low + at] = rank
    return first


@compiled_helper
def set_key(tree, c, leaf, key):
    """Write the key of a leaf into row `c` of some trees of maxima."""
    at = tree.shape[1] // 2 + leaf
    tree[c, at] = key
    at >>= 1
    while at > 0:
        largest = max(tree[c, 2 * at], tree[c, 2 * at + 1])
        if tree[c, at] == largest:
            break
        tree[c, at] = largest
        at >>= 1


@compiled_helper
def first_with(tree, c, least):
    """Return the lowest leaf whose key in row `c` is at least `least`; there must be one."""
    leaves = tree.shape[1] // 2
    at = 1
    while at < leaves:
        at = 2 * at if tree[c, 2 * at] >= least else 2 * at + 1
    return at - leaves


# Kinds of events, and what is numbered. Of those at one time the kinds come in this order, and the
# lowest numbers of each kind first; only of blocks that trigger the highest.
TRIGGERED = np.int64(0)  # a block has done the share of its work after which it triggers
ENDED = np.int64(1)  # a block
OPENED = np.int64(2)  # an operation, as its launch began: that is over, or its turn has come
ENTERED = np.int64(3)  # an operation
REACHED = np.int64(4)  # an instruction that launches child kernels, by its warp
LAUNCHED = np.int64(5)  # an instruction: its launches are through
QUEUED = np.int64(6)  # a child kernel comes to its hardware queue
KNOWN = np.int64(7)  # a child kernel has ended, and its parent knows
PREPARED = np.int64(8)  # a block has done what it can before it waits in its place
TAKEN_BACK = np.int64(9)  # blocks may go out that waited for others to be taken back
FILLED = np.int64(10)  # blocks may go out that waited for others to go out

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
