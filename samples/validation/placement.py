"""See where and when blocks of a kernel start beside another one, and write a line of JSON each.

    python -m depgraph.samples.validation.placement OUT.jsonl

Needs PyTorch 2.9 and a GPU with clusters; some ten seconds. README.md beside this says what the
columns mean.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from depgraph.samples.validation.programs import build

Call = Callable[[], object]

SOURCE = """
extern "C" __global__ void %s spy(int *sm, long long *start, int cycles, int step) {
    if (threadIdx.x == 0) {
        unsigned own;
        long long now;
        asm volatile("mov.u32 %%0, %%%%smid;" : "=r"(own));
        asm volatile("mov.u64 %%0, %%%%globaltimer;" : "=l"(now));
        sm[blockIdx.x] = (int)own;
        start[blockIdx.x] = now;
    }
    // The last to end are next to none of each other.
    long long begin = clock64(), work = cycles + (long long)step * (blockIdx.x * 53 %% gridDim.x);
    while (clock64() - begin < work) {}
}
"""
CYCLES = 1700  # of a microsecond
REPLAYS = 6
FEW = 12  # SMs, so that it says something which these are
PLAIN = 48 << 10  # bytes of shared memory that need no attribute
LARGEST = 213 << 10
BEHIND = ((24, 512, 4096), (112, 128, 0), (112, 128, 20480), (48, 64, 6912), (147, 64, 6528))
# Blocks, threads, bytes of shared memory, us, blocks of a cluster.
RUNNING = ((264, 768, 0, 20), (132, 256, 122880, 20), (60, 256, LARGEST, 20), (132, 256, 0, 20))
SECOND = (
    (132, 1024, 0, 5), (132, 128, LARGEST, 5), (147, 64, 6528, 5),
    (96, 384, LARGEST, 5, 4), (96, 384, LARGEST, 5, 8), (96, 384, 0, 5, 8),
)  # fmt: skip
THIRD = ((132, 64, 0, 5), (147, 64, 6528, 5))
# Blocks, threads, bytes of shared memory; ns between the ends of neighbours.
LEFT_BY = ((132, 1024, 0), (132, 1024, 16384))
TAKEN_BY = ((48, 64, 6144), (100, 64, 6144), (147, 64, 6528), (64, 128, 20480), (96, 128, 47104))
STANDING = (264, 528, 1056, 2112)  # blocks in clusters
APART = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
MANY = 21  # replays, which differ
REAL = (
    "relu:300000", "norm:768x768", "add:3000000", "gather:8192x384", "gather:16384x512",
    "softmax:1536x1024", "transpose:1536x1024", "sum:2048x1536", "cumsum:192x3072",
    "gemm32:768x640x384", "conv16:8x128x28", "gemm16:1280x1536x640",
)  # fmt: skip


class Spy:
    """A kernel whose blocks note their SM and the time, and then wait."""

    kernels: dict[int, Any] = {}  # noqa: RUF012 - compiled once for each size of clusters

    def __init__(
        self, blocks: int, threads: int, shared: int, us: float, cluster: int = 1, apart: float = 0
    ) -> None:
        if cluster not in self.kernels:
            clusters = f"__cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
            self.kernels[cluster] = torch.cuda._compile_kernel(SOURCE % clusters, "spy")
        self.kernel = self.kernels[cluster]
        if shared > PLAIN:
            self.kernel.set_shared_memory_config(shared)
        self.sm = torch.zeros(blocks, dtype=torch.int32, device="cuda")
        self.start = torch.zeros(blocks, dtype=torch.int64, device="cuda")
        self.launch = {"grid": (blocks, 1, 1), "block": (threads, 1, 1), "shared_mem": shared}
        self.cycles, self.step = int(us * CYCLES), int(apart * CYCLES / 1000)

    def __call__(self) -> None:
        """Launch it on the current stream."""
        self.kernel(args=[self.sm, self.start, self.cycles, self.step], **self.launch)

    def seen(self, since: int) -> list[float]:
        """Return how many SMs, the most blocks on one, and us to the first and the last start."""
        blocks = Counter(self.sm.tolist())
        times = [(time - since) / 1000 for time in (self.start.min(), self.start.max())]
        return [len(blocks), max(blocks.values()), *(round(float(time), 2) for time in times)]


def capture(calls: list[Call], after: list[int | None]) -> torch.cuda.CUDAGraph:
    """Capture calls, each of which waits for one before it, or for none."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=main):
        done: list[torch.cuda.Event] = []
        for call, before in zip(calls, after, strict=True):
            own = torch.cuda.Stream()
            own.wait_event(main.record_event() if before is None else done[before])
            with torch.cuda.stream(own):
                call()
            done.append(own.record_event())
        for event in done:
            main.wait_event(event)
    return graph


def beside(first: Call, second: Spy, delay: float | None = None) -> dict[str, object]:
    """Launch two kernels behind an empty one; the second, if told, behind one that takes a time."""
    empty = build("relu:8x64", []).call
    if delay is None:
        graph = capture([empty, first, second], [None, 0, 0])
    else:
        graph = capture([empty, first, Spy(1, 32, 0, delay), second], [None, 0, 0, 2])
    for _ in range(REPLAYS):
        graph.replay()
        torch.cuda.synchronize()
    since = first.start if isinstance(first, Spy) else second.start
    row: dict[str, object] = {"second": second.seen(int(since.min()))}
    if isinstance(first, Spy):
        row["first"] = first.seen(int(since.min()))
    if len(sms := sorted(set(second.sm.tolist()))) <= FEW:
        row["sms"] = sms
    return row


def waiting(running: Spy, second: Spy, third: Spy) -> dict[str, object]:
    """Launch two kernels 2 and 4 us after one that they may have to wait for."""
    empty = build("relu:8x64", []).call
    calls: list[Call] = [empty, running, Spy(1, 32, 0, 2), second, Spy(1, 32, 0, 4), third]
    graph = capture(calls, [None, 0, 0, 2, 0, 4])
    for _ in range(REPLAYS):
        graph.replay()
        torch.cuda.synchronize()
    since = int(running.start.min())
    return {
        "first": running.seen(since), "second": second.seen(since), "third": third.seen(since),
        "most": sorted(Counter(second.sm.tolist()).values())[-2:],
    }  # fmt: skip


def measure() -> Iterator[dict[str, object]]:
    """Measure all settings."""
    for cluster, shared, behind in product((1, 2, 4, 8), (0, LARGEST), BEHIND):
        row = beside(Spy(96, 384, shared, 12, cluster), Spy(*behind, 10))
        yield {"what": "clusters", "cluster": cluster, "shared": shared, "behind": behind, **row}
    for cluster, delay in product((4, 8), (0.01, 0.5, 1, 2, 5)):
        row = beside(Spy(96, 384, LARGEST, 20, cluster), Spy(112, 128, 0, 6), delay)
        yield {"what": "delayed", "cluster": cluster, "delay": delay, **row}
    for threads, blocks in product((32, 64, 96, 128, 256), (2000, 8000)):
        row = beside(Spy(blocks, threads, 0, 0.2), Spy(98, 64, 20480, 10))
        yield {"what": "blocks", "threads": threads, "blocks": blocks, **row}
    for name, behind in product(REAL, ((98, 64, 20480), (24, 512, 4096))):
        row = beside(build(name, []).call, Spy(*behind, 10))
        yield {"what": "real", "kernel": name, "behind": behind, **row}
    for running, second, third in product(RUNNING, SECOND, THIRD):
        row = waiting(Spy(*running), Spy(*second), Spy(*third))
        yield {"what": "waiting", "kernels": [running, second, third], **row}
    for cluster, shared, blocks in product((2, 4, 8), (0, 20 << 10), STANDING):
        spy = Spy(blocks, 128, shared, 5, cluster)
        spy()
        torch.cuda.synchronize()
        on = spy.sm.view(-1, cluster).tolist()
        yield {
            "what": "standing", "cluster": cluster, "shared": shared, "blocks": blocks,
            "sms": len(set(spy.sm.tolist())), "most": max(max(Counter(sm).values()) for sm in on),
        }  # fmt: skip
    for left_by, taken_by, apart in product(LEFT_BY, TAKEN_BY, APART):
        taker = Spy(*taken_by, 10)
        empty = build("relu:8x64", []).call
        graph = capture([empty, Spy(*left_by, 8, apart=apart), taker], [None, 0, 0])
        sms: list[int] = []
        for _ in range(MANY):
            graph.replay()
            torch.cuda.synchronize()
            sms.append(len(set(taker.sm.tolist())))
        yield {"what": "gradual", "kernels": [left_by, taken_by], "apart": apart, "sms": sms}
    for blocks in (1, 132, 528, 1056, 2112):
        row = beside(Spy(blocks, 64, 0, 3), Spy(132, 64, 0, 3))
        yield {"what": "siblings", "blocks": blocks, **row}


def main() -> None:
    """Measure, and write what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    machine = {"what": "machine", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = [machine, *measure()]
    output.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    print(f"Wrote {output}")


if __name__ == "__main__":
    main()
