"""cuSync: consumer blocks take slots and spin on semaphores of the producer's rows or tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import RAW
from depgraph.graph.regroup import columns_and_rows, stepped_graph, widen_sources
from depgraph.mechanisms.base import (
    INVOCATION,
    Availability,
    Charges,
    Cost,
    Mechanism,
    Numbered,
    Remembered,
    ahead,
)
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import ALL_PLACED, HOLDS, Against, Gates, Rules, newest_first
from depgraph.system.arrays import gather_lists, list_of_each

Numbers = NDArray[np.int64]

_PAPER = "Jangda et al., cuSync, CGO 2024; microsoft/cusync"


class CuSyncRow(Mechanism):
    """One semaphore for each row of the producer's grid; kernels may wait to be placed."""

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
        INVOCATION._replace(source=f"--launch; {_PAPER}: 6 us"),
    )  # fmt: skip

    def __init__(self, *, waits_for_placement: bool = True) -> None:
        self.waits_for_placement = waits_for_placement
        self._waits = Remembered(self._find_waits)
        self.shown = () if waits_for_placement else ("nowait",)

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Read whether the wait for placement is left out."""
        if list(parameters) != ["nowait"]:
            raise ModelError(f"give {cls.signature}")
        return cls(waits_for_placement=False)

    def _find_waits(self, program: Scenario) -> tuple[BlockGraph, NDArray[np.int64]]:
        row = columns_and_rows(program.graph, program.shape)[1]
        graph, _ = widen_sources(program.graph, row)
        return graph, waits_per_block(graph)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Hold blocks for whole rows."""
        rules = _resident(program, *self._waits(program), charges)
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

    def __init__(self) -> None:
        self._waits = Remembered(self._find_waits)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Hold blocks for the producer blocks of a semaphore, from the step on that needs one."""
        graph, waits, need = self._waits(program)
        rules = replace(_resident(program, graph, waits, charges), against=Against.INTRA_BLOCK)
        if program.graph.first_use is not None:
            exact = replace(rules, member_need=need)
            return exact.assuming("positions inside blocks as in the trace")
        return replace(rules, join_need=need, steps_assumed=True).assuming(
            "blocks are assumed to need the producers of a row one after another, at even steps: "
            "the trace was read without --positions"
        )

    def _find_waits(
        self, program: Scenario
    ) -> tuple[BlockGraph, NDArray[np.int64], NDArray[np.float64]]:
        """Return the graph of what is waited for, how many waits, and when they are needed."""
        graph = program.graph
        if graph.first_use is None:
            graph, need = stepped_graph(graph, program.shape, self._step)
        else:
            need = np.maximum(graph.first_use - graph.position_step, 0.0)
            graph, need = self._with_semaphores(graph, program.shape, need)
        return graph, waits_per_block(graph, self.tiles), need

    def _step(self, rank: Numbers, n: Numbers) -> tuple[Numbers, Numbers]:
        """Return the step that needs a column, and the number of steps."""
        return rank, n

    def _with_semaphores(
        self, graph: BlockGraph, shape: Numbers, need: NDArray[np.float64]
    ) -> tuple[BlockGraph, NDArray[np.float64]]:
        """Return the graph with what waits wait for: here each block has its own semaphore."""
        del shape
        return graph, need


class CuSyncStrided(Numbered, CuSyncTile):
    """One semaphore for s blocks of a row at equal distances."""

    name = "cusync-strided"
    signature = "cusync-strided(s)"
    rule = "as cusync-tile, but a step waits for s = 2 blocks of a row, a fixed distance apart"

    def __init__(self, tiles: int = 2) -> None:
        super().__init__(tiles)
        self.tiles = tiles

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Wait as `CuSyncTile` does, and say where rows have too few blocks for a stride."""
        rules = super().rules(program, charges)
        graph = program.graph
        sources = graph.join_source_operation[graph.join_kind == RAW]
        width = int(program.shape[sources, 0].min(initial=self.tiles))
        if width >= self.tiles:
            return rules
        return rules.assuming(
            f"rows of {width} blocks are shorter than {self.tiles}: they are waited for whole, as "
            "cusync-row does"
        )

    def _step(self, rank: Numbers, n: Numbers) -> tuple[Numbers, Numbers]:
        steps = np.maximum(n // self.tiles, 1)
        return rank % steps, steps

    def _with_semaphores(
        self, graph: BlockGraph, shape: Numbers, need: NDArray[np.float64]
    ) -> tuple[BlockGraph, NDArray[np.float64]]:
        column, row = columns_and_rows(graph, shape)
        width = shape[graph.operation_of_block, 0]
        steps = np.maximum(width // self.tiles, 1)
        together, origin = widen_sources(graph, row * int(width.max(initial=1)) + column % steps)
        return together, np.where(origin >= 0, need[origin], 0.0)


class CuSyncConv2d(Numbered, CuSyncTile):
    """cuSync's policy for convolutions as implicit matrix products, by the size of the filter."""

    name = "cusync-conv2d"
    signature = "cusync-conv2d(R,S)"
    rule = (
        "as cusync-tile, for a convolution whose R * S = 3 * 3 steps on end need the same block: "
        "it is waited for at the first of them, so that there is one wait in R * S steps"
    )

    def __init__(self, height: int = 3, width: int = 3) -> None:
        super().__init__(height, width)
        self.height, self.width = height, width

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Wait as `CuSyncTile` does, and say how many waits that saves."""
        note = f"one wait in {self.height * self.width} steps, where cusync-tile would wait in each"
        return super().rules(program, charges).assuming(note)


def _resident(
    program: Scenario, graph: BlockGraph, waits: NDArray[np.int64], charges: Charges
) -> Rules:
    """Place kernels one after another and hold their blocks for the joins of `graph`."""
    kernels = np.arange(program.graph.n_operations)
    wait = charges.time("wait")
    sync = charges.number("sync")
    durations = program.durations + wait * waits
    durations = np.where(waits > 0, durations * (1 + sync), durations)
    return Rules(
        graph=graph,
        joins=HOLDS,
        gates=Gates.between(kernels[:-1], kernels[1:], ALL_PLACED),
        enter=ahead(program, charges, name=INVOCATION.name).enter,
        durations=durations if sync or wait else None,
        assumptions=("a row: blocks with equal y and z",),
    )


def waits_per_block(graph: BlockGraph, tiles: float = math.inf) -> NDArray[np.int64]:
    """Count the semaphores each block waits for: `tiles` blocks of a set share one, inf: all do."""
    join = list_of_each(graph.target_offsets)
    pair_offsets, pair_sources = gather_lists(*graph.source_lists, join)
    target = np.repeat(graph.targets, np.diff(pair_offsets)).astype(np.int64)
    n_sets = max(len(graph.set_operation), 1)
    pairs = np.unique(target * n_sets + pair_sources)
    offsets, blocks = gather_lists(*graph.set_lists, pairs // n_sets)
    # A block that is in several targets waits for a semaphore once.
    source = np.repeat(pairs % n_sets, np.diff(offsets))
    waits = np.unique(blocks.astype(np.int64) * n_sets + source)
    sizes = np.diff(graph.set_offsets)
    each = np.ceil(sizes / tiles) if math.isfinite(tiles) else np.ones(len(sizes))
    weights = each[waits % n_sets] if len(waits) else None
    counted = np.bincount(waits // n_sets, weights=weights, minlength=graph.n_blocks)
    return counted.astype(np.int64)
