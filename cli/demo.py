"""``depgraph demo``: the main job on a packaged real trace."""

from __future__ import annotations

from pathlib import Path

import click

from depgraph.cli.options import Command, force_option, print_report, say, wrote


@click.command("demo", cls=Command)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="depgraph-demo.out",
    show_default=True, metavar="STORE", help="Store to write.",
)  # fmt: skip
@click.option("--sms", default=80, show_default=True, type=click.IntRange(1), help="SM count.")
@force_option
def command(output: Path, sms: int, force: bool) -> None:
    """Run the main job on a packaged real trace.

    The trace is what NVBit's mem_trace printed on an H100 for two training steps of a small GRU
    cell in PyTorch: 25 kernels, 189 thread blocks.
    """
    from depgraph.bounds import bound
    from depgraph.graph import ALL_KINDS
    from depgraph.output import refuse_existing
    from depgraph.parsers import open_trace
    from depgraph.pipeline import analyse
    from depgraph.reports.bound_table import bound_report
    from depgraph.reports.extract_summary import extract_summary
    from depgraph.samples import sample_path
    from depgraph.store import write_store

    if output.exists() and not force:
        force = _is_own_demo(output)
    refuse_existing(output, force=force)
    trace = sample_path()
    say(f"$ depgraph extract {trace} -o {output}")
    extraction = analyse(open_trace(trace), kinds=ALL_KINDS)
    store = write_store(extraction, output, force=force)
    print_report(extract_summary(extraction, pairs_shown=8), "table")
    click.echo()
    say(f"$ depgraph bound {output} --sms {sms}")
    graph = store.graph()
    table = bound(graph, sms)
    print_report(bound_report(table), "table")
    everything, raw = table.bounds[0], table.bounds[-1]
    click.echo(
        f"\nIn short: run kernel after kernel, the program takes {everything.serial:.0f} "
        f"{table.unit}.\nStarting each block as soon as the blocks it needs have ended could make "
        f"it {everything.gain:.2f} times as fast,\nand {raw.gain:.2f} times if no buffer were ever "
        f"reused. Next: depgraph show {output} path"
    )
    wrote(output)


def _is_own_demo(output: Path) -> bool:
    """Tell whether a store was made by an earlier demo, and so may be replaced."""
    from depgraph.errors import StoreError
    from depgraph.samples import NVBIT_TRACE
    from depgraph.store import Store

    try:
        sources = Store(output).metadata["sources"]
    except StoreError:
        return False
    return len(sources) == 1 and sources[0]["path"].endswith(NVBIT_TRACE)
