"""Measure the first run of the commands after an installation, when nothing has been compiled.

Each command is run with an empty cache, and beside it with a full one. What counts on a busy
machine is the processor time, and how many times that of the later run it is.

``python benchmarks/first_run.py --functions bound STORE --sms 8`` runs one command with an empty
cache and prints which functions numba compiled for it, in how much time, and for which types.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from figures import Figure, seconds
from inputs import SAMPLE, Options, main, packed_log, toy_log
from measure import DEPGRAPH, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "First run"

_SECONDS = 6.0
_CORES = 2
_LARGE_GRID = 30_000

_LISTENER = """
import sys, threading, time
from depgraph.cli import main
from depgraph.system import compiled

make, found, running = compiled._dispatcher, [], threading.local()

def listen(function, options):
    from numba.core import event

    class Times(event.Listener):
        def on_start(self, happening):
            running.__dict__.setdefault("stack", []).append([time.thread_time(), 0.0])

        def on_end(self, happening):
            began, inside = running.stack.pop()
            took = time.thread_time() - began
            if running.stack:
                running.stack[-1][1] += took
            function = happening.data["dispatcher"].py_func
            name = f"{function.__module__.rsplit('.')[-1]}.{function.__name__}"
            found.append((took - inside, took, name, str(happening.data["args"])))

    event.register("numba:compile", Times())
    compiled._dispatcher = make
    return make(function, options)

compiled._dispatcher = listen
try:
    main(sys.argv[1:])
finally:
    for own, took, name, types in sorted(found, reverse=True):
        print(f"{own:6.2f} s {took:6.2f} s  {name} {types[:100]}", file=sys.stderr)
    print(f"{len(found)} functions, {sum(row[0] for row in found):.2f} s", file=sys.stderr)
"""


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    sample = packed_log(chosen, SAMPLE)
    if chosen.quick:  # the tests run all commands with an empty cache
        yield _figure("`check`, packaged log", ["check", str(sample)], chosen)
        return
    store, large = chosen.work / "first.out", _large_store(chosen)
    run([*DEPGRAPH, "extract", str(sample), "-o", store, "-q"], chosen.work)
    out, report = chosen.work / "again.out", chosen.work / "report"
    folder = chosen.data / "accelsim" / SAMPLE
    commands: dict[str, list[str | Path]] = {
        "`extract`, packaged log": ["extract", str(sample), "-o", out, "--force"],
        "`extract`, two-kernel log": ["extract", toy_log(chosen), "-o", out, "--force"],
        "`check`, packaged log": ["check", str(sample)],
        "`bound`, packaged log": ["bound", store, "--sms", "80"],
        f"`bound`, {2 * _LARGE_GRID:,} blocks": ["bound", large, "--sms", "80"],
        "`report`, packaged log": ["report", store, "--sms", "80", "-o", report, "--force"],
    }
    if folder.is_dir():
        commands["`extract`, Accel-Sim folder"] = ["extract", folder, "-o", out, "--force"]
        commands["`check`, Accel-Sim folder"] = ["check", folder]
    for name, command in commands.items():
        yield _figure(name, command, chosen)


def _figure(name: str, command: Sequence[str | Path], chosen: Options) -> Figure:
    cache = chosen.work / "compiled"
    wall, cpu, ratio = [], [], []
    for _ in range(min(chosen.repeat, 3)):
        shutil.rmtree(cache, ignore_errors=True)
        empty = {"NUMBA_CACHE_DIR": str(cache)}
        first = run([*DEPGRAPH, *command, "-q"], chosen.work, cores=_CORES, environment=empty)
        later = run([*DEPGRAPH, *command, "-q"], chosen.work, cores=_CORES, environment=empty)
        wall.append(first.wall)
        cpu.append(first.processor)
        ratio.append(cpu[-1] / later.processor)
    kept = len(list(cache.rglob("*.code")))
    took = statistics.median(wall)
    return Figure(
        f"first {name}: processor time {seconds(statistics.median(cpu))}, "
        f"{statistics.median(ratio):.1f} times a later run's; {kept} functions kept",
        seconds(took),
        seconds(_SECONDS),
        took <= _SECONDS,
        _CORES,
    )


def _large_store(chosen: Options) -> Path:
    workload, store = chosen.work / "large.toml", chosen.work / "large.out"
    kernels = "".join(
        f'[[kernel]]\nname = "{name}"\ngrid = [{_LARGE_GRID}]\nduration = 1\noccupancy = 1\n'
        for name in ("producer", "consumer")
    )
    dependence = '[[dependence]]\nfrom = "producer"\nto = "consumer"\npattern = "all"\n'
    workload.write_text(f'name = "large"\n{kernels}{dependence}')
    run([*DEPGRAPH, "extract", workload, "-o", store, "-q"], chosen.work)
    return store


def _print_functions(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="depgraph-bench.") as cache:
        command = ["env", f"NUMBA_CACHE_DIR={cache}", sys.executable, "-c", _LISTENER, *words]
        return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--functions"]:
        sys.exit(_print_functions(sys.argv[2:]))
    main(__doc__, TITLE, measure)
