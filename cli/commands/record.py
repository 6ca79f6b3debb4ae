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
    wrote,
)
from depgraph.cli.options.values import KernelRange

if TYPE_CHECKING:
    from depgraph.recorder.leavings import Leavings
    from depgraph.recorder.run import Selection


def _size(_: click.Context, __: click.Parameter, value: str) -> int:
    from depgraph.errors import ModelError
    from depgraph.system.memory import parse_size

    try:
        return parse_size(value)
    except ModelError as error:
        raise click.BadParameter(str(error)) from None


def _pattern(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        message = f"{value!r} is no regular expression: {error}"
        raise click.BadParameter(message) from None
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
    doctor: bool,
    force: bool,
    form: str,
) -> None:
    """Record what each block of a program touches, on the GPU of this machine, into a store.

    \b
      depgraph record -- python train.py
      depgraph bound --sms 80

    The program runs as it is, its kernels patched by NVIDIA's Compute Sanitizer API. Copies and
    memsets are recorded, too.
    """
    from depgraph.recorder.run import Selection
    from depgraph.recorder.toolkit import Toolkit

    toolkit = Toolkit()
    if doctor:
        _show_doctor(toolkit, form)
        return
    if not program:
        message = "give the program behind --, such as: depgraph record -- python train.py"
        raise click.UsageError(message)
    selection = Selection(kernels[0], kernels[1], name, region == "profiler", gpu_memory)
    code = _record(program, toolkit, selection, output, keep, form, force=force)
    click.get_current_context().exit(code)


def _show_doctor(toolkit: object, form: str) -> None:
    from depgraph.recorder.toolkit import Toolkit
    from depgraph.reports.tables.recorder_tables import doctor_report

    assert isinstance(toolkit, Toolkit)
    print_report(doctor_report(toolkit.found), form)
    if not all(each.what for each in toolkit.found):
        click.get_current_context().exit(1)


def _record(
    program: tuple[str, ...],
    toolkit: object,
    selection: Selection,
    output: Path,
    keep: Path | None,
    form: str,
    *,
    force: bool,
) -> int:
    from depgraph.errors import RecorderError
    from depgraph.recorder.build import build
    from depgraph.recorder.leavings import leavings_in
    from depgraph.recorder.run import run
    from depgraph.recorder.toolkit import Toolkit
    from depgraph.store.files import not_a_store
    from depgraph.system.output import refuse_existing, stable_path
    from depgraph.system.work_folder import WorkFolder

    assert isinstance(toolkit, Toolkit)
    toolkit.check()
    output = stable_path(output)
    refuse_existing(output, force=force, not_ours=not_a_store)
    native = build(toolkit, toolkit.gpus[0][1])
    folder = WorkFolder(output.absolute().parent, "recording")
    try:
        code = run(program, native, folder.path, selection)
        processes = leavings_in(folder.path)
        if not processes:
            ended = f", and ended with exit code {code}" if code else ""
            raise RecorderError(
                f"{program[0]} launched no kernel that was to be recorded{ended}",
                "look at --kernels, --name and --region, and whether it runs on the GPU",
            )
        for left in processes:
            several = len(processes) > 1
            store = output.with_name(f"{output.name}-{left.process}") if several else output
            kept = keep.with_name(f"{keep.name}-{left.process}") if keep and several else keep
            _write(left, program, store, kept or folder.path / "recording", form, force=force)
    finally:
        folder.remove()
    return code


def _write(
    left: Leavings,
    program: tuple[str, ...],
    output: Path,
    path: Path,
    form: str,
    *,
    force: bool,
) -> None:
    """Pack what a process has left, and extract it into a store."""
    from depgraph.cli.commands.extract import print_summary
    from depgraph.cli.progress import input_progress
    from depgraph.extraction.pipeline import analyse
    from depgraph.parsers import open_trace
    from depgraph.parsers.recording.archive import pack
    from depgraph.store.writer import write_store

    about = {
        "process": left.process,
        "architecture": left.architecture,
        "program": list(program),
    }
    pack(path, about, left.events, left.tables)
    opened = open_trace(path)
    with input_progress(opened.input_bytes, quiet=is_quiet()) as on_progress:
        extraction = analyse(opened, scratch=output.parent, on_progress=on_progress)
    with extraction:
        write_store(extraction, output, force=force)
    print_summary(extraction, form)
    wrote(output)
