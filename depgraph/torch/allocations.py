"""Which allocation of PyTorch's allocator an address lay in, at any time of a capture."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from depgraph.apply.captured import LIBRARY, OTHER, Allocation
from depgraph.errors import ApplyError

_ROUNDED_TO = 512  # what the allocator rounds sizes up to


class AllocationLog:
    """What a GPU's allocator does; see `listening`."""

    def __init__(self, device: int, blocks: Iterable[Allocation]) -> None:
        self._device = device
        self._blocks = list(blocks)
        self._begun = self.now()

    def now(self) -> int:
        """Return how many allocations there were."""
        stats = torch._C._cuda_memoryStats(self._device)
        return int(stats["allocation"]["all"]["allocated"])

    def timeline(self) -> "Timeline":
        """Return what was allocated since the log began; refuse if not all of it was noted."""
        snapshot = torch.cuda.memory._snapshot()
        events = snapshot["device_traces"][self._device]
        made = [(e["addr"], e["size"]) for e in events if e["action"] == "alloc"]
        if len(made) != self.now() - self._begun:
            raise ApplyError(
                "memory was allocated by another thread meanwhile", "capture without other threads"
            )
        segments = [(s["address"], s["address"] + s["total_size"]) for s in snapshot["segments"]]
        return Timeline(self._blocks, self._begun, made, _freed(events), segments)


@contextmanager
def listening(device: int, pool: tuple[int, int]) -> Iterator[AllocationLog]:
    """Listen to the allocator of a GPU, alone; what `pool` holds already is kept by libraries."""
    if torch.cuda.get_allocator_backend() != "native":
        raise ApplyError(
            "PyTorch's allocator is not its own one", "take backend: out of PYTORCH_ALLOC_CONF"
        )
    if torch._C._cuda_isHistoryEnabled():
        raise ApplyError(
            "PyTorch's memory history is being recorded",
            "call torch.cuda.memory._record_memory_history(None) first",
        )
    blocks = [
        Allocation(
            block["address"], block["size"], -1,
            LIBRARY if tuple(segment["segment_pool_id"]) == pool else OTHER,
        )
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if segment["device"] == device and block["state"] == "active_allocated"
    ]  # fmt: skip
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", clear_history=True
    )
    try:
        yield AllocationLog(device, blocks)
    finally:
        torch.cuda.memory._record_memory_history(None)


def _freed(events: list[dict[str, Any]]) -> set[int]:
    """Return which allocations, counted from 0, were given back."""
    living: dict[int, int] = {}
    gone: set[int] = set()
    count = 0
    for event in events:
        if event["action"] == "alloc":
            living[event["addr"]] = count
            count += 1
        elif event["action"] == "free_requested" and event["addr"] in living:
            gone.add(living.pop(event["addr"]))
    return gone


class Timeline:
    """Allocations in the order in which they were made; those that were there before first."""

    def __init__(
        self,
        blocks: Iterable[Allocation],  # what was there before
        begun: int,  # the time of the first allocation, as `AllocationLog.now` has it
        made: Iterable[tuple[int, int]],  # address and bytes of each
        freed: set[int],  # which of them were given back
        segments: list[tuple[int, int]],  # memory that the allocator has
    ) -> None:
        self._time = begun
        self._made = list(enumerate(made))[::-1]
        self._gone = freed
        self._segments = segments
        # By address, of those that had the same bytes the latest.
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}
        self._count = 0
        self._replaced: list[Allocation] = []  # since the last call of `until` began
        self.freed: set[int] = set()  # numbers of what was given back, as far as `until` went
        for block in blocks:
            self._add(block.start, block.size, block.owner)
        self.before = self._count  # how many were there before: they have the smallest numbers

    def _add(self, start: int, size: int, owner: str = OTHER) -> Allocation:
        size = -(-max(size, 1) // _ROUNDED_TO) * _ROUNDED_TO
        made = Allocation(start, size, self._count, owner)
        self._count += 1
        at = bisect_right(self._starts, start)
        if at and self._by_start[self._starts[at - 1]].end > start:
            at -= 1
        while at < len(self._starts) and self._starts[at] < made.end:
            self._replaced.append(self._by_start.pop(self._starts.pop(at)))
        insort(self._starts, start)
        self._by_start[start] = made
        return made

    def until(self, time: int) -> list[Allocation]:
        """Go on to a time; return what was allocated meanwhile."""
        found = []
        self._replaced.clear()
        while self._time < time and self._made:
            place, (start, size) = self._made.pop()
            found.append(self._add(start, size))
            if place in self._gone:
                self.freed.add(found[-1].number)
            self._time += 1
        return found

    def until_end(self) -> None:
        """Go on to the end."""
        self.until(self._time + len(self._made))

    def held_lately(self, address: int) -> list[Allocation]:
        """Return what held an address until others got its bytes while time went on last."""
        return [each for each in self._replaced if each.start <= address < each.end]

    def holding(self, address: int) -> Allocation | None:
        """Return the allocation that holds an address now, or held it last."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._by_start[self._starts[at]]
        return found if address < found.end else None

    def is_new(self, address: int) -> bool:
        """Tell whether what held an address last was allocated since the log began."""
        found = self.holding(address)
        return found is not None and found.number >= self.before

    def is_of_pytorch(self, address: int) -> bool:
        """Tell whether an address lies in memory that PyTorch's allocator has."""
        return any(start <= address < end for start, end in self._segments)
