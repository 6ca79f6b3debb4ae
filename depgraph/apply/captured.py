"""A captured CUDA graph as plain data: its nodes, the operators that launched them, and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from depgraph.errors import ApplyError
from depgraph.store.companions import read_companion, write_companion

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KERNEL, MEMSET, COPY, EMPTY = "kernel", "memset", "copy", "empty"
TENSOR, LIBRARY, OTHER = "tensor", "library", "other"
SOURCE, TARGET = 0, 8
_VERSION = 2
_CAPTURES = "captures"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that was allocated in one piece.

    Attributes
    ----------
    start, size : int
        Address and bytes.
    number : int
        Which of all allocations: memory that is freed and used again has another number.
    owner : str
        `TENSOR`; `LIBRARY` for what an operator allocated and keeps; or `OTHER`.
    """

    start: int
    size: int
    number: int = -1
    owner: str = OTHER

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class View:
    """The elements of a strided tensor.

    Attributes
    ----------
    start : int
        Address of the first.
    shape, strides : tuple of int
        Strides in bytes, none negative.
    item : int
        Bytes of an element.
    memory : Allocation
        The tensor's whole storage.
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    memory: Allocation


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operator was given, or has returned.

    Attributes
    ----------
    name : str
        Of the argument; "" for a result.
    view : View
    is_written : bool
        Whether it is a new result, or the operator's schema says that it is changed.
    """

    name: str
    view: View
    is_written: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator while the function was captured.

    Attributes
    ----------
    name : str
        Such as ``aten::add_.Tensor``.
    operands : tuple of Operand
        Its strided tensors on the GPU.
    others : tuple of Allocation
        The memory of tensors of other kinds: sparse, nested, quantized, subclasses.
    made : tuple of Allocation
        What it allocated, and may have freed.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    others: tuple[Allocation, ...] = ()
    made: tuple[Allocation, ...] = ()

    @property
    def operator(self) -> str:
        """Its name without the overload."""
        return self.name.split(".", maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address among the parameters of a node.

    Attributes
    ----------
    at : int
        Byte of the parameters; of a copy or memset `SOURCE` or `TARGET`.
    memory : Allocation
        What it points into.
    """

    at: int
    memory: Allocation


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
    call : int
        Place of the operator that launched it in `Captured.calls`, -1 for none.
    pointers : tuple of Pointer
        Into memory of the GPU, those inside tensor maps among them.
    to_host : bool
        Whether a copy's destination is the host.
    """

    kind: str
    name: str = ""
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0
    call: int = -1
    pointers: tuple[Pointer, ...] = ()
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
        In the order in which they were launched.
    edges : tuple of (int, int)
        As they were captured: places in `nodes`, each from a smaller to a larger one.
    calls : tuple of Call
        Every operator that was called; many launch nothing.
    before : int
        Allocations of smaller numbers were there before the function ran.
    call : int
        Which call of `depgraph.torch.parallelize` it is, from 0.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    calls: tuple[Call, ...] = ()
    before: int = 0
    call: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> Captured:
        """Read what `to_json` returns; else raise KeyError, TypeError or ValueError."""
        if found["version"] != _VERSION:
            message = "it is of another version of depgraph"
            raise ValueError(message)
        calls = tuple(map(_call, found["calls"]))
        nodes = tuple(map(_node, found["nodes"]))
        edges = tuple((int(a), int(b)) for a, b in found["edges"])
        if any(not 0 <= a < b < len(nodes) for a, b in edges):
            message = "an edge does not go forwards"
            raise ValueError(message)
        if any(not -1 <= node.call < len(calls) for node in nodes):
            message = "a node is of no operator that was called"
            raise ValueError(message)
        return cls(nodes, edges, calls, int(found["before"]), int(found["call"]))


def _node(n: Any) -> Node:
    return Node(
        kind=str(n["kind"]), name=str(n["name"]), grid=_three(n["grid"]), block=_three(n["block"]),
        shared=int(n["shared"]), call=int(n["call"]), to_host=bool(n["to_host"]),
        pointers=tuple(Pointer(int(p["at"]), _allocation(p["memory"])) for p in n["pointers"]),
    )  # fmt: skip


def _call(c: Any) -> Call:
    operands = tuple(
        Operand(str(o["name"]), _view(o["view"]), bool(o["is_written"])) for o in c["operands"]
    )
    return Call(str(c["name"]), operands, _allocations(c["others"]), _allocations(c["made"]))


def _view(v: Any) -> View:
    shape, strides = (tuple(map(int, v[name])) for name in ("shape", "strides"))
    return View(int(v["start"]), shape, strides, int(v["item"]), _allocation(v["memory"]))


def _allocations(found: Any) -> tuple[Allocation, ...]:
    return tuple(map(_allocation, found))


def _allocation(a: Any) -> Allocation:
    return Allocation(int(a["start"]), int(a["size"]), int(a["number"]), str(a["owner"]))


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def write_captures(path: Path, captures: Sequence[Captured], *, store: str = "") -> None:
    """Write captured graphs, in the order in which they were recorded, for the store of an id."""
    write_companion(path, {_CAPTURES: [each.to_json() for each in captures]}, store=store)


def read_captures(path: Path, store: str | None = None) -> list[Captured]:
    """Read what `write_captures` wrote.

    Parameters
    ----------
    path : Path
    store : str, optional
        Identity of the store that they must go with; None for any.

    Raises
    ------
    ApplyError, StoreError
        If there is no such file, it is damaged, or goes with another store.
    """
    found = read_companion(path, store)
    try:
        return [Captured.from_json(each) for each in found[_CAPTURES]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = f"{path}: no captured graphs that can be read ({error})"
        raise ApplyError(message, "record the program again") from None
