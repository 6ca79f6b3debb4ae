"""Time matrix products beside collectives and peer copies on two GPUs, and write a CSV of medians.

    python -m depgraph.samples.validation.overlap OUT.csv

Needs PyTorch with NCCL and two GPUs that reach each other; about 40 s. README.md beside this says
what the columns mean. NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import re
import statistics
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = [
    (4096, 4096, 4096), (8192, 4096, 4096), (8192, 8192, 2048), (8192, 8192, 8192),
    (16384, 8192, 4096), (2048, 8192, 8192),
]  # fmt: skip
COLLECTIVES = ("all_reduce", "all_gather")
MIB = 1 << 20
SIZES = (32, 128, 512)  # of collectives, MiB
PEER_SIZES = (16, 64, 256)  # each way
RATIOS = (1.0, 0.6, 1.7)  # of products to communication, as far as whole products go
MOST_PRODUCTS = 12
LIMITS = (8, 16, 32)  # blocks of a collective at most
MODES = [
    ("as launched", 0, False), ("communication first", 0, True),
    *((mode, limit, mode != "reserved")
      for limit in LIMITS for mode in ("communication first", "reserved", "both")),
]  # fmt: skip
RUNS = 5
LATER = 30_000  # cycles by which the second of two begins later: some 15 us
AHEAD = 2_500_000  # cycles that the GPU waits while the host launches
NCCL_BLOCKS = 24  # that NCCL takes by itself between two H200s
PORT = 29_517
COLUMNS = (
    "engine", "m", "n", "k", "kernels", "tile", "collective", "bytes", "mode", "reserved",
    "gemm_sms", "ctas", "gemm_us", "collective_us", "gemm_alone_us", "collective_alone_us",
    "measured_us",
)  # fmt: skip
Row = tuple[object, ...]
_TILE = re.compile(r"_(\d+x\d+)_")


@dataclass
class Side:
    """One GPU: its matrices, and a stream each for computing and for moving data."""

    device: int

    def __post_init__(self) -> None:
        torch.cuda.set_device(self.device)
        place = {"device": f"cuda:{self.device}", "dtype": torch.bfloat16}
        most = max(m * max(n, k) for m, n, k in SHAPES)
        self.left, self.right = torch.randn(most, **place), torch.randn(most, **place)
        self.result = torch.empty(most, **place)
        self.sent = torch.randn(max(SIZES) * MIB // 2, **place)
        self.received = torch.empty(max(SIZES) * MIB // 2, **place)
        self.computing, self.moving = torch.cuda.Stream(), torch.cuda.Stream()
        self.sms = torch.cuda.get_device_properties(self.device).multi_processor_count

    def products(self, shape: tuple[int, int, int], count: int) -> Callable[[], object]:
        """Return a chain of equal matrix products."""
        m, n, k = shape
        left, right = self.left[: m * k].view(m, k), self.right[: k * n].view(k, n)
        result = self.result[: m * n].view(m, n)

        def go() -> None:
            for _ in range(count):
                torch.mm(left, right, out=result)

        return go


@contextmanager
def sm_target(sms: int | None) -> Iterator[None]:
    """Let cuBLAS choose kernels for so many SMs; None for all."""
    name = "libcublas.so." + str(torch.version.cuda).partition(".")[0]
    cublas = ctypes.CDLL(name)

    def choose(number: int) -> None:
        handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
        if code := cublas.cublasSetSmCountTarget(handle, ctypes.c_int(number)):
            raise RuntimeError(f"cublasSetSmCountTarget returned {code}")

    if sms is None:
        yield
        return
    choose(sms)
    yield
    choose(0)


def tile_of(side: Side, shape: tuple[int, int, int], target: int | None) -> str:
    """Return the tile of the kernel that cuBLAS takes, by its name."""
    go = side.products(shape, 1)
    with sm_target(target), profile(activities=[ProfilerActivity.CUDA]) as found:
        go()
        torch.cuda.synchronize()
    tiles = [_TILE.search(event.name) for event in found.events()]
    return next((tile[1] for tile in tiles if tile), "")


def timed(
    side: Side,
    compute: Callable[[], object] | None,
    move: Callable[[], object] | None,
    *,
    meet: Callable[[], object],
    move_first: bool,
) -> Callable[[], tuple[float, float, float]]:
    """Issue one or both; return what reads the times of compute, of move and of both, in us."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
    with torch.cuda.stream(side.moving):
        meet()
        events[0].record()
    side.computing.wait_event(events[0])
    both = compute is not None and move is not None

    def issue(
        stream: torch.cuda.Stream, go: Callable[[], object] | None, begin: int, *, later: bool
    ) -> None:
        if go is None:
            return
        with torch.cuda.stream(stream):
            if later:
                torch.cuda._sleep(LATER)
            events[begin].record()
            go()
            events[begin + 1].record()

    parts = [
        (side.computing, compute, 1, both and move_first),
        (side.moving, move, 3, both and not move_first),
    ]
    for stream, go, begin, later in reversed(parts) if move_first else parts:
        issue(stream, go, begin, later=later)

    def read() -> tuple[float, float, float]:
        torch.cuda.set_device(side.device)
        torch.cuda.synchronize()
        ran = [i for i, go in ((1, compute), (3, move)) if go is not None]
        at = {i: 1000 * events[0].elapsed_time(events[i]) for j in ran for i in (j, j + 1)}
        computing, moving = (at[i + 1] - at[i] if i in ran else 0.0 for i in (1, 3))
        return computing, moving, max(at.values()) - min(at.values())

    return read


def median(times: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the median of each column, the first run left out."""
    computing, moving, both = zip(*times[1:], strict=True)
    return statistics.median(computing), statistics.median(moving), statistics.median(both)


def products_for(gemm: float, moved: float, number: int) -> int:
    """Return how many products to chain beside a collective."""
    return max(1, min(MOST_PRODUCTS, round(RATIOS[number % len(RATIOS)] * moved / gemm)))


class Nccl:
    """Products beside NCCL's collectives on one GPU of two; the slower GPU counts."""

    def __init__(self, rank: int) -> None:
        self.side = Side(rank)
        dist.init_process_group(
            "nccl", rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{PORT}"
        )
        self.met = torch.zeros(1, device=f"cuda:{rank}")
        self.groups: dict[int, dist.ProcessGroup | None] = {0: None}
        for limit in LIMITS:
            options = dist.ProcessGroupNCCL.Options()
            options.config.max_ctas = limit
            self.groups[limit] = dist.new_group(ranks=[0, 1], pg_options=options)

    def meet(self) -> None:
        """Let both GPUs begin at one time, long after the host has launched all."""
        torch.cuda._sleep(AHEAD)
        dist.all_reduce(self.met)

    def collective(self, kind: str, size: int, limit: int) -> Callable[[], object]:
        """Return a collective of so many bytes and blocks at most; 0 blocks for NCCL's choice."""
        n, group, side = size // 2, self.groups[limit], self.side
        if kind == "all_reduce":
            return lambda: dist.all_reduce(side.sent[:n], group=group)
        received, sent = side.received[:n], side.sent[: n // 2]
        return lambda: dist.all_gather_into_tensor(received, sent, group=group)

    def run(
        self,
        compute: Callable[[], object] | None,
        move: Callable[[], object] | None,
        *,
        first: bool = False,
        target: int | None = None,
    ) -> tuple[float, float, float]:
        """Return the medians of compute, of move and of both; `first`: what moves begins."""
        found = []
        with sm_target(target):
            for _ in range(1 + RUNS):
                times = timed(self.side, compute, move, meet=self.meet, move_first=first)()
                slowest = torch.tensor(times, device=self.met.device)
                dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
                found.append(tuple(slowest.tolist()))
        return median(found)

    def rows(self) -> Iterator[Row]:
        """Measure each shape beside each collective, in all modes."""
        number, sms = 0, self.side.sms
        for shape in SHAPES:
            targets = {sms - limit: (None if not limit else sms - limit) for limit in (0, *LIMITS)}
            tiles = {sms_: tile_of(self.side, shape, t) for sms_, t in targets.items()}
            one = self.side.products(shape, 1)
            alone = {sms_: self.run(one, None, target=t)[0] for sms_, t in targets.items()}
            for kind, mib in product(COLLECTIVES, SIZES):
                size = mib * MIB
                moved = {
                    limit: self.run(None, self.collective(kind, size, limit))[1]
                    for limit in self.groups
                }
                count = products_for(alone[sms], moved[0], number)
                number += 1
                chain = self.side.products(shape, count)
                gemm = self.run(chain, None)[0]
                for mode, limit, first in MODES:
                    used = sms - limit if mode in ("reserved", "both") else sms
                    move = self.collective(kind, size, limit)
                    both = self.run(chain, move, first=first, target=targets[used])[2]
                    own = gemm if used == sms else alone[used] * count
                    yield (
                        "sm", *shape, count, tiles[used], kind, size, mode, limit, used,
                        min(limit or NCCL_BLOCKS, NCCL_BLOCKS), gemm, moved[0], own,
                        moved[limit], both,
                    )  # fmt: skip


def nccl(rank: int, path: str) -> None:
    """Measure with one process a GPU."""
    rows = list(Nccl(rank).rows())
    if rank == 0:
        write(Path(path), rows)
    dist.barrier()
    os._exit(0)  # communicators take long to end


class Peers:
    """Products beside copies both ways by copy engines: one process, two GPUs."""

    def __init__(self) -> None:
        self.sides = [Side(0), Side(1)]
        self.runtime = ctypes.CDLL("libcudart.so." + str(torch.version.cuda).partition(".")[0])
        for device in (0, 1):
            torch.cuda.set_device(device)
            self.runtime.cudaDeviceEnablePeerAccess(1 - device, 0)

    def copy(self, device: int, size: int) -> None:
        """Send so many bytes to the other GPU."""
        target, source = self.sides[1 - device].received, self.sides[device].sent
        code = self.runtime.cudaMemcpyPeerAsync(
            ctypes.c_void_p(target.data_ptr()), 1 - device, ctypes.c_void_p(source.data_ptr()),
            device, ctypes.c_size_t(size), ctypes.c_void_p(self.sides[device].moving.cuda_stream),
        )  # fmt: skip
        if code:
            raise RuntimeError(f"cudaMemcpyPeerAsync returned {code}")

    def meet(self, device: int, ready: torch.cuda.Event) -> None:
        """Let the second GPU begin with the first."""
        if device == 0:
            torch.cuda._sleep(AHEAD)
            ready.record()
        else:
            self.sides[device].moving.wait_event(ready)

    def run(
        self,
        shape: tuple[int, int, int] | None,
        count: int,
        size: int,
        *,
        first: bool = False,
        target: int | None = None,
    ) -> tuple[float, float, float]:
        """Return the medians of products, of copies and of both, of the slower GPU."""
        found = []
        for _ in range(1 + RUNS):
            torch.cuda.set_device(0)
            ready, reads = torch.cuda.Event(), []
            for device, side in enumerate(self.sides):
                torch.cuda.set_device(device)
                compute = side.products(shape, count) if shape else None
                move = partial(self.copy, device, size) if size else None
                meet = partial(self.meet, device, ready)
                with sm_target(target):
                    reads.append(timed(side, compute, move, meet=meet, move_first=first))
            found.append(tuple(map(max, zip(*(read() for read in reads), strict=True))))
        return median(found)

    def rows(self) -> Iterator[Row]:
        """Measure each shape beside copies of each size, in all modes."""
        number, sms = 0, self.sides[0].sms
        targets = {sms: None, sms - LIMITS[0]: sms - LIMITS[0]}
        for shape in SHAPES:
            torch.cuda.set_device(0)
            tiles = {used: tile_of(self.sides[0], shape, t) for used, t in targets.items()}
            alone = {used: self.run(shape, 1, 0, target=t)[0] for used, t in targets.items()}
            for mib in PEER_SIZES:
                size = mib * MIB
                moved = self.run(None, 0, size)[1]
                count = products_for(alone[sms], moved, number)
                number += 1
                gemm = self.run(shape, count, 0)[0]
                for mode, used, first in (
                    ("as launched", sms, False), ("communication first", sms, True),
                    ("dma, 8 fewer", sms - LIMITS[0], True),
                ):  # fmt: skip
                    both = self.run(shape, count, size, first=first, target=targets[used])[2]
                    own = gemm if used == sms else alone[used] * count
                    yield (
                        "dma", *shape, count, tiles[used], "peer_copy", size, mode, sms - used,
                        used, 0, gemm, moved, own, moved, both,
                    )  # fmt: skip


def peers(_: int, path: str) -> None:
    """Measure with one process for both GPUs."""
    write(Path(path), list(Peers().rows()))


def write(path: Path, rows: list[Row]) -> None:
    """Add rows to a table that has its columns already; times in microseconds."""
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [round(value, 1) if isinstance(value, float) else value for value in row]
            for row in rows
        )


def main() -> None:
    """Measure, and write what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    if torch.cuda.device_count() < 2:
        sys.exit("two GPUs are needed")
    os.environ.update(
        NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1"
    )
    output.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    torch.multiprocessing.spawn(nccl, args=(str(output),), nprocs=2)
    torch.multiprocessing.spawn(peers, args=(str(output),), nprocs=1)
    print(f"Wrote {output}")


if __name__ == "__main__":
    main()
