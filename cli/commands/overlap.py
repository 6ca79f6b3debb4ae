"""``depgraph overlap``: computation beside communication, from profiles."""

from pathlib import Path

import click

from depgraph.cli.options import shared, values


@click.command("overlap", cls=shared.Command)
@click.argument("profiles", nargs=-1, required=True, type=values.PATH, metavar="PROFILE...")
@click.option(
    "--isolated", multiple=True, type=values.PATH, metavar="PROFILE",
    help="Where the same kernels ran with nothing of the other side beside them: one for all "
    "ranks, or one each.",
)  # fmt: skip
@click.option(
    "--communication", metavar="REGEX",
    help="How names of further kernels begin that communicate, besides those of NCCL, RCCL, "
    "MSCCL, NVSHMEM and of libraries with collectives of their own.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(1), metavar="N", default=40, show_default=True,
              help="Iterations to show in a table; JSON and CSV have all.")  # fmt: skip
@shared.details_option
@shared.format_option
def command(
    *,
    profiles: tuple[Path, ...],
    isolated: tuple[Path, ...],
    communication: str | None,
    rows: int,
) -> None:
    """Say how much communication ran beside computation, and what that gained.

    PROFILE is a PyTorch profiler trace or an Nsight Systems export, one a rank, or one of all; no
    memory-access trace is needed. For each step that the program marked (ProfilerStep, NVTX ranges
    called step, iteration or batch): computation and communication alone, serial, their sum, ideal,
    the larger of both, the time they took, the speedup over serial, its share of the ideal one, the
    communication that no computation hid, and how many SMs collectives took. Kernels of NCCL and
    RCCL and copies between GPUs are communication. Shares above 100 % are not cut off.
    """
    from depgraph.analysis.communication_overlap import overlapped
    from depgraph.parsers.profiles import read_kernel_profile
    from depgraph.reports.tables.side_by_side_tables import overlap_report

    measured = [[read_kernel_profile(path) for path in paths] for paths in (profiles, isolated)]
    found = overlapped(*measured, communication=communication)
    shared.print_report(overlap_report(found, rows))
