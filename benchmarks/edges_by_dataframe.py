"""The dependences between blocks as users without depgraph would look for them.

Each function takes the footprints of a store and returns the distinct edges. The three for data
frames cut the address space where any footprint begins or ends, so that a block touches a piece
whole or not at all (far fewer rows than bytes or words would be); then, piece by piece, a read
waits for the last kernel before it that wrote (RAW), a write likewise (WAW), and the first kernel
to write after a read waits for that read (WAR).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.graph.dependences import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from depgraph.graph.block_graph import BlockGraph
    from depgraph.store.store import Store

READ, WRITE = 0, 1
RAW, WAR, WAW = range(3)
LINE_BYTES = 128
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Touched:
    """The footprints of a program: a row a byte range."""

    block: NDArray[np.int32]
    kernel: NDArray[np.int32]  # in program order
    kind: NDArray[np.uint8]  # `READ` or `WRITE`
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    graph: BlockGraph  # what depgraph found; only its blocks are used here

    @classmethod
    def of_store(cls, store: Store) -> Touched:
        """Read the footprints of a store."""
        found, graph = store.footprints(), store.graph()
        return cls(
            found.block,
            graph.operation_of_block[found.block],
            found.access,
            found.start.astype(np.int64),
            found.end.astype(np.int64),
            graph,
        )

    def frame(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a data frame."""
        return {name: getattr(self, name) for name in ("block", "kernel", "kind", "start", "end")}


Edges = dict[str, "NDArray[Any]"]
"""Columns source and target (global block numbers) and kind (0 RAW, 1 WAR, 2 WAW)."""


def by_depgraph(touched: Touched) -> Edges:
    """Sweep over the addresses as depgraph does, and expand the edges."""
    from depgraph.dependence.sweep import build_graph, sweep
    from depgraph.footprint.footprints import Footprints
    from depgraph.system.compiled import compile_always

    compile_always()  # as in an extraction, which has loaded numba for the scan

    footprints = Footprints(
        touched.block,
        touched.kind,
        touched.start.astype(np.uint64),
        touched.end.astype(np.uint64),
    )
    known = touched.graph
    swept = sweep(footprints, known.operation_of_block, known.n_operations)
    return expanded(build_graph([swept], known.first_block, known.kernel))


def expanded(graph: BlockGraph) -> Edges:
    """Return all edges of a graph."""
    none = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.uint8))
    columns = zip(none, *graph.edges(), strict=True)
    return {
        name: np.concatenate(column)
        for name, column in zip(("source", "target", "kind"), columns, strict=True)
    }


def _pieces(touched: Touched) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each range, repeated for each of its pieces, its row and the piece."""
    points = np.unique(np.concatenate([touched.start, touched.end]))
    low = np.searchsorted(points, touched.start)
    count = np.searchsorted(points, touched.end) - low
    row = np.repeat(np.arange(len(low)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, low[row] + within


def _words(touched: Touched) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each range, repeated for each of its words, its row and the word."""
    if (touched.start % WORD_BYTES).any() or (touched.end % WORD_BYTES).any():
        message = f"there are accesses to parts of words of {WORD_BYTES} bytes"
        raise ValueError(message)
    low = touched.start // WORD_BYTES
    count = touched.end // WORD_BYTES - low
    row = np.repeat(np.arange(len(low)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, low[row] + within


def by_pandas(touched: Touched) -> Edges:
    """Use pandas: ``merge_asof`` to the last or next writer, ``merge`` to its blocks."""
    return _with_pandas(touched, *_pieces(touched))


def by_pandas_words(touched: Touched) -> Edges:
    """Use pandas on one row a word, which comes to mind first."""
    return _with_pandas(touched, *_words(touched))


def _with_pandas(touched: Touched, row: NDArray[np.int64], piece: NDArray[np.int64]) -> Edges:
    import pandas as pd

    touches = pd.DataFrame(
        {
            "piece": piece,
            "kernel": touched.kernel[row].astype(np.int64),
            "block": touched.block[row],
            "kind": touched.kind[row],
        }
    ).sort_values("kernel")
    reads = touches[touches["kind"] == READ].drop(columns="kind")
    writes = touches[touches["kind"] == WRITE].drop(columns="kind")
    writers = writes[["piece", "kernel"]].drop_duplicates()
    writers["writer"] = writers["kernel"]

    def edges(kind: int, left: pd.DataFrame, direction: str) -> pd.DataFrame:
        found = pd.merge_asof(
            left,
            writers,
            on="kernel",
            by="piece",
            allow_exact_matches=False,
            direction="backward" if direction == "before" else "forward",
        ).dropna()
        both = found.drop(columns="kernel").merge(
            writes, left_on=["piece", "writer"], right_on=["piece", "kernel"]
        )
        names = ["block_y", "block_x"] if direction == "before" else ["block_x", "block_y"]
        pairs = both[names].drop_duplicates()
        pairs.columns = pd.Index(["source", "target"])
        return pairs.assign(kind=kind)

    result = pd.concat(
        [
            edges(RAW, reads, "before"),
            edges(WAR, reads, "after"),
            edges(WAW, writes, "before"),
        ]
    )
    return {name: result[name].to_numpy() for name in ("source", "target", "kind")}


def by_polars(touched: Touched) -> Edges:
    """Use Polars, lazily: ``join_asof`` to the last or next writer, ``join`` to its blocks."""
    import polars as pl

    row, piece = _pieces(touched)
    touches = pl.LazyFrame(
        {
            "piece": piece,
            "kernel": touched.kernel[row].astype(np.int64),
            "block": touched.block[row],
            "kind": touched.kind[row],
        }
    ).sort("kernel")
    reads = touches.filter(pl.col("kind") == READ).drop("kind")
    writes = touches.filter(pl.col("kind") == WRITE).drop("kind")
    writers = writes.select("piece", "kernel").unique().sort("kernel")
    writers = writers.with_columns(writer="kernel")

    def edges(kind: int, left: pl.LazyFrame, direction: str) -> pl.LazyFrame:
        step = -1 if direction == "before" else 1
        both = (
            left.with_columns(kernel=pl.col("kernel") + step)
            .join_asof(
                writers,
                on="kernel",
                by="piece",
                strategy="backward" if direction == "before" else "forward",
                check_sortedness=False,
            )
            .drop_nulls("writer")
            .join(writes, left_on=["piece", "writer"], right_on=["piece", "kernel"])
        )
        names = ["block_right", "block"] if direction == "before" else ["block", "block_right"]
        pairs = both.select(source=names[0], target=names[1]).unique()
        return pairs.with_columns(kind=pl.lit(kind))

    result = pl.concat(
        [
            edges(RAW, reads, "before"),
            edges(WAR, reads, "after"),
            edges(WAW, writes, "before"),
        ]
    ).collect()
    return {name: result[name].to_numpy() for name in ("source", "target", "kind")}


_SQL = """
CREATE TEMP TABLE points AS
SELECT address, row_number() OVER (ORDER BY address) AS piece
FROM (SELECT "start" AS address FROM footprints UNION SELECT "end" FROM footprints);

CREATE TEMP TABLE touches AS
SELECT p.piece, f.kernel, f.block, f.kind
FROM footprints f
JOIN points a ON a.address = f."start"
JOIN points b ON b.address = f."end"
JOIN points p ON p.piece BETWEEN a.piece AND b.piece - 1;

CREATE TEMP TABLE reads AS SELECT piece, kernel, block FROM touches WHERE kind = 0;
CREATE TEMP TABLE writes AS SELECT piece, kernel, block FROM touches WHERE kind = 1;
CREATE TEMP TABLE writers AS SELECT DISTINCT piece, kernel FROM writes;
"""
_SQL_EDGES = """
SELECT DISTINCT w.block AS source, t.block AS target, 0 AS kind
FROM reads t ASOF JOIN writers l ON t.piece = l.piece AND t.kernel > l.kernel
JOIN writes w ON w.piece = l.piece AND w.kernel = l.kernel
UNION ALL
SELECT DISTINCT t.block, w.block, 1
FROM reads t ASOF JOIN writers l ON t.piece = l.piece AND t.kernel < l.kernel
JOIN writes w ON w.piece = l.piece AND w.kernel = l.kernel
UNION ALL
SELECT DISTINCT w.block, t.block, 2
FROM writes t ASOF JOIN writers l ON t.piece = l.piece AND t.kernel > l.kernel
JOIN writes w ON w.piece = l.piece AND w.kernel = l.kernel
"""


def by_duckdb(touched: Touched) -> Edges:
    """Use DuckDB: everything in SQL."""
    import duckdb
    import pyarrow as pa

    with duckdb.connect() as database:
        database.register("footprints", pa.table(touched.frame()))
        database.execute(_SQL)
        found = database.execute(_SQL_EDGES).fetchnumpy()
        return {name: np.asarray(column) for name, column in found.items()}


def by_all_pairs(touched: Touched) -> Edges:
    """Compare the lines of every block with those of every block of earlier kernels."""
    # Written from the description of an earlier tool: Python sets, no account of kernels between
    # the two that write the line again.
    n_blocks = touched.graph.n_blocks
    lines: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in range(n_blocks)]
    rows = zip(
        touched.block.tolist(),
        touched.kind.tolist(),
        (touched.start // LINE_BYTES).tolist(),
        ((touched.end - 1) // LINE_BYTES).tolist(),
        strict=True,
    )
    for block, kind, first, last in rows:
        lines[block][kind].update(range(first, last + 1))
    kernel = touched.graph.operation_of_block.tolist()
    found: list[tuple[int, int, int]] = []
    for target, (reads, writes) in enumerate(lines):
        for source, (earlier_reads, earlier_writes) in enumerate(lines[:target]):
            if kernel[source] == kernel[target]:
                break
            if not reads.isdisjoint(earlier_writes):
                found.append((source, target, RAW))
            if not writes.isdisjoint(earlier_reads):
                found.append((source, target, WAR))
            if not writes.isdisjoint(earlier_writes):
                found.append((source, target, WAW))
    columns = np.array(found, np.int64).reshape(-1, 3).T
    return dict(zip(("source", "target", "kind"), columns, strict=True))


METHODS: dict[str, Callable[[Touched], Edges]] = {
    "depgraph": by_depgraph,
    "pandas": by_pandas,
    "pandas, a row a word": by_pandas_words,
    "Polars": by_polars,
    "DuckDB": by_duckdb,
    "all pairs": by_all_pairs,
}


def edge_keys(edges: Edges, n_blocks: int) -> NDArray[np.int64]:
    """Return one number an edge, sorted: int64[n_edges]."""
    source, target, kind = (edges[name].astype(np.int64) for name in ("source", "target", "kind"))
    return np.sort((source * n_blocks + target) * len(KIND_NAMES) + kind)
