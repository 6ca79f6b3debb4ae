"""Measure commands whose start-up takes most of their time, beside an import of their libraries.

All have run before. What counts on a busy machine is the processor time as a multiple of that of
``python -c "import numpy, pyarrow.parquet"``, which is run in turn with them. What is run is the
``depgraph`` beside the Python that runs this: to measure what users have, that of an environment
in which a wheel is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from figures import MIB, Figure, seconds
from inputs import SAMPLE, Options, main, packed_log
from measure import median_ratio, run, run_together

from depgraph.samples import KERNEL_TIMES, sample_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TITLE = "Short commands"

_DEPGRAPH = Path(sys.executable).with_name("depgraph")
_IMPORTS = (sys.executable, "-c", "import numpy, pyarrow.parquet")
_KERNELS = 200_000  # of the described program


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    yield from _figures(chosen, {"`--help`": (["--help"], 0.07)})
    bounds = {SAMPLE: 0.3, "dyn_moe": 0.5, "gpt2_d256": None}
    reports = {SAMPLE: ([], 1.5), "gpt2_d256": (["--mechanism", "all"], 3.0)}
    for name in [SAMPLE] if chosen.quick else bounds:
        log, times = packed_log(chosen, name), _times(chosen, name)
        if log is None or not times.is_file():
            continue
        store, page = chosen.work / f"{name}.out", chosen.work / "report"
        run([_DEPGRAPH, "extract", log, "-o", store, "-q"], chosen.work)
        timed = [store, "--timing", times]
        commands = {f"`bound` of {name} with its profile": (["bound", *timed], bounds[name])}
        if name in reports:
            more, target = reports[name]
            what = " ".join(["`report", *more]) + f"` of {name} with its profile"
            commands[what] = (["report", *timed, *more, "-o", page, "--force"], target)
        yield from _figures(chosen, commands)
    if not chosen.quick:
        path, store = _described(chosen.work / "described.toml"), chosen.work / "described.out"
        run([_DEPGRAPH, "extract", path, "-o", store, "-q"], chosen.work)
        commands = {
            f"`extract` of {_KERNELS:,} described kernels": (
                ["extract", path, "-o", store, "--force"], 5.0,
            ),
            "`bound` of them on 8 SMs": (["bound", store, "--sms", "8"], 5.0),
        }  # fmt: skip
        yield from _figures(chosen, commands)


def _figures(
    chosen: Options, commands: dict[str, tuple[Sequence[str | Path], float | None]]
) -> Iterator[Figure]:
    all_of_them = {what: [_DEPGRAPH, *words] for what, (words, _) in commands.items()}
    runs = run_together({"": _IMPORTS, **all_of_them}, chosen.work, repeat=chosen.repeat)
    peer = [one.processor for one in runs.pop("")]
    for what, own in runs.items():
        times, target = sorted(one.processor for one in own), commands[what][1]
        took = times[len(times) // 2]
        yield Figure(
            what,
            f"{seconds(took)} of processors, {median_ratio([o.processor for o in own], peer):.1f} "
            f"times the imports; peak {max(one.peak for one in own) / MIB:.0f} MiB",
            "" if target is None else seconds(target),
            None if target is None else took <= target,
        )


def _times(chosen: Options, name: str) -> Path:
    packaged = sample_path(KERNEL_TIMES)
    return packaged if name == SAMPLE else chosen.data / "timing" / f"{name}.kineto.json"


def _described(path: Path) -> Path:
    # Each second kernel waits for the one before it.
    path.write_text("".join(
        f'[[kernel]]\nname = "{k}"\ngrid = 4\nduration = {1 + k % 7}\n'
        + f'[[dependence]]\nfrom = "{k - 1}"\nto = "{k}"\npattern = "all"\n' * (k % 2)
        for k in range(_KERNELS)
    ))  # fmt: skip
    return path


if __name__ == "__main__":
    main(__doc__, TITLE, lambda chosen: list(measure(chosen)))
