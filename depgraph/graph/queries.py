"""What a block waits for and why, the critical path, slack of kernels, the matrix of a pair."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import ModelError
from depgraph.footprint.footprints import Footprints, concatenate_footprints, freed_past
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES, PairSummary, Pattern
from depgraph.system.arrays import BlockTimes, list_of_each
from depgraph.trace.records import READ, WRITE


class Neighbour(NamedTuple):
    """A block that another one waits for, or that waits for it."""

    # Kernel number and number within the kernel.
    kernel: int
    block: int
    kinds: tuple[str, ...]
    # Bytes that both touch in the way of each kind, at byte granularity. Of these some may have
    # been written by a third block in between.
    raw_bytes: int
    war_bytes: int
    waw_bytes: int
    reuse_bytes: int


class PathStep(NamedTuple):
    """A block on the critical path; a kernel has one at most, its blocks never wait for another."""

    kernel: int
    block: int  # number within the kernel
    start: float
    duration: float
    kinds: tuple[str, ...]  # kinds of dependence on the step before; empty for the first


def block_number(graph: BlockGraph, kernel: int, block: int) -> int:
    """Return the global number of a block; refuse one that there is not."""
    operations = np.flatnonzero(graph.kernel == kernel)
    if not len(operations):
        kernels = graph.kernel[graph.kernel >= 0]
        raise ModelError(
            f"there is no kernel {kernel}: the store has {kernels.min()} to {kernels.max()}"
        )
    operation = int(operations[0])
    first, end = graph.first_block[operation], graph.first_block[operation + 1]
    if not 0 <= block < end - first:
        raise ModelError(f"kernel {kernel} has blocks 0 to {end - first - 1}, not {block}")
    return int(first + block)


def neighbour_kinds(
    graph: BlockGraph, block: int
) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
    """Return the blocks that a block waits for, and that wait for it, with kinds of dependence."""
    membership = np.zeros(len(graph.set_operation), np.bool_)
    membership[list_of_each(graph.set_offsets)[graph.set_blocks == block]] = True
    sources: dict[int, set[str]] = {}
    targets: dict[int, set[str]] = {}
    for own, others, found in (
        (graph.target_lists, graph.source_lists, sources),
        (graph.source_lists, graph.target_lists, targets),
    ):
        offsets, sets = own
        for join in np.unique(list_of_each(offsets)[membership[sets]]).tolist():
            for other in graph.blocks_of(others, join).tolist():
                found.setdefault(other, set()).add(KIND_NAMES[graph.join_kind[join]])
    return sources, targets


def describe_neighbours(
    graph: BlockGraph,
    footprints: Footprints,
    block: int,
    found: Mapping[int, set[str]],
    *,
    is_source: bool,
) -> list[Neighbour]:
    """Say by how many bytes a block depends on each of `found`, its sources, or they on it."""
    own = footprints.of_block(block)
    kernel, index = graph.block_names()
    operation = graph.operation_of_block
    result = []
    for number in sorted(found):
        other = footprints.of_block(number)
        earlier, later = (other, own) if is_source else (own, other)
        touched = {
            "RAW": (earlier.take(earlier.access == WRITE), later.take(later.access == READ)),
            "WAR": (earlier.take(earlier.access == READ), later.take(later.access == WRITE)),
            "WAW": (earlier.take(earlier.access == WRITE), later.take(later.access == WRITE)),
        }
        ends = sorted((int(operation[block]), int(operation[number])))
        shared = _bytes_by_kind(touched, graph.frees and freed_past(graph.frees, *ends))
        kinds = tuple(k for k in KIND_NAMES if k in found[number])
        result.append(
            Neighbour(
                kernel=int(kernel[number]),
                block=int(index[number]),
                kinds=kinds,
                **{f"{name.lower()}_bytes": shared[name] * (name in kinds) for name in KIND_NAMES},
            )
        )
    return result


def _bytes_by_kind(
    touched: Mapping[str, tuple[Footprints, Footprints]], freed: Footprints | None
) -> dict[str, int]:
    """Count the bytes that an earlier and a later block share in the way of each kind."""
    shared = {name: common_ranges(*both) for name, both in touched.items()}
    if freed is None:
        return {"REUSE": 0, **{name: _size(ranges) for name, ranges in shared.items()}}
    past = {name: common_ranges(ranges, freed) for name, ranges in shared.items()}
    reused = concatenate_footprints(list(past.values()), 1)
    return {"REUSE": _size(reused), **{k: _size(shared[k]) - _size(past[k]) for k in shared}}


def _size(ranges: Footprints) -> int:
    return int((ranges.end - ranges.start).sum())


def common_ranges(first: Footprints, second: Footprints) -> Footprints:
    """Return the bytes that stand in the disjoint ranges of one and of another."""
    start = np.concatenate([first.start, second.start])
    order = np.argsort(start)
    start, end = start[order][1:], np.concatenate([first.end, second.end])[order]
    # Only ranges of different ones overlap, in twos.
    end = np.minimum(np.maximum.accumulate(end[:-1]), end[1:])
    kept = start < end
    nothing = np.zeros(int(kept.sum()), np.int32)
    return Footprints(nothing, nothing.astype(np.uint8), start[kept], end[kept])


def critical_path(graph: BlockGraph, durations: BlockTimes) -> list[PathStep]:
    """Return the blocks of a longest path, first to last."""
    finish, critical = graph.earliest_finish(durations)
    if not len(finish):
        return []
    kernel, index = graph.block_names()
    block = int(np.argmax(finish))
    path = []
    while block >= 0:
        path.append(block)
        block = int(critical[block])
    path.reverse()
    return [
        PathStep(
            kernel=int(kernel[b]),
            block=int(index[b]),
            start=float(finish[b] - durations[b]),
            duration=float(durations[b]),
            kinds=_kinds_between(graph, before, b) if before is not None else (),
        )
        for before, b in zip([None, *path], path, strict=False)
    ]


def _kinds_between(graph: BlockGraph, source: int, target: int) -> tuple[str, ...]:
    operation = graph.operation_of_block
    found = {
        KIND_NAMES[graph.join_kind[join]]
        for join in graph.joins_between(operation[source], operation[target])
        if source in graph.blocks_of(graph.source_lists, join)
        and target in graph.blocks_of(graph.target_lists, join)
    }
    return tuple(k for k in KIND_NAMES if k in found)


class KernelSlack(NamedTuple):
    """Where a kernel stands with unlimited SMs."""

    kernel: int
    # Least delay of a block of the kernel that the critical path would notice; 0 on it.
    slack: float
    critical_blocks: int  # blocks without slack
    blocks: int


def kernel_slacks(graph: BlockGraph, durations: BlockTimes) -> list[KernelSlack]:
    """Say how much slack each kernel has against the critical path, in launch order."""
    if not graph.n_blocks:
        return []
    finish, _ = graph.earliest_finish(durations)
    length = float(finish.max())
    slack = length - (finish - durations + graph.longest_tail(durations))
    # Rounding may leave a block of the path a little before or after it.
    slack[slack < length * 1e-9] = 0.0
    return [
        KernelSlack(
            int(graph.kernel[i]),
            float(slack[low:high].min()),
            int((slack[low:high] == 0).sum()),
            int(high - low),
        )
        for i, (low, high) in enumerate(
            zip(graph.first_block[:-1], graph.first_block[1:], strict=True)
        )
        if graph.kernel[i] >= 0 and high > low
    ]


_EXACT_CELLS = 1 << 24


class PairMatrix(NamedTuple):
    """Dependences between two kernels, binned."""

    # Kernel numbers.
    source: int
    target: int
    # [rows, columns]: share of the block pairs in a cell that are edges, 0 to 1; rows are blocks of
    # `target`, columns blocks of `source`.
    density: NDArray[np.float64]
    source_blocks: int
    target_blocks: int

    @property
    def is_binned(self) -> bool:
        """Whether a cell stands for more than one block pair."""
        return self.density.shape != (self.target_blocks, self.source_blocks)


def clearest_pair(pairs: Sequence[PairSummary]) -> tuple[int, int] | None:
    """Choose the pair whose matrix shows most: RAW, many edges, but not all to all."""
    between_kernels = [p for p in pairs if p.source >= 0]
    shaped = [p for p in between_kernels if p.pattern is not Pattern.ALL_TO_ALL]
    wide = [p for p in shaped if p.awaited > 1 and p.waiting > 1]
    wide_or_full = [p for p in between_kernels if p.awaited > 1 and p.waiting > 1]
    ranked = wide, wide_or_full, shaped, between_kernels
    for candidates in (*([p for p in some if p.raw] for some in ranked), *ranked):
        if candidates:
            best = max(candidates, key=lambda p: (p.edges, -p.target, -p.source))
            return best.source, best.target
    return None


def pair_matrix(graph: BlockGraph, source: int, target: int, size: int = 256) -> PairMatrix:
    """Return the matrix of edges between two kernels, in at most `size` by `size` cells."""
    operations = {int(kernel): i for i, kernel in enumerate(graph.kernel)}
    for kernel in (source, target):
        if kernel not in operations:
            raise ModelError(f"there is no kernel {kernel}: the last is {graph.kernel.max()}")
    source_operation, target_operation = operations[source], operations[target]
    first_source, n_source = graph.span(source_operation)
    first_target, n_target = graph.span(target_operation)
    # Every cell but the last of a row holds as many blocks: unequal ones would show as stripes.
    wide, high = -(-n_source // size), -(-n_target // size)
    columns, rows = -(-n_source // wide), -(-n_target // high)
    exact = n_source * n_target <= _EXACT_CELLS
    shape = (n_target, n_source) if exact else (rows, columns)
    cells = np.zeros(shape, np.float64)
    for join in graph.joins_between(source_operation, target_operation):
        sources = graph.blocks_of(graph.source_lists, join) - first_source
        targets = graph.blocks_of(graph.target_lists, join) - first_target
        if exact:
            cells[np.ix_(targets, sources)] = 1.0
        else:
            column, in_column = np.unique(sources // wide, return_counts=True)
            row, in_row = np.unique(targets // high, return_counts=True)
            cells[np.ix_(row, column)] += np.outer(in_row, in_column)
    if exact and shape != (rows, columns):
        cells = np.add.reduceat(cells, np.arange(0, n_target, high), 0)
        cells = np.add.reduceat(cells, np.arange(0, n_source, wide), 1)
    cell = np.outer(_sizes(n_target, high), _sizes(n_source, wide))
    return PairMatrix(source, target, np.minimum(cells / cell, 1.0), n_source, n_target)


def _sizes(n: int, width: int) -> NDArray[np.int64]:
    """Return how many of `n` numbers fall into each bin of `width`."""
    return np.diff(np.arange(0, n, width), append=n)
