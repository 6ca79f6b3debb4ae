"""The allocations of a recording: which are there now, and where each begins and ends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import replace

from depgraph.trace.records import Allocation

_OF_A_MODULE = 1  # SANITIZER_MEMORY_FLAG_MODULE


class LiveMemory:
    """Allocations, as they are made and freed."""

    def __init__(self) -> None:
        self.all: list[Allocation] = []  # freed ones, too, in the order in which they were made
        self._place: dict[int, int] = {}  # of each that is there in `all`, by its address
        self._starts: list[int] = []  # these addresses, ascending
        self._of_modules: set[int] = set()

    def allocate(self, address: int, size: int, flags: int, now: int) -> None:
        """Take an allocation; what was there is not any more, whoever freed it."""
        self.free(address, now)
        insort(self._starts, address)
        self._place[address] = len(self.all)
        if flags & _OF_A_MODULE:
            self._of_modules.add(address)
        self.all.append(Allocation(address, size, now))

    def free(self, address: int, now: int, size: int = 0) -> None:
        """Free what begins at an address; size 0 if that is not known of what was there before."""
        place = self._place.pop(address, None)
        if place is not None:
            del self._starts[bisect_left(self._starts, address)]
            self._of_modules.discard(address)
            self.all[place] = replace(self.all[place], freed=now)
        elif size:
            self.all.append(Allocation(address, size, 0, now))

    def holding(self, address: int, size: int) -> Allocation | None:
        """Return the allocation that holds some bytes now; None if none is known to."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self.all[self._place[self._starts[at]]]
        return found if address + size <= found.address + found.size else None

    def behind(self, address: int) -> int:
        """Return how many bytes of its allocation lie behind an address; 0 where none is known."""
        found = self.holding(address, 0)
        return 0 if found is None else found.address + found.size - address

    def may_be_a_modules(self, address: int, size: int) -> bool:
        """Tell whether bytes may be those of a module, such as `__constant__` variables."""
        found = self.holding(address, size)
        return found is None or found.address in self._of_modules
