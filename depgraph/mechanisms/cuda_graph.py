"""A CUDA graph of the program's kernels, with no edges but the true dependences."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph.block_graph import dependent_operations
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Cost,
    Launching,
    Mechanism,
    gated,
    graph_paths,
    share,
)
from depgraph.mechanisms.branches_jit import continue_branches
from depgraph.mechanisms.pdl import FIRST_ARCHITECTURE, MEASURED, lacking_code
from depgraph.mechanisms.streams import named_clusters
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_ENDED, ALL_PLACED, ALL_TRIGGERED, Against, Gates, Rules
from depgraph.system.arrays import list_offsets
from depgraph.timing.program_times import LaunchModel
from depgraph.trace.records import MEMSET

END, PROGRAMMATIC = "end", "programmatic"
CHAINS = "chains"
# What waits for one node starts in the order of the edges out of it, if these are no more than so
# many, else in the opposite one, and later. Edges count that others imply, and copies, but no
# memsets (samples/validation/forks.cu on an H100 and an H200, driver 580: all of 2 596 forks).
_IN_LAUNCH_ORDER = 6
_PAIR = 2  # of roots
_MOST_LEAVES = 32  # that a root waits for one by one: nobody measured more


class CudaGraph(Mechanism):
    """Every kernel a node, every dependence between two an edge, unless others are given."""

    name = "cuda-graph"
    signature = "cuda-graph(end|launch-order|programmatic[,S])"
    rule = (
        "a kernel starts once every kernel that it depends on has ended; with other ports of edges "
        "its blocks take slots once all blocks of those kernels have begun (launch-order) or have "
        "done a share S of their work (programmatic; default 0), and wait there for their ends"
    )
    cost = (
        "launches: one of the whole graph, then a node at a time, each further one that waits for "
        "none, and what a node needs after those it waits for have ended, or fired its edges"
    )
    availability = Availability.SHIPS
    of_code = "what pdl needs, for ports other than end"
    among_all = ((), (PROGRAMMATIC,))
    source = (
        "CUDA C++ programming guide, CUDA graphs, and cudaGraphEdgeData for ports; ideal: edges "
        "are the true dependences"
    )

    costs = (
        Cost(
            "preamble", 0.0, "us", "of other ports than end: work of a block that needs nothing of "
            "the kernels before", "none assumed: only the rule",
        ),
        Cost(
            "slot", 0.15, "us", "of other ports than end: from when the edges fire until blocks "
            "take slots, no longer than after other edges", MEASURED, is_launch=True,
        ),
        Cost(
            "release", 0.05, "us", "from the end of the kernels before until blocks that wait in "
            "their slots run on", MEASURED, is_launch=True,
        ),
    )  # fmt: skip

    def __init__(
        self,
        port: str = END,  # when an edge fires: at the end, or as `rule` says of others
        trigger: float = 0.0,  # share of its work after which a block triggers
        *,
        edges: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,  # sources, targets
        order: int = 0,  # in which roots start, of those that `_in_order` knows
    ) -> None:
        self.port = port
        self.trigger = trigger
        self.edges = edges
        self.order = order
        if port != END:
            self.vendor, self.least_architecture = "NVIDIA", FIRST_ARCHITECTURE
            self.shown = (port, f"{trigger:g}") if trigger else (port,)

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the port, and where kernels trigger."""
        match list(parameters):
            case [("end" | "launch-order" | "programmatic") as port]:
                return cls(port)
            case ["programmatic", text]:
                return cls(PROGRAMMATIC, share(cls.name, text))
        raise ModelError(f"give {cls.signature}")

    def lacking_code(self, program: Scenario) -> str:
        """Say whether kernels wait for those that they depend on, and those trigger."""
        source, target = self._edges(program)
        early = self._early(program, source, target)
        triggers = self.port == PROGRAMMATIC
        return lacking_code(program, source[early], target[early], triggers=triggers)

    def _early(
        self, program: Scenario, source: NDArray[np.int32], target: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Return which edges fire before the end of their source."""
        both: NDArray[np.bool_] = program.is_kernel[source] & program.is_kernel[target]
        return both & (self.port != END)

    def family_of(self, program: Scenario) -> str:
        """Tell by the branches and the edges between them, or the port."""
        if self.port != END:
            return "programmatic ports"
        source, target = self._edges(program)
        is_kernel = program.is_kernel
        _, branch = _latencies(program, program.launch, source, target)
        if np.count_nonzero(np.bincount(branch[is_kernel])) <= 1:
            return CHAINS
        if (branch[source] != branch[target]).any():
            return "re-edged graphs"
        if not (is_kernel[source] & is_kernel[target]).any():
            names = [name for name, own in zip(program.functions, is_kernel, strict=False) if own]
            return "fans" if len(set(names)) <= 1 else "pairs"
        return "branches"

    def ways(self, program: Scenario) -> Sequence[Mechanism]:
        """Return it with roots that start in several orders, where hardware may take any.

        Measured on an H100 (driver 580): roots of an idle GPU start in launch order, those of
        replays one after another in an order that differs from replay to replay.
        """
        orders = {0: 1, 1: 1, 2: 2}.get(self.roots(program), 4)
        return [
            CudaGraph(self.port, self.trigger, edges=self.edges, order=order)
            for order in range(orders)
        ]

    def roots(self, program: Scenario) -> int:
        """Count the kernels that wait for none."""
        return len(_without(program, self._edges(program)[1]))

    def _edges(self, program: Scenario) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self.edges or dependent_operations(program.graph)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Gate each kernel by those it depends on."""
        source, target = self._edges(program)
        rules = graph_rules(program, charges, source, target, order=self.order)
        source, target = rules.gates.source, rules.gates.target  # in the order of starts
        early = self._early(program, source, target)
        if not early.any():
            return rules
        release, preamble = charges.time("release"), charges.time("preamble")
        event = ALL_TRIGGERED if self.trigger else ALL_PLACED
        gates = Gates.between(source[~early], target[~early], ALL_ENDED)
        gates += Gates.between(source[early], target[early], event)
        gates += Gates.between(
            source[early], target[early], ALL_ENDED, holds=True, lead=preamble - release
        )
        launch = np.array(rules.launch, np.float64)
        launch[target[early]] = np.minimum(launch[target[early]], charges.time("slot"))
        against = Against.WORK if preamble else Against.BLOCK
        return replace(
            rules, gates=gates, launch=launch, trigger=self.trigger or 1.0, against=against
        )


def graph_rules(
    program: Scenario,
    charges: Charges,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    *,
    order: int = 0,
) -> Rules:
    """Return the rules of a CUDA graph whose roots start in one of the orders of `_in_order`."""
    model = charges.launches
    latency, _ = _latencies(program, model, source, target)
    forks = _forks(program, source, target)
    is_wide = forks > _IN_LAUNCH_ORDER
    last = np.full(len(latency), -1)
    np.maximum.at(last, target, source)
    latency[(last >= 0) & is_wide[last]] += model.wide.value
    # Roots become known one after another, after all others; the first of all, be it a copy or
    # memset, waits for the launch of the graph.
    roots = _in_order(_without(program, target), order)
    others = np.ones(len(latency), np.bool_)
    others[roots] = False
    leaves = min(len(_without(program, source)), _MOST_LEAVES)
    enter = np.zeros(len(latency))
    root = model.root.value + model.leaf.value * leaves
    if len(roots) == _PAIR:
        root = model.second.value
    enter[roots] = max(root, model.node.value)
    enter[roots[:1]] = model.node.value
    entry = np.concatenate([np.flatnonzero(others), roots])
    enter[entry[:1]] += model.graph.value
    by_start = np.lexsort([np.where(is_wide[source], -target, target), source])
    gates = Gates.between(source[by_start], target[by_start], ALL_ENDED)
    return gated(
        Launching(enter, program.is_kernel * latency), gates, cluster=named_clusters(program),
        starting=program.is_kernel * float(model.node.value), entry=entry, first_come=True,
    )  # fmt: skip


def _forks(
    program: Scenario, source: NDArray[np.int32], target: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return how many nodes that are no memsets wait for each operation."""
    graph = program.graph
    memsets = [number for number, what in graph.copies.items() if what == MEMSET]
    counts = ~np.isin(graph.kernel[target], memsets)
    return np.bincount(source[counts], minlength=graph.n_operations)


def _in_order(roots: NDArray[np.int64], order: int) -> NDArray[np.int64]:
    """Return roots in launch order or, if odd, the opposite; from 2 on begin in the middle."""
    if order > 1:
        roots = np.roll(roots, -(len(roots) // 2))
    return roots[::-1] if order % 2 else roots


def _without(program: Scenario, ends: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the kernels that are at none of these ends of edges."""
    found = np.bincount(ends, minlength=len(program.is_kernel)) == 0
    return np.flatnonzero(program.is_kernel & found)


def _latencies(
    program: Scenario, model: LaunchModel, source: NDArray[np.int32], target: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what each operation needs after those that it waits for, and its branch."""
    path = graph_paths(program.with_launch(model))
    # Branches of several roots run apart.
    fork = np.maximum(path, model.fork.value if len(_without(program, target)) > 1 else 0.0)
    sources = source[np.argsort(target, kind="stable")]
    begin = list_offsets(np.bincount(target, minlength=len(path)))
    latency, branch = continue_branches(program.kernel_times, path, fork, begin, sources)
    return latency, branch
