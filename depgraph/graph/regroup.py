"""Graphs whose blocks wait for other groups of blocks: whole rows, single steps, all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from depgraph.graph.block_graph import BlockGraph, assemble, join_order
from depgraph.graph.dependences import RAW, group_targets, pair_joins
from depgraph.system import arrays

Numbers = NDArray[np.int64]
StepRule = Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]

# Assumed steps finer than the positions that a trace gives would be of no use.
_MOST_STEPS = 16


def joined_source_blocks(graph: BlockGraph, joins: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct pairs of a join and a block among its sources, sorted."""
    offsets, sets = arrays.gather_lists(*graph.source_lists, joins)
    member_offsets, blocks = arrays.gather_lists(*graph.set_lists, sets)
    join = np.repeat(joins[arrays.list_of_each(offsets)], np.diff(member_offsets))
    key = arrays.distinct(join * graph.n_blocks + blocks)
    return key // max(graph.n_blocks, 1), key % max(graph.n_blocks, 1)


def grouped_pairs(
    graph: BlockGraph,
) -> Iterator[tuple[int, int, list[tuple[Numbers, NDArray[np.int32]]]]]:
    """Yield source, target, and for each group the blocks waited for and those that wait."""
    for low, high, source, target in pair_joins(graph.arrays):
        _, join_offsets, joins, member_offsets, members = group_targets(
            graph.arrays, low, high, target
        )
        groups = []
        for g in range(len(join_offsets) - 1):
            own = joins[join_offsets[g] : join_offsets[g + 1]].astype(np.int64)
            if len(own):
                sources = np.unique(joined_source_blocks(graph, own)[1])
                groups.append((sources, members[member_offsets[g] : member_offsets[g + 1]]))
        yield source, target, groups


def graph_of_pair(graph: BlockGraph, source: int, target: int) -> BlockGraph:
    """Return the graph of two operations alone, the first before the second, with positions."""
    pair = [source, target]
    is_kept = np.zeros(len(graph.join_kind), np.bool_)
    is_kept[graph.joins_between(source, target)] = True
    alone = graph.only_joins(is_kept)
    first_block = arrays.list_offsets(np.diff(graph.first_block)[pair])
    place = (alone.set_operation == target).astype(np.int32)
    shift = (first_block[:-1] - graph.first_block[pair])[place]
    blocks = np.concatenate([np.arange(*graph.first_block[each : each + 2]) for each in pair])
    resources = graph.resources

    def of_blocks(values: arrays.BlockTimes | None) -> arrays.BlockTimes | None:
        return None if values is None else values[blocks]

    return replace(
        alone,
        kernel=graph.kernel[pair],
        first_block=first_block,
        set_operation=place,
        set_blocks=(alone.set_blocks + np.repeat(shift, np.diff(alone.set_offsets))).astype(
            np.int32
        ),
        join_source_operation=np.zeros_like(alone.join_source_operation),
        join_target_operation=np.ones_like(alone.join_target_operation),
        cost=of_blocks(graph.cost),
        duration=of_blocks(graph.duration),
        occupancy=None if graph.occupancy is None else graph.occupancy[pair],
        resources=None if resources is None else resources.take(pair),
        space=None,
        frees=None,
        copies={},
        launches=None,
        counted=None,
    )


def columns_and_rows(graph: BlockGraph, shape: Numbers) -> tuple[Numbers, Numbers]:
    """Return the column of every block and its row (of one y and z), numbered through all."""
    operation = graph.operation_of_block
    index = np.arange(graph.n_blocks) - graph.first_block[operation]
    width = shape[operation, 0]
    rows = arrays.list_offsets(shape[:, 1] * shape[:, 2])
    return index % width, rows[operation] + index // width


def widen_sources(graph: BlockGraph, group: Numbers) -> tuple[BlockGraph, Numbers]:
    """Let blocks wait for whole groups; return also the former place of set members, -1 if new."""
    joins = np.arange(len(graph.join_kind))
    _, group = np.unique(group, return_inverse=True)
    n_groups = max(int(group.max(initial=-1)) + 1, 1)
    join, block = joined_source_blocks(graph, joins)
    key = arrays.distinct(join * n_groups + group[block])
    used, source = np.unique(key % n_groups, return_inverse=True)
    by_group = np.argsort(group, kind="stable").astype(np.int32)
    added = arrays.gather_lists(
        arrays.list_offsets(np.bincount(group, minlength=n_groups)), by_group, used
    )
    sources = (
        arrays.list_offsets(np.bincount(key // n_groups, minlength=len(joins))),
        (len(graph.set_operation) + source).astype(np.int32),
    )
    changed, order = _with_sets(graph, added, joins, sources)
    offsets, _ = arrays.concatenate_lists([graph.set_lists, added])
    origin = np.append(np.arange(len(graph.set_blocks)), np.full(len(added[1]), -1))
    return changed, arrays.gather_lists(offsets, origin, order)[1]


def stepped_graph(
    graph: BlockGraph, shape: Numbers, step: StepRule
) -> tuple[BlockGraph, NDArray[np.float64]]:
    """Split certain read-after-write joins by when targets need a column; say when for each."""
    # `step` gives the step that needs a column, of how many, by the column's rank among so many:
    # all those of one operation that the same targets wait for, however many joins they come in.
    # When: the share of a target's work that comes before the step.
    column, _ = columns_and_rows(graph, shape)
    is_split = (graph.join_kind == RAW) & graph.join_certain
    join, block = joined_source_blocks(graph, np.flatnonzero(is_split))
    width = int(shape[:, 0].max(initial=1))
    alike = _of_same_targets(graph, np.flatnonzero(is_split))
    key, of_pair = np.unique(alike[join] * width + column[block], return_inverse=True)
    group = key // width
    first = np.searchsorted(group, group)
    n = np.searchsorted(group, group, side="right") - first
    at, steps = step(np.arange(len(key)) - first, n)
    coarse = np.minimum(steps, _MOST_STEPS)
    at = at * coarse // steps
    # One new join for each old one and step, with a set of sources of its own.
    number = join * _MOST_STEPS + at[of_pair]
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    added = np.append(begins, len(order)), block[order].astype(np.int32)
    rest = np.flatnonzero(~is_split)
    origin = np.append(rest, join[order][begins])
    new_sets = len(graph.set_operation) + np.arange(len(begins), dtype=np.int32)
    sources = arrays.concatenate_lists(
        [
            arrays.gather_lists(*graph.source_lists, rest),
            (np.arange(len(begins) + 1), new_sets),
        ]
    )
    changed, _ = _with_sets(graph, added, origin, sources)
    need = np.append(np.zeros(len(rest)), (at / coarse)[of_pair][order][begins])
    order = join_order(
        graph.join_kind[origin],
        None if graph.join_basis is None else graph.join_basis[origin],
        graph.join_source_operation[origin],
        graph.join_target_operation[origin],
    )
    return changed, need[order]


def _of_same_targets(graph: BlockGraph, joins: Numbers) -> Numbers:
    """Return one number for joins of one source operation and the same targets; 0 for others."""
    number = np.zeros(len(graph.join_kind), np.int64)
    known: dict[tuple[int, bytes], int] = {}
    offsets, sets = graph.target_lists
    for join in joins.tolist():
        targets = np.sort(sets[offsets[join] : offsets[join + 1]])
        own = int(graph.join_source_operation[join]), targets.tobytes()
        number[join] = known.setdefault(own, len(known))
    return number


def _with_sets(
    graph: BlockGraph, added: arrays.Lists, origin: Numbers, sources: arrays.Lists
) -> tuple[BlockGraph, Numbers]:
    """Return a graph with more sets and joins like those of `origin`; and the order of its sets."""
    of_added = graph.operation_of_block[added[1][added[0][:-1]]]
    operation = np.append(graph.set_operation, of_added)
    changed = assemble(
        graph.kernel,
        graph.first_block,
        (operation, *arrays.concatenate_lists([graph.set_lists, added])),
        graph.join_kind[origin],
        sources,
        arrays.gather_lists(*graph.target_lists, origin),
        None if graph.join_basis is None else graph.join_basis[origin],
    )
    return changed, np.argsort(operation, kind="stable")
