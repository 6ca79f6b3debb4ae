"""Programs of the kinds that SPAWN measures: kernels whose threads may launch child kernels.

    python -m depgraph.samples.suite.launching --list
    python -m depgraph.samples.suite.launching sssp -o sssp.toml
    depgraph extract sssp.toml -o sssp.out
    depgraph bound sssp.out --gpu v100 --sms 13 --mechanism flat,cdp,"cdp(best)",spawn

    python -m depgraph.samples.suite.launching all -o launching
    depgraph bound launching/suite.toml --mechanism flat,cdp,"cdp(best)",spawn

Each algorithm is run, on made data, to find how much work each thread has; a work item, an edge
say, takes 60 cycles. A round of a search, or of a colouring, waits for all of the one before, whose
threads append to its list, or change what any of its threads may read; a step of a refined mesh
waits for its neighbours.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from depgraph.errors import DepgraphError
from depgraph.samples.launches import bfs_levels, rmat, workload
from depgraph.system.output import new_file, new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Items = NDArray[np.int64]

ITEM_CYCLES = 60.0
_SCALE, _DEGREE = 12, 16
_MOST_ROUNDS = 12
_MOST_DWELL = 256


def bfs() -> Iterator[Items]:
    """Yield the edges of each vertex of each level of a breadth-first search."""
    indptr, indices = rmat(_SCALE, _DEGREE)
    degree = np.diff(indptr)
    source = int(degree.argmax())
    for level in bfs_levels(indptr, indices, source):
        yield degree[level]


def sssp() -> Iterator[Items]:
    """Yield the edges of the vertices whose distance changed, in rounds of Bellman and Ford."""
    indptr, indices = rmat(_SCALE, _DEGREE)
    degree = np.diff(indptr)
    weight = np.random.default_rng(1).integers(1, 11, len(indices))
    distance = np.full(len(degree), np.iinfo(np.int64).max // 2)
    active = np.array([degree.argmax()])
    distance[active] = 0
    for _ in range(_MOST_ROUNDS):
        if not len(active):
            return
        yield degree[active]
        first = np.repeat(indptr[active] - (np.cumsum(degree[active]) - degree[active]),
                          degree[active])  # fmt: skip
        edge = first + np.arange(len(first))
        before = distance.copy()
        reached = np.repeat(distance[active], degree[active]) + weight[edge]
        np.minimum.at(distance, indices[edge], reached)
        active = np.flatnonzero(distance < before)


def colouring() -> Iterator[Items]:
    """Yield the edges of the vertices without colour, round by round of Jones and Plassmann."""
    indptr, indices = rmat(_SCALE, _DEGREE)
    n = len(indptr) - 1
    row, rank = np.repeat(np.arange(n), np.diff(indptr)), np.random.default_rng(2).permutation(n)
    is_left = np.ones(n, np.bool_)
    for _ in range(_MOST_ROUNDS):
        yield np.where(is_left, np.diff(indptr), 0)
        held_up = is_left[row] & is_left[indices] & (rank[indices] > rank[row])
        is_left[is_left] = np.bincount(row[held_up], minlength=n)[is_left] > 0
        if not is_left.any():
            return


def join(spread: str) -> Iterator[Items]:
    """Yield how many tuples of the other relation match each of 4 096."""
    random = np.random.default_rng(3)
    n, keys = 4096, 512
    if spread == "uniform":
        other = random.integers(0, keys, 32 * n)
    else:
        other = np.clip(random.normal(keys / 2, keys / 16, 32 * n), 0, keys - 1).astype(np.int64)
    yield np.bincount(other, minlength=keys)[random.integers(0, keys, n)]


def mandelbrot(side: int = 64, pixels: int = 16) -> Iterator[Items]:
    """Yield of each tile the pixels left, all their steps in items of 16, and the most of one.

    Tiles whose border takes the same number of steps everywhere are filled (Mariani and Silver).
    """
    axis = np.linspace(-1.5, 1.5, side * pixels)
    point = axis[None, :] - 0.5 + 1j * axis[:, None]
    z, dwell = np.zeros_like(point), np.zeros(point.shape, np.int64)
    for _ in range(_MOST_DWELL):
        inside = np.abs(z) <= 2  # noqa: PLR2004 - where the set's points stay
        z = np.where(inside, z * z + point, z)
        dwell += inside
    tiles = dwell.reshape(side, pixels, side, pixels).swapaxes(1, 2)
    border = np.concatenate(
        [tiles[..., 0, :], tiles[..., -1, :], tiles[..., 0], tiles[..., -1]], axis=-1
    )
    left = (border != border[..., :1]).any(axis=-1).reshape(-1)
    steps = tiles.reshape(side * side, -1)
    yield left * np.stack(
        [np.full(len(left), pixels**2), -(-steps.sum(1) // 16), -(-steps.max(1) // 16)]
    )


def amr(side: int = 64, steps: int = 4) -> Iterator[Items]:
    """Yield the cells that each cell of a mesh is refined to as a front moves over it."""
    y, x = np.mgrid[0:side, 0:side] / side
    for step in range(steps):
        front = np.abs(np.hypot(x - 0.5, y - 0.5) - 0.1 * (step + 1)) * side
        level = np.clip(3 - front.astype(np.int64), 0, 3)
        yield (4**level * (level > 0)).reshape(-1) * 4


def products(n: int = 2048) -> Iterator[Items]:
    """Yield the multiplications of each row of a sparse matrix times one like it."""
    random = np.random.default_rng(4)
    degree = np.minimum(random.lognormal(2, 1, n).astype(np.int64) + 1, n)
    row = np.repeat(np.arange(n), degree)
    weights = degree[random.integers(0, n, len(row))]
    yield np.bincount(row, weights=weights, minlength=n).astype(np.int64)


PROGRAMS: dict[str, Callable[[], Iterator[Items]]] = {
    "bfs": bfs,
    "sssp": sssp,
    "colouring": colouring,
    "join_uniform": partial(join, "uniform"),
    "join_gaussian": partial(join, "gaussian"),
    "mandelbrot": mandelbrot,
    "amr": amr,
    "products": products,
}


def described(name: str) -> str:
    """Return a program as `depgraph extract` reads it."""
    pattern = "stencil" if name == "amr" else "all"
    return "\n".join(
        workload(name, list(PROGRAMS[name]()), edge_cycles=ITEM_CYCLES, pattern=pattern)
    )


def write_all(folder: Path, *, force: bool) -> None:
    """Write all programs, and a suite file of them, on the GPU of the paper."""
    with new_folder(folder, force=force) as temporary:
        for name in PROGRAMS:
            (temporary / f"{name}.toml").write_text(described(name), encoding="utf-8")
        listed = "".join(f'\n[[program]]\ntrace = "{name}.toml"\n' for name in PROGRAMS)
        suite = f'gpu = "V100"\nsms = 13\n{listed}'
        (temporary / "suite.toml").write_text(suite, encoding="utf-8")


def main() -> int:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?", choices=[*PROGRAMS, "all"])
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="FILE.toml, or a folder")
    parser.add_argument("--force", action="store_true", help="replace PATH")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(PROGRAMS))
        return 0
    if asked.name is None or asked.output is None:
        parser.error("give a name and -o FILE.toml, all and -o FOLDER, or --list")
    try:
        if asked.name == "all":
            write_all(asked.output, force=asked.force)
            return 0
        with new_file(asked.output, force=asked.force) as temporary:
            temporary.write_text(described(asked.name), encoding="utf-8")
    except DepgraphError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
