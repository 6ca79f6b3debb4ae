"""Time every program of programs.py on this machine's GPU and write one JSON file.

    python -m depgraph.samples.validation.measure OUT.json [--only TEXT] [--set unseen]

Needs PyTorch and a GPU. README.md beside this says what the columns mean; ``depgraph calibrate``
measures what it needs of them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import json
import statistics
import subprocess
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from depgraph.samples.validation import write_measurements
from depgraph.samples.validation.programs import (
    all_programs,
    build,
    fresh_programs,
    later_programs,
    newest_programs,
    unseen_programs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from depgraph.samples.validation.programs import Operation, Program

try:
    import pynvml
except ImportError:  # clocks are left out
    pynvml = None

Event = dict[str, Any]
"""What the profiler wrote of a kernel, a copy or a memset."""
MARK = "spin_kernel"
PARTS = ("kernel", "gpu_memcpy", "gpu_memset")
SETS = {
    "first": all_programs,
    "unseen": unseen_programs,
    "later": later_programs,
    "fresh": fresh_programs,
    "newest": newest_programs,
}


def summary(times: list[float]) -> list[float]:
    """Return median, least and ninth decile, in microseconds."""
    ordered = sorted(times)
    return [
        round(x, 2)
        for x in (statistics.median(ordered), ordered[0], ordered[len(ordered) * 9 // 10])
    ]


class Running:
    """A program with its data: it can be issued on one stream or on as many as it has branches."""

    def __init__(self, program: Program, streams: list[torch.cuda.Stream]) -> None:
        self.program, self.streams = program, streams
        self.operations: list[Operation] = []
        for kernel, needs in zip(program.kernels, program.needs, strict=True):
            self.operations.append(build(kernel, [self.operations[i].output for i in needs]))
        self.stream_of = self.assign()

    def assign(self) -> list[int]:
        """Choose a stream each, whose last operation is an ancestor, so that no edge is added."""
        needs = self.program.needs
        ancestors: list[int] = []
        tails: list[int] = []
        chosen = []
        for i, before in enumerate(needs):
            mine = 0
            for j in before:
                mine |= ancestors[j] | 1 << j
            ancestors.append(mine)
            free = [s for s, t in enumerate(tails) if mine >> t & 1]
            direct = [s for s in free if tails[s] in before]
            if direct or free:
                s = (direct or free)[0]
                tails[s] = i
            else:
                s = len(tails)
                tails.append(i)
            chosen.append(s)
        if len(tails) > len(self.streams):
            raise ValueError(f"{len(tails)} streams are needed")
        return chosen

    def serial(self) -> None:
        """Issue all on the current stream."""
        for operation in self.operations:
            operation.call()

    def parallel(self) -> None:
        """Issue each on its stream, ordered by events where the program needs it."""
        main = torch.cuda.current_stream()
        fork = main.record_event()
        needs, seen = self.program.needs, set()
        done: dict[int, torch.cuda.Event] = {}
        awaited = {
            j
            for i, before in enumerate(needs)
            for j in before
            if self.stream_of[j] != self.stream_of[i]
        }
        last = {s: i for i, s in enumerate(self.stream_of)}
        for i, operation in enumerate(self.operations):
            s = self.stream_of[i]
            stream = self.streams[s]
            if s not in seen:
                seen.add(s)
                stream.wait_event(fork)
            for j in needs[i]:
                if self.stream_of[j] != s:
                    stream.wait_event(done[j])
            with torch.cuda.stream(stream):
                operation.call()
            if i in awaited or last[s] == i:
                done[i] = stream.record_event()
        for i in last.values():
            main.wait_event(done[i])

    def rooted(self) -> None:
        """Issue as parallel, between two empty kernels: a graph with one root and one leaf."""
        torch.cuda._sleep(1)
        self.parallel()
        torch.cuda._sleep(1)

    def marked(self) -> None:
        """Issue on one stream, a marker kernel after each operation."""
        for operation in self.operations:
            operation.call()
            torch.cuda._sleep(200)


def captured(issue: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Capture what is issued."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            issue()
        finally:
            graph.capture_end()
    return graph


def timed(issue: Callable[[], None], batch: int, repeats: int, ahead_us: float) -> list[float]:
    """Time issues back to back, in microseconds each; the host starts ``ahead_us`` ahead."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        if ahead_us:
            torch.cuda._sleep(int(ahead_us * 1980))
        begin.record()
        for _ in range(batch):
            issue()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / batch)
    return times


def lone(issue: Callable[[], None], repeats: int) -> list[float]:
    """Time one issue on an idle GPU, in microseconds: the host's part is in it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin.record()
        issue()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def host_time(issue: Callable[[], None]) -> float:
    """Time the host for one issue, in microseconds, least of five."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000)
        begin = time.perf_counter()
        issue()
        times.append((time.perf_counter() - begin) * 1e6)
    torch.cuda.synchronize()
    return min(times)


def traced(
    run: Running, graphs: list[torch.cuda.CUDAGraph], marks: int, replays: int
) -> list[Event]:
    """Profile ``marks`` marked issues and ``replays`` of each graph; by time."""
    quiet = warnings.catch_warnings(action="ignore")  # events of one cycle are what is wanted
    with quiet, profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(marks):
            run.marked()
        torch.cuda.synchronize()
        for graph in graphs:
            for _ in range(replays):
                graph.replay()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted((e for e in events if e.get("cat") in PARTS), key=lambda e: e["ts"])


def launch_of(event: Event) -> list[Any]:
    """Name, grid, block, registers, static and dynamic shared memory of an event."""
    a = event["args"]
    if event["cat"] != "kernel":
        return [event["name"], None, None, 0, 0, a.get("bytes", 0)]
    static, dynamic = a.get("static shared memory"), a.get("dynamic shared memory")
    total = a.get("shared memory", 0)
    return [
        event["name"],
        a["grid"],
        a["block"],
        a["registers per thread"],
        static if static is not None else total,
        dynamic if dynamic is not None else 0,
    ]


def graph_times(graphs: dict[str, torch.cuda.CUDAGraph], *, alone: bool) -> dict[str, Any]:
    """Time replays of graphs, back to back and, if wanted, alone."""
    row: dict[str, Any] = {}
    for name, graph in graphs.items():
        guess = min(timed(graph.replay, 3, 2, 100))
        launch = host_time(graph.replay)
        batch = max(5, min(40, round(1500 / guess)))
        row[name] = summary(timed(graph.replay, batch, 15, 0))
        row[f"{name}_primed"] = summary(timed(graph.replay, batch, 9, 150 + 1.5 * launch * batch))
        if alone:
            row[f"{name}_lone"] = summary(lone(graph.replay, 11))
        row[f"{name}_host"] = round(launch, 1)
    row["clocks"] = clocks_now()
    return row


def stream_times(run: Running) -> dict[str, Any]:
    """Time the program on streams."""
    row: dict[str, Any] = {}
    host = host_time(run.parallel)
    batch = 4 if len(run.operations) < 40 else 1
    row["streams"] = summary(timed(run.parallel, batch, 7, 0))
    row["streams_primed"] = summary(timed(run.parallel, batch, 7, 200 + 1.5 * host * batch))
    row["stream"] = summary(timed(run.serial, batch, 7, 0))
    row["streams_host"] = round(host, 1)
    return row


def by_operation(events: list[Event], operations: int) -> tuple[list[list[Event]], list[Event]]:
    """Split one marked issue into the kernels of each operation, and give what is left."""
    groups: list[list[Event]] = [[]]
    for position, event in enumerate(events):
        if MARK not in event["name"]:
            groups[-1].append(event)
        elif len(groups) == operations:
            return groups, events[position + 1 :]
        else:
            groups.append([])
    raise ValueError("the profiler lost kernels")


def line(replays: list[list[Event]]) -> list[list[float]]:
    """Start and duration of each kernel in the replay of median length."""
    spans = [max(e["ts"] + e["dur"] for e in g) - min(e["ts"] for e in g) for g in replays]
    group = replays[spans.index(statistics.median_low(spans))]
    start = min(e["ts"] for e in group)
    return [[round(e["ts"] - start, 2), round(e["dur"], 2)] for e in group]


def kernels_of(
    run: Running, graphs: list[torch.cuda.CUDAGraph], launches: dict[str, int]
) -> dict[str, Any]:
    """Profile the kernels, in launch order, and the edges between them."""
    marks, replays = 3, 5
    rest = traced(run, graphs, marks, replays)
    eager = []
    for _ in range(marks):
        groups, rest = by_operation(rest, len(run.operations))
        eager.append(groups)
    total = sum(len(g) for g in eager[0])
    row: dict[str, Any] = {"seen": [len(rest), total * replays * 2]}
    by_launch: dict[int, list[Event]] = defaultdict(list)
    for event in rest:
        by_launch[event["args"]["correlation"]].append(event)
    whole = [g for g in by_launch.values() if len(g) == total]
    chains = whole[:replays]
    kernels: list[list[Any]] = []
    edges: list[list[int]] = []
    last: list[int] = []
    for i, operation in enumerate(run.operations):
        seen = eager[0][i]
        longest = max(seen, key=lambda e: e["dur"])
        edges += [[last[j], len(kernels)] for j in run.program.needs[i]]
        for x, event in enumerate(seen):
            k = len(kernels)
            if x:
                edges.append([k - 1, k])
            kernels.append(
                [
                    launches.setdefault(json.dumps(launch_of(event)), len(launches)),
                    i,
                    round(statistics.median(g[k]["dur"] for g in chains), 2) if chains else None,
                    round(statistics.median(groups[i][x]["dur"] for groups in eager), 2),
                    operation.read if event is longest else 0,
                    operation.written if event is longest else 0,
                ]
            )
        last.append(len(kernels) - 1)
    row |= {"kernels": kernels, "edges": edges}
    for name, found in (("chain_line", chains), ("parallel_line", whole[replays:])):
        if found:
            row[name] = line(found)
    return row


def measure(
    program: Program,
    streams: list[torch.cuda.Stream],
    main: torch.cuda.Stream,
    launches: dict[str, int],
    *,
    brief: bool,
) -> dict[str, Any]:
    """Give the row of one program; a brief one has only what a model is fitted to."""
    run = Running(program, streams)
    torch.cuda.synchronize()
    for _ in range(2):
        run.serial()
        run.parallel()
    torch.cuda.synchronize()
    issues = {"serial": run.serial, "parallel": run.parallel, "rooted": run.rooted}
    if brief:
        del issues["rooted"]
    graphs = {name: captured(issue, main) for name, issue in issues.items()}
    for graph in list(graphs.values()) * 3:
        graph.replay()
    torch.cuda.synchronize()
    row = graph_times(graphs, alone=not brief)
    if not brief:
        row |= stream_times(run)
    return row | kernels_of(run, [graphs["serial"], graphs["parallel"]], launches)


def clocks_now() -> list[int]:
    """Ask the driver for the SM and memory clock in MHz and the draw in watts."""
    if pynvml is None:
        return []
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return [
            pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM),
            round(pynvml.nvmlDeviceGetPowerUsage(device) / 1000),
        ]
    except pynvml.NVMLError:
        return []


def machine() -> dict[str, Any]:
    """Describe GPU and software."""
    p = torch.cuda.get_device_properties(0)
    try:
        driver = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],  # noqa: S607
            capture_output=True,
            check=False,
            text=True,
            timeout=20,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        driver = ""
    return {
        "gpu": p.name,
        "sms": p.multi_processor_count,
        "architecture": 10 * p.major + p.minor,
        "l2_bytes": p.L2_cache_size,
        "memory_bytes": p.total_memory,
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }


def measure_all(
    programs: Sequence[Program], *, brief: bool = False, seconds: float = 1e9
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Measure programs one by one.

    Parameters
    ----------
    programs : sequence of Program
    brief : bool
        Leave out what no model is fitted to.
    seconds : float
        Begin no program after so long.

    Yields
    ------
    row, result : dict
        Of a program, with "error" if it failed; and all that is to be written up to then.
    """
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    streams = [torch.cuda.Stream() for _ in range(32)]
    main_stream = torch.cuda.Stream()
    launches: dict[str, int] = {}
    result: dict[str, Any] = {"machine": machine(), "launches": [], "programs": []}
    began = time.time()
    for program in programs:
        started = time.time()
        if started - began > seconds:
            return
        row: dict[str, Any] = {
            "name": program.name,
            "kind": program.kind,
            "half": program.half,
            "operations": list(program.kernels),
        }
        try:
            with torch.no_grad():
                row |= measure(program, streams, main_stream, launches, brief=brief)
        except (RuntimeError, ValueError, LookupError) as error:
            row["error"] = f"{type(error).__name__}: {error}"[:300]
            torch.cuda.synchronize()
        row["seconds"] = round(time.time() - started, 2)
        result["programs"].append(row)
        result["launches"] = [json.loads(k) for k in launches]
        gc.collect()
        torch.cuda.empty_cache()
        yield row, result


def main() -> None:
    """Measure the chosen programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="programs whose name holds this")
    parser.add_argument("--set", choices=SETS, default="first", help="which programs")
    parser.add_argument("--every", type=int, default=1, help="each n-th program")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    options = parser.parse_args()
    programs = SETS[options.set]()
    chosen = [p for p in programs if options.only in p.name][:: options.every]
    if not chosen:
        parser.error(f"no program's name holds {options.only!r}")
    for row, result in measure_all(chosen, seconds=options.seconds):
        print(
            f"{row['seconds']:6.2f} s {row['name']}: serial {row.get('serial')} parallel "
            f"{row.get('parallel')} streams {row.get('streams')} {row.get('error', '')}",
            flush=True,
        )
        if len(result["programs"]) % 20 == 0 or len(result["programs"]) == len(chosen):
            write_measurements(options.out, result)
    if len(result["programs"]) < len(chosen):
        print("out of time", flush=True)
        write_measurements(options.out, result)


if __name__ == "__main__":
    main()
