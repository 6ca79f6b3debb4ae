"""Graphs that a captured one may become: from what its nodes may touch to candidates."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_

from depgraph.apply.captured import EMPTY, KERNEL, Captured
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.may_sets import REUSE, WORKSPACE, Unit, conflicts, units_of
from depgraph.apply.order import Edge, along_branches, branches_of, chain, masks_of, reduced
from depgraph.system.text import counted

PLAIN, FREE, BRANCHES = "as captured", "free", "branches"
RECORDED = "in the recording"
_NODE_US, _PATH_US = 0.25, 1.0  # of a CUDA graph on an H100: a node, and a step of a path
_KERNEL_US, _OTHER_US = 2.0, 1.5  # where no time is known


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a function's memory lies when it is captured."""

    # the stream that each operator runs on while it is captured: memory that is given back is
    # used again on the same stream alone, and each has a workspace of its own
    lanes: tuple[int, ...] = ()
    keeps: bool = True  # no tensor gets the memory of an earlier one, as far as there is room

    @property
    def width(self) -> int:
        """Number of streams."""
        return max(self.lanes, default=0) + 1

    @property
    def names(self) -> tuple[str, ...]:
        """What the graphs are called that have it: free, and on branches."""
        lanes = counted(self.width, "lane") + ("" if self.keeps else ", memory used again")
        kinds = (FREE, BRANCHES) if self.width > 1 else (FREE,)
        return tuple(f"{kind}, {lanes}" for kind in kinds)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph that the captured one may become."""

    name: str
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording shows of the nodes of a graph."""

    edges: tuple[Edge, ...]  # its dependences between nodes
    unseen: frozenset[int]  # nodes of which it did not see everything


@dataclass(frozen=True, slots=True)
class EdgeReason:
    """What keeps nodes in order."""

    reason: str
    edges: int  # how many of the graph's edges it explains, alone or with others
    costs_us: float  # about how much shorter the graph would be without it
    examples: tuple[tuple[str, str], ...] = ()  # pairs of nodes


@dataclass(frozen=True)
class Plan:
    """What must wait for what in a captured graph, and why."""

    captured: Captured
    units: tuple[Unit, ...]
    before: tuple[dict[str, int], ...]  # of each unit: from a reason to earlier units, as bits
    weights: tuple[float, ...]  # microseconds a node

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.captured.nodes)

    @property
    def fixed(self) -> dict[str, int]:
        """Why nodes keep their place, and how many do."""
        found: dict[str, int] = {}
        for unit in self.units:
            if unit.fixed:
                found[unit.fixed] = found.get(unit.fixed, 0) + unit.end - unit.first
        return found

    @cached_property
    def unit_edges(self) -> list[Edge]:
        """The fewest edges between units that keep all conflicts in order."""
        return self._reduced_without(())

    def _reduced_without(self, reasons: Collection[str]) -> list[Edge]:
        kept = [
            reduce(or_, (mask for reason, mask in masks.items() if reason not in reasons), 0)
            for masks in self.before
        ]
        return reduced(kept)[0]

    def node_edges(self, between_units: Sequence[Edge]) -> tuple[Edge, ...]:
        """Return edges between nodes: those between units, and those inside."""
        inside = [(i, i + 1) for unit in self.units for i in range(unit.first, unit.end - 1)]
        outside = [(self.units[a].end - 1, self.units[b].first) for a, b in between_units]
        return tuple(sorted([*inside, *outside]))

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The edges between nodes that no value of the tensors makes wrong."""
        return self.node_edges(self.unit_edges)

    @cached_property
    def unit_weights(self) -> list[float]:
        """Microseconds a unit."""
        return [sum(self.weights[unit.first : unit.end]) for unit in self.units]

    def lanes(self, width: int) -> tuple[int, ...]:
        """Return a stream for each operator; edges that several streams remove do not count."""
        edges = self._reduced_without((REUSE, WORKSPACE))
        branches = branches_of(len(self.units), edges, self.unit_weights, width)
        found: list[int | None] = [None] * len(self.captured.calls)
        for unit, branch in zip(self.units, branches, strict=True):
            call = self.captured.nodes[unit.first].call
            if call >= 0:
                found[call] = branch
        # What only allocates goes where its memory is used first.
        lane_of: dict[int, int] = {}
        for place in reversed(range(len(found))):
            call_ = self.captured.calls[place]
            lane = found[place]
            if lane is None:
                wanted = [lane_of[m.number] for m in call_.made if m.number in lane_of]
                found[place] = lane = wanted[0] if wanted else 0
            lane_of.update((o.view.memory.number, lane) for o in call_.operands)
        return tuple(lane or 0 for lane in found)

    def candidates(self, layout: Layout) -> list[Candidate]:
        """Return the graphs to choose from: what is free runs side by side, or on branches."""
        names = layout.names
        found = [Candidate(names[0], self.edges)]
        if len(names) > 1:
            branches = branches_of(
                len(self.units), self.unit_edges, self.unit_weights, layout.width
            )
            edges = [*self.unit_edges, *along_branches(branches)]
            merged, _ = reduced(masks_of(len(self.units), edges))
            found.append(Candidate(names[1], self.node_edges(merged)))
        line = tuple(chain(self.n))
        unlike = {each.edges: each for each in reversed(found) if each.edges != line}
        return list(reversed(unlike.values()))

    def estimate(self, edges: Sequence[Edge]) -> float:
        """Return about how long a graph takes, in microseconds: to tell better from worse."""
        ends = [0.0] * self.n
        sources: list[list[int]] = [[] for _ in ends]
        for source, target in edges:
            sources[target].append(source)
        for node, weight in enumerate(self.weights):
            ready = max((ends[s] + _PATH_US for s in sources[node]), default=0.0)
            ends[node] = max(ready, _NODE_US * node) + weight
        return max(ends, default=0.0)

    def reasons(self) -> list[EdgeReason]:
        """Say what keeps the nodes in order, and about what each reason costs, most first."""
        whole = self.estimate(self.edges)
        found = []
        for reason in dict.fromkeys(reason for each in self.before for reason in each):
            pairs = [(a, b) for a, b in self.unit_edges if self.before[b].get(reason, 0) >> a & 1]
            less = self.estimate(self.node_edges(self._reduced_without((reason,))))
            examples = tuple((self._label(a), self._label(b)) for a, b in pairs[:3])
            found.append(EdgeReason(reason, len(pairs), max(0.0, whole - less), examples))
        return sorted(found, key=lambda each: (-each.costs_us, -each.edges, each.reason))

    def _label(self, unit: int) -> str:
        return self.captured.label_of(self.captured.nodes[self.units[unit].first])


def make_plan(
    captured: Captured,
    weights: Sequence[float] | None = None,  # microseconds of each node
    codes: Mapping[str, KernelCode] | None = None,  # of kernels that no operator launched, by name
    recorded: Recorded | None = None,  # instead of may-sets: right for the recorded values only
) -> Plan:
    """Find what must wait for what in a captured graph, for every value of its tensors."""
    units = units_of(captured, codes or {})
    if recorded is None:
        before = conflicts(units)
    else:
        units, before = _as_recorded(units, recorded)
    if weights is None:
        usual = {KERNEL: _KERNEL_US, EMPTY: 0.0}
        weights = [usual.get(node.kind, _OTHER_US) for node in captured.nodes]
    return Plan(captured, tuple(units), tuple(before), tuple(weights))


def _as_recorded(
    units: Sequence[Unit], recorded: Recorded
) -> tuple[list[Unit], list[dict[str, int]]]:
    """Put recorded dependences in the place of possible ones between nodes that were recorded."""
    unit_of = [place for place, unit in enumerate(units) for _ in range(unit.first, unit.end)]
    unseen = reduce(or_, (1 << unit_of[node] for node in recorded.unseen), 0)
    units = [
        unit if unseen >> place & 1 else replace(unit, fixed="") for place, unit in enumerate(units)
    ]
    stays = {REUSE, WORKSPACE, *(unit.fixed for unit in units if unit.fixed)}
    found: list[dict[str, int]] = []
    for place, reasons in enumerate(conflicts(units)):
        left = -1 if unseen >> place & 1 else unseen
        masks = {why: mask if why in stays else mask & left for why, mask in reasons.items()}
        found.append({why: mask for why, mask in masks.items() if mask})
    for source, target in recorded.edges:
        a, b = unit_of[source], unit_of[target]
        if a < b:
            found[b][RECORDED] = found[b].get(RECORDED, 0) | 1 << a
    return units, found
