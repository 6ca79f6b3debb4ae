"""A captured CUDA graph as plain data: its nodes, the operators that launched them, and memory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from depgraph.errors import ApplyError
from depgraph.store.companions import CAPTURES, read_companion, write_companion
from depgraph.system.strict_json import restore

KERNEL, MEMSET, COPY, EMPTY = "kernel", "memset", "copy", "empty"
TENSOR, LIBRARY, OTHER = "tensor", "library", "other"
SOURCE, TARGET = 0, 8
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that was allocated in one piece."""

    start: int
    size: int  # bytes
    # of all allocations: memory that is used again has another one; below -1 if it is not PyTorch's
    number: int = -1
    owner: str = OTHER  # `TENSOR`; `LIBRARY` for what an operator allocated and keeps; or `OTHER`

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class View:
    """The elements of a strided tensor."""

    start: int  # address of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, none negative
    item: int  # bytes of an element
    memory: Allocation  # the tensor's whole storage


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operator was given, or has returned."""

    name: str  # of the argument; "" for a result
    view: View
    is_written: bool  # whether it is a new result, or the operator's schema says that it is changed


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator while the function was captured."""

    name: str  # such as ``aten::add_.Tensor``
    operands: tuple[Operand, ...] = ()  # its strided tensors on the GPU
    others: tuple[Allocation, ...] = ()  # of sparse, nested, quantized tensors, subclasses
    made: tuple[Allocation, ...] = ()  # what it allocated, and may have freed

    @property
    def operator(self) -> str:
        """Its name without the overload."""
        return self.name.split(".", maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address among the parameters of a node."""

    at: int  # byte of the parameters; of a copy or memset `SOURCE` or `TARGET`
    memory: Allocation  # what it points into


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a captured graph."""

    kind: str  # `KERNEL`, `MEMSET`, `COPY`, `EMPTY`; any other keeps its place
    name: str = ""  # mangled name of a kernel
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0  # dynamic shared memory of a block, in bytes
    call: int = -1  # place of the operator that launched it in `Captured.calls`, -1 for none
    pointers: tuple[Pointer, ...] = ()  # into memory of the GPU, also from inside tensor maps
    to_host: bool = False  # whether a copy's destination is the host

    @property
    def label(self) -> str:
        """What a message calls it."""
        return self.name or self.kind


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured graph."""

    nodes: tuple[Node, ...]  # in the order in which they were launched
    edges: tuple[tuple[int, int], ...]  # as captured, each from a smaller to a larger place
    calls: tuple[Call, ...] = ()  # every operator that was called; many launch nothing
    before: int = 0  # allocations of smaller numbers were there before the function ran
    call: int = 0  # which call of `depgraph.torch.parallelize` it is, from 0

    def label_of(self, node: Node) -> str:
        """Return the operator that launched a node, or what a message calls the node."""
        return self.calls[node.call].name if node.call >= 0 else node.label

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> "Captured":
        """Read what `to_json` returns; else raise ValueError."""
        if not isinstance(found, dict) or found.get("version") != _VERSION:
            message = "it is of another version of depgraph"
            raise ValueError(message)
        known = {key: value for key, value in found.items() if key != "version"}
        captured: Captured = restore(cls, known)
        nodes, calls = captured.nodes, captured.calls
        if any(not 0 <= a < b < len(nodes) for a, b in captured.edges):
            message = "an edge does not go forwards"
            raise ValueError(message)
        if any(not -1 <= node.call < len(calls) for node in nodes):
            message = "a node is of no operator that was called"
            raise ValueError(message)
        return captured


def write_captures(path: Path, captures: Sequence[Captured], *, store: str = "") -> None:
    """Write captured graphs, in the order in which they were recorded, for the store of an id."""
    content = {CAPTURES: [each.to_json() for each in captures]}
    write_companion(path, content, store=store, what=CAPTURES)


def read_captures(path: Path, store: str | None = None) -> list[Captured]:
    """Read what `write_captures` wrote; with `store`, only if it goes with that store."""
    found = read_companion(path, store, what=CAPTURES).get(CAPTURES)
    try:
        if not isinstance(found, list):
            raise ValueError("no list of them")  # noqa: TRY004, TRY301 - as what `from_json` raises
        return [Captured.from_json(each) for each in found]
    except ValueError as error:
        message = f"{path}: no captured graphs that can be read ({error})"
        raise ApplyError(message, "record the program again") from None
