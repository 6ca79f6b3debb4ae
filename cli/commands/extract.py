"""``depgraph extract``: trace to store."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options import shared, values

if TYPE_CHECKING:
    from depgraph.graph.program import Extraction


_OF_TRACES = {
    "granularity", "kernels", "memory_limit", "resume", "scheduler", "positions", "allow_outside",
    "allow_damaged", "allow_empty", "memory_profile",
}  # fmt: skip


_OF_ANALYSIS = ("kernels", "jobs", "memory_limit", "allow_damaged", "allow_empty")


@click.command("extract", cls=shared.Command)
@click.argument("trace", nargs=-1, required=True)
@shared.output_option
@click.option(
    "--granularity", type=click.Choice(["1", "32", "128"]), default="1", show_default=True,
    help="Track bytes, 32-byte sectors or 128-byte lines. Above 1, false sharing adds edges.",
)  # fmt: skip
@shared.deps_option
@click.option(
    "--kernels", type=values.KERNEL_RANGE, default=(None, None), metavar="A:B",
    help="Only kernels A to B - 1, in launch order from 0.",
)  # fmt: skip
@shared.jobs_option
@click.option(
    "--memory-limit", type=values.size(), metavar="SIZE",
    help="Memory limit, such as 512MiB or 8GiB [default: half of what is free]. "
    "Footprints beyond it are spilled to files beside the store.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Keep scanned parts in STORE.partial until the store is written, and reuse those that an "
    "interrupted run left there.",
)  # fmt: skip
@click.option(
    "--scheduler", metavar="ADDRESS",
    help="Run on the workers of a dask scheduler (tcp://host:port), or on local:N processes. "
    "They must see the trace and the folder of the store under the same paths.",
)  # fmt: skip
@click.option(
    "--positions", is_flag=True,
    help="Find where inside blocks dependences are needed, by reading an NVBit log again.",
)  # fmt: skip
@click.option(
    "--memory-profile", metavar="FILE", type=values.PATH,
    help="Of a recorded PyTorch program: what its caching allocator did, from a trace of "
    "torch.profiler with profile_memory=True.",
)  # fmt: skip
@shared.outside_option
@click.option(
    "--allow-damaged", is_flag=True,
    help="Use what is readable of a cut or damaged trace; what was lost is counted.",
)  # fmt: skip
@shared.empty_option
@shared.force_option
@shared.details_option
@shared.format_option
def command(
    trace: tuple[str, ...], output: Path, kinds: frozenset[str] | None, force: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Read a trace, find which block depends on which, write a store.

    TRACE is the standard output of a program under NVBit's mem_trace, an Accel-Sim trace (a
    folder, a kernelslist or kernel files), or a simulator's log with memory lines; plain or
    compressed (xz, gz, zst). - reads standard input. FILE.toml describes a program instead of
    tracing it.
    """
    from depgraph.cli.progress import PhaseClock, input_progress
    from depgraph.extraction.pipeline import analyse
    from depgraph.graph.dependences import ALL_KINDS
    from depgraph.parsers import open_trace
    from depgraph.parsers.recording.trace import Recording
    from depgraph.parsers.workload import is_workload
    from depgraph.store.store import write_store
    from depgraph.store.tables import not_a_store
    from depgraph.system.cluster import cluster_workers
    from depgraph.system.output import refuse_existing, stable_path

    output = stable_path(output)
    refuse_existing(output, force=force, not_ours=not_a_store)
    began = time.perf_counter()
    if any(map(is_workload, trace)):
        if len(trace) > 1:
            message = f"a described program is one file: {len(trace)} inputs were given"
            raise click.UsageError(message)
        if given := [words[0] for words in shared.given_options(_OF_TRACES)]:
            raise click.UsageError(f"{', '.join(given)}: for traces, not for described programs")
        _extract_workload(Path(trace[0]), output, kinds or ALL_KINDS, force=force)
        return
    positions, memory_profile = options["positions"], options["memory_profile"]
    if positions and options["granularity"] != "1":
        raise click.UsageError("--positions needs --granularity 1")
    clock = PhaseClock()
    partial = output.with_name(f"{output.name}.partial") if options["resume"] else None
    opened = open_trace(
        trace, allow_outside=options["allow_outside"], memory_limit=options["memory_limit"]
    )
    if memory_profile is not None:
        if not isinstance(opened, Recording):
            message = "--memory-profile goes with a recording (depgraph record --keep)"
            raise click.UsageError(message)
        opened.take_memory_profile(memory_profile)
    scheduler = options["scheduler"]
    with (
        cluster_workers(scheduler) if scheduler else nullcontext() as workers,
        input_progress(opened.input_bytes, quiet=shared.is_quiet()) as on_progress,
    ):
        extraction = analyse(
            opened,
            granularity=int(options["granularity"]),
            kinds=kinds or ALL_KINDS,
            workers=workers,
            scratch=output.absolute().parent,
            resume=partial,
            on_progress=on_progress,
            on_phase=clock,
            **{name: options[name] for name in _OF_ANALYSIS},
        )
    with extraction:
        if positions:
            from depgraph.dependence.positions import with_positions
            from depgraph.parsers.nvbit.positions import read_positions

            clock("positions")
            extraction = with_positions(extraction, read_positions(opened, extraction))
        clock("write")
        write_store(extraction, output, force=force, place_checked=True)
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    clock(None)
    print_summary(extraction, output, seconds=time.perf_counter() - began)
    shared.wrote(output)


def print_summary(extraction: Extraction, store: Path, *, seconds: float | None = None) -> None:
    """Print what an extraction has found."""
    from depgraph.reports.tables.trace_reports import extract_summary

    shared.print_report(extract_summary(extraction, seconds=seconds, store=store))


def _extract_workload(path: Path, output: Path, kinds: frozenset[str], *, force: bool) -> None:
    from dataclasses import replace

    from depgraph.parsers.workload import read_workload
    from depgraph.store.store import write_store

    extraction = read_workload(path)
    extraction = replace(extraction, graph=extraction.graph.with_kinds(kinds))
    write_store(extraction, output, force=force, place_checked=True)
    print_summary(extraction, output)
    shared.wrote(output)
