"""Make a recording of the size of a GPT-2 training step, without a GPU: kernels, blocks, bytes.

Layers forward and backward in bf16, and Adam: matrix products by tiles of 128 x 128, layer norms a
row a block, fused attention, element by element kernels of 512 elements a block. Shapes and numbers
of blocks are those of such a step; each tensor has memory of its own, which an allocator would use
again, and all pieces are whole pages, as dense kernels leave them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from depgraph.parsers.recording.archive import SECTORS
from depgraph.parsers.recording.packing import pack
from depgraph.parsers.recording.sectors_jit import PIECE_BYTES
from depgraph.recorder.raw_recording import IS_PAGE, IS_WRITTEN, PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WIDTH = 768
_HEADS = 12
_ELEMENT = 2  # bytes of a bf16
_A_BLOCK = 512  # elements of a block of a kernel that goes element by element
_ADAM = 1 << 16  # of one of Adam's
_TILE = 128
_BASE = 1 << 40
_ALL_BITS = np.uint64(2**64 - 1)
_KERNEL = {
    "event": "kernel", "mangled": "", "block": [128, 1, 1], "cluster": [0, 0, 0], "registers": 64,
    "static_shared": 0, "dynamic_shared": 0, "stream": 0, "context": 0, "device": 0, "graph": 0,
    "state": "recorded", "lost": 0,
}  # fmt: skip


def make_recording(path: Path, layers: int = 12, tokens: int = 4096) -> int:
    """Write the recording, of a multiple of 128 tokens; return how many blocks it has."""
    step = _Step(tokens)
    weights = [[step.weight(n) for n in (3, 1, 4, 4)] for _ in range(layers)]
    state = step.activation(1)
    kept = []
    for own in weights:
        state, saved = step.forward(state, own)
        kept.append(saved)
    for own, saved in zip(reversed(weights), reversed(kept), strict=True):
        state = step.backward(state, own, saved)
    for weight in (each for own in weights for each in own):
        step.adam(weight)
    return step.write(path)


class _Tensor(NamedTuple):
    """A matrix, row after row."""

    address: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.rows * self.columns * _ELEMENT


class _Step:
    """Launches, in order, and what each touches."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._end = _BASE
        self._events: list[dict[str, Any]] = []
        self._tables: list[NDArray[Any]] = []
        self._blocks = 0
        self._rows = 0

    def _tensor(self, rows: int, columns: int) -> _Tensor:
        tensor = _Tensor(self._end, rows, columns)
        self._end += -(-tensor.size // PAGE_BYTES) * PAGE_BYTES
        return tensor

    def weight(self, widths: int) -> _Tensor:
        """Allocate what multiplies an activation."""
        return self._tensor(widths * _WIDTH, _WIDTH)

    def activation(self, widths: int) -> _Tensor:
        """Allocate a row of some widths for each token."""
        return self._tensor(self._tokens, widths * _WIDTH)

    def forward(
        self, state: _Tensor, weights: Sequence[_Tensor]
    ) -> tuple[_Tensor, dict[str, _Tensor]]:
        """Launch a layer; return its output, and what its way back needs."""
        normed = self._norm(state)
        qkv = self._product(normed, weights[0], 3)
        attended = self._attention(qkv, 1)
        inner = self._each("add", 1, state, self._product(attended, weights[1], 1))
        normed_2 = self._norm(inner)
        wide = self._product(normed_2, weights[2], 4)
        active = self._each("gelu", 4, wide)
        output = self._each("add", 1, inner, self._product(active, weights[3], 1))
        return output, {
            "normed": normed, "qkv": qkv, "attended": attended, "normed_2": normed_2,
            "wide": wide, "active": active,
        }  # fmt: skip

    def backward(
        self, gradient: _Tensor, weights: Sequence[_Tensor], saved: dict[str, _Tensor]
    ) -> _Tensor:
        """Launch the way back of a layer; return the gradient of its input."""
        active = self._back(gradient, weights[3], saved["active"], 4)
        wide = self._each("gelu_backward", 4, active, saved["wide"])
        normed_2 = self._back(wide, weights[2], saved["normed_2"], 1)
        inner = self._each("add", 1, gradient, self._norm(normed_2))
        attended = self._back(inner, weights[1], saved["attended"], 1)
        qkv = self._attention(saved["qkv"], 3, attended)
        normed = self._back(qkv, weights[0], saved["normed"], 1)
        return self._each("add", 1, inner, self._norm(normed))

    def _back(self, gradient: _Tensor, weight: _Tensor, given: _Tensor, widths: int) -> _Tensor:
        """Launch both products of the way back; return the gradient of what was multiplied."""
        self._multiply(gradient, given, self._tensor(weight.rows, weight.columns))
        return self._product(gradient, weight, widths)

    def adam(self, weight: _Tensor) -> None:
        """Launch the update of a weight and its two moments."""
        state = [weight, *(self._tensor(weight.rows, weight.columns) for _ in range(2))]
        self._launch("adam", _ADAM * _ELEMENT, state, state)

    def _norm(self, source: _Tensor) -> _Tensor:
        target = self.activation(1)
        self._launch("layer_norm", _WIDTH * _ELEMENT, [source], [target])
        return target

    def _each(self, name: str, widths: int, *sources: _Tensor) -> _Tensor:
        target = self.activation(widths)
        self._launch(name, _A_BLOCK * _ELEMENT, sources, [target])
        return target

    def _launch(
        self, name: str, size: int, sources: Sequence[_Tensor], targets: Sequence[_Tensor]
    ) -> None:
        """Launch a block for each piece of some bytes: it reads and writes these alone."""
        n = -(-targets[0].size // size)
        block = np.arange(n)
        pages = [_pages(block, each.address + block * size, size) for each in sources]
        pages += [
            _pages(block, each.address + block * size, size, is_write=True) for each in targets
        ]
        self._add(name, (n, 1), pages)

    def _attention(self, qkv: _Tensor, widths: int, *others: _Tensor) -> _Tensor:
        """Launch blocks that read 128 queries, and all keys and values of their head."""
        target = self.activation(widths)
        n = self._tokens // _TILE * _HEADS
        block = np.arange(n)
        pages = []
        for each in (qkv, *others):
            share = each.size // n
            pages.append(_pages(block, each.address + block * share, share))
        share = qkv.size // _HEADS
        pages.append(_pages(block, qkv.address + block % _HEADS * share, share))
        share = target.size // n
        pages.append(_pages(block, target.address + block * share, share, is_write=True))
        self._add("attention", (n, 1), pages)
        return target

    def _product(self, left: _Tensor, right: _Tensor, widths: int) -> _Tensor:
        target = self.activation(widths)
        self._multiply(left, right, target)
        return target

    def _multiply(self, left: _Tensor, right: _Tensor, target: _Tensor) -> None:
        """Launch tiles of 128 x 128, each of a panel of both operands."""
        across, down = target.columns // _TILE, target.rows // _TILE
        block = np.arange(across * down)
        x, y = block % across, block // across
        row = np.arange(target.rows).reshape(down, _TILE)[y]
        tile_row = target.address + (row * target.columns + x[:, None] * _TILE) * _ELEMENT
        share, other = left.size // down, right.size // across
        pages = [
            _pages(block, left.address + y * share, share),
            _pages(block, right.address + x * other, other),
            _pages(np.repeat(block, _TILE), tile_row.ravel(), _TILE * _ELEMENT, is_write=True),
        ]
        self._add("matmul", (across, down), pages)

    def _add(self, name: str, grid: tuple[int, int], pages: Sequence[NDArray[Any]]) -> None:
        number = len(self._events) + 1
        table = np.concatenate(pages)
        table["launch"] = number
        place = {"sectors_at": self._rows * SECTORS.itemsize, "sectors": len(table)}
        about = {"number": number, "grid_id": number, "name": name, "grid": [*grid, 1]}
        self._events.append({**_KERNEL, **about, **place})
        self._tables.append(table)
        self._rows += len(table)
        self._blocks += grid[0] * grid[1]

    def write(self, path: Path) -> int:
        """Pack all; return the number of blocks."""
        size = self._end - _BASE
        memory = {"event": "alloc", "address": _BASE, "bytes": size, "flags": 64, "stream": 0}
        raw = np.concatenate(self._tables).view(np.uint8)
        pack(path, {"process": 1}, [memory, *self._events], raw, compress=False)
        return self._blocks


def _pages(
    block: NDArray[np.int64], begin: NDArray[np.int64], size: int, *, is_write: bool = False
) -> NDArray[Any]:
    """Return the pages of pieces of `size` bytes, one a block, that begin at some addresses."""
    end = begin + size
    first = begin // PAGE_BYTES
    n = (end - 1) // PAGE_BYTES - first + 1
    piece = np.repeat(np.arange(len(block)), n)
    page = np.arange(len(piece)) - np.repeat(np.cumsum(n) - n, n) + first[piece]
    low = np.maximum(begin[piece] - page * PAGE_BYTES, 0) // PIECE_BYTES
    high = np.minimum(end[piece] - page * PAGE_BYTES, PAGE_BYTES) // PIECE_BYTES
    mask = _ALL_BITS >> np.uint64(64) - (high - low).astype(np.uint64) << low.astype(np.uint64)
    rows = np.zeros(len(piece), SECTORS)
    rows["number"] = page.astype(np.uint64) | IS_PAGE | (IS_WRITTEN if is_write else np.uint64(0))
    rows["block"] = block[piece]
    rows["read"], rows["written"] = mask & np.uint64(0xFFFFFFFF), mask >> np.uint64(32)
    rows["accesses"] = 1
    return rows


def _main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("output", type=Path)
    arguments.add_argument("--layers", type=int, default=12)
    arguments.add_argument("--tokens", type=int, default=4096)
    given = arguments.parse_args()
    print(f"{make_recording(given.output, given.layers, given.tokens):,} blocks")


if __name__ == "__main__":
    _main()
