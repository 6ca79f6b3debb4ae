"""Running a program with the recorder in it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depgraph.errors import RecorderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from depgraph.recorder.build import Native

_PREFIX = "DEPGRAPH_RECORD_"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which launches to record; the others run untouched.

    Attributes
    ----------
    first, end : int or None
        The first launch, and the last plus one, from 0.
    name : str
        Regular expression that a kernel's name holds; "" for all.
    in_region : bool
        Only between cudaProfilerStart and cudaProfilerStop.
    gpu_memory : int
        Bytes of GPU memory for tables.
    """

    first: int | None = None
    end: int | None = None
    name: str = ""
    in_region: bool = False
    gpu_memory: int = 1 << 30


def run(command: Sequence[str], native: Native, folder: Path, selection: Selection) -> int:
    """Run a program with the recorder in it, and return its exit code.

    Parameters
    ----------
    command : sequence of str
    native : Native
    folder : Path
        Takes what each process leaves.
    selection : Selection

    Returns
    -------
    int
        As a shell gives it: 128 and more for a signal.

    Raises
    ------
    RecorderError
        If the program cannot be started.
    """
    settings = {
        "FOLDER": str(folder),
        "PATCH": str(native.patch),
        "NAME": selection.name,
        "REGION": "1" if selection.in_region else "",
        "FIRST": "" if selection.first is None else str(selection.first),
        "END": "" if selection.end is None else str(selection.end),
        "GPU_MEMORY": str(selection.gpu_memory),
    }
    environment = {
        **os.environ,
        **{_PREFIX + name: value for name, value in settings.items()},
        "CUDA_INJECTION64_PATH": str(native.library),
    }
    try:
        process = subprocess.Popen(list(command), env=environment)  # noqa: S603
    except OSError as error:
        raise RecorderError(
            f"{command[0]}: {error.strerror}", "give the program behind --"
        ) from None
    with _left_to(process):
        code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _left_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let a program decide what a signal to this one does.

    What the terminal sends it sends to both.
    """

    def pass_on(number: int, _: object) -> None:
        process.send_signal(number)

    handlers = {signal.SIGINT: signal.SIG_IGN, signal.SIGQUIT: signal.SIG_IGN,
                signal.SIGTERM: pass_on, signal.SIGHUP: pass_on}  # fmt: skip
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
