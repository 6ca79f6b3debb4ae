"""Time CUDA graphs whose nodes are known by their shape, and write a line of JSON for each.

    python -m depgraph.samples.validation.nodes OUT.jsonl

Needs PyTorch and a GPU; some ten seconds. README.md beside this says what the columns mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from depgraph.samples.validation.programs import build

Needs = list[list[int]]  # for each node those that it waits for

EMPTY = "relu:8x64"
FEW_ROWS = ("linear:8x64x64", "linear:8x128x128", "linear:8x256x256", "linear:8x512x512")
SHORT = (EMPTY, "relu:256x512", *FEW_ROWS[1:3], "softmax:128x1024")
LENGTH, ROUNDS, DEPTH = 6, 4, 2
STREAMS = 30  # PyTorch has 32, and gives them out again
AHEAD = 3_000_000  # cycles that the GPU waits while the host launches replays
REPLAYS, RUNS = 20, 7


def capture(
    calls: list[Callable[[], object]], needs: Needs, streams: list[torch.cuda.Stream]
) -> torch.cuda.CUDAGraph:
    """Capture calls as a graph with these edges alone."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph, main = torch.cuda.CUDAGraph(), streams[0]
    with torch.cuda.graph(graph, stream=main):
        origin = torch.cuda.Event()
        origin.record(main)
        done: list[torch.cuda.Event] = []
        last: list[int] = []
        before: list[set[int]] = []
        for i, call in enumerate(calls):
            before.append(set(needs[i]).union(*(before[j] for j in needs[i])))
            free = [lane for lane, end in enumerate(last) if end in before[i]]
            lane = next((x for x in free if last[x] in needs[i]), free[0] if free else len(last))
            last[lane : lane + 1] = [i]
            own = streams[1 + lane]
            for event in [done[j] for j in needs[i]] or [origin]:
                own.wait_event(event)
            with torch.cuda.stream(own):
                call()
            done.append(torch.cuda.Event())
            done[-1].record(own)
        for event in done:
            main.wait_event(event)
    return graph


def replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Return microseconds a replay, one after another, the host ahead of the GPU."""
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(AHEAD)
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / REPLAYS)
    return round(statistics.median(times), 2)


def rooted(kinds: list[str], needs: Needs) -> tuple[list[str], Needs]:
    """Put a graph between two kernels that do next to nothing."""
    inner = {j for own in needs for j in own}
    leaves = [i + 1 for i in range(len(kinds)) if i not in inner]
    shifted = [[j + 1 for j in own] or [0] for own in needs]
    return [EMPTY, *kinds, EMPTY], [[], *shifted, leaves]


def branches(kind: str, width: int) -> tuple[list[str], Needs]:
    """Chains side by side."""
    needs = [[] if i < width else [i - width] for i in range(width * LENGTH)]
    return [kind] * len(needs), needs


def layers(kind: str, width: int) -> tuple[list[str], Needs]:
    """Layers of which each node waits for two of the one before."""
    needs: Needs = [[] for _ in range(width)]
    for i in range(width, width * LENGTH):
        first = (i // width - 1) * width
        needs.append([first + i % width, first + (i % width + 1) % width])
    return [kind] * len(needs), needs


def fork_join(kind: str, width: int) -> tuple[list[str], Needs]:
    """One node, several that wait for it, one that waits for all of them, and so on."""
    needs: Needs = []
    for number in range(ROUNDS):
        root = len(needs)
        needs.append([root - 1 - j for j in range(width)] if number else [])
        needs += [[root]] * width
    return [kind] * len(needs), needs


def mixture(kind: str, items: int) -> tuple[list[str], Needs]:
    """Let each item go through two experts a layer."""
    kinds: list[str] = []
    needs: Needs = []

    def put(name: str, *before: int) -> int:
        kinds.append(name)
        needs.append(list(before))
        return len(kinds) - 1

    state: list[tuple[int, ...]] = [()] * items
    for _ in range(DEPTH):
        for i in range(items):
            ends = [put(kind, put(EMPTY, put(kind, *state[i]))) for _ in range(2)]
            state[i] = (put(EMPTY, *ends),)
    put(EMPTY, *(own[0] for own in state))
    return kinds, needs


SHAPES = {
    "branches": (branches, SHORT, (1, 2, 4, 8, 16, 24)),
    "fork-join": (fork_join, SHORT, (2, 4, 6, 7, 8, 16, 24)),
    "layers": (layers, SHORT[:3], (4, 8, 12, 24)),
    "moe": (mixture, SHORT[:3], (2, 4, 8, 12)),
}


def kernels(kind: str, streams: list[torch.cuda.Stream]) -> dict[str, object]:
    """Say which kernels an operation launches, and what they take in a chain."""
    chain = [[i - 1] if i else [] for i in range(24)]
    graph = capture([build(kind, []).call] * len(chain), chain, streams)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_time > 0:
            times.setdefault(event.name, []).append(event.device_time)
    medians = {name: round(statistics.median(each), 2) for name, each in times.items()}
    return {"what": "kernels", "kind": kind, "names": [*medians], "us": [*medians.values()]}


def main() -> None:
    """Measure, and write what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    streams = [torch.cuda.Stream() for _ in range(1 + STREAMS)]
    rows: list[dict[str, object]] = [
        {"what": "machine", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    ]
    rows += [kernels(kind, streams) for kind in dict.fromkeys((*SHORT, *FEW_ROWS))]

    def measure(what: str, kind: str, width: int, kinds: list[str], needs: Needs) -> None:
        root = needs[1:] and all(needs[1:])
        calls = [build(each, []).call for each in kinds]
        rows.append({
            "what": what, "kind": kind, "width": width, "rooted": int(bool(root)),
            "nodes": len(kinds), "us": replayed(capture(calls, needs, streams)),
        })  # fmt: skip

    for kind in FEW_ROWS:
        for width in (1, 2, 4, 8, 16, 24, 28):
            measure("fan", kind, width, *rooted([kind] * width, [[] for _ in range(width)]))
    for what, (make, kinds, widths) in SHAPES.items():
        for kind in kinds:
            for width in widths:
                if what != "fork-join":
                    measure(what, kind, width, *rooted(*make(kind, width)))
                measure(what, kind, width, *make(kind, width))
    output.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    print(f"Wrote {output}")


if __name__ == "__main__":
    main()
