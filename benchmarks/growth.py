"""Measure how time and memory of extract and bound grow, and the longest path against networkx.

With the size of a log, the kernels of a described program, the blocks of a recording and of a
graph (as many as memory has room for); and how long a log takes on 1, 2, 4 ... cores, or with as
many workers of dask, where that is installed. Times are of processors, beyond those of the smallest
input of its kind: what a process takes to start does not grow. The longest path of the same blocks
is found by depgraph, in memory and in one thread, and by ``networkx.dag_longest_path_length``; both
must say the same.
"""

from __future__ import annotations

import math
import shutil
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bound_speed import kernel_graph, local_graph, write_graph
from figures import MB, MIB, Figure, seconds, size
from inputs import SAMPLE, Options, main, plain_log, toy_log
from make_large_log import make_large_log
from make_recording import make_recording
from measure import DEPGRAPH, Run, available_cores, run, run_together

from depgraph.system.text import counted
from depgraph.system.workers import default_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from depgraph.graph.block_graph import BlockGraph

TITLE = "Growth"

_LOG_BYTES = 100 * MB, 1000 * MB, 10_000 * MB
_KERNELS = 10**2, 10**3, 10**4, 10**5
_LAYERS = 1, 4, 12
_BLOCKS = 10**4, 10**5, 10**6, 10**7
_OF_A_BLOCK = 1500  # bytes, and of its ten edges: while they are made and in `bound`
_IN_NETWORKX = 10**4, 10**5  # blocks; ten times as many take networkx 10 GB
_BLOCKS_A_KERNEL = 4
_KERNELS_OF_BLOCKS = 200


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    yield from _of_logs(chosen, _LOG_BYTES[:1] if chosen.quick else _LOG_BYTES)
    yield from _of_cores(chosen, _LOG_BYTES[0] if chosen.quick else _LOG_BYTES[-1])
    kernels = _KERNELS[:2] if chosen.quick else _KERNELS
    yield from _of_descriptions(chosen, kernels)
    yield from _of_recordings(chosen, _LAYERS[:1] if chosen.quick else _LAYERS)
    yield from _of_bounds(chosen, kernels, "{:,} kernels in a chain", _chain)
    yield from _of_blocks(chosen, _BLOCKS[:1] if chosen.quick else _BLOCKS)
    for n in _IN_NETWORKX[:1] if chosen.quick else _IN_NETWORKX:
        yield _of_networkx(_local(n))


def _chain(kernels: int) -> BlockGraph:
    return kernel_graph(kernels, _BLOCKS_A_KERNEL, [(k - 1, k) for k in range(1, kernels)])


def _local(blocks: int) -> BlockGraph:
    return local_graph(_KERNELS_OF_BLOCKS, blocks // _KERNELS_OF_BLOCKS)


def _of_blocks(chosen: Options, sizes: Sequence[int]) -> Iterator[Figure]:
    room = 2 * default_limit() // _OF_A_BLOCK
    fit = [n for n in sizes if n <= room]
    yield from _of_bounds(chosen, fit, "{:,} blocks, ten edges each", _local)
    for n in sizes[len(fit) :]:
        yield Figure(f"`bound`, {n:,} blocks, ten edges each", "not measured: too little memory")


def _of_logs(chosen: Options, sizes: Sequence[int]) -> Iterator[Figure]:
    log, large = plain_log(chosen, SAMPLE), chosen.work / "large.log"
    assert log is not None  # noqa: S101
    out = ["-o", chosen.work / "growth.out", "--force", "-q"]
    toy = toy_log(chosen)
    points = [(toy.stat().st_size, "", _least([*_extract(toy), *out], chosen))]
    for wanted in sizes:
        make_large_log(log, large, wanted)
        n_bytes = large.stat().st_size
        least = _least([*_extract(large), *out], chosen)
        points.append((n_bytes, f"log of {size(n_bytes)}", least))
        large.unlink()
    yield from _figures("extract", points)


def _of_cores(chosen: Options, wanted: int) -> Iterator[Figure]:
    """Yield what a log takes on one core and more, by threads and by workers of dask."""
    log, large = plain_log(chosen, SAMPLE), chosen.work / "large.log"
    assert log is not None  # noqa: S101
    make_large_log(log, large, wanted)
    out = ["-o", chosen.work / "growth.out", "--force", "-q"]
    most = len(available_cores())
    for cores in sorted({most, *(2**i for i in range(most.bit_length()))}):
        ways = {"thread": ["-j", f"{cores}"], "dask worker": ["--scheduler", f"local:{cores}"]}
        if find_spec("distributed") is None:
            del ways["dask worker"]
        commands = {way: [*_extract(large), *out, *more] for way, more in ways.items()}
        runs = run_together(commands, chosen.work, repeat=min(chosen.repeat, 3), cores=cores)
        for way, those in runs.items():
            one = min(those, key=lambda each: each.wall)
            workers = counted(cores, way)
            what = f"`extract`, log of {size(large.stat().st_size)}, {workers}"
            took = f"{seconds(one.wall)}, {seconds(one.processor)} of processors"
            yield Figure(what, f"{took}; peak {one.peak / MIB:.0f} MiB a process", cores=cores)
    large.unlink()


def _of_descriptions(chosen: Options, kernels: Sequence[int]) -> Iterator[Figure]:
    path = chosen.work / "described.toml"
    points = []
    for n in (2, *kernels):
        # Each second kernel waits for the one before it.
        path.write_text("".join(
            f'[[kernel]]\nname = "{k}"\ngrid = 4\nduration = {1 + k % 7}\n'
            + f'[[dependence]]\nfrom = "{k - 1}"\nto = "{k}"\npattern = "all"\n' * (k % 2)
            for k in range(n)
        ))  # fmt: skip
        least = _least([*_extract(path), "-o", chosen.work / "growth.out", "--force", "-q"], chosen)
        points.append((n, f"{n:,} described kernels", least))
    yield from _figures("extract", points)


def _of_recordings(chosen: Options, layers: Sequence[int]) -> Iterator[Figure]:
    """Yield what recordings of GPT-2 steps of some layers take."""
    path, store = chosen.work / "large.recording", chosen.work / "growth.out"
    extracts = [(2, "", _least([*_extract(toy_log(chosen)), "-o", store, "--force", "-q"], chosen))]
    bounds = [(2, "", _least([*DEPGRAPH, "bound", store, "--sms", "132", "-q"], chosen))]
    for n in layers:
        blocks = make_recording(path, n)
        what = f"recording of {size(path.stat().st_size)}, {blocks:,} blocks"
        command = [*_extract(path), "-o", store, "--force", "-q"]
        extracts.append((blocks, what, _least(command, chosen)))
        command = [*DEPGRAPH, "bound", store, "--sms", "132", "-q"]
        bounds.append((blocks, f"store of the {what}", _least(command, chosen)))
        path.unlink()
    yield from _figures("extract", extracts)
    yield from _figures("bound", bounds)


def _extract(log: Path) -> list[str | Path]:
    return [*DEPGRAPH, "extract", log]


def _of_bounds(
    chosen: Options, sizes: Sequence[int], what: str, graph_of: Callable[[int], BlockGraph]
) -> Iterator[Figure]:
    points = [(1, "", _bound(_chain(2), chosen))]
    points += [(n, what.format(n), _bound(graph_of(n), chosen)) for n in sizes]
    yield from _figures("bound", points)


def _bound(graph: BlockGraph, chosen: Options) -> Run:
    store = chosen.work / "graph.out"
    write_graph(graph, store)
    least = _least([*DEPGRAPH, "bound", store, "--sms", "80", "-q"], chosen)
    shutil.rmtree(store)
    return least


def _least(command: list[str | Path], chosen: Options) -> Run:
    """Return the run that took least of the processor, after one that compiles."""
    run(command, chosen.work)
    runs = [run(command, chosen.work) for _ in range(min(chosen.repeat, 3))]
    return min(runs, key=lambda one: one.processor)


def _figures(command: str, points: Sequence[tuple[int, str, Run]]) -> Iterator[Figure]:
    """Yield each point but the first, which only says what starting takes, and its slope."""
    start = points[0][2].processor
    before: tuple[int, float] | None = None
    for n, what, one in points[1:]:
        took = max(one.processor - start, 1e-3)
        slope = ""
        if before is not None:
            power = math.log(took / before[1]) / math.log(n / before[0])
            slope = f", to the power {power:.2f} of the size"
        before = n, took
        text = f"{seconds(took)} beyond {seconds(start)}{slope}; peak {one.peak / MIB:.0f} MiB"
        yield Figure(f"`{command}`, {what}", text)


def _of_networkx(graph: BlockGraph) -> Figure:
    import networkx as nx

    from depgraph.system.compiled import compile_always

    compile_always()
    durations = graph.cost
    assert durations is not None  # noqa: S101
    graph.earliest_finish(durations)  # loads, or compiles
    began = time.process_time()
    length = float(graph.earliest_finish(durations)[0].max())
    ours = time.process_time() - began
    program = nx.DiGraph()
    time_of = durations.tolist()
    end = graph.n_blocks
    for source, target, _ in graph.edges():
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        program.add_weighted_edges_from((one, other, time_of[one]) for one, other in pairs)
    program.add_weighted_edges_from((block, end, time_of[block]) for block in range(end))
    began = time.process_time()
    theirs = nx.dag_longest_path_length(program)
    took = time.process_time() - began
    return Figure(
        f"longest path, {graph.n_blocks:,} blocks, {program.size() - end:,} edges",
        f"{seconds(ours)}; networkx {seconds(took)}, depgraph is {took / ours:.0f} times as fast",
        "the same length",
        math.isclose(theirs, length),
    )


if __name__ == "__main__":
    main(__doc__, TITLE, measure)
