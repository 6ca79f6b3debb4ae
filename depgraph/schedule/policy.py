"""What a mechanism tells the schedule: rules as plain data, and how they are run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from depgraph.errors import DeadlockError
from depgraph.graph.lists_jit import invert_lists
from depgraph.schedule.schedule import Schedule
from depgraph.schedule.simulate_jit import (
    ALL_ENDED,
    ALL_PLACED,
    HOLDS,
    IGNORED,
    PLACES,
    event_schedule,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from depgraph.gpu.sm_resources import SmResources
    from depgraph.graph.block_graph import BlockGraph

Number = TypeVar("Number", bound="np.generic[Any]")

__all__ = [
    "ALL_ENDED",
    "ALL_PLACED",
    "HOLDS",
    "IGNORED",
    "PLACES",
    "Against",
    "Gates",
    "Rules",
    "run_rules",
]


class Against(Enum):
    """The bound that the makespan of a mechanism cannot be below."""

    BLOCK = "block"  # blocks wait before they start
    INTRA_BLOCK = "intra-block"  # blocks may wait anywhere inside
    WORK = "work"  # the durations of single blocks are not limit


@dataclass(frozen=True, slots=True)
class Gates:
    """What operations wait for as a whole: something that happens to all blocks of another.

    Attributes
    ----------
    source, target : int32[n]
        Operations.
    event : uint8[n]
        `ALL_PLACED` or `ALL_ENDED`: of the blocks of the source.
    holds : bool[n]
        Whether blocks of the target are placed and wait in their slots, instead of not being
        placed.
    lead : float64[n]
        Time that a placed block can work for before it needs the event.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    event: NDArray[np.uint8]
    holds: NDArray[np.bool_]
    lead: NDArray[np.float64]

    @classmethod
    def between(
        cls,
        source: ArrayLike,
        target: ArrayLike,
        event: int = ALL_ENDED,
        *,
        holds: bool = False,
        lead: float = 0.0,
    ) -> Gates:
        """Make gates of one sort between pairs of operations."""
        sources = np.asarray(source, np.int32)
        n = len(sources)
        return cls(
            sources,
            np.asarray(target, np.int32),
            np.full(n, event, np.uint8),
            np.full(n, holds, np.bool_),
            np.full(n, lead, np.float64),
        )

    @classmethod
    def none(cls) -> Gates:
        """Make no gates."""
        return cls.between([], [])

    def __add__(self, other: Gates) -> Gates:
        """Return the gates of both."""
        return Gates(
            *(
                np.concatenate([getattr(self, name), getattr(other, name)])
                for name in ("source", "target", "event", "holds", "lead")
            )
        )


@dataclass(frozen=True)
class Rules:
    """The rules of one mechanism for one program; what is not said restricts nothing.

    Attributes
    ----------
    joins : uint8[n_joins], optional
        What each join of the graph does to the blocks that wait for it: `PLACES` (they are placed
        once its sources have ended; the default), `HOLDS` (placed ones run on once its sources
        have ended) or `IGNORED` (gates take care of it).
    join_need : float64[n_joins], optional
        For joins that hold: share of a block's work that it can do before it needs the join.
    member_need : float64[n_set_blocks], optional
        The same for each member of a target set; the larger of both counts.
    gates : Gates
        Between whole operations.
    waits_for_all : bool[n_operations] or bool
        Whether an operation is placed only once all before it have ended.
    launch : float64[n_operations] or float
        Time between the moment an operation could be placed and the moment it is.
    enter : float64[n_operations] or float
        Time to become known to the mechanism, one operation after another.
    window : int
        Operations known at a time; 0 for any number.
    in_order : bool
        Whether the window moves on only past its oldest operation.
    order : int64[n_blocks], optional
        Blocks by priority; default program order.
    strict : bool
        Whether a block that fits nowhere holds up those behind it, as the hardware's block
        scheduler does.
    stage : int32[n_blocks], optional
    stages_ahead : int
        A block is placed only if its stage is less than this ahead of the first unfinished one.
    durations : float64[n_blocks], optional
        Where the mechanism changes them.
    graph : BlockGraph, optional
        Where the mechanism sees other dependences; the joins above are then its joins.
    unlimited : bool
        Whether the number of SMs does not count.
    against : Against
    steps_assumed : bool
        For `Against.INTRA_BLOCK`: whether `graph` and the needs above are assumed, so that the
        bound has to be worked out from them.
    assumptions : tuple of str
    """

    joins: NDArray[np.uint8] | None = None
    join_need: NDArray[np.float64] | None = None
    member_need: NDArray[np.float64] | None = None
    gates: Gates = field(default_factory=Gates.none)
    waits_for_all: NDArray[np.bool_] | bool = False
    launch: NDArray[np.floating[Any]] | float = 0.0
    enter: NDArray[np.floating[Any]] | float = 0.0
    window: int = 0
    in_order: bool = False
    order: NDArray[np.int64] | None = None
    strict: bool = True
    stage: NDArray[np.int32] | None = None
    stages_ahead: int = 0
    durations: NDArray[np.float64] | None = None
    graph: BlockGraph | None = None
    unlimited: bool = False
    against: Against = Against.BLOCK
    steps_assumed: bool = False
    assumptions: tuple[str, ...] = ()

    def assuming(self, *notes: str) -> Rules:
        """Return the rules with more assumptions."""
        return replace(self, assumptions=(*self.assumptions, *notes))


def run_rules(
    name: str,
    rules: Rules,
    graph: BlockGraph,
    durations: NDArray[np.float64],
    resources: SmResources,
    sms: float,
    *,
    device_order: Sequence[int] | None = None,
) -> Schedule:
    """Schedule the blocks of a graph by some rules.

    Parameters
    ----------
    name : str
        Of the schedule.
    rules : Rules
    graph : BlockGraph
    durations : float64[n_blocks]
    resources : SmResources
    sms : float
        Number of SMs, infinite for no limit: all blocks then stand on SM 0.
    device_order : sequence of int, optional
        Order of SMs that decides ties; default ascending.

    Raises
    ------
    DeadlockError
        If the rules let some block wait forever.
    """
    graph = rules.graph or graph
    durations = _writable(durations if rules.durations is None else rules.durations)
    need, capacity = resources.binding
    size = sms
    if rules.unlimited or math.isinf(sms):
        need, capacity, size = np.zeros((len(need), 1), np.int64), np.ones(1, np.int64), 1
    # A block takes the first empty SM if there is one, so that further ones stay empty.
    size = min(int(size), max(1, graph.n_blocks))
    class_need, class_of_operation = np.unique(need, axis=0, return_inverse=True)
    order = np.arange(graph.n_blocks) if rules.order is None else rules.order
    rank = np.empty(graph.n_blocks, np.int32)
    rank[order] = np.arange(graph.n_blocks, dtype=np.int32)
    block_set_offsets, block_sets = invert_lists(
        graph.set_offsets, graph.set_blocks, graph.n_blocks
    )
    set_join_offsets, set_joins = invert_lists(
        graph.source_offsets, graph.sources, len(graph.set_operation)
    )
    by_source = np.argsort(rules.gates.source, kind="stable")
    gate_offsets = np.searchsorted(rules.gates.source[by_source], np.arange(graph.n_operations + 1))
    n_stages = 0 if rules.stage is None else int(rules.stage.max(initial=-1)) + 1
    none = np.empty(0, np.float64)
    start, end, sm = event_schedule(
        durations,
        order.astype(np.int32),
        rank,
        rules.strict,
        class_of_operation.reshape(-1).astype(np.int32),
        np.ascontiguousarray(class_need),
        capacity,
        size,
        graph.first_block,
        graph.operation_of_block,
        _writable(graph.set_offsets),
        _writable(graph.set_blocks),
        block_set_offsets,
        block_sets,
        _writable(graph.source_offsets),
        set_join_offsets,
        set_joins,
        _writable(graph.target_offsets),
        _writable(graph.targets),
        _per(rules.joins, PLACES, len(graph.join_kind), np.uint8),
        none if rules.join_need is None else rules.join_need,
        none if rules.member_need is None else rules.member_need,
        gate_offsets,
        rules.gates.target[by_source],
        rules.gates.event[by_source],
        rules.gates.holds[by_source],
        rules.gates.lead[by_source],
        _per(rules.waits_for_all, default=False, size=graph.n_operations, dtype=np.bool_),
        _per(rules.launch, 0.0, graph.n_operations, np.float64),
        _per(rules.enter, 0.0, graph.n_operations, np.float64),
        rules.window,
        rules.in_order,
        np.empty(0, np.int32) if rules.stage is None else rules.stage,
        n_stages,
        rules.stages_ahead,
    )
    stuck = np.flatnonzero(end < 0)
    if len(stuck):
        operation = graph.operation_of_block[stuck[0]]
        block = int(stuck[0] - graph.first_block[operation])
        raise DeadlockError(name, int(graph.kernel[operation]), block, len(stuck) - 1)
    if device_order is not None:
        sm = np.asarray(device_order, np.int32)[sm]
    waited = end - start - durations
    waited[waited < 1e-9 * np.maximum(end, 1e-300)] = 0.0
    return Schedule(name, start, end, sm, float(waited.sum()))


def _per(values: ArrayLike | None, default: float, size: int, dtype: type) -> NDArray[Any]:
    result: NDArray[Any] = np.empty(size, dtype)
    result[:] = default if values is None else values
    return result


def _writable(values: NDArray[Number]) -> NDArray[Number]:
    """Return an array that compiled code need not be compiled for once more."""
    return values if values.flags.writeable else values.copy()
