"""Compare the critical path of a profile with that of Holistic Trace Analysis (HTA).

The profile, in the format of PyTorch's profiler, is of one step: a chain of kernels on one stream,
issued ahead, so that the path is the kernels and nothing else, whoever looks for it. Both read the
same file in a process of their own; both must find the sum of the times of the kernels. (HTA's path
has the first launch as well, which is left out.) depgraph needs a store of the program besides,
which is made before.

HTA does not run with pandas 3: install it (``pip install HolisticTraceAnalysis 'pandas<3'``) where
you like and name that interpreter in ``HTA_PYTHON``. Without it one line says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from figures import MIB, Figure, seconds
from inputs import Options, main
from measure import DEPGRAPH, run, run_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "Against HTA, for the critical path of a profile"

_KERNELS = 1000, 10_000
_HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
graph, _ = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
path = graph.get_critical_path_breakdown()
print("critical path", path[path.bound_by == "gpu_compute_bound"].duration.sum())
"""
_CANNOT = {
    "depgraph": "needs a trace or a description besides; knows no operators of the host between "
    "launches, and does not walk through synchronisations of ranks",
    "HTA": "knows no thread blocks, no dependences through memory and no other GPU: kernels of a "
    "stream follow one another on its path whether one needs the other or not",
}


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    python = os.environ.get("HTA_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import hta"], capture_output=True, check=False).returncode:
        yield Figure("HTA", "not measured: it is not installed (HTA_PYTHON names no such Python)")
        return
    for n in _KERNELS[:1] if chosen.quick else _KERNELS:
        yield from _of_chain(chosen, python, n)
    for tool, what in _CANNOT.items():
        yield Figure(f"what {tool} cannot do", what)


def _of_chain(chosen: Options, python: str, n: int) -> Iterator[Figure]:
    times = [20 + i % 7 for i in range(n)]
    profile, store = chosen.work / "step.json", chosen.work / "step.out"
    profile.write_text(json.dumps({"schemaVersion": 1, "traceEvents": _events(times)}))
    _describe(times, chosen.work / "step.toml")
    run([*DEPGRAPH, "extract", chosen.work / "step.toml", "-o", store, "--force"], chosen.work)
    bound = ["bound", store, "--timing", profile, "--sms", "132", "--format", "json", "-q"]
    commands = {
        "depgraph": [*DEPGRAPH, *bound],
        "HTA": [python, "-c", _HTA, profile, chosen.work],
    }
    runs = run_together(commands, chosen.work, repeat=min(chosen.repeat, 3))
    ours, theirs = (min(runs[tool], key=attrgetter("processor")) for tool in commands)
    found = {
        "depgraph": float(json.loads(ours.output)["bounds"][0]["critical_path"]),
        "HTA": float(theirs.output.rsplit("critical path", 1)[1]),
    }
    factor = theirs.processor / ours.processor
    for tool, one in (("depgraph", ours), ("HTA", theirs)):
        faster = f"; depgraph is {factor:.1f} times as fast" if tool == "HTA" else ""
        yield Figure(
            f"{tool}, critical path of {n:,} kernels in a chain",
            f"{seconds(one.processor)} of processors{faster}; peak {one.peak / MIB:.0f} MiB",
            f"{sum(times)} us",
            found[tool] == sum(times),
        )


def _events(times: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the profiler would record: launches ahead of the kernels, then one wait."""
    n, at = len(times), 1000
    events = []

    def add(name: str, category: str, start: int, length: int, where: int, **about: Any) -> None:
        device = category == "kernel"
        event = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length}
        events.append({**event, "pid": 1 - device, "tid": where, "args": about})

    began = at
    for i, time in enumerate(times):
        issued = began + 2 * i
        add("cudaLaunchKernel", "cuda_runtime", issued, 1, 1, correlation=i + 1)
        at = max(at, issued + 2)
        add(
            f"kernel_{i}", "kernel", at, time, 7, stream=7, device=0, context=1,
            correlation=i + 1, grid=[4, 1, 1], block=[128, 1, 1],
        )  # fmt: skip
        at += time
    waits = began + 2 * n
    add("cudaDeviceSynchronize", "cuda_runtime", waits, at - waits + 5, 1, correlation=n + 1)
    add("ProfilerStep#1", "user_annotation", began - 1, at + 10 - began, 1)
    return events


def _describe(times: Sequence[int], path: Path) -> None:
    path.write_text("".join(
        f'[[kernel]]\nname = "kernel_{i}"\ngrid = 4\nduration = {time}\n'
        + f'[[dependence]]\nfrom = "kernel_{i - 1}"\nto = "kernel_{i}"\npattern = "all"\n' * (i > 0)
        for i, time in enumerate(times)
    ))  # fmt: skip


if __name__ == "__main__":
    main(__doc__, TITLE, lambda chosen: list(measure(chosen)))
