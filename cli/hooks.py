"""One line in other programs: the answer of a profile in PyTorch's, commands in a notebook."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Shell(Protocol):
    """What of IPython's shell is used."""

    def register_magic_function(
        self, func: Callable[[str], None], magic_kind: str, magic_name: str
    ) -> None:
        """Add a command that begins with ``%``."""


def answer_of_profile(
    path: Path, *, gpu: str | None, wall_us: float | None, is_kept: bool = True
) -> str:
    """Return what ``depgraph bound PROFILE`` prints of a profile alone."""
    from depgraph.analysis.profiled_step import profiled_step
    from depgraph.cli.options.shared import PIPED_WIDTH
    from depgraph.errors import ProfileError
    from depgraph.parsers.profiles import read_profile
    from depgraph.reports.tables.profiled_step_table import profiled_step_report
    from depgraph.reports.tables.render import render
    from depgraph.scenario.of_store import named_gpu
    from depgraph.timing.profile import KernelProfile

    profile = read_profile(path)
    if not isinstance(profile, KernelProfile):
        raise ProfileError(path, "has times of blocks, not a timeline of kernels")
    model = None if gpu is None else named_gpu(gpu)
    report = profiled_step_report(profiled_step(profile, gpu=model, wall=wall_us), path)
    # Next steps are commands about the file.
    shown = report if is_kept else replace(report, steps=())
    return render(shown, "table", width=PIPED_WIDTH, details=False)


def add_magic(shell: Shell) -> None:
    """Let cells of a notebook run ``%depgraph COMMAND ...``."""
    shell.register_magic_function(run_line, "line", "depgraph")


def run_line(line: str) -> None:
    """Run a command in a process of its own and print what it says, as it says it."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        sys.stdout.write(f"depgraph: error: {error}\n")
        return
    command = [sys.executable, "-m", "depgraph", *words]
    with subprocess.Popen(  # noqa: S603 - the words of the user, as on a command line
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        for text in running.stdout or ():
            sys.stdout.write(text)
