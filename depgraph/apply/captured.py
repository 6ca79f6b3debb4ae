"""A captured CUDA graph as plain data: nodes in the order of the capture, and memory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from depgraph.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KERNEL, MEMSET, COPY, EMPTY = "kernel", "memset", "copy", "empty"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that pointers point into.

    Attributes
    ----------
    start, size : int
        Address and bytes.
    is_own : bool
        Whether it is the graph's alone: what a run leaves there is lost, but for what is kept.
    """

    start: int
    size: int
    is_own: bool

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.start + self.size


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a captured graph.

    Attributes
    ----------
    kind : str
        `KERNEL`, `MEMSET`, `COPY`, `EMPTY`, or what else the driver calls it: that is never
        understood and keeps its place.
    name : str
        Mangled name of a kernel.
    grid, block : (int, int, int)
    shared : int
        Dynamic shared memory of a block, in bytes.
    words : tuple of (int, int, int)
        Parameter, byte in it, and value of each 8-byte word that points into a region.
    to_host : bool
        Whether a copy's destination is the host.
    """

    kind: str
    name: str = ""
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0
    words: tuple[tuple[int, int, int], ...] = ()
    to_host: bool = False

    @property
    def label(self) -> str:
        """What a message calls it."""
        return self.name or self.kind


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured graph.

    Attributes
    ----------
    nodes : tuple of Node
        In an order that its edges allow: that of the capture.
    edges : tuple of (int, int)
        As they were captured: places in `nodes`.
    regions : tuple of Region
        Those that a word points into, none twice.
    kept : tuple of Region
        Of the graph's own memory what outlives a run, such as results.
    call : int
        Which call of the program captured it, from 0.
    most_bytes, kept_bytes : int
        Of memory that no two tensors were to share, and how many there are.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    regions: tuple[Region, ...]
    kept: tuple[Region, ...] = ()
    call: int = 0
    most_bytes: int = 0
    kept_bytes: int = 0

    @property
    def is_chain(self) -> bool:
        """Whether every node waits for the one before."""
        return set(self.edges) == {(i, i + 1) for i in range(len(self.nodes) - 1)}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> Captured:
        """Read what `to_json` returns; else raise KeyError, TypeError or ValueError."""
        if found["version"] != _VERSION:
            message = "it is of another version of depgraph"
            raise ValueError(message)
        nodes = tuple(
            Node(
                kind=str(n["kind"]), name=str(n["name"]), grid=_three(n["grid"]),
                block=_three(n["block"]), shared=int(n["shared"]),
                words=tuple(_three(w) for w in n["words"]), to_host=bool(n["to_host"]),
            )
            for n in found["nodes"]
        )  # fmt: skip
        edges = tuple((int(a), int(b)) for a, b in found["edges"])
        if any(not 0 <= a < b < len(nodes) for a, b in edges):
            message = "an edge does not go forwards"
            raise ValueError(message)
        regions, kept = (
            tuple(Region(int(r["start"]), int(r["size"]), bool(r["is_own"])) for r in found[name])
            for name in ("regions", "kept")
        )
        numbers = (int(found[name]) for name in ("call", "most_bytes", "kept_bytes"))
        return cls(nodes, edges, regions, kept, *numbers)

    def region_of(self, address: int) -> int | None:
        """Return the place of the region that holds an address, None if none does."""
        return next((i for i, region in enumerate(self.regions) if address in region), None)


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def write_captures(path: Path, captures: Sequence[Captured]) -> None:
    """Write captured graphs, in the order in which they were recorded."""
    path.write_text(json.dumps([each.to_json() for each in captures]) + "\n", encoding="utf-8")


def read_captures(path: Path) -> list[Captured]:
    """Read what `write_captures` wrote.

    Raises
    ------
    ApplyError
        If there is no such file, or it is damaged.
    """
    try:
        return [Captured.from_json(each) for each in json.loads(path.read_text(encoding="utf-8"))]
    except OSError as error:
        raise ApplyError(f"{path}: {error.strerror}", "record the program again") from None
    except (KeyError, TypeError, ValueError) as error:
        message = f"{path}: no captured graphs that can be read ({error})"
        raise ApplyError(message, "record the program again") from None
