"""``depgraph record``: a program on the GPU of this machine, recorded into a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from depgraph.cli.options.shared import (
    DEFAULT_STORE,
    STORE_VARIABLE,
    Command,
    details_option,
    force_option,
    format_option,
    is_quiet,
    print_report,
    say,
    wrote,
)
from depgraph.cli.options.values import KernelRange, Whole
from depgraph.system.limits import LARGEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from depgraph.recorder.block_times import BlockRun
    from depgraph.recorder.raw_recording import RawRecording
    from depgraph.recorder.run import Selection
    from depgraph.recorder.times import Events
    from depgraph.recorder.toolkit import Toolkit

# What C++, in which the recorder reads the pattern, does not know.
_PYTHON_ONLY = re.compile(r"(?<!\\)(?:\\\\)*\(\?[^:=!]")


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    from depgraph.errors import ModelError
    from depgraph.recorder.run import MOST_GPU_MEMORY
    from depgraph.system.memory import parse_size

    if value is None:
        return None
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
    "--nvtx", default="", metavar="RANGE",
    help="Only kernels launched inside an NVTX range of this name.",
)  # fmt: skip
@click.option(
    "--skip", type=Whole(0, LARGEST_ID), metavar="N",
    help="Leave out the first N of the kernels that the other options choose.",
)  # fmt: skip
@click.option(
    "--count", type=Whole(1, LARGEST_ID), metavar="N",
    help="Record N of them at most.",
)  # fmt: skip
@click.option(
    "--region", type=click.Choice(["all", "profiler"]), default="all", show_default=True,
    help="profiler: only between cudaProfilerStart and cudaProfilerStop.",
)  # fmt: skip
@click.option(
    "--gpu-memory", callback=_size, metavar="SIZE",
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
@force_option
@details_option
@format_option
def command(
    program: tuple[str, ...],
    output: Path,
    kernels: tuple[int | None, int | None],
    name: str,
    nvtx: str,
    skip: int | None,
    count: int | None,
    region: str,
    gpu_memory: int | None,
    keep: Path | None,
    no_time: bool,
    time_only: bool,
    block_times: bool,
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
    from depgraph.recorder.run import Selection
    from depgraph.recorder.toolkit import Toolkit
    from depgraph.reports.tables.recorder_tables import doctor_report
    from depgraph.system.output import stable_path
    from depgraph.system.work_folder import WorkFolder

    toolkit = Toolkit()
    if doctor:
        print_report(doctor_report(toolkit.requirements, toolkit.helpers), form)
        click.get_current_context().exit(not all(each.what for each in toolkit.requirements))
    if not program:
        message = "give the program behind --, such as: depgraph record -- python train.py"
        raise click.UsageError(message)
    selection = Selection(
        *kernels, name, nvtx, skip, count, region == "profiler", gpu_memory or toolkit.for_tables
    )
    if time_only and (no_time or keep or selection.chooses):
        message = "--time-only times every kernel, of a --region or of all: leave out what chooses"
        raise click.UsageError(message)
    if block_times and no_time:
        message = "--block-times go with the times of kernels: leave out --no-time"
        raise click.UsageError(message)
    task = _Task(program, toolkit, stable_path(output), keep, selection, form, force=force)
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
            for left, label in zip(found, _labels(found), strict=True):
                scratch = folder.path / "recording"
                task.write(left, label, None if no_time else timed, runs, scratch)
    finally:
        folder.remove()
    click.get_current_context().exit(code)


def _tell(message: str) -> None:
    say(f"depgraph: {message}")


def _captures_in(folder: Path) -> Callable[[int], bool]:
    """Tell which processes have left captured graphs, in regions, which alone count then."""
    from depgraph.apply.recorded import captures_left

    return lambda process: captures_left(folder, process).is_file()


def _labels(found: Sequence[RawRecording]) -> list[str]:
    """Return what is added to the names of stores where there are several."""
    processes, devices = {left.process for left in found}, {left.device for left in found}
    return [
        (f"-{left.process}" if len(processes) > 1 else "")
        + (f"-gpu{left.device}" if len(devices) > 1 else "")
        for left in found
    ]


@dataclass(frozen=True)
class _Task:
    """What is to be recorded, and where it goes."""

    program: tuple[str, ...]
    toolkit: Toolkit
    output: Path
    keep: Path | None
    selection: Selection
    form: str
    force: bool

    def refuse_existing(self, *, store: bool, times: bool) -> None:
        """Refuse files that exist before anything runs."""
        from depgraph.store.companions import captures_of, times_of
        from depgraph.store.files import not_a_store
        from depgraph.system.output import refuse_existing, stable_path

        if store:
            refuse_existing(self.output, force=self.force, not_ours=not_a_store)
        for path in (captures_of(self.output),) * store + (times_of(self.output),) * times:
            refuse_existing(path, force=self.force)
        # What a program on several GPUs has left before, and would leave again.
        for made in (self.output, self.keep) if self.keep else (self.output,):
            for path in made.absolute().parent.glob(escape(made.name) + "-gpu[0-9]*"):
                refuse_existing(path, force=self.force)
        if self.keep is not None:
            ours = {self.output.absolute(), times_of(self.output).absolute()}
            if stable_path(self.keep).absolute() in ours:
                message = f"--keep {self.keep}: the store or its times go there; name another file"
                raise click.UsageError(message)
            refuse_existing(self.keep, force=self.force)

    def compiled(self, *, times: bool, blocks: bool, recorder: bool) -> dict[str, Path]:
        """Return the native parts that some runs need, compiled side by side on first use."""
        from concurrent.futures import ThreadPoolExecutor

        from depgraph.cli.progress import step_progress
        from depgraph.recorder.build import Builder

        builder = Builder(self.toolkit, say=_tell)
        context = click.get_current_context()  # which `say` asks for, and threads do not have
        architectures = [architecture for _, architecture in self.toolkit.gpus]
        wanted: dict[str, Callable[[], Path]] = {}
        if times:
            wanted["timer"] = builder.timer
        if blocks or recorder:
            wanted["recorder"] = builder.recorder
        if blocks:
            wanted["blocks"] = lambda: builder.patch(architectures, block_times=True)
            wanted["pause"] = builder.pause
        if recorder:
            wanted["patch"] = lambda: builder.patch(architectures)
        with step_progress(quiet=is_quiet()) as steps, ThreadPoolExecutor() as pool:
            steps.begin("compiling the recorder", len(wanted))

            def build(part: Callable[[], Path]) -> Path:
                with context.scope(cleanup=False):
                    made = part()
                steps.done()
                return made

            return dict(zip(wanted, pool.map(build, wanted.values()), strict=True))

    def timed(self, native: Mapping[str, Path], folder: Path) -> list[Events]:
        """Run the program for the times of the kernels of each process."""
        from depgraph.errors import RecorderError
        from depgraph.recorder.run import time
        from depgraph.recorder.times import timed_in

        code = time(self.program, native["timer"], folder)
        if code:
            raise RecorderError(
                f"{self.program[0]} ended with exit code {code} before anything was recorded",
                "it must run by itself",
            )
        in_region = _captures_in(folder)
        return timed_in(folder, in_region=lambda pid: self.selection.in_region or in_region(pid))

    def block_times(self, native: Mapping[str, Path], folder: Path) -> list[BlockRun]:
        """Run the program for when the blocks of its kernels run."""
        from depgraph.errors import RecorderError
        from depgraph.recorder.block_times import block_runs_in, patch_ns_in
        from depgraph.recorder.raw_recording import first_fault_in
        from depgraph.recorder.run import Selection, record

        library, patch = native["recorder"], native["blocks"]
        pause, own = folder / "pause", folder / "program"
        for each in (pause, own):
            each.mkdir(parents=True)
        record([str(native["pause"])], library, patch, pause, Selection(), block_times=True)
        patch_ns = patch_ns_in(block_runs_in(pause))
        code = record(self.program, library, patch, own, self.selection, block_times=True)
        if code:
            message = f"{self.program[0]} ended with exit code {code} in the run for block times"
            raise RecorderError(message, "leave out --block-times")
        runs = block_runs_in(own, _captures_in(own), patch_ns or 0)
        if patch_ns is None or not any(run.is_measured for run in runs):
            fault = first_fault_in(own) or first_fault_in(pause)
            reason = f" ({fault})" if fault else ""
            raise RecorderError(f"no block times were measured{reason}", "leave out --block-times")
        clock = max(run.clock_ns for run in runs)
        say(
            f"depgraph: block times: the GPU's clock counts in steps of {clock} ns; measuring adds "
            f"{patch_ns} ns to a block, which are taken off"
        )
        return runs

    def recorded(self, native: Mapping[str, Path], folder: Path) -> tuple[int, list[RawRecording]]:
        """Run the program under the recorder; return its exit code and what it left."""
        from depgraph.errors import RecorderError
        from depgraph.recorder.raw_recording import first_fault_in, read_raw_recordings
        from depgraph.recorder.run import record

        library, patch = native["recorder"], native["patch"]
        code = record(self.program, library, patch, folder, self.selection)
        has_captures = _captures_in(folder)
        found = read_raw_recordings(folder, has_captures)
        found = [left for left in found if has_captures(left.process)] or found
        if not found:
            if fault := first_fault_in(folder):
                raise RecorderError(f"the recorder failed ({fault})", "depgraph record --doctor")
            ended = f", and ended with exit code {code}" if code else ""
            raise RecorderError(
                f"{self.program[0]} launched no kernel that was to be recorded{ended}",
                "look at the options that choose, and whether it runs on the GPU",
            )
        return code, found

    def write(
        self,
        left: RawRecording,
        label: str,
        timed: list[Events] | None,
        runs: list[BlockRun] | None,
        scratch: Path,
    ) -> None:
        """Write the store of a process on a GPU, and its times where there was a run for them."""
        from depgraph.recorder.times import take_times
        from depgraph.recorder.unseen import note_unseen
        from depgraph.store.companions import remove_stale

        reason = note_unseen(left.events, scratch.parent, left.process, left.architecture)
        if reason:
            say(f"depgraph: what hooks do not see is guessed: no machine code was read, {reason}")
        store = self.output.with_name(self.output.name + label)
        kept = self.keep.with_name(self.keep.name + label) if self.keep else None
        events = take_times(timed, left.events) if timed else []
        identity = self._write_store(left, store, kept, scratch)
        if self.force:
            remove_stale(store, identity)
        if events:
            self._write_times(events, runs, store, identity)
        elif timed is not None:
            say(f"depgraph: {store}: the run for the times launched none of these kernels")
        self._keep_captures(left, scratch.parent, store, identity)

    def _keep_captures(self, left: RawRecording, folder: Path, store: Path, identity: str) -> None:
        """Keep the CUDA graphs that a program captured for `depgraph apply`."""
        from depgraph.apply.captured import read_captures, write_captures
        from depgraph.apply.recorded import captures_left
        from depgraph.store.companions import captures_of
        from depgraph.system.output import new_file

        found = captures_left(folder, left.process)
        if found.is_file():
            captures = read_captures(found)
            with new_file(captures_of(store), force=self.force) as made:
                write_captures(made, captures, store=identity)
            wrote(captures_of(store))

    def write_times_alone(self, timed: Sequence[Events], runs: list[BlockRun] | None) -> None:
        """Write the times of the process that launched most kernels."""
        from depgraph.errors import RecorderError
        from depgraph.store.store import Store

        if not timed:
            raise RecorderError(
                f"{self.program[0]} launched no kernel that was to be timed",
                "look at --region, and whether it runs on the GPU",
            )
        identity = Store(self.output).identity if self.output.exists() else ""
        self._write_times(max(timed, key=len), runs, self.output, identity)
        if not identity:
            say(f"depgraph: there is no store {self.output} yet: pass the file with --timing")

    def _write_times(
        self, events: Events, runs: list[BlockRun] | None, store: Path, identity: str
    ) -> None:
        from depgraph.recorder.block_times import with_block_times
        from depgraph.recorder.times import as_trace
        from depgraph.store.companions import times_of, write_companion
        from depgraph.system.output import new_file

        if runs is not None:
            events, reason = with_block_times(events, runs)
            if reason:
                say(f"depgraph: {store}: {reason}")
        path = times_of(store)
        with new_file(path, force=self.force) as made:
            trace = as_trace(events, [name for name, _ in self.toolkit.gpus])
            write_companion(made, trace, store=identity)
        wrote(path)

    def _write_store(
        self, left: RawRecording, output: Path, kept: Path | None, scratch: Path
    ) -> str:
        """Pack what a process has left, and extract it; return the store's identity."""
        from depgraph.cli.commands.extract import print_summary
        from depgraph.cli.progress import input_progress
        from depgraph.extraction.pipeline import analyse
        from depgraph.parsers import open_trace
        from depgraph.parsers.recording.archive import pack
        from depgraph.store.writer import write_store
        from depgraph.system.output import new_file

        about = {
            "process": left.process,
            "device": left.device,
            "architecture": left.architecture,
            "program": list(self.program),
        }
        if kept is None:
            pack(scratch, about, left.events, left.tables, compress=False)
        else:
            with new_file(kept, force=self.force) as made:
                pack(made, about, left.events, left.tables)
            wrote(kept)
        opened = open_trace(kept or scratch)
        with input_progress(opened.input_bytes, quiet=is_quiet()) as on_progress:
            extraction = analyse(opened, scratch=output.parent, on_progress=on_progress)
        with extraction:
            store = write_store(extraction, output, force=self.force)
        print_summary(extraction, self.form, output)
        wrote(output)
        return store.identity
