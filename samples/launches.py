"""Describe a program whose blocks may launch child kernels, from a graph or a sparse matrix.

    python -m depgraph.samples.launches GRAPH -o bfs.toml
    depgraph extract bfs.toml -o bfs.out
    depgraph bound bfs.out --gpu h100 --mechanism flat,cdp,"cdp(best)",spawn

GRAPH is a MatrixMarket file (.mtx, or .mtx.gz), a NumPy archive (.npz) with the arrays indptr and
indices, as scipy.sparse.save_npz writes CSR, or rmat:SCALE:DEGREE: 2^SCALE vertices whose
degrees follow a power law (Chakrabarti et al., R-MAT, SDM 2004; 0.57, 0.19, 0.19, 0.05). Each
thread has a vertex, or a row of the matrix: it goes through its edges itself, or launches a child
kernel with a thread for each.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import DepgraphError, InputError
from depgraph.system.described import toml_text
from depgraph.system.output import new_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Csr = tuple[NDArray[np.int64], NDArray[np.int64]]

_MOST_ENTRIES = 1 << 27
_MOST_SCALE = 18
_WARP = 32
_MAGIC = "%%MatrixMarket matrix coordinate"


def rmat(scale: int, degree: int) -> Csr:
    """Make a graph of a power law: 2^`scale` vertices, so many edges at each on average."""
    n = 1 << scale
    quarter = np.random.default_rng(0).choice(
        4, (scale, n * degree // 2), p=(0.57, 0.19, 0.19, 0.05)
    )
    weights = 1 << np.arange(scale)[::-1]
    row, column = weights @ (quarter // 2), weights @ (quarter % 2)
    return _from_pairs(np.append(row, column), np.append(column, row), n)


def read_csr(path: Path) -> Csr:
    """Read a graph or a sparse matrix.

    Parameters
    ----------
    path : Path
        A MatrixMarket file, compressed by gzip or not, or a NumPy archive.

    Returns
    -------
    indptr : int64[n + 1]
    indices : int64[n_entries]
        Of row r the columns are ``indices[indptr[r] : indptr[r + 1]]``.

    Raises
    ------
    InputError
        If it cannot be read, or is no such matrix.
    """
    try:
        if path.suffix == ".npz":
            return _from_archive(path)
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            return _from_matrix_market(path, file)
    except OSError as error:
        raise InputError(path, error.strerror or str(error), "name a readable file") from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "give a MatrixMarket file (.mtx, .mtx.gz), or .npz with indptr and indices"
        raise InputError(path, f"is no matrix that can be read ({reason})", hint) from None


def _from_archive(path: Path) -> Csr:
    with np.load(path, allow_pickle=False) as archive:
        indptr, indices = (archive[name].astype(np.int64) for name in ("indptr", "indices"))
    n = len(indptr) - 1
    if n < 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError("indptr does not go up from 0 to the number of indices")
    return indptr, _checked(indices, n)


def _from_matrix_market(path: Path, file: Iterator[str]) -> Csr:
    header = next(file, "")
    if not header.startswith(_MAGIC):
        raise ValueError(f"{path.name} does not begin with {_MAGIC}")
    line = next((line for line in file if not line.startswith("%")), "")
    rows, columns, entries = (int(word) for word in line.split())
    if not 0 <= entries <= _MOST_ENTRIES or not 1 <= max(rows, columns) <= _MOST_ENTRIES:
        raise ValueError(f"{entries} entries of {rows} rows, at most {_MOST_ENTRIES} are taken")
    found = np.loadtxt(file, usecols=(0, 1), ndmin=2, comments="%") if entries else np.zeros((0, 2))
    if len(found) != entries:
        raise ValueError(f"{len(found)} entries, {entries} announced")
    n = max(rows, columns)
    row, column = _checked(found.astype(np.int64).T - 1, n)
    if header.split()[-1].lower() in {"symmetric", "skew-symmetric", "hermitian"}:
        off = row != column
        row, column = np.append(row, column[off]), np.append(column, row[off])
    return _from_pairs(row, column, n)


def _from_pairs(row: NDArray[np.int64], column: NDArray[np.int64], n: int) -> Csr:
    indices = column[np.lexsort((column, row))]
    return np.append(0, np.cumsum(np.bincount(row, minlength=n))), indices


def _checked(indices: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    if len(indices) and not (0 <= indices.min(initial=0) <= indices.max(initial=0) < n):
        raise ValueError(f"an index is not among those of {n} rows")
    return indices


def bfs_levels(indptr: NDArray[np.int64], indices: NDArray[np.int64], source: int) -> Iterator[
    NDArray[np.int64]
]:  # fmt: skip
    """Yield the vertices of each level of a breadth-first search, in the order of their numbers."""
    seen = np.zeros(len(indptr) - 1, np.bool_)
    seen[source] = True
    level = np.array([source])
    while len(level):
        yield level
        degrees = np.diff(indptr)[level]
        first = np.repeat(indptr[level] - (np.cumsum(degrees) - degrees), degrees)
        reached = np.unique(indices[first + np.arange(len(first))])
        level = reached[~seen[reached]]
        seen[level] = True


def workload(
    name: str,
    kernels: Sequence[NDArray[np.int64]],
    *,
    block: int = 128,
    vertex_cycles: float = 4000,
    edge_cycles: float = 600,
    least: int = 1,
    pattern: str = "all",
) -> Iterator[str]:
    """Yield the lines of a described program, in cycles.

    Parameters
    ----------
    name : str
    kernels : sequence of int64[n_threads], or of int64[3, n_threads]
        Of each kernel the work items of each thread; or these, the work of all in the time of one
        of `edge_cycles`, and the longest. Each kernel waits for the one before.
    block : int
        Threads of a block.
    vertex_cycles, edge_cycles : float
        Time of each thread without its items, half of it before them, and of each item.
    least : int
        Items from which on a thread may launch a child; fewer it always does itself.
    pattern : str
        Which blocks wait for which of the kernel before.
    """
    yield f'name = {toml_text(name)}\nunit = "cycles"\n'
    for k, kernel in enumerate(kernels):
        items, work, longest = (
            kernel if kernel.ndim > 1 else (kernel, kernel, np.minimum(kernel, 1))
        )
        thread = np.arange(len(items))
        blocks = -(-len(items) // block)
        own = np.zeros(blocks)
        few = items < least
        np.maximum.at(own, thread[few] // block, work[few] * edge_cycles)
        durations = (vertex_cycles + own).tolist()
        shown = durations[0] if len(set(durations)) == 1 else durations
        yield f'[[kernel]]\nname = "level {k}"\ngrid = {blocks}\nblock = {block}'
        yield f"duration = {shown}\n"
        if k:
            yield f'[[dependence]]\nfrom = "level {k - 1}"\nto = "level {k}"'
            yield f'pattern = "{pattern}"\n'
        many = np.flatnonzero(~few & (items > 0))
        if not len(many):
            continue
        mine = items[many]
        yield f'[[launch]]\nparent = "level {k}"\nat = 0.5'
        for key, values in (
            ("block", many // block),
            ("warp", many % block // _WARP),
            ("items", mine),
            ("child_grid", -(-mine // block)),
            ("inline", work[many] * edge_cycles),
            ("child_duration", longest[many] * edge_cycles),
        ):
            yield f"{key} = {values.tolist()}"
        yield ""


def _graph(text: str) -> Csr:
    match = re.fullmatch(r"rmat:([0-9]{1,2}):([0-9]{1,3})", text)
    if match is None:
        return read_csr(Path(text))
    scale, degree = map(int, match.groups())
    if not 1 <= scale <= _MOST_SCALE or degree < 1:
        message = f"gives a graph of 2^{scale} vertices of degree {degree}"
        raise InputError(text, message, f"give a scale from 1 to {_MOST_SCALE}, a degree from 1")
    return rmat(scale, degree)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m depgraph.samples.launches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("graph", metavar="GRAPH", help="a file, or rmat:SCALE:DEGREE")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.toml")
    parser.add_argument("--force", action="store_true", help="replace FILE.toml")
    parser.add_argument(
        "--work", choices=("bfs", "rows"), default="bfs",
        help="levels of a breadth-first search (default), or all rows at once",
    )  # fmt: skip
    parser.add_argument("--source", type=int, default=0, help="vertex that the search begins at")
    parser.add_argument("--block", type=int, default=128, help="threads of a block (default 128)")
    parser.add_argument("--vertex-cycles", type=float, default=4000, help="default 4000")
    parser.add_argument("--edge-cycles", type=float, default=600, help="default 600")
    parser.add_argument("--least", type=int, default=1, help="edges that a launch is for at least")
    asked = parser.parse_args(arguments)
    if not 1 <= asked.block <= 1024 or asked.least < 0:  # noqa: PLR2004 - threads of a block
        parser.error("--block goes from 1 to 1024, --least from 0")
    if not (0 <= asked.vertex_cycles < 1e15 and 0 <= asked.edge_cycles < 1e9):  # noqa: PLR2004
        parser.error("cycles go from 0 to 1e9 an edge")
    try:
        indptr, indices = _graph(asked.graph)
        n = len(indptr) - 1
        if not 0 <= asked.source < n:
            parser.error(f"--source: the graph has vertices 0 to {n - 1}")
        levels = [np.arange(n)]
        if asked.work == "bfs":
            levels = list(bfs_levels(indptr, indices, asked.source))
        lines = workload(
            f"{asked.work} of {Path(asked.graph).name}",
            [np.diff(indptr)[level] for level in levels],
            block=asked.block, vertex_cycles=asked.vertex_cycles, edge_cycles=asked.edge_cycles,
            least=asked.least,
        )  # fmt: skip
        with new_file(asked.output, force=asked.force) as temporary:
            temporary.write_text("\n".join(lines), encoding="utf-8")
    except DepgraphError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        return 1
    print(f"Wrote {asked.output}", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
