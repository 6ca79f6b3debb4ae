"""``depgraph record``: a program on the GPU of this machine, recorded into a store."""

import re
from pathlib import Path
from typing import Any

import click

from depgraph.cli.options import shared, values
from depgraph.recorder.run import MOST_GPU_MEMORY
from depgraph.system.text import LARGEST_ID

# What C++, in which the recorder reads the pattern, does not know.
_PYTHON_ONLY = re.compile(r"(?<!\\)(?:\\\\)*\(\?[^:=!]")


def _pattern(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from None
    if _PYTHON_ONLY.search(value):
        message = f"{value!r}: of what begins with (? only (?:, (?= and (?! are known"
        raise click.BadParameter(message)
    return value


@click.command("record", cls=shared.Command, context_settings={"ignore_unknown_options": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@shared.output_option
@click.option(
    "--kernels", type=values.KERNEL_RANGE, default=(None, None), metavar="A:B",
    help="Only launches A to B - 1, from 0; the others run untouched.",
)  # fmt: skip
@click.option(
    "--name", default="", callback=_pattern, metavar="REGEX",
    help="Only kernels whose name holds this.",
)  # fmt: skip
@click.option(
    "--nvtx", default="", metavar="RANGE",
    help="Only kernels launched inside an NVTX range of this name.",
)  # fmt: skip
@click.option(
    "--skip", type=values.whole(0, LARGEST_ID), metavar="N",
    help="Leave out the first N of the kernels that the other options choose.",
)  # fmt: skip
@click.option(
    "--count", type=values.whole(1, LARGEST_ID), metavar="N",
    help="Record N of them at most.",
)  # fmt: skip
@click.option(
    "--region", type=click.Choice(["all", "profiler"]), default="all", show_default=True,
    help="profiler: only between cudaProfilerStart and cudaProfilerStop.",
)  # fmt: skip
@click.option(
    "--gpu-memory", type=values.size(most=MOST_GPU_MEMORY), metavar="SIZE",
    show_default="an eighth of the GPU's, at least 1GiB",
    help="GPU memory for what one launch, or one CUDA graph, touches.",
)  # fmt: skip
@click.option(
    "--keep", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Keep the recording, too: depgraph extract FILE reads it, on any machine.",
)  # fmt: skip
@click.option(
    "--no-time", is_flag=True,
    help="Do not run the program a first time, unrecorded, for the times of its kernels.",
)  # fmt: skip
@click.option(
    "--time-only", is_flag=True,
    help="Only time the program: write STORE.times.json, for the store that is there.",
)  # fmt: skip
@click.option(
    "--block-times", is_flag=True,
    help="Also run the program for when each block begins and ends, and on which SM.",
)  # fmt: skip
@click.option("--doctor", is_flag=True, help="Say what of CUDA is found here, and what is missing.")
@shared.force_option
@shared.details_option
@shared.format_option
def command(
    program: tuple[str, ...], output: Path, keep: Path | None, force: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Run a program on this machine's GPU, record what it touches, write a store.

    \b
      depgraph record -- python train.py
      depgraph bound --sms 80

    The program runs twice: as it is, for the times of its kernels, which bound and the others
    then use; and with its kernels patched, through NVIDIA's Compute Sanitizer API. Copies and
    memsets are recorded, too. It must do the same both times.
    """  # noqa: D301 - click takes the character, not two of them
    from depgraph.recorder.run import Selection
    from depgraph.recorder.toolkit import Toolkit
    from depgraph.reports.tables.machine_tables import doctor_report
    from depgraph.system.output import WorkFolder, stable_path

    toolkit = Toolkit()
    if options["doctor"]:
        shared.print_report(doctor_report(toolkit.requirements, toolkit.helpers))
        click.get_current_context().exit(not all(each.what for each in toolkit.requirements))
    if not program:
        message = "give the program behind --, such as: depgraph record -- python train.py"
        raise click.UsageError(message)
    from depgraph.cli.recording import Recording, labels

    first, end = options["kernels"]
    selection = Selection(
        first=first,
        end=end,
        in_region=options["region"] == "profiler",
        gpu_memory=options["gpu_memory"] or toolkit.table_bytes,
        **{name: options[name] for name in ("name", "nvtx", "skip", "count")},
    )
    no_time, time_only, block_times = (
        options[name] for name in ("no_time", "time_only", "block_times")
    )
    if time_only and (no_time or keep or selection.chooses):
        message = "--time-only times every kernel, of a --region or of all: leave out what chooses"
        raise click.UsageError(message)
    if block_times and no_time:
        raise click.UsageError("--block-times go with the times of kernels: leave out --no-time")
    task = Recording(program, toolkit, stable_path(output), keep, selection, force=force)
    toolkit.check(without="CUPTI" if no_time else "")
    task.refuse_existing(store=not time_only, times=not no_time)
    native = task.compiled(times=not no_time, blocks=block_times, recorder=not time_only)
    folder = WorkFolder(task.output.absolute().parent, "recording")
    code = 0
    try:
        timed = [] if no_time else task.timed(native, folder.path)
        runs = task.block_times(native, folder.path / "blocks") if block_times else None
        if time_only:
            task.write_times_alone(timed, runs)
        else:
            code, found = task.recorded(native, folder.path)
            for left, label in zip(found, labels(found), strict=True):
                scratch = folder.path / "recording"
                task.write(left, label, None if no_time else timed, runs, scratch)
    finally:
        folder.remove()
    click.get_current_context().exit(code)
