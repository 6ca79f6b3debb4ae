"""What is in a trace, what is missing, and what is wrong with it; nothing is written."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depgraph.dependence.sweep import ShardResult
from depgraph.errors import TraceError
from depgraph.extraction.collect import BLOCK_BYTES, Collector, kernel_rows
from depgraph.extraction.scan import without_ranges
from depgraph.graph.program import BlockCounts, Kernel, remarks
from depgraph.system.arrays import Blocks
from depgraph.system.text import kernels_text
from depgraph.system.workers import BASE_BYTES, Threads, Workers, default_limit
from depgraph.trace import records

_LDGSTS = (
    "kernels that read by LDGSTS (cp.async). Zero-fills look like reads, so that some dependences "
    "may not be real; use `depgraph record`"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a user should know of a trace."""

    is_error: bool  # whether a graph made from the trace would be wrong
    found: str
    count: int = 1  # how often; 1 where that means nothing
    place: str = ""  # file and line, or kernels, where that is known


@dataclass(frozen=True, slots=True)
class Checkup:
    """The findings about one trace."""

    trace: str
    format: str
    kernels: list[Kernel]  # without their traffic in bytes
    copies: int
    problems: list[Problem]  # errors first
    skipped: dict[str, int]  # what was left out, by reason
    blind_spots: tuple[str, ...]  # what no trace of the format shows
    lines: int
    bytes: int
    text_bytes: int

    @property
    def errors(self) -> int:
        """Number of problems that make the trace untrustworthy."""
        return sum(problem.is_error for problem in self.problems)

    @property
    def warnings(self) -> int:
        """Number of other problems."""
        return len(self.problems) - self.errors


def check_trace(
    trace: records.Trace,
    *,
    workers: Workers | None = None,
    allow_empty: bool = False,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Checkup:
    """Read a whole trace; `on_progress` is called with the bytes that were just scanned."""
    faults: list[Problem] = []
    ldgsts_blocks: list[Blocks] = []

    def note_ldgsts(touches: records.BlockTouches, _: object, blocks: Blocks, _n: int) -> None:
        ldgsts_blocks.append(blocks[touches.row])  # a range remains of each, see `_scan_counts`

    def note(damage: records.Damage) -> None:
        place = f"{damage.path or trace.name}:{damage.line}"
        faults.append(Problem(is_error=True, found=damage.found, place=place))

    collector = Collector(
        trace,
        note_ldgsts,
        allow_empty=allow_empty,
        most_blocks=(default_limit() + BASE_BYTES) // BLOCK_BYTES,
        on_damage=note,
    )
    try:
        with trace.sources.unchanged():
            for part in (workers or Threads()).map(_scan_counts, trace.tasks()):
                collector.add(part)
                on_progress(part.bytes)
            collector.finish()
    except TraceError as error:
        faults.append(
            Problem(
                is_error=True,
                found=error.found + (f"; {error.hint}" if error.hint else ""),
                place=error.path if error.line is None else f"{error.path}:{error.line}",
            )
        )
    accesses, instructions, _ = collector.counts()
    unknown = np.zeros(len(accesses), np.int64)
    counts = BlockCounts(accesses, instructions, unknown, unknown)
    nothing = ShardResult.none(len(collector.operations), len(accesses))
    kernels = kernel_rows(collector, counts, nothing)
    return Checkup(
        trace=trace.name,
        format=trace.format,
        kernels=kernels,
        copies=sum(isinstance(o, records.MemoryOperation) for o in collector.operations),
        problems=[*faults, *_warnings(collector, kernels, ldgsts_blocks)],
        skipped=dict(collector.total.skipped.most_common()),
        blind_spots=tuple(trace.blind_spots),
        lines=collector.total.lines,
        bytes=collector.total.bytes,
        text_bytes=collector.total.text_bytes,
    )


def _scan_counts(task: records.PartTask) -> records.ScannedPart:
    """Scan a part; of its ranges one remains for each block that reads by LDGSTS alone."""
    ldgsts = _LdgstsRows()
    part = task.scan(ldgsts)
    ldgsts.take(part.touches.ranges)
    counted = without_ranges(part)
    counted.touches = counted.touches._replace(row=np.unique(np.concatenate(ldgsts.rows)))
    return counted


class _LdgstsRows:
    """Forgets ranges, but for the rows that read by LDGSTS alone."""

    most_ranges = 1 << 17

    def __init__(self) -> None:
        self.rows: list[NDArray[np.int32]] = []

    def take(self, ranges: records.Ranges) -> None:
        """Note the rows of some ranges."""
        self.rows.append(np.unique(ranges.row[ranges.kind == records.LDGSTS_READ]))


def _warnings(
    collector: Collector, kernels: list[Kernel], ldgsts_blocks: list[Blocks]
) -> list[Problem]:
    warnings = collector.total.warnings.most_common()
    found = [Problem(is_error=False, found=w, count=n) for w, n in warnings]
    blocks = np.unique(np.concatenate([np.empty(0, np.int32), *ldgsts_blocks]))
    first = [k.first_block for k in kernels]
    by_ldgsts = np.unique(np.searchsorted(first, blocks[blocks >= 0], side="right")) - 1
    if len(by_ldgsts):
        which = kernels_text([kernels[i].kernel for i in by_ldgsts])
        found.append(Problem(is_error=False, found=_LDGSTS, count=len(by_ldgsts), place=which))
    found += [
        Problem(is_error=False, found=f"kernels with: {remark}", count=len(which))
        for remark, which in remarks(kernels).items()
    ]
    return found
