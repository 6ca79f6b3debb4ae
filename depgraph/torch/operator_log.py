"""Listening to PyTorch's dispatcher: which operators a function calls, on which memory."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from depgraph.apply.captured import Allocation, Operand, View
from depgraph.errors import ApplyError

_COMPOSITE = "CompositeImplicitAutograd"
_NOT_PYTORCHS = "another"  # begins the name of an operator that others have replaced
# In the paths of the sources that PyTorch was built of, and of its modules of Python.
_HOMES = "aten/src/ATen/", "torch/csrc/", f"{Path(torch.__file__).parent}/"
_BY_ROWS = "crow_indices", "col_indices", "values"
_BY_COLUMNS = "ccol_indices", "row_indices", "values"
_PARTS = {  # what a sparse tensor consists of, by its layout
    torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: _BY_ROWS,
    torch.sparse_bsr: _BY_ROWS, torch.sparse_csc: _BY_COLUMNS, torch.sparse_bsc: _BY_COLUMNS,
}  # fmt: skip


@dataclass(slots=True)
class SeenCall:
    """One call of an operator, and the storages of its tensors on the GPU as they were then."""

    name: str
    operands: list[Operand] = field(default_factory=list)  # the strided ones
    others: list[Allocation] = field(default_factory=list)  # the storages of others
    begun: tuple[int, ...] = ()  # what `OperatorLog.now` returned before and after it
    ended: tuple[int, ...] = ()


class OperatorLog(TorchDispatchMode):
    """Notes every operator that reaches a kernel, here and in threads of backward passes."""

    supports_higher_order_operators = True

    def __init__(
        self,
        device: Any,  # the one whose tensors count
        now: Callable[[], tuple[int, ...]] = tuple,  # noted before and after each operator
        # takes an operator's place among the calls; what it returns is entered meanwhile
        around: Callable[[int], AbstractContextManager[object]] = lambda _: nullcontext(),
        most_bytes: int = 0,  # of memory that is kept, so that no later tensor gets it
    ) -> None:
        super().__init__()
        self._device = device
        self._now = now
        self._around = around
        self._left = most_bytes
        self._kept: dict[int, Any] = {}
        self._mine: dict[int, Any] = {}
        self._names: dict[Any, str] = {}
        self.of_host: list[Any] = []  # what was made on the CPU: copies of a graph may read it
        self.calls: list[SeenCall] = []
        self.outside: dict[int, Any] = {}  # earlier tensors on the GPU, by storage
        self.on_host: dict[int, Any] = {}  # earlier tensors on the CPU, by storage
        self.faults: list[str] = []  # what the function does that no graph does again
        self.kept_bytes = 0
        self.threads: set[int] = set()  # those that called operators

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let functions be compiled: else dynamo skips for good what it first meets here."""
        return True

    def name_of(self, func: Any) -> str:
        """Return the name of an operator, with its overload; one of others has another name."""
        if (known := self._names.get(func)) is None:
            name = str(func.name()) if hasattr(func, "name") else str(func)
            is_ours = not name.startswith("aten::") or _is_of_pytorch(name, self._device.type)
            known = self._names[func] = name if is_ours else f"{_NOT_PYTORCHS} {name}"
        return known

    def before(self, func: Any, written: list[Any], read: list[Any]) -> None:
        """Do something before an operator runs, which writes and reads these; nothing, here."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if _is_composite(func, self._device.type):
            with self:
                return func.decompose(*args, **kwargs)
        given = list(_arguments(func, args, kwargs))
        written = [(name, tensor) for name, tensor, is_written in given if is_written]
        places = [_place_of(tensor) for _, tensor in written]
        if func is torch.ops.aten.lift_fresh.default:
            self._take_fresh(args[0])
        self.before(func, [t for _, t in written], [t for _, t, w in given if not w])
        call = SeenCall(self.name_of(func))
        known = set()
        for name, tensor, is_written in given:
            known |= self._note(call, tensor, name, is_written=is_written)
            self._note_outside(tensor, is_written=is_written)
        place = len(self.calls)
        self.calls.append(call)
        self.threads.add(threading.get_ident())
        call.begun = self._now()
        with self._around(place):
            made = func(*args, **kwargs)
        call.ended = self._now()
        for (name, tensor), then in zip(written, places, strict=True):
            if _place_of(tensor) != then:  # such as an empty view that was given as out=
                known |= self._note_result(call, tensor, known, name)
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and not known.issuperset(addresses_of(tensor)):
                self._note_result(call, tensor, known)
        return made

    def _note(self, call: SeenCall, tensor: Any, name: str, *, is_written: bool) -> set[int]:
        """Note a tensor of a call; return where its storages lie."""
        found = set()
        for part, is_plain in parts_of(tensor):
            if part.device != self._device:
                if part.device.type == self._device.type:
                    self.faults.append(f"{call.name} uses {part.device}, not only {self._device}")
                continue
            storage = part.untyped_storage()
            memory = Allocation(storage.data_ptr(), storage.nbytes())
            found.add(memory.start)
            if is_plain:
                item = part.element_size()
                strides = tuple(item * stride for stride in part.stride())
                view = View(part.data_ptr(), tuple(part.shape), strides, item, memory)
                call.operands.append(Operand(name, view, is_written))
            else:
                call.others.append(memory)
        return found

    def _take_fresh(self, tensor: Any) -> None:
        """Take what was made of Python's numbers for the function's own."""
        storage = tensor.untyped_storage()
        if tensor.device.type == "cpu" and storage.resizable():  # not the memory of others
            self._mine[storage.data_ptr()] = None
            self.of_host.append(storage)

    def _note_result(
        self, call: SeenCall, tensor: Any, known: set[int], name: str = ""
    ) -> set[int]:
        """Note what a call has made or placed anew; keep new memory if there is room."""
        for part, _ in parts_of(tensor):
            if part.untyped_storage().data_ptr() not in known:
                self.take(part)
        return self._note(call, tensor, name, is_written=True)

    def take(self, tensor: Any) -> None:
        """Take a new tensor for the function's own; keep its memory if there is room."""
        storage = tensor.untyped_storage()
        at, size = storage.data_ptr(), storage.nbytes()
        self._mine[at] = None
        if tensor.device.type == "cpu" and self._device.type != "cpu":
            self.of_host.append(storage)
        if tensor.device == self._device and size <= self._left and at not in self._kept:
            self._kept[at] = storage
            self._left -= size
            self.kept_bytes += size

    def parts_outside(self, tensor: Any) -> Iterator[tuple[Any, int]]:
        """Yield what of a tensor was there before the function ran, and where it lies."""
        for part, _ in parts_of(tensor):
            at = part.untyped_storage().data_ptr()
            if at not in self._mine:
                yield part, at

    def _note_outside(self, tensor: Any, *, is_written: bool) -> None:
        """Note a tensor that was there before the function ran."""
        for part, at in self.parts_outside(tensor):
            if part.device == self._device:
                self.outside.setdefault(at, part)
            elif part.device.type == "cpu" and at:
                self.on_host.setdefault(at, part)
                if is_written:
                    self.faults.append("it changes a tensor on the CPU")


def is_listened_to() -> bool:
    """Tell whether a log notes the operators that are called here."""
    get = torch._C
    stack = map(get._get_dispatch_stack_at, range(get._len_torch_dispatch_stack()))
    return any(isinstance(mode, OperatorLog) for mode in stack)


def _is_composite(func: Any, device: str) -> bool:
    """Tell whether an operator is made of others; on some devices it may have a kernel, too."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    key = "CUDA" if device == "cuda" else "CPU"
    return has_kernel(func.name(), _COMPOSITE) and not has_kernel(func.name(), key)


def _is_of_pytorch(name: str, device: str) -> bool:
    """Tell whether PyTorch has the code that runs for an operator, or somebody has replaced it."""
    keys = "CUDA" if device == "cuda" else "CPU", "CompositeExplicitAutograd", _COMPOSITE
    for line in torch._C._dispatch_dump(name).splitlines():
        key, _, where = line.partition(": registered at ")
        if key.removesuffix("[alias]") in keys and not any(home in where for home in _HOMES):
            return False
    return True


def _arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any, bool]]:
    """Yield the tensors that an operator is given: names, and whether its schema changes them."""
    schema = getattr(func, "_schema", None)
    known = [] if schema is None else list(schema.arguments)
    by_name = {argument.name: argument for argument in known}
    places = [(known[i] if i < len(known) else None, value) for i, value in enumerate(args)]
    places += [(by_name.get(name), value) for name, value in kwargs.items()]
    for argument, value in places:
        name = "argument" if argument is None else argument.name
        alias = None if argument is None else argument.alias_info
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                yield name, leaf, alias is not None and alias.is_write


def parts_of(tensor: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the tensors that have storages, and whether a tensor is such a one itself."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None:
        for name in inner()[0]:
            yield from ((part, False) for part, _ in parts_of(getattr(tensor, name)))
    elif names := _PARTS.get(tensor.layout):
        yield from ((getattr(tensor, name)(), False) for name in names)
    elif tensor.is_nested:
        yield tensor._values() if tensor.layout is torch.jagged else tensor, False
        yield tensor._nested_tensor_size(), False
        yield tensor._nested_tensor_strides(), False
    else:
        yield tensor, tensor.layout is torch.strided and not tensor.is_quantized


def _place_of(tensor: Any) -> list[tuple[Any, ...]]:
    """Return where each part of a tensor lies, and how."""
    return [
        (part.data_ptr(), part.shape, part.stride()) if is_plain else (addresses_of(part),)
        for part, is_plain in parts_of(tensor)
    ]


def addresses_of(tensor: Any) -> tuple[int, ...]:
    """Return where the storages of a tensor, or of its parts, lie; nothing if it has no memory."""
    try:
        return tuple(part.untyped_storage().data_ptr() for part, _ in parts_of(tensor))
    except (RuntimeError, NotImplementedError):  # what PyTorch compiles with
        return ()


def refuse_faults(log: OperatorLog, name: str) -> None:
    """Refuse what no graph does again."""
    if log.faults:
        raise ApplyError(f"{name} cannot run as a graph: {log.faults[0]}")
