"""The main pipeline: scan a trace in parallel, join footprints, find dependences."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nvtx

from depgraph.dependence.sweep import (
    SetPairs,
    ShardAnalysis,
    ShardResult,
    analyse_shards,
    build_graph,
)
from depgraph.errors import ModelError
from depgraph.extraction.collect import BLOCK_BYTES, BlockNumbers, Collector, kernel_rows
from depgraph.footprint.footprints import GRANULARITIES, FileOverflow, RangeStore
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import ALL_KINDS
from depgraph.graph.program import BlockCounts, Copy, Extraction, launch_resources, remarks
from depgraph.store.store import Store, write_store
from depgraph.store.tables import not_a_store
from depgraph.system.output import Scratch, refuse_existing
from depgraph.system.workers import BASE_BYTES, Threads, Workers, available_jobs, default_limit
from depgraph.trace.records import MemoryOperation, PartTask, Trace

if TYPE_CHECKING:
    from depgraph.extraction.scan import Scanned

_MOST_HASHED_BYTES = 64 << 20
_HASHED_END_BYTES = 4 << 20
# What a thread holds while it scans: a part of the text, and its ranges before they are joined.
_THREAD_BYTES = 64 << 20
# What a range costs while a part is scanned: in the table and in its copies while the table is
# joined, and in the few results of a thread that wait to be gathered.
_BYTES_PER_RANGE = 144
# Of the memory allowed, what all threads together may hold of ranges.
_SHARE = 4
_LEAST_RANGES = 1 << 17


def analyse(
    trace: Trace,
    *,
    granularity: int = 1,
    kinds: Collection[str] = ALL_KINDS,
    kernels: tuple[int | None, int | None] = (None, None),
    jobs: int | None = None,
    workers: Workers | None = None,
    memory_limit: int | None = None,
    scratch: Path | None = None,
    resume: Path | None = None,
    allow_damaged: bool = False,
    allow_empty: bool = False,
    on_progress: Callable[[int], object] = lambda _: None,
    on_phase: Callable[[str], object] = lambda _: None,
) -> Extraction:
    """Read a trace and find the dependences between its thread blocks.

    Parameters
    ----------
    trace : Trace
        As `depgraph.parsers.open_trace` returns it.
    granularity : int
        Round accesses out to this many bytes (1, 32 or 128) before dependences are looked for.
        Footprints stay exact.
    kinds : collection of str
        Kinds of dependence to keep.
    kernels : (int or None, int or None)
        First kernel, and last kernel plus one, in launch order.
    jobs : int, optional
        Threads; default all processors.
    workers : Workers, optional
        Who does the work instead of threads. Workers that share only a file system with this
        process (``workers.remote``) pass footprints through files in `scratch`.
    memory_limit : int, optional
        Bytes; default half of what is free. Beyond it footprints go through files in `scratch`.
    scratch : Path, optional
        Where to make the folder for them; default the system's folder for temporary files.
    resume : Path, optional
        A folder that keeps scanned parts; those that an interrupted run left there are taken as
        they are. The caller removes it once it has what it wants.
    allow_damaged : bool
        Use what is readable of a damaged trace instead of refusing it.
    allow_empty : bool
        Take a trace without a single access to global memory instead of refusing it.
    on_progress : callable
        Is called with the number of input bytes that have just been scanned.
    on_phase : callable
        Is called with the name of each phase as it begins.

    Returns
    -------
    Extraction
        A context manager: leaving it removes the files in `scratch`.

    Raises
    ------
    TraceError
        If the trace cannot be read, is damaged, or changes while it is read.
    ModelError
        If an option makes no sense.
    """
    if granularity not in GRANULARITIES:
        message = f"granularity {granularity}: give one of {', '.join(map(str, GRANULARITIES))}"
        raise ModelError(message)
    limit = memory_limit or default_limit()
    if workers is None:
        workers = Threads(min(jobs or available_jobs(), max(1, limit // _THREAD_BYTES)))
    files = Scratch(scratch)
    try:
        ranges = RangeStore(limit // 8, files)
        collector = Collector(
            trace,
            ranges.add,
            kernels=kernels,
            allow_damaged=allow_damaged,
            allow_empty=allow_empty,
            most_blocks=(limit + BASE_BYTES) // BLOCK_BYTES,
        )
        at_once = _most_ranges(limit, workers.jobs)
        with (
            _phase("scan", on_phase),
            trace.sources.unchanged(),
            # Closed before the files are removed that the workers may still be writing.
            closing(_scanned(trace, workers, files, resume, at_once)) as parts,
        ):
            for part, runs in parts:
                collector.add(part, runs)
                on_progress(part.bytes)
            collector.finish()
            ranges.finish(collector.copies)
        with _phase("dependences", on_phase):
            analysis = ShardAnalysis(
                collector.numbers.first_block,
                granularity,
                collector.space,
                collector.frees,
                collector.possible,
            )
            result = analyse_shards(ranges, analysis, workers, files, limit // 2)
        with _phase("graph", on_phase), trace.sources.unchanged():
            options = {
                "granularity": granularity,
                "kinds": sorted(kinds),
                "kernels": None if kernels == (None, None) else list(kernels),
                "allow_damaged": allow_damaged,
            }
            extraction = _extraction_of(collector, result, options)
    except BaseException:
        files.remove()
        raise
    return replace(extraction, scratch=files)


def extract(
    trace: Trace, path: str | Path = "depgraph.out", *, force: bool = False, **options: Any
) -> Store:
    """Read a trace, find the dependences between its thread blocks, and write a store.

    Parameters
    ----------
    trace : Trace
        As `depgraph.parsers.open_trace` returns it.
    path : str or Path
        The store to make.
    force : bool
        Replace an existing store.
    **options
        As `analyse` takes them.

    Raises
    ------
    OutputExistsError
        If `path` exists and `force` is not given.
    TraceError, ModelError, OutputError
        As `analyse` and `write_store` raise them.
    """
    refuse_existing(Path(path), force=force, not_ours=not_a_store)
    with analyse(trace, **options) as extraction:
        return write_store(extraction, Path(path), force=force, place_checked=True)


@contextmanager
def _phase(name: str, on_phase: Callable[[str], object]) -> Iterator[None]:
    """Mark a phase for profilers (nvtx) and for whoever listens."""
    on_phase(name)
    with nvtx.annotate(name, domain="depgraph"):
        yield


def _most_ranges(memory: int, jobs: int) -> int:
    """Return how many ranges each of `jobs` threads may hold within `memory` bytes for all."""
    return max(_LEAST_RANGES, memory // _SHARE // jobs // _BYTES_PER_RANGE)


def _scanned(
    trace: Trace, workers: Workers, files: Scratch, resume: Path | None, most_ranges: int
) -> Generator[Scanned]:
    """Yield the parts of a trace in its order, and what of their ranges is in files."""
    if resume is None and not workers.remote:
        return workers.map(_ScanHere(files, most_ranges), trace.tasks())
    from depgraph.extraction.scan import ResumableScan, open_folder, scan_remotely

    if resume is None:
        return scan_remotely(trace, workers, files, most_ranges)
    files.keep_open(open_folder(resume))
    return workers.map(ResumableScan(resume, most_ranges), trace.tasks())


@dataclass(frozen=True, slots=True)
class _ScanHere:
    """Scans parts, their ranges in memory; in `files` only what is too much of them."""

    files: Scratch
    most_ranges: int

    def __call__(self, task: PartTask) -> Scanned:
        with nvtx.annotate("scan part", domain="depgraph"):
            overflow = FileOverflow(lambda: self.files.new_file("part"), self.most_ranges)
            return task.scan(overflow), overflow.runs


def _extraction_of(
    collector: Collector, result: ShardResult, options: dict[str, Any]
) -> Extraction:
    numbers = collector.numbers

    def graph_of(swept: list[SetPairs]) -> BlockGraph:
        graph = build_graph(swept, numbers.first_block, numbers.kernel, collector.frees)
        return graph.with_kinds(options["kinds"])

    graph = graph_of(result.exact)
    options = {**options, "kinds": sorted(graph.kinds)}
    false_edges = None
    if result.rounded:
        exact, graph = graph, graph_of(result.rounded)
        false_edges = graph.count_edges_not_in(exact)
    accesses, instructions, durations = collector.counts()
    counts = BlockCounts(accesses, instructions, *result.block_bytes)
    rows = kernel_rows(collector, counts, result)
    copies = _copy_rows(numbers)
    names = {copy.number: copy.what for copy in copies}
    graph = replace(graph, space=collector.space, copies=names)
    if result.possible or any(kernel.leaves_open for kernel in rows):
        from depgraph.dependence.possible import with_possible_joins, with_possible_writes

        graph = with_possible_joins(graph, rows)
        graph = with_possible_writes(graph, result.possible, rows)
    return Extraction(
        kernels=rows,
        copies=copies,
        allocations=collector.allocations,
        host_calls=[] if options["kernels"] else collector.total.host_calls,
        counts=counts,
        footprints=result.footprints,
        graph=replace(
            graph,
            cost=counts.cost,
            resources=launch_resources(rows, graph.n_operations),
            duration=durations,
            duration_unit="cycles",
        ),
        metadata={
            "format": collector.trace.format,
            "sources": [describe_source(path) for path in collector.trace.sources.paths],
            "options": options,
            "lines": collector.total.lines,
            "input_bytes": collector.total.bytes,
            "text_bytes": collector.total.text_bytes,
            "opcodes": dict(sorted(collector.total.opcodes.items())),
            "skipped": dict(collector.total.skipped.most_common()),
            "warnings": dict(collector.total.warnings.most_common()),
            "blind_spots": list(collector.trace.blind_spots),
            "false_edges": false_edges,
            "address_spaces": None if collector.space is None else collector.space.tolist(),
            "remarks": remarks(rows),
        },
    )


def _copy_rows(numbers: BlockNumbers) -> list[Copy]:
    first_block = numbers.first_block.tolist()
    return [
        Copy(
            copy=-1 - int(kernel),
            operation=operation,
            block=first_block[operation],
            **asdict(copy),
        )
        for operation, (kernel, copy) in enumerate(
            zip(numbers.kernel, numbers.operations, strict=True)
        )
        if isinstance(copy, MemoryOperation)
    ]


def describe_source(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file; above 64 MiB of its first and last 4 MiB."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= _MOST_HASHED_BYTES:
            digest.update(file.read())
        else:
            digest.update(file.read(_HASHED_END_BYTES))
            file.seek(-_HASHED_END_BYTES, os.SEEK_END)
            digest.update(file.read())
    return {
        "path": str(path),
        "size": size,
        "sha256": digest.hexdigest(),
        "hashed": "all" if size <= _MOST_HASHED_BYTES else "first and last 4 MiB",
    }
