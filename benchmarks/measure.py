"""Run commands and measure them: time, processor time, peak memory, ratios of paired runs.

A launcher without imports of its own starts each command and reaps it with ``wait4``. Linux hands
the peak memory of a process on to the program that replaces it, so that a large parent would be
taken for a large child; the launcher needs about 10 MB.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
DEPGRAPH = (sys.executable, "-m", "depgraph")

_LAUNCHER = """
import json, os, sys, time
report, cores, command = sys.argv[1], sys.argv[2], sys.argv[3:]
if cores:
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
began = time.perf_counter()
child = os.posix_spawnp(command[0], command, os.environ)
_, status, usage = os.wait4(child, 0)
wall = time.perf_counter() - began
with open(report, "w") as file:
    json.dump([wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss,
               os.waitstatus_to_exitcode(status)], file)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a command took."""

    wall: float  # seconds, from the start of the process to its exit
    processor: float  # seconds
    peak: int  # bytes of memory that were resident at once, in the largest of its processes
    output: str
    errors: str


class CommandFailedError(Exception):
    """A measured command did not end as it should."""


def available_cores() -> list[int]:
    """Return the numbers of the processors that this process may use."""
    return sorted(os.sched_getaffinity(0))


def run(
    command: Sequence[str | Path],
    work: Path,  # for the launcher's report
    *,
    cores: int | None = None,
    environment: Mapping[str, str] | None = None,  # variables to add
    timeout: float | None = None,  # seconds after which it is killed
) -> Run:
    """Run a command from the checkout's folder, on some processors, and measure it."""
    report = work / "launcher.json"
    report.unlink(missing_ok=True)
    allowed = ",".join(map(str, available_cores()[:cores])) if cores else ""
    with subprocess.Popen(
        [sys.executable, "-ISc", _LAUNCHER, report, allowed, *map(str, command)],
        cwd=ROOT,
        env={**_usual_environment(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        try:
            output, errors = launcher.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(launcher.pid, 9)
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"{command[0]} ... did not end within {timeout:.0f} s"
                raise CommandFailedError(message) from None
            raise
    wall, user, system, peak, code = json.loads(report.read_text())
    if code != 0:
        message = f"{' '.join(map(str, command))} ended with code {code}:\n{errors}"
        raise CommandFailedError(message)
    return Run(wall, user + system, peak * 1024, output, errors)


def _usual_environment() -> dict[str, str]:
    """Return the variables of this process but one that makes Python start more slowly."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def run_together(
    commands: Mapping[str, Sequence[str | Path]],
    work: Path,
    *,
    repeat: int,
    cores: int | None = None,
) -> dict[str, list[Run]]:
    """Run several commands in turn, again and again, so that all meet the same machine."""
    # The first round only warms the page cache and is not counted, unless one round is all.
    rounds: dict[str, list[Run]] = {name: [] for name in commands}
    uncounted = int(repeat > 1)
    for index in range(repeat + uncounted):
        for name, command in commands.items():
            measured = run(command, work, cores=cores)
            if index >= uncounted:
                rounds[name].append(measured)
    return rounds


def median_wall(runs: Sequence[Run]) -> float:
    """Return the median time of runs, in seconds."""
    return statistics.median(one.wall for one in runs)


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median of the ratios of values that were measured side by side."""
    return statistics.median(
        one / other for one, other in zip(numerators, denominators, strict=True)
    )


def machine() -> str:
    """Describe the machine, and how busy it is with other work, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((ln.split(":", 1)[1].strip() for ln in lines if "model name" in ln), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{len(available_cores())} cores of {model}, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
