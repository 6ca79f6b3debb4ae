"""cuSync: consumer blocks take slots and spin on semaphores of the producer's rows or tiles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.block_graph import KIND_NAMES
from depgraph.graph.builder import assemble, join_order, joined_source_blocks
from depgraph.graph.graph_jit import gather_lists
from depgraph.mechanisms.base import Availability, Cost, Mechanism, whole_numbers
from depgraph.mechanisms.launching import INVOCATION, ahead
from depgraph.schedule.policy import ALL_PLACED, HOLDS, Against, Gates, Rules
from depgraph.schedule.priorities import newest_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.mechanisms.costs import Charges
    from depgraph.scenario.scenario import Scenario

    Numbers = NDArray[np.int64]
    StepRule = Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]

_PAPER = "Jangda et al., cuSync, CGO 2024; microsoft/cusync"
_RAW = KIND_NAMES.index("RAW")
# Assumed steps finer than the positions that a trace gives would be of no use.
_MOST_STEPS = 16


class CuSyncRow(Mechanism):
    """One semaphore for each row of the producer's grid.

    Parameters
    ----------
    waits_for_placement : bool
        Whether a kernel takes no slots before the one before it is placed, as cuSync's wait kernel
        sees to. Without it consumers are taken to be placed first, the worst case.
    """

    name = "cusync-row"
    signature = "cusync-row[(nowait)]"
    rule = (
        "a kernel takes slots once the kernel before is placed; its blocks run on once all blocks "
        "in the rows (same y and z) of the blocks they depend on have ended; nowait: consumers "
        "take slots first, and may keep producers from ever running"
    )
    cost = (
        "slots held while spinning; semaphores; launches: the host issues each kernel, the gap is "
        "hidden while producers run"
    )
    availability = Availability.CODE
    source = _PAPER
    costs: ClassVar[tuple[Cost, ...]] = (
        Cost(
            "sync", 0.03, "share", "synchronisation, as a share of a waiting block's time",
            f"{_PAPER}: 2 to 3 % of the consumer; rows measured on a V100 fit 3 % best of these; 0 "
            "shows only the rule",
        ),
        Cost("wait", 0.0, "us", "a wait on a semaphore that is already set", "none assumed"),
        replace(INVOCATION, source=f"--launch; {_PAPER}: 6 us"),
    )  # fmt: skip

    def __init__(self, *, waits_for_placement: bool = True) -> None:
        self.waits_for_placement = waits_for_placement

    @property
    def label(self) -> str:
        """The name, with what is left out of cuSync's rules."""
        return self.name if self.waits_for_placement else f"{self.name}(nowait)"

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read whether the wait for placement is left out."""
        if list(parameters) != ["nowait"]:
            raise ModelError(f"give {cls.signature}")
        return cls(waits_for_placement=False)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Hold blocks for whole rows."""
        _, row = columns_and_rows(program.graph, program.shape)
        graph, _ = semaphore_graph(program.graph, row)
        rules = _resident(program, graph, charges, waits_per_block(graph))
        if self.waits_for_placement:
            return rules
        order = newest_first(program.graph, program.durations)
        return replace(rules, gates=Gates.none(), order=order, strict=False).assuming(
            "no wait for placement: consumers take slots first"
        )


class CuSyncTile(Mechanism):
    """One semaphore for each block of the producer; a consumer waits step by step."""

    name = "cusync-tile"
    signature = "cusync-tile"
    rule = (
        "as cusync-row, but a block waits inside for each producer block at the step that needs it"
    )
    cost = "slots held while spinning; a wait per step; launches as cusync-row"
    availability = Availability.CODE
    source = _PAPER
    costs = CuSyncRow.costs
    tiles: int = 1

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Hold blocks for the producer blocks of a semaphore, from the step on that needs one."""
        graph = program.graph
        if graph.first_use is None:
            graph, need = stepped_graph(graph, program.shape, self._step)
            rules = _resident(program, graph, charges, waits_per_block(graph, self.tiles))
            return _fine(rules, join_need=need, assumed=True)
        need = np.maximum(graph.first_use - graph.position_step, 0.0)
        graph, need = self._with_semaphores(graph, program.shape, need)
        rules = _resident(program, graph, charges, waits_per_block(graph, self.tiles))
        return _fine(rules, member_need=need, assumed=False)

    def _step(self, rank: Numbers, n: Numbers) -> tuple[Numbers, Numbers]:
        """Return the step that needs a column, and the number of steps."""
        return rank, n

    def _with_semaphores(
        self, graph: BlockGraph, shape: Numbers, need: NDArray[np.float64]
    ) -> tuple[BlockGraph, NDArray[np.float64]]:
        """Return the graph with what waits wait for: here each block has its own semaphore."""
        del shape
        return graph, need


class CuSyncStrided(CuSyncTile):
    """One semaphore for s blocks of a row at equal distances.

    Parameters
    ----------
    tiles : int
    """

    name = "cusync-strided"
    signature = "cusync-strided(s)"
    rule = "as cusync-tile, but a step waits for s = 2 blocks of a row, a fixed distance apart"

    def __init__(self, tiles: int = 2) -> None:
        self.tiles = tiles

    @property
    def label(self) -> str:
        """The name with the number of blocks that share a semaphore."""
        return f"{self.name}({self.tiles})"

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the number of blocks."""
        return cls(*whole_numbers(cls, parameters, 1))

    def _step(self, rank: Numbers, n: Numbers) -> tuple[Numbers, Numbers]:
        steps = np.maximum(n // self.tiles, 1)
        return rank % steps, steps

    def _with_semaphores(
        self, graph: BlockGraph, shape: Numbers, need: NDArray[np.float64]
    ) -> tuple[BlockGraph, NDArray[np.float64]]:
        column, row = columns_and_rows(graph, shape)
        width = shape[graph.operation_of_block, 0]
        steps = np.maximum(width // self.tiles, 1)
        together, origin = semaphore_graph(graph, row * int(width.max(initial=1)) + column % steps)
        return together, np.where(origin >= 0, need[origin], 0.0)


class CuSyncConv2d(CuSyncTile):
    """cuSync's policy for convolutions as implicit matrix products.

    Parameters
    ----------
    height, width : int
        Of the filter.
    """

    name = "cusync-conv2d"
    signature = "cusync-conv2d(R,S)"
    rule = (
        "as cusync-tile, for a convolution whose R * S = 3 * 3 steps on end need the same block: "
        "it is waited for at the first of them, so that there is one wait in R * S steps"
    )

    def __init__(self, height: int = 3, width: int = 3) -> None:
        self.height, self.width = height, width

    @property
    def label(self) -> str:
        """The name with the size of the filter."""
        return f"{self.name}({self.height},{self.width})"

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read the size of the filter."""
        return cls(*whole_numbers(cls, parameters, 2))

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Wait as `CuSyncTile` does, and say how many waits that saves."""
        note = f"one wait in {self.height * self.width} steps, where cusync-tile would wait in each"
        return super().rules(program, charges).assuming(note)


def _resident(
    program: Scenario, graph: BlockGraph, charges: Charges, waits: NDArray[np.int64]
) -> Rules:
    """Place kernels one after another and hold their blocks for the joins of `graph`."""
    kernels = np.arange(program.graph.n_operations)
    wait = charges.time("wait")
    sync = charges.number("sync")
    durations = program.durations + wait * waits
    durations = np.where(waits > 0, durations * (1 + sync), durations)
    return Rules(
        graph=graph,
        joins=np.full(len(graph.join_kind), HOLDS, np.uint8),
        gates=Gates.between(kernels[:-1], kernels[1:], ALL_PLACED),
        enter=ahead(program, charges, name=INVOCATION.name).enter,
        durations=durations if sync or wait else None,
        assumptions=("a row: blocks with equal y and z",),
    )


def _fine(
    rules: Rules,
    *,
    assumed: bool,
    join_need: NDArray[np.float64] | None = None,
    member_need: NDArray[np.float64] | None = None,
) -> Rules:
    note = (
        "blocks are taken to need the producers of a row one after another, at even steps: "
        "the trace was read without --positions"
        if assumed
        else "positions inside blocks as in the trace"
    )
    return replace(
        rules,
        join_need=join_need,
        member_need=member_need,
        against=Against.INTRA_BLOCK,
        steps_assumed=assumed,
        assumptions=(*rules.assumptions, note),
    )


def waits_per_block(graph: BlockGraph, tiles: float = math.inf) -> NDArray[np.int64]:
    """Count the semaphores that each block waits for: int64[n_blocks].

    Parameters
    ----------
    graph : BlockGraph
    tiles : float
        Blocks that share a semaphore; infinite if all blocks of a source set do.
    """
    pair_offsets, pair_sources = gather_lists(
        graph.source_offsets, graph.sources,
        np.repeat(np.arange(len(graph.join_kind)), np.diff(graph.target_offsets)),
    )  # fmt: skip
    target = np.repeat(graph.targets, np.diff(pair_offsets)).astype(np.int64)
    n_sets = max(len(graph.set_operation), 1)
    pairs = np.unique(target * n_sets + pair_sources)
    offsets, blocks = gather_lists(graph.set_offsets, graph.set_blocks, pairs // n_sets)
    # A block that is in several targets waits for a semaphore once.
    source = np.repeat(pairs % n_sets, np.diff(offsets))
    waits = np.unique(blocks.astype(np.int64) * n_sets + source)
    sizes = np.diff(graph.set_offsets)
    each = np.ceil(sizes / tiles) if math.isfinite(tiles) else np.ones(len(sizes))
    weights = each[waits % n_sets] if len(waits) else None
    counted = np.bincount(waits // n_sets, weights=weights, minlength=graph.n_blocks)
    return counted.astype(np.int64)


def columns_and_rows(
    graph: BlockGraph, shape: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the column of every block, and its row, numbered through all operations."""
    operation = graph.operation_of_block
    index = np.arange(graph.n_blocks) - graph.first_block[operation]
    width = shape[operation, 0]
    rows = np.concatenate([[0], np.cumsum(shape[:, 1] * shape[:, 2])])
    return index % width, rows[operation] + index // width


def semaphore_graph(
    graph: BlockGraph, semaphore: NDArray[np.int64]
) -> tuple[BlockGraph, NDArray[np.int64]]:
    """Let blocks depend on all blocks that share a semaphore with those they depend on.

    Parameters
    ----------
    graph : BlockGraph
    semaphore : int64[n_blocks]
        Number of the semaphore that each block signals; those of two operations are never the
        same.

    Returns
    -------
    graph : BlockGraph
        With the joins of `graph` and their targets, and more sets, of sources.
    origin : int64[n_set_blocks]
        Place of each member of a set in the sets of `graph`; -1 for those that were added.
    """
    joins = np.arange(len(graph.join_kind))
    _, semaphore = np.unique(semaphore, return_inverse=True)
    n_semaphores = int(semaphore.max(initial=-1)) + 1
    join, block = joined_source_blocks(graph, joins)
    key = np.unique(join * max(n_semaphores, 1) + semaphore[block])
    join, awaited = key // max(n_semaphores, 1), key % max(n_semaphores, 1)
    used, source = np.unique(awaited, return_inverse=True)
    blocks = np.argsort(semaphore, kind="stable").astype(np.int32)
    low = np.searchsorted(semaphore[blocks], used)
    high = np.searchsorted(semaphore[blocks], used, side="right")
    return _with_sources(graph, joins, (low, high, blocks), join, source)


def stepped_graph(
    graph: BlockGraph, shape: NDArray[np.int64], step: StepRule
) -> tuple[BlockGraph, NDArray[np.float64]]:
    """Split certain read-after-write joins by the step at which their targets need a column.

    Parameters
    ----------
    graph : BlockGraph
    shape : int64[n_operations, 3]
        Grids.
    step : callable
        From the rank of a column among those a join needs, and their number, to the step that
        needs it and the number of steps.

    Returns
    -------
    graph : BlockGraph
    join_need : float64[n_joins]
        Share of a target's work that comes before the step.
    """
    column, _ = columns_and_rows(graph, shape)
    is_raw = (graph.join_kind == _RAW) & graph.join_certain
    join, block = joined_source_blocks(graph, np.flatnonzero(is_raw))
    width = int(shape[:, 0].max(initial=1))
    key, of_pair = np.unique(join * width + column[block], return_inverse=True)
    group_join = key // width
    first = np.searchsorted(group_join, group_join)
    n = np.searchsorted(group_join, group_join, side="right") - first
    at, steps = step(np.arange(len(key)) - first, n)
    coarse = np.minimum(steps, _MOST_STEPS)
    at = at * coarse // steps
    # One new join for each old one and step.
    split = join * _MOST_STEPS + at[of_pair]
    order = np.argsort(split, kind="stable")
    begins = np.flatnonzero(np.diff(split[order], prepend=-1))
    old_join = join[order][begins]
    share = (at / coarse)[of_pair][order][begins]
    rest = np.flatnonzero(~is_raw)
    bounds = np.append(begins, len(order))
    new_blocks = block[order].astype(np.int32)
    new, need = _split_joins(graph, rest, old_join, share, (bounds[:-1], bounds[1:], new_blocks))
    return new, need


def _split_joins(
    graph: BlockGraph,
    rest: NDArray[np.int64],
    old_join: NDArray[np.int64],
    share: NDArray[np.float64],
    sets: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]],
) -> tuple[BlockGraph, NDArray[np.float64]]:
    """Return a graph with the joins `rest` as they are, and `old_join` with a new source each."""
    n_sets = len(graph.set_operation)
    low, high, blocks = sets
    origin = np.concatenate([rest, old_join]).astype(np.int64)
    rest_offsets, rest_sources = gather_lists(graph.source_offsets, graph.sources, rest)
    new_sources = n_sets + np.arange(len(old_join), dtype=np.int32)
    sources = np.concatenate([rest_sources, new_sources]).astype(np.int32)
    offsets = np.concatenate([rest_offsets, rest_offsets[-1] + 1 + np.arange(len(old_join))])
    need = np.concatenate([np.zeros(len(rest)), share])
    target_lists = gather_lists(graph.target_offsets, graph.targets, origin)
    operation = graph.join_source_operation[old_join]
    added_offsets = np.concatenate([[0], np.cumsum(high - low)])
    basis = None if graph.join_basis is None else graph.join_basis[origin]
    result = assemble(
        graph.kernel,
        graph.first_block,
        (
            np.concatenate([graph.set_operation, operation]).astype(np.int32),
            np.concatenate([graph.set_offsets, graph.set_offsets[-1] + added_offsets[1:]]),
            np.concatenate([graph.set_blocks, blocks]).astype(np.int32),
        ),
        graph.join_kind[origin],
        (offsets.astype(np.int64), sources),
        target_lists,
        basis,
    )
    order = join_order(
        graph.join_kind[origin],
        basis,
        graph.join_source_operation[origin],
        graph.join_target_operation[origin],
    )
    return result, np.ascontiguousarray(need[order])


def _with_sources(
    graph: BlockGraph,
    joins: NDArray[np.int64],
    sets: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]],
    join: NDArray[np.int64],
    source: NDArray[np.int64],
) -> tuple[BlockGraph, NDArray[np.int64]]:
    """Return the graph with other sources, pairs of a join and a new set; and where members went.

    The second array holds for each member of a set its place in the old graph, or -1.
    """
    n_sets = len(graph.set_operation)
    low, high, blocks = sets
    sizes = high - low
    offsets = np.concatenate([graph.set_offsets, graph.set_offsets[-1] + np.cumsum(sizes)])
    ranges = np.repeat(low - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    members = blocks[np.arange(int(sizes.sum())) + ranges]
    counts = np.bincount(join, minlength=len(joins))
    operation = np.concatenate([graph.set_operation, graph.operation_of_block[blocks[low]]])
    changed = assemble(
        graph.kernel,
        graph.first_block,
        (
            operation.astype(np.int32),
            offsets.astype(np.int64),
            np.concatenate([graph.set_blocks, members]).astype(np.int32),
        ),
        graph.join_kind,
        (
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            (n_sets + source).astype(np.int32),
        ),
        (graph.target_offsets, graph.targets),
        graph.join_basis,
    )
    origin = np.append(np.arange(len(graph.set_blocks)), np.full(len(members), -1))
    _, origin = gather_lists(offsets.astype(np.int64), origin, np.argsort(operation, kind="stable"))
    return changed, origin
