"""Running a program with the recorder in it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from depgraph.errors import RecorderError

MOST_GPU_MEMORY = 32 << 30  # beyond it the places of a table have no numbers of 32 bits
_PREFIX = "DEPGRAPH_RECORD_"
_SENT_TO_BOTH = signal.SIGINT, signal.SIGQUIT


@dataclass(frozen=True, slots=True)
class Selection:
    """Which launches to record; the others run untouched."""

    first: int | None = None  # launch, from 0, of the region if there is one
    end: int | None = None  # the last launch plus one
    name: str = ""  # regular expression that a kernel's name holds; "" for all
    nvtx: str = ""  # name of an NVTX range that is open at the launch; "" for all
    skip: int | None = None  # of those that are chosen otherwise, at first
    count: int | None = None  # of those after them
    in_region: bool = False  # only between cudaProfilerStart and cudaProfilerStop
    gpu_memory: int = 1 << 30  # bytes of GPU memory for tables

    @property
    def chooses(self) -> bool:
        """Whether some of the kernels, of the region if there is one, are left out."""
        return self != Selection(in_region=self.in_region, gpu_memory=self.gpu_memory)

    def settings(self) -> dict[str, str]:
        """Return the variables by which the recorder knows it."""
        found = {**asdict(self), "region": "1" if self.in_region else None}
        del found["in_region"]
        return {_PREFIX + name.upper(): "" if v is None else str(v) for name, v in found.items()}


def record(
    command: Sequence[str],
    library: Path,
    patch: Path,
    folder: Path,
    selection: Selection,
    *,
    block_times: bool = False,
) -> int:
    """Run a program with the recorder in it, for block times alone or all; return its exit code."""
    settings = {"PATCH": str(patch), "BLOCKS": "1" if block_times else ""}
    named = {_PREFIX + name: value for name, value in settings.items()}
    return _run(command, library, folder, {**named, **selection.settings()})


def time(command: Sequence[str], library: Path, folder: Path) -> int:
    """Run a program with the timer in it; see `record`."""
    return _run(command, library, folder, {})


def _run(command: Sequence[str], library: Path, folder: Path, settings: Mapping[str, str]) -> int:
    environment = {
        **os.environ,
        **settings,
        _PREFIX + "FOLDER": str(folder),
        "CUDA_INJECTION64_PATH": str(library),
        "NVTX_INJECTION64_PATH": str(library),
    }
    with _signals_for() as forward:
        try:
            process = subprocess.Popen(list(command), env=environment)  # noqa: S603
        except OSError as error:
            found = f"{command[0]}: {error.strerror}"
            raise RecorderError(found, "give the program behind --") from None
        forward(process)
        code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _signals_for() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Let a program decide what signals do; the terminal sends them to both processes."""
    started: list[subprocess.Popen[bytes]] = []
    arrived: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if started and number not in _SENT_TO_BOTH:
            started[0].send_signal(number)
        elif number not in _SENT_TO_BOTH:
            arrived.append(number)

    def forward(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        for number in arrived:
            process.send_signal(number)

    numbers = *_SENT_TO_BOTH, signal.SIGTERM, signal.SIGHUP
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield forward
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
