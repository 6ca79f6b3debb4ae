"""A program that is recorded on the GPU of this machine: its runs, its stores, its times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import click

from depgraph.apply.captured import read_captures, write_captures
from depgraph.apply.recorded import captures_left
from depgraph.cli.commands.extract import print_summary
from depgraph.cli.options import shared
from depgraph.cli.progress import input_progress, step_progress
from depgraph.errors import RecorderError
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.parsers.recording.packing import pack
from depgraph.recorder.build import Builder
from depgraph.recorder.raw_recording import RawRecording, first_fault_in, read_raw_recordings
from depgraph.recorder.run import Selection, record, time
from depgraph.recorder.times import (
    BlockRun,
    Events,
    as_trace,
    block_runs_in,
    patch_ns_in,
    take_times,
    timed_in,
    with_block_times,
)
from depgraph.recorder.toolkit import Toolkit
from depgraph.recorder.unseen import note_unseen
from depgraph.store.companions import captures_of, remove_stale, times_of, write_companion
from depgraph.store.store import Store, write_store
from depgraph.store.tables import not_a_store
from depgraph.system.output import new_file, refuse_existing, stable_path


def _captures_in(folder: Path) -> Callable[[int], bool]:
    """Tell which processes have left captured graphs, in regions, which alone count then."""
    return lambda process: captures_left(folder, process).is_file()


def labels(recordings: Sequence[RawRecording]) -> list[str]:
    """Return what is added to the names of stores where there are several."""
    processes, devices = {left.process for left in recordings}, {left.device for left in recordings}
    return [
        (f"-{left.process}" if len(processes) > 1 else "")
        + (f"-gpu{left.device}" if len(devices) > 1 else "")
        for left in recordings
    ]


@dataclass(frozen=True)
class Recording:
    """What is to be recorded, and where it goes."""

    program: tuple[str, ...]
    toolkit: Toolkit
    output: Path
    keep: Path | None
    selection: Selection
    force: bool

    def refuse_existing(self, *, store: bool, times: bool) -> None:
        """Refuse files that exist before anything runs."""
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
        builder = Builder(self.toolkit, say=lambda message: shared.say(f"depgraph: {message}"))
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
        with step_progress(quiet=shared.is_quiet()) as steps, ThreadPoolExecutor() as pool:
            steps.begin("compiling the recorder", len(wanted))

            def build(part: Callable[[], Path]) -> Path:
                with context.scope(cleanup=False):
                    made = part()
                steps.done()
                return made

            return dict(zip(wanted, pool.map(build, wanted.values()), strict=True))

    def timed(self, native: Mapping[str, Path], folder: Path) -> list[Events]:
        """Run the program for the times of the kernels of each process."""
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
        shared.say(
            f"depgraph: block times: the GPU's clock counts in steps of {clock} ns; measuring adds "
            f"{patch_ns} ns to a block, which are taken off"
        )
        return runs

    def recorded(self, native: Mapping[str, Path], folder: Path) -> tuple[int, list[RawRecording]]:
        """Run the program under the recorder; return its exit code and what it left."""
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
        recording: RawRecording,
        label: str,
        timed: list[Events] | None,
        runs: list[BlockRun] | None,
        scratch: Path,
    ) -> None:
        """Write the store of a process on a GPU, and its times where there was a run for them."""
        reason = note_unseen(
            recording.events, scratch.parent, recording.process, recording.architecture
        )
        if reason:
            shared.say(
                f"depgraph: what hooks do not see is guessed: no machine code was read, {reason}"
            )
        store = self.output.with_name(self.output.name + label)
        kept = self.keep.with_name(self.keep.name + label) if self.keep else None
        events = take_times(timed, recording.events) if timed else []
        identity = self._write_store(recording, store, kept, scratch)
        if self.force:
            remove_stale(store, identity)
        if events:
            self._write_times(events, runs, store, identity)
        elif timed is not None:
            shared.say(f"depgraph: {store}: the run for the times launched none of these kernels")
        self._keep_captures(recording, scratch.parent, store, identity)

    def _keep_captures(
        self, recording: RawRecording, folder: Path, store: Path, identity: str
    ) -> None:
        found = captures_left(folder, recording.process)
        if found.is_file():
            captures = read_captures(found)
            with new_file(captures_of(store), force=self.force) as made:
                write_captures(made, captures, store=identity)
            shared.wrote(captures_of(store))

    def write_times_alone(self, timed: Sequence[Events], runs: list[BlockRun] | None) -> None:
        """Write the times of the process that launched most kernels."""
        if not timed:
            raise RecorderError(
                f"{self.program[0]} launched no kernel that was to be timed",
                "look at --region, and whether it runs on the GPU",
            )
        identity = Store(self.output).identity if self.output.exists() else ""
        self._write_times(max(timed, key=len), runs, self.output, identity)
        if not identity:
            shared.say(
                f"depgraph: there is no store {self.output} yet: pass the file with --timing"
            )

    def _write_times(
        self, events: Events, runs: list[BlockRun] | None, store: Path, identity: str
    ) -> None:
        if runs is not None:
            events, reason = with_block_times(events, runs)
            if reason:
                shared.say(f"depgraph: {store}: {reason}")
        path = times_of(store)
        with new_file(path, force=self.force) as made:
            trace = as_trace(events, [name for name, _ in self.toolkit.gpus])
            write_companion(made, trace, store=identity)
        shared.wrote(path)

    def _write_store(
        self, recording: RawRecording, output: Path, kept: Path | None, scratch: Path
    ) -> str:
        """Pack what a process has left, and extract it; return the store's identity."""
        about = {
            "process": recording.process,
            "device": recording.device,
            "architecture": recording.architecture,
            "program": list(self.program),
        }
        if kept is None:
            pack(scratch, about, recording.events, recording.tables, compress=False)
        else:
            with new_file(kept, force=self.force) as made:
                pack(made, about, recording.events, recording.tables)
            shared.wrote(kept)
        opened = open_trace(kept or scratch)
        with input_progress(opened.input_bytes, quiet=shared.is_quiet()) as on_progress:
            extraction = analyse(opened, scratch=output.parent, on_progress=on_progress)
        with extraction:
            store = write_store(extraction, output, force=self.force)
        print_summary(extraction, output)
        shared.wrote(output)
        return store.identity
