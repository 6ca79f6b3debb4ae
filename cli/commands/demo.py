"""``depgraph demo``: the main job on a packaged real trace."""

from dataclasses import replace
from pathlib import Path

import click

from depgraph.analysis.next_steps import Step
from depgraph.cli.options import model, shared, values

_PAIRS_SHOWN = 6


@click.command("demo", cls=shared.Command)
@click.option(
    "-o", "--output", type=values.PATH, default="depgraph-demo.out",
    show_default=True, metavar="STORE", help="Store to write.",
)  # fmt: skip
@click.option("--sms", default=80, show_default=True, type=values.SMS, help="SM count.")
@shared.details_option
@shared.force_option
def command(output: Path, sms: int, *, force: bool) -> None:
    """Run the main job on a packaged real trace.

    The trace is what NVBit's mem_trace printed on an H100 for a training step of a small GRU cell
    in PyTorch: 25 kernels, 189 thread blocks. The times are what PyTorch's profiler measured of
    the same program.
    """
    from depgraph.analysis.answer import answer_bound
    from depgraph.cli.progress import PhaseClock
    from depgraph.extraction.pipeline import analyse
    from depgraph.parsers import open_trace
    from depgraph.reports.tables.answer_report import answer_report
    from depgraph.reports.tables.trace_reports import extract_summary
    from depgraph.samples import KERNEL_TIMES, sample_path
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.store import write_store
    from depgraph.store.tables import not_a_store
    from depgraph.system.output import refuse_existing
    from depgraph.system.text import counted

    force = force or _is_own_demo(output)
    refuse_existing(output, force=force, not_ours=not_a_store)
    trace, times = sample_path(), sample_path(KERNEL_TIMES)
    shared.say(f"$ depgraph extract {trace} -o {output}")
    with analyse(open_trace(trace), on_phase=PhaseClock()) as extraction:
        store = write_store(extraction, output, force=force)
    summary = extract_summary(extraction).cut(_PAIRS_SHOWN)
    if shared.wants_details():
        shared.print_report(summary)
    else:
        edges = counted(summary.facts["edges"], "edge")
        click.echo(f"{summary.headline[0]}, {edges}")
    click.echo()
    shared.say(f"$ depgraph bound {output} --sms {sms} --timing {times}")
    request = Request(times=times, read_profile=model.read_times)
    scenario = Scenario.of_store(store, request, tell=model.warn)
    found = answer_bound(scenario, [sms])
    shared.print_report(replace(answer_report(found), steps=_steps(output)))
    shared.wrote(output)


def _steps(store: Path) -> list[Step]:
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
