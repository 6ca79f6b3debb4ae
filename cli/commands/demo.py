"""``depgraph demo``: the main job on a packaged real trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from depgraph.cli.options.model import read_times, warn
from depgraph.cli.options.shared import (
    Command,
    details_option,
    force_option,
    print_report,
    say,
    wants_details,
    wrote,
)
from depgraph.cli.options.values import PATH, SMS

if TYPE_CHECKING:
    from depgraph.analysis.next_steps import Step

_PAIRS_SHOWN = 6


@click.command("demo", cls=Command)
@click.option(
    "-o", "--output", type=PATH, default="depgraph-demo.out",
    show_default=True, metavar="STORE", help="Store to write.",
)  # fmt: skip
@click.option("--sms", default=80, show_default=True, type=SMS, help="SM count.")
@details_option
@force_option
def command(output: Path, sms: int, *, force: bool) -> None:
    """Run the main job on a packaged real trace.

    The trace is what NVBit's mem_trace printed on an H100 for a training step of a small GRU cell
    in PyTorch: 25 kernels, 189 thread blocks. The times are what PyTorch's profiler measured of
    the same program.
    """
    from dataclasses import replace

    from depgraph.analysis.answer import answer_bound
    from depgraph.cli.progress import PhaseClock
    from depgraph.extraction.pipeline import analyse
    from depgraph.parsers import open_trace
    from depgraph.reports.tables.answer_report import answer_report
    from depgraph.reports.tables.trace_reports import extract_summary
    from depgraph.samples import KERNEL_TIMES, sample_path
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.tables import not_a_store
    from depgraph.store.writer import write_store
    from depgraph.system.output import refuse_existing
    from depgraph.system.text import counted

    force = force or _is_own_demo(output)
    refuse_existing(output, force=force, not_ours=not_a_store)
    trace, times = sample_path(), sample_path(KERNEL_TIMES)
    say(f"$ depgraph extract {trace} -o {output}")
    with analyse(open_trace(trace), on_phase=PhaseClock()) as extraction:
        store = write_store(extraction, output, force=force)
    summary = extract_summary(extraction, pairs_shown=_PAIRS_SHOWN)
    if wants_details():
        print_report(summary, "table")
    else:
        edges = counted(summary.facts["edges"], "edge")
        click.echo(f"{summary.headline[0]}, {edges}")
    click.echo()
    say(f"$ depgraph bound {output} --sms {sms} --timing {times}")
    request = Request(times=times, read_profile=read_times)
    scenario = Scenario.of_store(store, request, tell=warn)
    found = answer_bound(scenario, [sms])
    print_report(replace(answer_report(found), steps=_steps(output)), "table")
    wrote(output)


def _steps(store: Path) -> list[Step]:
    from depgraph.analysis.next_steps import Step

    return [
        Step("where the time of the critical path goes:", f"depgraph show {store} path"),
        Step("which memory keeps kernels apart:", f"depgraph show {store} buffers"),
        Step("what each mechanism would reach, on a page:", f"depgraph report {store} --sms 80"),
    ]


def _is_own_demo(output: Path) -> bool:
    """Tell whether a store was made by an earlier demo, and so may be replaced."""
    from depgraph.errors import StoreError
    from depgraph.samples import NVBIT_TRACE
    from depgraph.store.store import Store

    try:
        sources = Store(output).metadata["sources"]
    except StoreError:
        return False
    return len(sources) == 1 and str(sources[0]["path"]).endswith(NVBIT_TRACE)
