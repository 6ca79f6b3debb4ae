"""The buffers that a captured function reads its inputs from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from depgraph.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_COMPILED = "_torchdynamo_orig_callable", "_orig_mod"  # what torch.compile leaves


class Buffers:
    """Buffers for the tensors among a function's arguments.

    Parameters
    ----------
    function : callable
    example_inputs : tensor, tuple or list
        Its arguments.
    name : str
        What reports call it; "" for the function's name.

    Raises
    ------
    ApplyError
        If a tensor is not on the GPU.
    """

    def __init__(self, function: Callable[..., Any], example_inputs: Any, name: str) -> None:
        self.function = function
        self.is_compiled = any(hasattr(function, mark) for mark in _COMPILED)
        self.name = name or getattr(function, "__name__", type(function).__name__)
        leaves, self._tree = pytree.tree_flatten(_arguments(example_inputs))
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and not leaf.is_cuda:
                raise ApplyError(f"input {number} is a tensor on the CPU", "move it to the GPU")
        with torch.inference_mode(mode=False):  # where tensors count their changes
            self._leaves = [
                leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
            ]
        self._examples = leaves
        self._versions = [_version(leaf) for leaf in self._leaves]
        self._changed: list[int] = []

    def run(self) -> Any:
        """Call the function on the buffers."""
        return self.function(*pytree.tree_unflatten(self._leaves, self._tree))

    def take(self, arguments: Sequence[Any]) -> bool:
        """Copy arguments into the buffers; return False if they do not fit."""
        leaves, tree = pytree.tree_flatten(tuple(arguments))
        if tree != self._tree or not all(map(_fits, leaves, self._leaves)):
            return False
        self._write(leaves)
        return True

    def note_changed(self) -> None:
        """Find the buffers that the function has changed since they were made."""
        self._changed = [
            number
            for number, (buffer, example) in enumerate(
                zip(self._leaves, self._examples, strict=True)
            )
            if isinstance(buffer, torch.Tensor)
            and (_version(buffer) != self._versions[number] or _differs(buffer, example))
        ]

    def give_back(self, arguments: Sequence[Any]) -> None:
        """Copy what the function changes in place into the arguments that `take` has taken."""
        if not self._changed:
            return
        leaves = pytree.tree_leaves(tuple(arguments))
        for number in self._changed:
            leaf = leaves[number]
            with torch.inference_mode(mode=leaf.is_inference()), torch.no_grad():
                leaf.copy_(self._leaves[number])

    def writers(self, more: Sequence[Any], n: int) -> list[Callable[[], None]]:
        """Return what writes inputs into the buffers: the examples, others, `n` if that can be.

        Parameters
        ----------
        more : sequence
            Other arguments, each as `example_inputs` is.
        """
        inputs = [list(self._examples)]
        for arguments in more:
            leaves, tree = pytree.tree_flatten(_arguments(arguments))
            if tree != self._tree or not all(map(_fits, leaves, self._leaves)):
                raise ApplyError("check_inputs are not of the shapes and types of the examples")
            inputs.append(leaves)
        generator = torch.Generator(device="cpu").manual_seed(0)
        while len(inputs) < n and any(map(_has_orders, self._examples)):
            inputs.append([_in_another_order(leaf, generator) for leaf in self._examples])
        return [partial(self._write, leaves) for leaves in inputs]

    def _write(self, leaves: Sequence[Any]) -> None:
        with torch.no_grad():
            for buffer, leaf in zip(self._leaves, leaves, strict=True):
                if isinstance(buffer, torch.Tensor):
                    buffer.copy_(leaf)

    @staticmethod
    def tensors_of(outputs: Any) -> list[Any]:
        """Return the tensors among outputs."""
        return [
            leaf.detach()
            for leaf in pytree.tree_leaves(outputs)
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda
        ]


def _arguments(example_inputs: Any) -> tuple[Any, ...]:
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs)
    return (example_inputs,)


def _fits(given: Any, buffer: Any) -> bool:
    if isinstance(buffer, torch.Tensor):
        return (
            isinstance(given, torch.Tensor)
            and given.shape == buffer.shape
            and given.dtype == buffer.dtype
        )
    return type(given) is type(buffer) and bool(given == buffer)


def _version(leaf: Any) -> int:
    """Return how often a tensor was changed, by what PyTorch knows of."""
    return int(leaf._version) if isinstance(leaf, torch.Tensor) else 0  # noqa: SLF001


def _differs(buffer: Any, example: Any) -> bool:
    """Tell whether a kernel that PyTorch knows nothing of has changed a buffer."""
    has_nan = buffer.is_floating_point() and bool(buffer.isnan().any())
    return not has_nan and not torch.equal(buffer, example)


def _has_orders(leaf: Any) -> bool:
    """Tell whether a tensor's values are as valid elsewhere in it: indices and offsets are not."""
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > 1


def _in_another_order(leaf: Any, generator: Any) -> Any:
    """Return a tensor of the same values elsewhere."""
    if not _has_orders(leaf):
        return leaf
    order = torch.randperm(leaf.numel(), generator=generator).to(leaf.device)
    return leaf.detach().reshape(-1)[order].reshape(leaf.shape)
