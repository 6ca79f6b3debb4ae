"""Heaps of moments and of ranks, and trees of maxima."""

from __future__ import annotations

from depgraph.system.compiled import compiled_helper


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
