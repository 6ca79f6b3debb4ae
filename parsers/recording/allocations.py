"""The allocations of a recording: the GPU's, and those of PyTorch's caching allocator."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from depgraph.errors import ProfileError
from depgraph.parsers.profiles.kineto import MEMORY_HINT, Launch, MemoryProfile, read_memory
from depgraph.timing.align import align
from depgraph.trace.names import base_name
from depgraph.trace.records import Allocation, KernelLaunch

OF_A_MODULE = 1  # SANITIZER_MEMORY_FLAG_MODULE


class LiveMemory:
    """Allocations, as they are made and freed."""

    def __init__(self) -> None:
        self.all: list[Allocation] = []  # freed ones, too, in the order in which they were made
        self._place: dict[int, int] = {}  # of each that is there in `all`, by its address
        self._starts: list[int] = []  # these addresses, ascending
        self._of_modules: set[int] = set()
        self._contexts: dict[int, list[object]] = {}  # of each that is there, its own first

    def is_seen_from(self, address: int, size: int, context: object) -> bool:
        """Take it if a context tells what another one has allocated: it sees it from then on."""
        found = self.holding(address, size)
        if found is None or (found.address, found.size) != (address, size):
            return False
        if self._contexts[address][0] == context:
            return False
        self._contexts[address].append(context)
        return True

    def is_left_by(self, address: int, context: object) -> bool:
        """Take it if a context that only saw an allocation does not any more."""
        if context not in self._contexts.get(address, [])[1:]:
            return False
        self._contexts[address].remove(context)
        return True

    def allocate(
        self, address: int, size: int, flags: int, now: int, context: object = None
    ) -> None:
        """Take an allocation; what was there is not any more, whoever freed it."""
        self.free(address, now)
        self._contexts[address] = [context]
        insort(self._starts, address)
        self._place[address] = len(self.all)
        if flags & OF_A_MODULE:
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


_FEWEST_MATCHED = 0.9


def profiled_allocations(
    path: Path,
    launches: Sequence[tuple[int, KernelLaunch]],  # and their places among the operations
    segments: Sequence[Allocation],  # what CUDA allocated
    process: int | None,  # that was recorded
    n_operations: int,
) -> tuple[list[Allocation], int]:
    """Return allocations of a profiled run, in the addresses and the order of a recorded one.

    What lies in no segment of both runs is left out, and counted.
    """
    profile = read_memory(path)
    times, places = _anchors(path, profile.launches, launches)
    is_same_run = profile.processes == {process}
    moved = None if is_same_run else _same_segments(profile, segments)
    found: list[Allocation] = []
    live: dict[int, int] = {}
    left_out = 0
    for change in profile.changes:
        address = _moved(change.address, moved)
        if address is None:
            left_out += 1
            continue
        # Between two launches that both runs have, memory is taken to be there as long as it can
        # be: what the recorded run alone launched there must not seem to use freed memory.
        at = bisect_right(times, change.time)
        place = places[at - 1] + 1 if at else 0
        freed = places[at] if at < len(places) else n_operations
        known = live.pop(address, None)
        if known is not None:
            found[known] = replace(found[known], freed=freed)
        elif change.size < 0:
            found.append(Allocation(address, -change.size, 0, freed))
        if change.size > 0:
            live[address] = len(found)
            op, line = change.site.op or None, change.site.line or None
            found.append(Allocation(address, change.size, place, op=op, line=line))
    if not found:
        why = "allocates in none of the memory that the recorded program has"
        raise ProfileError(path, why, MEMORY_HINT)
    return found, left_out


def _moved(address: int, segments: Sequence[tuple[int, int, int]] | None) -> int | None:
    if segments is None:
        return address
    inside = (s for s in segments if s[0] <= address < s[0] + s[2])
    return next((there + address - here for here, there, _ in inside), None)


def _anchors(
    path: Path, profiled: Sequence[Launch], recorded: Sequence[tuple[int, KernelLaunch]]
) -> tuple[list[int], list[int]]:
    """Return when launches of the recording were called for in the profile, and their places."""
    keys = [(base_name(launch.name), launch.grid, launch.block) for _, launch in recorded]
    found = [(base_name(launch.name), launch.grid, launch.block) for launch in profiled]
    partner, _ = align([(keys, found)])
    matched = np.flatnonzero(partner >= 0).tolist()
    if len(matched) < _FEWEST_MATCHED * len(keys):
        why = f"has {len(matched)} of the {len(keys)} recorded launches, less than nine in ten"
        raise ProfileError(path, why, MEMORY_HINT)
    times = [profiled[partner[i]].called for i in matched]
    return times, [recorded[i][0] for i in matched]


def _same_segments(
    profile: MemoryProfile, recorded: Sequence[Allocation]
) -> list[tuple[int, int, int]]:
    """Return address in the profiled run, in the recorded one, and size of each segment."""
    # Where an allocation makes the allocator ask CUDA for more, it begins the new segment.
    # Segments are of the same sizes, in the same order, in two runs of one program.
    found = []
    reserved = 0
    for change in profile.changes:
        if change.reserved is not None:
            if change.size > 0 and change.reserved - reserved >= change.size:
                found.append((change.address, change.reserved - reserved))
            reserved = change.reserved
    partner, _ = align([([size for _, size in found], [a.size for a in recorded])])
    return [
        (address, recorded[other].address, size)
        for (address, size), other in zip(found, partner.tolist(), strict=True)
        if other >= 0
    ]
