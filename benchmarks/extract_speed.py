"""Measure how fast a trace becomes a store, against reading the file with ``wc -l``.

s is the time of ``depgraph extract`` on a log of two kernels and some hundred lines, w that of
``wc -l`` and x that of ``xz -dc FILE | wc -l`` on the same file, all run in turn, with files in the
page cache, from the start of the process to its exit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import statistics
from typing import TYPE_CHECKING

from figures import Figure, seconds, size
from inputs import SAMPLE, Options, accelsim_trace, main, packed_log, plain_log, toy_log
from measure import (
    DEPGRAPH,
    ROOT,
    available_cores,
    median_ratio,
    median_wall,
    run,
    run_together,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "Speed of extract"

# How many times `wc -l` an extraction may take beyond start-up, by the number of cores.
_TIMES_WC = {4: 8, 2: 14}
_TIMES_XZ = 1.3
_TIMES_WC_ACCELSIM = 20
_GPT2_BYTES = 594_356_322
_START_SECONDS = 1.0
_HELP_SECONDS = 0.15
_BOUND_SECONDS = 0.8
_COMPILE_SECONDS = 10
_THREADS_SPEEDUP = 2.5
_LSTM_RATIO = 1.5
_SCAN = re.compile(r"scan: ([0-9.]+) s")


def extract_command(trace: Path, chosen: Options, *more: str) -> list[str | Path]:
    """Return the command that extracts a trace into the working folder."""
    store = chosen.work / "store.out"
    return [*DEPGRAPH, "extract", trace, "-o", store, "--force", "-q", *more]


def measure(chosen: Options) -> list[Figure]:
    """Return all figures of this program."""
    return [
        *_start_up(chosen),
        *_first_run(chosen),
        *_logs(chosen),
        *_time_per_byte(chosen),
        *_accelsim(chosen),
        *_threads(chosen),
    ]


def _against(
    chosen: Options, trace: Path, reader: Sequence[str | Path], factor: float, cores: int
) -> tuple[str, str, bool]:
    """Measure an extraction against s plus `factor` times a reader; return text, target, met."""
    runs = run_together(
        {
            "toy": extract_command(toy_log(chosen), chosen),
            "read": reader,
            "extract": extract_command(trace, chosen),
        },
        chosen.work,
        repeat=chosen.repeat,
        cores=cores,
    )
    start, read, took = (median_wall(runs[name]) for name in ("toy", "read", "extract"))
    allowed = [
        toy.wall + factor * one.wall for toy, one in zip(runs["toy"], runs["read"], strict=True)
    ]
    share = median_ratio([one.wall for one in runs["extract"]], allowed)
    text = (
        f"{seconds(took)} = s + {(took - start) / read:.1f} r "
        f"(s = {seconds(start)}, r = {seconds(read)})"
    )
    return text, f"s + {factor} r", share <= 1


def _start_up(chosen: Options) -> Iterator[Figure]:
    toy = extract_command(toy_log(chosen), chosen)
    run(toy, chosen.work)
    commands: dict[str, tuple[Sequence[str | Path], float]] = {
        "`extract` of a two-kernel log (s)": (toy, _START_SECONDS),
        "`--help`": ([*DEPGRAPH, "--help"], _HELP_SECONDS),
        "`bound` on the sample's store": (
            [*DEPGRAPH, "bound", _sample_store(chosen), "--sms", "80", "-q"],
            _BOUND_SECONDS,
        ),
    }
    together = {name: command for name, (command, _) in commands.items()}
    for cores in chosen.cores:
        runs = run_together(together, chosen.work, repeat=2 * chosen.repeat - 1, cores=cores)
        for name, (_, most) in commands.items():
            took = median_wall(runs[name])
            yield Figure(name, seconds(took), f"{seconds(most)}", took <= most, cores)


def _sample_store(chosen: Options) -> Path:
    store = chosen.work / "sample.out"
    log = plain_log(chosen, SAMPLE)
    run([*DEPGRAPH, "extract", str(log), "-o", store, "-q", "--force"], chosen.work)
    return store


def _first_run(chosen: Options) -> Iterator[Figure]:
    """Measure what an empty cache of compiled code costs, and one that cannot be written."""
    toy = extract_command(toy_log(chosen), chosen)
    if not chosen.quick:
        yield _cold(chosen, toy)
    unwritable = _package_without_cache(chosen)
    blocked = str(unwritable / "file")
    took = run(
        ["env", "-C", unwritable, *toy],
        chosen.work,
        environment={"NUMBA_CACHE_DIR": blocked, "HOME": blocked, "XDG_CACHE_HOME": blocked},
    )
    yield Figure(
        "nowhere to keep compiled code: works",
        seconds(took.wall),
        "works",
        "kernels" in took.output,
    )


def _cold(chosen: Options, toy: Sequence[str | Path]) -> Figure:
    loud = [word for word in toy if word != "-q"]
    warm, cold, said = [], [], True
    for _ in range(3):
        cache = chosen.work / "numba"
        shutil.rmtree(cache, ignore_errors=True)
        first = run(loud, chosen.work, environment={"NUMBA_CACHE_DIR": str(cache)})
        said &= "compiling" in first.errors
        cold.append(first.wall)
        warm.append(run(toy, chosen.work).wall)
    more = statistics.median(a - b for a, b in zip(cold, warm, strict=True))
    return Figure(
        f"first run, nothing compiled: beyond s ({'says so' if said else 'silent'})",
        seconds(more),
        f"{_COMPILE_SECONDS} s, says so",
        said and more <= _COMPILE_SECONDS,
    )


def _package_without_cache(chosen: Options) -> Path:
    """Copy the package to where numba can keep nothing, whoever runs this."""
    # A plain file stands wherever a folder of compiled code would be made: unlike a folder without
    # write permission, that stops an administrator too.
    copy = chosen.work / "checkout"
    for folder in ("depgraph", "cli", "parsers", "reports", "samples"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder, _, _ in os.walk(copy):
        (copy / folder / "__pycache__").touch()
    (copy / "file").touch()
    return copy


def _logs(chosen: Options) -> Iterator[Figure]:
    for name in [SAMPLE] if chosen.quick else [SAMPLE, "gpt2_d256", "mlp_m256"]:
        if plain := plain_log(chosen, name):
            yield from _plain(chosen, name, plain)
        if packed := packed_log(chosen, name):
            yield from _packed(chosen, name, packed)


def _plain(chosen: Options, name: str, log: Path) -> Iterator[Figure]:
    what = f"{name}, {size(log.stat().st_size)} of text, r = `wc -l`"
    for cores in chosen.cores:
        factor = _TIMES_WC.get(cores, _TIMES_WC[4])
        text, target, met = _against(chosen, log, ["wc", "-l", log], factor, cores)
        yield _held(name, what, text, target, met=met, cores=cores)


def _packed(chosen: Options, name: str, log: Path) -> Iterator[Figure]:
    reader = ["sh", "-c", f"xz -dc {shlex.quote(str(log))} | wc -l"]
    for cores in chosen.cores:
        text, target, met = _against(chosen, log, reader, _TIMES_XZ, cores)
        what = f"{name} as .xz, r = `xz -dc FILE \\| wc -l`"
        yield _held(name, what, text, target, met=met, cores=cores)


def _held(name: str, what: str, text: str, target: str, *, met: bool, cores: int) -> Figure:
    """Return a figure; the sample is too short to be compared with a target."""
    if name == SAMPLE:
        return Figure(what, text, cores=cores)
    return Figure(what, text, target, met, cores)


def _time_per_byte(chosen: Options) -> Iterator[Figure]:
    few, many = (plain_log(chosen, name) for name in ("gpt2_d256", "lstm_h128"))
    if chosen.quick or few is None or many is None:
        return
    for cores in chosen.cores:
        runs = run_together(
            {"few": extract_command(few, chosen), "many": extract_command(many, chosen)},
            chosen.work,
            repeat=chosen.repeat,
            cores=cores,
        )
        ratio = median_ratio(
            [one.wall / many.stat().st_size for one in runs["many"]],
            [one.wall / few.stat().st_size for one in runs["few"]],
        )
        yield Figure(
            "lstm_h128 (746 476 edges), time per byte against gpt2_d256 (37 390)",
            f"{ratio:.2f} times ({seconds(median_wall(runs['many']))})",
            f"{_LSTM_RATIO} times",
            ratio <= _LSTM_RATIO,
            cores,
        )


def _accelsim(chosen: Options) -> Iterator[Figure]:
    name = SAMPLE if chosen.quick else "streams4"
    folder = accelsim_trace(chosen, name, 1 if chosen.quick else _GPT2_BYTES)
    if folder is None:
        return
    files = sorted(folder.glob("kernel-*.traceg"))
    total = sum(file.stat().st_size for file in files)
    for cores in chosen.cores:
        text, target, met = _against(
            chosen, folder, ["wc", "-l", *files], _TIMES_WC_ACCELSIM, cores
        )
        what = f"Accel-Sim, {len(files)} kernels of {name}, {size(total)} of text, r = `wc -l`"
        yield _held(name, what, text, target, met=met, cores=cores)
    shutil.rmtree(folder)


def _threads(chosen: Options) -> Iterator[Figure]:
    """Measure the scan alone, less what it takes on the toy log (loading compiled code)."""
    trace = plain_log(chosen, "mlp_m256")
    if chosen.quick or trace is None or len(available_cores()) < 4:  # noqa: PLR2004
        trace = plain_log(chosen, SAMPLE)
    if trace is None:
        return
    toy = toy_log(chosen)
    commands = {
        f"{log.name} {jobs}": [*extract_command(log, chosen, "--jobs", jobs), "-v"]
        for log in (trace, toy)
        for jobs in ("1", "4")
    }
    for command in commands.values():
        command.remove("-q")
    runs = run_together(commands, chosen.work, repeat=chosen.repeat)

    def scan(log: Path, jobs: int) -> list[float]:
        found = [_SCAN.search(one.errors) for one in runs[f"{log.name} {jobs}"]]
        return [float(match[1]) if match else 0.0 for match in found]

    one, four = (
        [max(a - b, 0.01) for a, b in zip(scan(trace, jobs), scan(toy, jobs), strict=True)]
        for jobs in (1, 4)
    )
    speedup = median_ratio(one, four)
    raw = median_ratio(scan(trace, 1), [max(value, 0.01) for value in scan(trace, 4)])
    yield _held(
        trace.stem,
        f"scan of {trace.stem}, 4 threads against 1 ({raw:.1f} with loading compiled code)",
        f"{speedup:.1f} times",
        f"{_THREADS_SPEEDUP} times",
        met=speedup >= _THREADS_SPEEDUP,
        cores=4,
    )


if __name__ == "__main__":
    main(__doc__, TITLE, measure)
