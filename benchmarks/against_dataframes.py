"""Measure depgraph against what a user would do instead, from the same footprints.

Data frames (pandas, Polars, DuckDB) must find the same edges. A plain-Python port of the method
that compares all pairs of blocks works on 128-byte lines and does not know of a writer between the
two, so that it is held to the same edges between neighbouring kernels, where no writer can be
between, and at the same granularity. Times are from footprints in memory to edges in memory,
without reading the trace, which only depgraph can do at all at this speed. Compiled code is warm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from edges_by_dataframe import LINE_BYTES, METHODS, Touched, edge_keys, expanded
from figures import MIB, Figure, seconds
from inputs import SAMPLE, Options, main, plain_log
from measure import DEPGRAPH, CommandFailedError, Run, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

TITLE = "Against data frames, and against comparing all pairs"

_ALL_PAIRS = "all pairs"
_TIMEOUT = 300.0
# Short runs are repeated, and the best counts: the first one loads libraries and compiled code.
_ROUNDS = 3
_LONG = 5.0
_MODULES = {"Polars": "polars", "DuckDB": "duckdb"}


def measure(chosen: Options) -> Iterator[Figure]:
    """Yield all figures of this program."""
    names = [SAMPLE] if chosen.quick else [SAMPLE, "streams4", "gpt2_d256", "mlp_m256", "lstm_h128"]
    for name in names:
        log = plain_log(chosen, name)
        if log is not None:
            yield from _compare(chosen, name, log)


def _compare(chosen: Options, name: str, log: Path) -> Iterator[Figure]:
    stores = {}
    for granularity in (1, LINE_BYTES):
        stores[granularity] = chosen.work / f"edges-{granularity}.out"
        more = ("-o", stores[granularity], "--force", "-q", "--granularity", str(granularity))
        run([*DEPGRAPH, "extract", log, *more], chosen.work)
    took, expected, ours = _one(chosen, "depgraph", stores[1])
    yield Figure(
        f"{name}: depgraph, {len(expected):,} edges",
        f"{seconds(took)}, peak {ours.peak / MIB:.0f} MiB",
    )
    for method in METHODS:
        if method == "depgraph" or not _is_installed(method):
            continue
        try:
            theirs, found, measured = _one(chosen, method, stores[1])
        except CommandFailedError as error:
            reason = str(error).strip().splitlines()[-1]
            yield Figure(f"{name}: {method}", f"gave up: {reason}")
            continue
        same = (
            _same_between_neighbours(found, stores[LINE_BYTES])
            if method == _ALL_PAIRS
            else np.array_equal(found, expected)
        )
        yield Figure(
            f"{name}: {method}",
            f"{seconds(theirs)}, depgraph is {theirs / took:.1f} times as fast; "
            f"peak {measured.peak / MIB:.0f} MiB",
            "the same edges between neighbouring kernels"
            if method == _ALL_PAIRS
            else "the same edges",
            bool(same),
        )


def _is_installed(method: str) -> bool:
    from importlib.util import find_spec

    return method not in _MODULES or find_spec(_MODULES[method]) is not None


def _one(chosen: Options, method: str, store: Path) -> tuple[float, NDArray[np.int64], Run]:
    """Run one method in a process of its own; return its time, its edges and the run."""
    output = chosen.work / "edges.npy"
    measured = run(
        [sys.executable, __file__, "--method", method, "--store", store, "--edges", output],
        chosen.work,
        timeout=_TIMEOUT,
    )
    return float(json.loads(measured.output)["seconds"]), np.load(output), measured


def _same_between_neighbours(keys: NDArray[np.int64], store: Path) -> bool:
    """Tell whether edges between neighbouring kernels are those of depgraph at the same lines."""
    from depgraph.graph.dependences import KIND_NAMES
    from depgraph.store.store import Store

    graph = Store(store).graph()
    operation = graph.operation_of_block

    def neighbouring(all_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        source, target = np.divmod(all_keys // len(KIND_NAMES), graph.n_blocks)
        chosen: NDArray[np.int64] = all_keys[operation[source] + 1 == operation[target]]
        return chosen

    expected = edge_keys(expanded(graph), graph.n_blocks)
    return np.array_equal(neighbouring(keys), neighbouring(expected))


def _run_method(method: str, store: Path, output: Path) -> None:
    """Be the process that `_one` starts."""
    from depgraph.store.store import Store

    touched = Touched.of_store(Store(store))
    find = METHODS[method]
    times: list[float] = []
    while len(times) < _ROUNDS and sum(times) < _LONG:
        began = time.perf_counter()
        edges = find(touched)
        times.append(time.perf_counter() - began)
    np.save(output, edge_keys(edges, touched.graph.n_blocks))
    print(json.dumps({"seconds": min(times)}))


def start(arguments: Sequence[str] | None = None) -> None:
    """Measure, or run one method, as the command line says."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--edges", type=Path)
    one, others = parser.parse_known_args(arguments)
    if one.method:
        _run_method(one.method, one.store, one.edges)
    else:
        main(__doc__, TITLE, lambda chosen: list(measure(chosen)), others)


if __name__ == "__main__":
    start()
