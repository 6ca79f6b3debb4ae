"""ACS: kernels out of order, found independent by their byte ranges at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from depgraph.errors import NotApplicableError
from depgraph.graph.kinds import KIND_NAMES
from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations, whole_numbers
from depgraph.mechanisms.costs import Cost
from depgraph.mechanisms.segments import ordered_pairs, segment_conflicts
from depgraph.schedule.policy import ALL_ENDED, IGNORED, Gates, Rules
from depgraph.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario

_PAPER = "Durvasula et al., ACS: Concurrent kernel execution on irregular, input-dependent graphs"
DEFAULT_WINDOW = 32
# More operations than this: the paths between them are not worked out to say what ranges add.
_MOST_EXPLAINED = 8000


class AcsSoftware(Mechanism):
    """ACS with the window in software: host threads launch and synchronise.

    Parameters
    ----------
    window : int
        Kernels looked at together.
    """

    name = "acs-sw"
    signature = "acs-sw(N)"
    rule = (
        "a kernel starts once no older kernel that it conflicts with is unfinished; kernels enter "
        "a window of N = 32 in launch order and leave it in any; two kernels conflict if a byte "
        "range that one writes overlaps one of the other's, each known by a few ranges"
    )
    cost = (
        "a check as a kernel enters; launches: the host issues each kernel, gap and a "
        "synchronisation once it may start"
    )
    availability = Availability.CODE
    source = _PAPER
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "launch", 1.0, "launches", "instead of what the launch model says, its gap and a "
            "synchronisation: a time to launch and synchronise, once a kernel may start",
            f"--launch; {_PAPER}: 5 to 20 us a kernel", is_launch=True,
        ),
        Cost(
            "check", 0.51, "us", "comparing a kernel with those in the window, one at a time; as "
            "long as that for N = 32, 0.41 us for 16, in line with these for others",
            f"{_PAPER}: with 6 segments",
        ),
        Cost(
            "segments", 6, "count", "byte ranges that get_addresses gives of what a kernel reads, "
            "and of what it writes; 0 for exact footprints",
            f"{_PAPER}: the check was measured with 6",
        ),
    )  # fmt: skip

    slower_because = f"its check takes longer, or {Mechanism.slower_because}"

    def __init__(self, window: int = DEFAULT_WINDOW) -> None:
        self.window = window
        # Conflicts are the same on every number of SMs.
        self._found: tuple[BlockGraph, int, Gates, str] | None = None

    @property
    def label(self) -> str:
        """The name, with the window if it is not the default."""
        return self.name if self.window == DEFAULT_WINDOW else f"{self.name}({self.window})"

    @property
    def freedom(self) -> tuple[str, float]:
        """A larger window should be no slower."""
        return self.name, self.window

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the window."""
        return cls(*whole_numbers(cls, parameters, 1))

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by older ones in the window that it conflicts with."""
        n = program.graph.n_operations
        gates, note = self._conflicts(program, int(charges.number("segments")))
        notes = [note]
        waits_for_all = np.zeros(n, np.bool_)
        if program.opaque.any():
            waits_for_all = program.opaque
            gates += _after_the_last(program.opaque)
            notes.append(
                f"opaque kernels, which conflict with all others: {int(program.opaque.sum())}"
            )
        enter, launch = self._times(program, charges)
        return Rules(
            joins=np.full(len(program.graph.join_kind), IGNORED, np.uint8),
            gates=gates,
            waits_for_all=waits_for_all,
            enter=enter,
            launch=launch,
            window=self.window,
            assumptions=tuple(notes),
        )

    def _conflicts(self, program: Scenario, segments: int) -> tuple[Gates, str]:
        found = self._found
        if found is None or found[0] is not program.graph or found[1] != segments:
            found = program.graph, segments, *_conflicts(program, segments)
            self._found = found
        return found[2:]

    def _times(
        self, program: Scenario, charges: Charges
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        """Return what a kernel needs to enter the window, and to start."""
        check = charges.time("check", default=check_time(self.window))
        if charges.is_given("launch"):
            return program.is_kernel * check, program.is_kernel * charges.time("launch")
        model = charges.launches
        launch = model.gap.value + model.sync.value
        return program.is_kernel * (check + model.host.value), program.is_kernel * launch


class AcsHardware(AcsSoftware):
    """ACS with the window in the GPU's command processor."""

    name = "acs-hw"
    signature = "acs-hw(N)"
    cost = "launches: the host issues each kernel; 50 to 100 ns a kernel in place of the gap"
    availability = Availability.HARDWARE
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "launch", 50.0, "ns", "dispatching a kernel",
            f"{_PAPER}: 50 to 100 ns a kernel; the low end", is_launch=True,
        ),
        Cost("check", 0.0, "us", "in hardware, beside other work", _PAPER),
        AcsSoftware.costs[2],
    )  # fmt: skip
    slower_because = Mechanism.slower_because

    def _times(
        self, program: Scenario, charges: Charges
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        enter = charges.time("check") + charges.launches.host.value
        return program.is_kernel * enter, program.is_kernel * charges.time("launch")


def check_time(window: int) -> float:
    """Return the microseconds that comparing a kernel with a full window takes."""
    # A line through the two published times: 0.41 us at 16 kernels, 0.51 us at 32.
    return 0.31 + 0.1 * window / 16


def _conflicts(program: Scenario, segments: int) -> tuple[Gates, str]:
    """Return which operations wait for which, and how that was found."""
    graph = program.graph
    source, target = dependent_operations(graph)
    kinds = ", ".join(kind for kind in KIND_NAMES if kind in graph.kinds)
    exact = f"conflicts: kernels that share written bytes, exact footprints ({kinds})"
    footprints = None
    if segments and program.read_footprints is not None:
        try:
            footprints = program.read_footprints()
        except NotApplicableError as error:
            exact += f": {error}"
    if footprints is None or not len(footprints):
        return Gates.between(source, target, ALL_ENDED), exact
    seen_source, seen_target = segment_conflicts(graph, footprints, segments, graph.kinds)
    note = (
        f"conflicts: kernels known by {segments} byte ranges each that they read, and {segments} "
        f"that they write ({kinds})"
    )
    if graph.n_operations <= _MOST_EXPLAINED:
        before = ordered_pairs(graph.n_operations, source, target)
        added = int((~before[seen_source, seen_target]).sum())
        note += f": {counted(len(seen_source), 'pair')}, {added} not dependent"
    n = graph.n_operations
    # What the graph orders beyond that, such as a copy, is kept.
    key = np.unique(
        np.concatenate([source, seen_source]).astype(np.int64) * n
        + np.concatenate([target, seen_target])
    )
    return Gates.between(key // n, key % n, ALL_ENDED), note


def _after_the_last(opaque: NDArray[np.bool_]) -> Gates:
    """Gate each operation by the last one marked before it, which itself waits for all before."""
    marked = np.flatnonzero(opaque)
    target = np.arange(marked[0] + 1, len(opaque))
    return Gates.between(marked[np.searchsorted(marked, target) - 1], target, ALL_ENDED)
