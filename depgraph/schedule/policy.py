"""What a mechanism tells the scheduler, as plain data, and the schedule that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.program import DeviceLaunches

# What a join does to the blocks that wait for it.
IGNORED = 0
PLACES = 1
HOLDS = 2

# What a gate between operations waits for.
ALL_PLACED = 0
ALL_ENDED = 1
ALL_TRIGGERED = 2

# What becomes of a launch from the device: the parent does the work, a child is launched, or that
# is decided when the parent comes to it.
INLINE = 0
LAUNCH = 1
DECIDE = 2


class Against(Enum):
    """The bound that the makespan of a mechanism cannot be below."""

    BLOCK = "block"  # blocks wait before they start
    INTRA_BLOCK = "intra-block"  # blocks may wait anywhere inside
    WORK = "work"  # the durations of single blocks are not limit
    ENGINES = "copy engines"  # what they move takes no SM
    UNLIMITED = "unlimited SMs"  # nothing but the critical path
    NO_LINKS = "links ignored"  # as "block", of collectives that share links with nothing

    @property
    def is_another_scale(self) -> bool:
        """Whether what is compared with it is no better or worse than what blocks can do."""
        return self in {Against.WORK, Against.UNLIMITED, Against.NO_LINKS}


@dataclass(frozen=True, slots=True, eq=False)
class Gates:
    """What operations wait for as a whole: something that happens to all blocks of another."""

    source: NDArray[np.int32]  # [n]: operations
    target: NDArray[np.int32]
    event: NDArray[np.uint8]  # `ALL_PLACED`, `ALL_TRIGGERED` or `ALL_ENDED`: of the source's blocks
    # Whether blocks of the target are placed and wait, instead of not being placed.
    holds: NDArray[np.bool_]
    lead: NDArray[np.float64]  # time that a placed block can work for before it needs the event

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


class Places(NamedTuple):
    """Where the blocks of each operation may run, and what else than SMs they need."""

    # [n_operations]: the SMs that may hold its blocks, both ends included. A first SM beyond those
    # that the GPU has stands for a copy engine: such blocks take nothing of an SM.
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    # [n_operations]: the link that its blocks need, -1 for none, and what each takes of it.
    link: NDArray[np.int64]
    taken: NDArray[np.int64]
    # [n_links]: what a link has; blocks that find too little wait without holding up others.
    capacity: NDArray[np.int64]
    communicates: NDArray[np.bool_]  # [n_operations]: whether it is communication
    # How much longer computation takes while any communication runs, and communication while any
    # computation does: 0.2 is a fifth. Counted on GPUs of limited size only.
    beside: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def on_sms(cls, first: NDArray[np.int64], last: NDArray[np.int64]) -> Places:
        """Let blocks run on some SMs only, and need no links."""
        nothing, none = np.zeros(len(first), np.int64), np.empty(0, np.int64)
        return cls(first, last, nothing - 1, nothing, none, np.zeros(len(first), np.bool_))

    def without_sms(self) -> Places:
        """Return the links alone, for a GPU whose SMs do not count."""
        nowhere = np.zeros(len(self.first), np.int64)
        return self._replace(first=nowhere, last=nowhere, beside=(0.0, 0.0))

    def at_once(self, operations: NDArray[np.bool_]) -> int:
        """Return how many blocks of some operations their links let run at once."""
        most = 0
        for link, capacity in enumerate(self.capacity.tolist()):
            taken = self.taken[operations & (self.link == link)]
            most += capacity // int(taken.min()) if len(taken) else 0
        return most


class LaunchRules(NamedTuple):
    """What becomes of launches from the device, and what they cost."""

    launches: DeviceLaunches
    # [n_launches]: `INLINE`: the parent does the work; `LAUNCH`: a child is launched; `DECIDE`: by
    # SPAWN's rule, when the parent comes to it.
    mode: NDArray[np.uint8]
    stall: float  # time that the launching warp stalls
    lane_stall: float  # and more for each lane that launches
    queues: int  # hardware queues that child kernels wait in
    window: float = 1.0  # time over which `DECIDE` averages the child blocks that run
    dispatch: float = 0.0  # time for each child, one after another, before it waits there
    finish: float = 0.0  # time until a kernel knows that a child has ended


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of one mechanism for one program; what is not said restricts nothing."""

    # What each join, or all alike, does to the blocks that wait for it: `PLACES` (they are placed
    # once its sources have ended), `HOLDS` (placed ones run on once its sources have ended) or
    # `IGNORED` (gates take care of it).
    joins: NDArray[np.uint8] | int = PLACES
    # float64[n_joins]: share of a block's work that it can do before it needs a join that holds;
    # float64[n_set_blocks]: the same for each member of a target set. The larger of both counts.
    join_need: NDArray[np.float64] | None = None
    member_need: NDArray[np.float64] | None = None
    gates: Gates = field(default_factory=Gates.none)  # between whole operations
    # Of each operation, or of all alike:
    waits_for_all: NDArray[np.bool_] | bool = False  # it is placed once all before it have ended
    launch: NDArray[np.floating[Any]] | float = 0.0  # time from when it could be placed until it is
    enter: NDArray[np.floating[Any]] | float = 0.0  # time to become known, one after another
    # The order in which they do; default program order. A window is of program order alone.
    entry: NDArray[np.int64] | None = None
    # Time that an operation takes to open that has waited for gates or has taken time to enter,
    # one after another, as they come, beside `launch`.
    starting: NDArray[np.floating[Any]] | float = 0.0
    # Share of its work after which a block triggers, never before it runs on past its waits.
    trigger: NDArray[np.floating[Any]] | float = 1.0
    # Where there are several turns (number, length), an operation opens only in its own.
    turn: NDArray[np.int64] | None = None
    turns: tuple[int, float] = (1, 0.0)
    # Blocks, next to each other in the order, that are placed at once in one GPC; they become ready
    # together, and divide their kernel.
    cluster: NDArray[np.int64] | int = 1
    workers: int = 0  # blocks are tasks of so many equal workers an SM; 0: they take what they need
    window: int = 0  # operations known at a time; 0 for any number
    in_order: bool = False  # whether the window moves on only past its oldest operation
    order: NDArray[np.int64] | None = None  # blocks by priority; default program order
    # Whether blocks of operations that open sooner are placed before those of others, whatever the
    # order.
    first_come: bool = False
    # Whether a block that fits nowhere holds up those behind it, as in the hardware.
    strict: bool = True
    # A block is placed only if its stage is less than so many ahead of the first unfinished one.
    stage: NDArray[np.int32] | None = None
    stages_ahead: int = 0
    durations: NDArray[np.float64] | None = None  # of blocks, where the mechanism changes them
    graph: BlockGraph | None = None  # of other dependences; the joins above are then its joins
    unlimited: bool = False  # whether the number of SMs does not count
    places: Places | None = None  # where blocks may run; default on any SM
    launching: LaunchRules | None = None  # of child kernels; `durations` are of blocks' own work
    against: Against = Against.BLOCK
    # For `Against.INTRA_BLOCK`: whether `graph` and the needs above are assumed, so that the bound
    # has to be worked out from them.
    steps_assumed: bool = False
    assumptions: tuple[str, ...] = ()
    figures: Mapping[str, int] = field(default_factory=dict)  # that the mechanism counts

    def assuming(self, *notes: str) -> Rules:
        """Return the rules with more assumptions."""
        return replace(self, assumptions=(*self.assumptions, *notes))


def oldest_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order blocks by program order."""
    del durations
    return np.arange(graph.n_blocks)


def newest_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order kernels from the last to the first, the blocks of a kernel in block order."""
    del durations
    return np.lexsort((np.arange(graph.n_blocks), -graph.operation_of_block))


def longest_path_first(graph: BlockGraph, durations: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order blocks by the longest path from their start to the end of the program."""
    return np.lexsort((np.arange(graph.n_blocks), -graph.longest_tail(durations)))


PRIORITIES: dict[str, Callable[[BlockGraph, NDArray[np.float64]], NDArray[np.int64]]] = {
    "oldest-first": oldest_first,
    "newest-first": newest_first,
    "longest-path-first": longest_path_first,
}


class Children(NamedTuple):
    """The child kernels of a schedule: what blocks launched, and when each child block ran."""

    launched: NDArray[np.bool_]  # [n_launches]: which launches were made
    issued: NDArray[np.float64]  # [n_launches]: when each was through and its child began to wait
    launch: NDArray[np.int64]  # [n]: of each child block
    block: NDArray[np.int64]  # [n]: its number within the child
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]
    over: float  # when the last kernel knows that its last child has ended


class Schedule(NamedTuple):
    """When every block starts and on which SM, in the unit of the durations."""

    name: str
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sm: NDArray[np.int32]
    waiting: float = 0.0  # time that blocks spend waiting in a slot, summed over all blocks
    least: float = 0.0  # time below which the memory bandwidth keeps the schedule as a whole
    children: Children | None = None  # of rules that let blocks launch from the device

    @property
    def makespan(self) -> float:
        """When the last block ends, or what the bytes take at least if that is longer."""
        last = 0.0 if self.children is None else self.children.over
        return max(self.least, last, float(self.end.max(initial=0.0)))

    def of_operations(
        self, first_block: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return when operations start and end, 0 for one without blocks: float64[n] each."""
        start, end = np.zeros((2, len(first_block) - 1))
        full = np.flatnonzero(np.diff(first_block))
        if len(full):
            start[full] = np.minimum.reduceat(self.start, first_block[full])
            end[full] = np.maximum.reduceat(self.end, first_block[full])
        return start, end

    def unfolded(self, launches: DeviceLaunches | None) -> Schedule:
        """Return it with the blocks of all children behind; what is not launched is on SM -1."""
        if launches is None:
            return self
        launch, _ = launches.child_blocks
        start, end, sm = np.zeros(len(launch)), np.zeros(len(launch)), np.full(len(launch), -1)
        if self.children is not None:
            ran = self.children.launched[launch]
            for of_all, own in (
                (start, self.children.start), (end, self.children.end), (sm, self.children.sm)
            ):  # fmt: skip
                of_all[ran] = own
        return self._replace(
            start=np.concatenate([self.start, start]),
            end=np.concatenate([self.end, end]),
            sm=np.concatenate([self.sm, sm.astype(np.int32)]),
            children=None,
        )

    def to_pandas(self, graph: BlockGraph) -> pd.DataFrame:
        """Return one row per block: kernel, block (within the kernel), sm, start, end."""
        import pandas as pd

        kernel, index = graph.block_names()
        return pd.DataFrame(
            {
                "kernel": kernel,
                "block": index,
                "sm": self.sm,
                "start": self.start,
                "end": self.end,
            }
        )


def running_part(schedule: Schedule, durations: NDArray[np.float64]) -> Schedule:
    """Return when blocks run that wait in a slot before: their last part if none launches."""
    if schedule.children is not None:
        return schedule
    return schedule._replace(start=np.maximum(schedule.start, schedule.end - durations))


def utilization_over_time(
    schedule: Schedule, shares: NDArray[np.float64], sms: int, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Average the utilization, 0 to 1, exactly between ascending `edges`: float64[n + 1] to [n]."""
    busy = _area_before(edges, schedule.start, shares) - _area_before(edges, schedule.end, shares)
    widths = np.diff(edges)
    return np.divide(np.diff(busy), widths * sms, out=np.zeros(len(widths)), where=widths > 0)


def _area_before(
    instants: NDArray[np.float64], times: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return, for each instant t, the sum of weight * (t - time) over the times before t."""
    order = np.argsort(times, kind="stable")
    weight = np.concatenate([[0.0], np.cumsum(weights[order])])
    moment = np.concatenate([[0.0], np.cumsum((weights * times)[order])])
    before = np.searchsorted(times[order], instants)
    area: NDArray[np.float64] = weight[before] * instants - moment[before]
    return area


def slots_on_sm(schedule: Schedule) -> NDArray[np.int32]:
    """Deal blocks of an SM out to slots from 0, none overlapping in a slot: int32[n_blocks]."""
    import heapq

    slot = np.zeros(len(schedule.start), np.int32)
    running: dict[int, list[tuple[float, int]]] = {}
    free: dict[int, list[int]] = {}
    order = np.lexsort((schedule.end, schedule.start))
    rows = zip(
        order.tolist(),
        schedule.sm[order].tolist(),
        schedule.start[order].tolist(),
        schedule.end[order].tolist(),
        strict=True,
    )
    for block, sm, start, end in rows:
        ends, slots = running.setdefault(sm, []), free.setdefault(sm, [])
        while ends and ends[0][0] <= start:
            heapq.heappush(slots, heapq.heappop(ends)[1])
        chosen = heapq.heappop(slots) if slots else len(ends)
        slot[block] = chosen
        heapq.heappush(ends, (end, chosen))
    return slot


ANOMALY = "an anomaly of list schedules"
"""Why a schedule may be slower than one with less room, or under stricter rules."""
