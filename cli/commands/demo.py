"""``depgraph demo``: the main job on a packaged real trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from depgraph.cli.options.model import read_times, warn
from depgraph.cli.options.shared import Command, force_option, print_report, say, wrote
from depgraph.cli.options.values import SMS

if TYPE_CHECKING:
    from depgraph.analysis.bound import BoundTable

_PAIRS_SHOWN = 6


@click.command("demo", cls=Command)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="depgraph-demo.out",
    show_default=True, metavar="STORE", help="Store to write.",
)  # fmt: skip
@click.option("--sms", default=80, show_default=True, type=SMS, help="SM count.")
@force_option
def command(output: Path, sms: int, *, force: bool) -> None:
    """Run the main job on a packaged real trace.

    The trace is what NVBit's mem_trace printed on an H100 for a training step of a small GRU cell
    in PyTorch: 25 kernels, 189 thread blocks. The times are what PyTorch's profiler measured of
    the same program.
    """
    from dataclasses import replace

    from depgraph.analysis.answer import answer_bound
    from depgraph.cli.phases import PhaseClock
    from depgraph.extraction.pipeline import analyse
    from depgraph.parsers import open_trace
    from depgraph.reports.tables.answer_report import answer_report
    from depgraph.reports.tables.extract_summary import extract_summary
    from depgraph.samples import KERNEL_TIMES, sample_path
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.files import not_a_store
    from depgraph.store.writer import write_store
    from depgraph.system.output import refuse_existing

    force = force or _is_own_demo(output)
    refuse_existing(output, force=force, not_ours=not_a_store)
    trace, times = sample_path(), sample_path(KERNEL_TIMES)
    say(f"$ depgraph extract {trace} -o {output}")
    with analyse(open_trace(trace), on_phase=PhaseClock()) as extraction:
        store = write_store(extraction, output, force=force)
    print_report(extract_summary(extraction, pairs_shown=_PAIRS_SHOWN), "table")
    click.echo()
    say(f"$ depgraph bound {output} --sms {sms} --timing {times}")
    request = Request(times=times, read_profile=read_times)
    scenario = Scenario.of_store(store, request, tell=warn)
    found = answer_bound(scenario, [sms])
    # The next steps of the demo stand below.
    print_report(replace(answer_report(found), steps=()), "table")
    click.echo(_in_short(found.table, output))
    wrote(output)


def _in_short(table: BoundTable, output: Path) -> str:
    everything, raw = table.bounds[0], table.bounds[-1]
    return (
        f"\nIn short: with a barrier between kernels, this step takes {everything.serial:.1f} "
        f"{table.unit} on the GPU.\nIf each block started once the blocks it needs have ended, it "
        f"could be {everything.upper_bound:.2f} times as fast,\n"
        f"and {raw.upper_bound:.2f} times if no buffer were ever reused. No schedule "
        "can do better while blocks take as long.\n\nNext:\n"
        f"  depgraph show {output} path    where the time of the critical path goes\n"
        f"  depgraph show {output} buffers    which memory keeps kernels apart\n"
        f"  depgraph bound {output} --sms 80 --mechanism all    what each mechanism would reach\n"
        f"  depgraph report {output} --sms 80    plots and an HTML page"
    )


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
