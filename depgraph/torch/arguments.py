"""The arguments of a captured function: buffers that the graph reads, and what fits them."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from depgraph.errors import ApplyError
from depgraph.torch.nesting import Nesting
from depgraph.torch.unchanged import tensors_like
from depgraph.torch.values import hooks_on, is_strided, is_the_same

_SHARED = "arguments share memory with each other or with what is changed"
_NOT_ALIKE = "one tensor is given where the example has two, or two where it has one"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_AS_WORDS = 1 << 22  # bytes: what is large is copied faster as what it is


class Arguments:
    """Buffers for the tensors among a function's arguments, all of which are on one GPU."""

    def __init__(
        self, example_inputs: Any, keywords: Mapping[str, Any] | None = None, gpu: str = "cuda"
    ) -> None:
        given = positional(example_inputs), dict(keywords or {})
        self._nesting = Nesting(given)
        self.leaves = self._nesting.leaves
        self.device: Any = None  # of the tensors; None if there are none
        for number, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor):
                self._check(number, leaf, gpu)
        with torch.inference_mode(mode=False):  # where tensors count their changes
            # the same with a buffer in the place of each tensor
            self.buffers = own_copies(self.leaves)
        self._tensors = [i for i, v in enumerate(self.leaves) if isinstance(v, torch.Tensor)]
        self._firsts = firsts_of(self.leaves)
        self._are_apart = self._firsts == [*range(len(self.leaves))]
        self._kinds = [
            kind_of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in self.leaves
        ]
        self._constants = [(i, v) for i, v in enumerate(self.leaves) if self._kinds[i] is None]
        self._groups = _together({i: self.buffers[i] for i in self._tensors})
        self._are_alike = tensors_like([self.leaves[i] for i in self._tensors])
        self._changed: list[int] = []
        self._guarded: list[tuple[int, int]] = []  # ascending, none touching another
        self._ends: list[int] = []
        self._copy: Callable[[int, int, int, int], int] | None = None
        self._with_gradients = [i for i in self._tensors if self.buffers[i].requires_grad]
        self._target = (0, 0, 0)  # the only tensor among the leaves, its address and bytes

    def _check(self, number: int, leaf: Any, gpu: str) -> None:
        if leaf.device.type != gpu:
            raise ApplyError(
                f"argument {number} is a tensor on the {leaf.device.type.upper()}",
                "move it to the GPU",
            )
        if not is_strided(leaf) or leaf.is_quantized:
            raise ApplyError(f"argument {number} is no strided tensor", "give its parts instead")
        if not is_plain(type(leaf)):
            raise ApplyError(f"argument {number} is a {type(leaf).__name__}", "give a plain tensor")
        if leaf.is_conj() or leaf.is_neg():
            raise ApplyError(
                f"argument {number} is a tensor that is yet to be conjugated or negated",
                "call resolve_conj() or resolve_neg() on it",
            )
        if self.device not in {None, leaf.device}:
            raise ApplyError("the arguments are on several GPUs", "give those of one GPU")
        self.device = leaf.device

    @property
    def addresses(self) -> set[int]:
        """Where the storages of the buffers lie."""
        return {self.buffers[i].untyped_storage().data_ptr() for i in self._tensors}

    def nested(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return leaves as arguments: positional ones, and others by their names."""
        args, keywords = self._nesting.filled(leaves)
        return args, keywords

    def call(self, function: Callable[..., Any], leaves: Sequence[Any] | None = None) -> Any:
        """Call a function on the buffers, or other leaves; refuse what a graph would hide."""
        given = self.buffers if leaves is None else list(leaves)
        args, keywords = self.nested(given)
        # Around a call autocast keeps casts of parameters: a graph must make its own, for itself.
        torch.clear_autocast_cache()
        try:
            made = function(*args, **keywords)
        finally:
            torch.clear_autocast_cache()
        after = self._nesting.leaves_of((args, keywords))
        if after is None or any(a is not b for a, b in zip(after, given, strict=True)):
            raise ApplyError(
                "the function changes a list or dictionary that it is given", "return it instead"
            )
        for number, leaf in enumerate(given):
            if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.grad is not None:
                leaf.grad = None
                raise ApplyError(
                    f"the function leaves a gradient of argument {number}",
                    "return it: torch.autograd.grad does",
                )
        return made

    def opaque(self) -> dict[str, Any]:
        """Return the objects among the arguments that are neither tensors nor plain values."""
        return {
            f"argument {number}": leaf
            for number, leaf in enumerate(self.leaves)
            if not isinstance(leaf, torch.Tensor)
        }

    def note_changed(self, written: Collection[int], outside: Sequence[tuple[int, int]]) -> None:
        """Take in what the function may write: storages by address, bytes outside arguments."""
        self._changed = [
            i for i in self._tensors if self.buffers[i].untyped_storage().data_ptr() in written
        ]
        self._guarded = _joined(outside)
        self._ends = [end for _, end in self._guarded]

    def matched(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Sequence[Any], str]:
        """Return the leaves of a call's arguments, and why they do not fit the buffers, or ""."""
        leaves = self._nesting.leaves_of((args, keywords))
        if leaves is None:
            return (), "the arguments are nested in another way"
        given = [leaves[i] for i in self._tensors] if self._constants else leaves
        if self._are_alike(given) and all(leaves[i] is then for i, then in self._constants):
            return leaves, self._shared(leaves)
        return leaves, self._other(leaves)

    def _other(self, leaves: Sequence[Any]) -> str:
        """Say which leaf is of another kind; it need not be the first that is no tensor."""
        for number, (leaf, kind) in enumerate(zip(leaves, self._kinds, strict=True)):
            if kind is None:
                if not is_the_same(leaf, self.leaves[number]):
                    return f"argument {number} is not {self.leaves[number]!r}"
            elif told := _other_kind(leaf, kind):
                return f"argument {number} is of another kind: {told}"
        return self._shared(leaves)

    def _shared(self, leaves: Sequence[Any]) -> str:
        """Say that what is changed shares memory with what is used; "" if it does not."""
        # Python may ask whether one is the other: of queries and keys models do.
        are_apart = self._are_apart and len({*map(id, leaves)}) == len(leaves)
        if not are_apart and len(self._tensors) > 1 and firsts_of(leaves) != self._firsts:
            return _NOT_ALIKE
        for i in self._with_gradients:
            if any(hooks_on(leaves[i])):
                return f"argument {i} has hooks"
        if not self._changed and not self._guarded:
            return ""
        ranges = {i: bytes_of(leaves[i]) for i in self._tensors}
        for i in self._changed:
            if any(_meet(ranges[i], ranges[j]) for j in self._tensors if j != i):
                return _SHARED
        for mine in ranges.values():
            at = bisect_left(self._ends, mine[0] + 1)
            if at < len(self._guarded) and self._guarded[at][0] < mine[1]:
                return _SHARED
        return ""

    def changed(self) -> list[tuple[str, Any]]:
        """Return the buffers that the function may write, with names."""
        return [(f"argument {i}", self.buffers[i]) for i in self._changed]

    def copy_with(self, copy: Callable[[int, int, int, int], int]) -> None:
        """Use the driver's own copy, which takes half the time that PyTorch's takes to begin."""
        if len(self._tensors) == 1 and is_dense(only := self.buffers[self._tensors[0]]):
            self._copy = copy
            size = only.numel() * only.element_size()
            self._target = self._tensors[0], only.data_ptr(), size

    def copy_in(self, leaves: Sequence[Any], stream: int = 0) -> None:
        """Copy a call's tensors into the buffers, on the current stream."""
        if self._copy is not None:
            i, target, size = self._target
            if self._copy(target, leaves[i].data_ptr(), size, stream):
                self.buffers[i].data.copy_(leaves[i])  # the driver has no context yet
            return
        if self._with_gradients:
            with torch.no_grad():
                self._copy_groups(leaves)
        else:
            self._copy_groups(leaves)

    def _copy_groups(self, leaves: Sequence[Any]) -> None:
        for word, places, into in self._groups:
            given = [leaves[i] for i in places]
            torch._foreach_copy_(into, [t if t.dtype is word else t.view(word) for t in given])

    def copy_back(self, leaves: Sequence[Any]) -> None:
        """Copy what the function changes in place into a call's tensors."""
        for i in self._changed:
            leaf = leaves[i]
            with torch.inference_mode(mode=leaf.is_inference()), torch.no_grad():
                leaf.copy_(self.buffers[i])

    def fits(self, example_inputs: Any, keywords: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the leaves of other inputs, which must be like the examples."""
        leaves = self._nesting.leaves_of((positional(example_inputs), dict(keywords or {})))
        if leaves is None or any(
            kind is not None
            and not (isinstance(leaf, torch.Tensor) and kind_of(leaf)[:2] == kind[:2])
            for leaf, kind in zip(leaves, self._kinds, strict=False)
        ):
            raise ApplyError("check_inputs are not of the shapes and types of the examples")
        return leaves

    def alike(self, leaves: Sequence[Any]) -> list[Any]:
        """Return leaves of which those are one tensor that are one in the example."""
        first_of = dict(zip(self._tensors, self._firsts, strict=True))
        return [leaves[first_of.get(i, i)] for i in range(len(leaves))]


def positional(example_inputs: Any) -> tuple[Any, ...]:
    """Return example inputs as a tuple of arguments; none where there are none."""
    if example_inputs is None:
        return ()
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs)
    return (example_inputs,)


def firsts_of(leaves: Sequence[Any]) -> list[int]:
    """Return for each tensor at which place it is first among some leaves."""
    first: dict[int, int] = {}
    return [
        first.setdefault(id(leaf), place)
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    ]


def own_copies(leaves: Sequence[Any]) -> list[Any]:
    """Return copies of the tensors among some leaves: one of each, wherever it stands."""
    copies = {id(leaf): own_copy(leaf) for leaf in leaves}
    return [copies[id(leaf)] for leaf in leaves]


def own_copy(leaf: Any) -> Any:
    """Return a copy of a tensor with the same strides, unless its elements share memory."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with torch.no_grad():
        made = torch.empty_like(leaf).copy_(leaf)
        if not _is_overlapping(leaf):
            made = torch.empty_strided(
                leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
            ).copy_(leaf)
    return made.requires_grad_(leaf.requires_grad)


def is_dense(tensor: Any) -> bool:
    """Tell whether a tensor's elements fill the bytes between its first and its last."""
    start, end = bytes_of(tensor)
    return not _is_overlapping(tensor) and end - start == tensor.numel() * tensor.element_size()


def _is_overlapping(tensor: Any) -> bool:
    end = 1
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1:
            if stride < end:
                return True
            end = stride * (n - 1) + end
    return False


def is_plain(cls: type) -> bool:
    """Tell whether operators treat tensors of a class as they treat any tensor."""
    return cls is torch.Tensor or cls is torch.nn.Parameter


def kind_of(tensor: Any) -> tuple[Any, ...]:
    """Return what a tensor that a graph is given must have in common with the example."""
    place = (tensor.shape, tensor.stride()) if is_strided(tensor) else ((), ())
    others = tensor.requires_grad, tensor.layout, tensor.is_nested, type(tensor)
    return place[0], tensor.dtype, tensor.device, place[1], *others


def _other_kind(leaf: Any, kind: tuple[Any, ...]) -> str:
    """Say in what a leaf differs from the example, or ""."""
    if not isinstance(leaf, torch.Tensor):
        return f"{type(leaf).__name__}, not a tensor"
    if not is_plain(type(leaf)):
        return f"{type(leaf).__name__}, not a plain tensor"
    if not is_strided(leaf):
        return "no strided tensor"
    if leaf.is_conj() or leaf.is_neg():
        return "yet to be conjugated or negated"
    names = "shape", "dtype", "device", "strides", "requires_grad"
    for name, now, then in zip(names, kind_of(leaf), kind, strict=False):
        if now != then:
            show = [tuple(each) if isinstance(each, torch.Size) else each for each in (now, then)]
            return f"{name} {show[0]}, not {show[1]}"
    return ""


def bytes_of(tensor: Any) -> tuple[int, int]:
    """Return the address of a tensor's first byte, and the one behind its last."""
    start = tensor.data_ptr()
    last = sum(
        (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n
    )
    return start, start + (last + 1) * tensor.element_size() if tensor.numel() else start


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _together(buffers: Mapping[int, Any]) -> list[tuple[Any, list[int], list[Any]]]:
    """Return which tensors one kernel copies, as elements of which type, and into what."""
    # One for all types: a second kernel costs as much again. It takes dense tensors alone.
    dense = {i: t for i, t in buffers.items() if is_dense(t)}
    word = _WORDS.get(min((t.element_size() for t in dense.values()), default=0))
    if sum(t.numel() * t.element_size() for t in dense.values()) > _MOST_AS_WORDS:
        word = None
    found: dict[Any, tuple[Any, list[int], list[Any]]] = {}
    with torch.no_grad():
        for i, t in buffers.items():
            into, type_ = t, t.dtype
            if i in dense and word is not None:
                with suppress(RuntimeError):  # it is not contiguous, or a single number
                    into, type_ = t.view(word), word
            group = found.setdefault((type_, i in dense), (type_, [], []))
            group[1].append(i)
            group[2].append(into)
    return [*found.values()]
