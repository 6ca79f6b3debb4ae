"""``depgraph record``: a program on the GPU of this machine, recorded into a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from depgraph.cli.options.shared import (
    DEFAULT_STORE,
    STORE_VARIABLE,
    Command,
    force_option,
    format_option,
    is_quiet,
    print_report,
    say,
    wrote,
)
from depgraph.cli.options.values import KernelRange

if TYPE_CHECKING:
    from depgraph.recorder.leavings import Leavings
    from depgraph.recorder.run import Selection
    from depgraph.recorder.times import Events
    from depgraph.recorder.toolkit import Toolkit

# What C++, in which the recorder reads the pattern, does not know.
_PYTHON_ONLY = re.compile(r"(?<!\\)(?:\\\\)*\(\?[^:=!]")


def _size(_: click.Context, __: click.Parameter, value: str) -> int:
    from depgraph.errors import ModelError
    from depgraph.recorder.run import MOST_GPU_MEMORY
    from depgraph.system.memory import parse_size

    try:
        size = parse_size(value)
    except ModelError as error:
        raise click.BadParameter(str(error)) from None
    if size > MOST_GPU_MEMORY:
        message = f"{value!r} is too much: give at most {MOST_GPU_MEMORY >> 30}GiB"
        raise click.BadParameter(message)
    return size


def _pattern(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        message = f"{value!r} is no regular expression: {error}"
        raise click.BadParameter(message) from None
    if _PYTHON_ONLY.search(value):
        message = f"{value!r}: of what begins with (? only (?:, (?= and (?! are known"
        raise click.BadParameter(message)
    return value


@click.command("record", cls=Command, context_settings={"ignore_unknown_options": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=DEFAULT_STORE, show_default=True,
    envvar=STORE_VARIABLE, metavar="STORE", help="Folder to write.",
)  # fmt: skip
@click.option(
    "--kernels", type=KernelRange(), default=(None, None), metavar="A:B",
    help="Only launches A to B - 1, from 0; the others run untouched.",
)  # fmt: skip
@click.option(
    "--name", default="", callback=_pattern, metavar="REGEX",
    help="Only kernels whose name holds this.",
)  # fmt: skip
@click.option(
    "--region", type=click.Choice(["all", "profiler"]), default="all", show_default=True,
    help="profiler: only between cudaProfilerStart and cudaProfilerStop.",
)  # fmt: skip
@click.option(
    "--gpu-memory", default="1GiB", show_default=True, callback=_size, metavar="SIZE",
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
@click.option("--doctor", is_flag=True, help="Say what of CUDA is found here, and what is missing.")
@force_option
@format_option
def command(
    program: tuple[str, ...],
    output: Path,
    kernels: tuple[int | None, int | None],
    name: str,
    region: str,
    gpu_memory: int,
    keep: Path | None,
    no_time: bool,
    doctor: bool,
    force: bool,
    form: str,
) -> None:
    """Run a program on this machine's GPU, record what it touches, write a store.

    \b
      depgraph record -- python train.py
      depgraph bound --sms 80

    The program runs twice: as it is, for the times of its kernels, which bound and the others
    then use; and with its kernels patched, through NVIDIA's Compute Sanitizer API. Copies and
    memsets are recorded, too. It must do the same both times.
    """  # noqa: D301 - click takes the character, not two of them
    from depgraph.apply.recorded import captures_of
    from depgraph.recorder.run import Selection
    from depgraph.recorder.times import take_times, write_times
    from depgraph.recorder.toolkit import Toolkit
    from depgraph.reports.tables.recorder_tables import doctor_report
    from depgraph.store.files import not_a_store, times_of
    from depgraph.system.output import new_file, refuse_existing, stable_path
    from depgraph.system.work_folder import WorkFolder

    toolkit = Toolkit()
    if doctor:
        print_report(doctor_report(toolkit.found), form)
        click.get_current_context().exit(not all(each.what for each in toolkit.found))
    if not program:
        message = "give the program behind --, such as: depgraph record -- python train.py"
        raise click.UsageError(message)
    selection = Selection(kernels[0], kernels[1], name, region == "profiler", gpu_memory)
    toolkit.check(without="CUPTI" if no_time else "")
    output = stable_path(output)
    refuse_existing(output, force=force, not_ours=not_a_store)
    for path in (captures_of(output), *(() if no_time else (times_of(output),))):
        refuse_existing(path, force=force)
    if keep is not None:
        if stable_path(keep).absolute() in {output.absolute(), times_of(output).absolute()}:
            message = f"--keep {keep}: the store or its times go there; name another file"
            raise click.UsageError(message)
        refuse_existing(keep, force=force)
    folder = WorkFolder(output.absolute().parent, "recording")
    try:
        timed = [] if no_time else _times(program, toolkit, folder.path, selection)
        code, processes = _recorded(program, toolkit, folder.path, selection)
        for left in processes:
            several = len(processes) > 1
            store = output.with_name(f"{output.name}-{left.process}") if several else output
            kept = keep.with_name(f"{keep.name}-{left.process}") if keep and several else keep
            events = take_times(timed, left.events)
            scratch = folder.path / "recording"
            identity = _write(left, program, store, kept, scratch, form, force=force)
            if events:
                path = times_of(store)
                gpus = [name for name, _ in toolkit.gpus]
                with new_file(path, force=force) as made:
                    write_times(made, events, gpus, store=identity)
                wrote(path)
            elif not no_time:
                say(f"depgraph: {store}: the run for the times launched none of these kernels")
            _keep_captures(left, folder.path, store, force=force)
    finally:
        folder.remove()
    click.get_current_context().exit(code)


def _keep_captures(left: Leavings, folder: Path, store: Path, *, force: bool) -> None:
    """Keep the CUDA graphs that a program captured for `depgraph apply`."""
    from depgraph.apply.recorded import captures_left, captures_of
    from depgraph.system.output import new_file

    found = captures_left(folder, left.process)
    if not found.is_file():
        return
    with new_file(captures_of(store), force=force) as made:
        made.write_bytes(found.read_bytes())
    wrote(captures_of(store))


def _times(
    program: tuple[str, ...], toolkit: Toolkit, folder: Path, selection: Selection
) -> list[Events]:
    """Run the program for the times of the kernels of each process."""
    from depgraph.errors import RecorderError
    from depgraph.recorder.build import Builder
    from depgraph.recorder.run import time
    from depgraph.recorder.times import timed_in

    code = time(program, Builder(toolkit).timer(), folder)
    if code:
        raise RecorderError(
            f"{program[0]} ended with exit code {code} before anything was recorded",
            "it must run by itself",
        )
    return timed_in(folder, selection)


def _recorded(
    program: tuple[str, ...], toolkit: Toolkit, folder: Path, selection: Selection
) -> tuple[int, list[Leavings]]:
    """Run the program under the recorder; return its exit code and what its processes left."""
    from depgraph.errors import RecorderError
    from depgraph.recorder.build import Builder
    from depgraph.recorder.leavings import first_fault_in, leavings_in
    from depgraph.recorder.run import record

    builder = Builder(toolkit)
    patch = builder.patch(toolkit.gpus[0][1])
    code = record(program, builder.recorder(), patch, folder, selection)
    processes = leavings_in(folder)
    if not processes:
        if fault := first_fault_in(folder):
            raise RecorderError(f"the recorder failed ({fault})", "depgraph record --doctor")
        ended = f", and ended with exit code {code}" if code else ""
        raise RecorderError(
            f"{program[0]} launched no kernel that was to be recorded{ended}",
            "look at --kernels, --name and --region, and whether it runs on the GPU",
        )
    return code, processes


def _write(
    left: Leavings,
    program: tuple[str, ...],
    output: Path,
    kept: Path | None,
    scratch: Path,
    form: str,
    *,
    force: bool,
) -> str:
    """Pack what a process has left, and extract it into a store; return the store's identity."""
    from depgraph.cli.commands.extract import print_summary
    from depgraph.cli.progress import input_progress
    from depgraph.extraction.pipeline import analyse
    from depgraph.parsers import open_trace
    from depgraph.parsers.recording.archive import pack
    from depgraph.store.writer import write_store
    from depgraph.system.output import new_file

    about = {
        "process": left.process,
        "architecture": left.architecture,
        "program": list(program),
    }
    if kept is None:
        pack(scratch, about, left.events, left.tables, compress=False)
    else:
        with new_file(kept, force=force) as made:
            pack(made, about, left.events, left.tables)
        wrote(kept)
    path = kept or scratch
    opened = open_trace(path)
    with input_progress(opened.input_bytes, quiet=is_quiet()) as on_progress:
        extraction = analyse(opened, scratch=output.parent, on_progress=on_progress)
    with extraction:
        store = write_store(extraction, output, force=force)
    print_summary(extraction, form)
    wrote(output)
    return store.identity
