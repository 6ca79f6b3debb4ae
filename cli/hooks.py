"""One line in other programs: the answer of a profile in PyTorch's, commands in a notebook."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depgraph.gpu.model import Gpu


def answer_of_profile(
    path: Path, *, gpu: Gpu | None, wall_us: float | None, is_kept: bool = True
) -> str:
    """Return what ``depgraph bound PROFILE`` prints of a profile alone."""
    from depgraph.analysis.profiled_step import profiled_step
    from depgraph.cli.options.shared import PIPED_WIDTH
    from depgraph.parsers.profiles import read_kernel_profile
    from depgraph.reports.tables.profiled_step_table import profiled_step_report
    from depgraph.reports.tables.render import render

    profile = read_kernel_profile(path)
    report = profiled_step_report(profiled_step(profile, gpu=gpu, wall=wall_us), path)
    # Next steps and details are commands about the file.
    shown = report if is_kept else replace(report, steps=())
    text = render(shown, "table", width=PIPED_WIDTH, details=False)
    return text if is_kept else text.partition("\n--details shows")[0]


def add_magic(shell: Any) -> None:
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
