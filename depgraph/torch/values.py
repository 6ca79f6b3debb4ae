"""What objects hold: simple values, contents that are compared as a whole, hooks."""

import pickle
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from copy import copy
from datetime import date, time, timedelta
from enum import Enum
from numbers import Number
from typing import Any

import numpy as np
import torch

SIMPLE = (
    bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, torch.Size,
    torch.layout, torch.memory_format, range, slice, np.generic, Number, date, time, timedelta,
)  # fmt: skip
OF_COMPILER = frozenset({"_compile_kwargs"})  # what torch.compile notes on a module, for itself
HOOKS_OF_TENSORS = "_backward_hooks", "_post_accumulate_grad_hooks"
NOTHING = object()  # what a slot or a cell holds that is empty
_ABSENT = object()
_CONTAINERS = OrderedDict, dict, list, tuple, set, frozenset, deque


def container_of(value: Any) -> Any:
    """Return what Python's container a value is, to be asked in place of the value's class."""
    # Methods of a class may do anything: the tables of models of transformers import all of them.
    return next((kind for kind in _CONTAINERS if isinstance(value, kind)), type(value))


def count_of(container: Any) -> int:
    """Return how many items a container has."""
    return int(container_of(container).__len__(container))


def iterated(container: Any) -> Iterator[Any]:
    """Go through the items of a container, the keys of a mapping."""
    return iter(container_of(container).__iter__(container))


def items_of(container: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a container has, with its key or place."""
    kind = container_of(container)
    if hasattr(kind, "items"):
        return iter(kind.items(container))
    return enumerate(iterated(container))


def item_of(container: Any, key: Any) -> Any:
    """Return what a container has under a key; raise LookupError if it has nothing there."""
    kind = container_of(container)
    if not hasattr(kind, "get"):
        return kind.__getitem__(container, key)
    if (found := kind.get(container, key, _ABSENT)) is _ABSENT:  # `[]` may make what is missing
        raise KeyError(key)
    return found


def attribute_of(owner: Any, name: str) -> Any:
    """Return what a slot of an object, or a cell, holds: `NOTHING` if it is empty."""
    try:
        return getattr(owner, name)
    except (AttributeError, ValueError):
        return NOTHING


def copy_of(value: Any) -> Any:
    """Return a copy of what is compared as a whole; None if there is no need."""
    if isinstance(value, set):
        return [*iterated(value)]
    if isinstance(value, deque):
        return deque(iterated(value))
    if isinstance(value, (bytearray, array, np.ndarray)):
        return copy(value)
    return None


def size_of(kept: Any) -> int:
    """Return the bytes of an array, or how much else holds."""
    return int(kept.nbytes) if isinstance(kept, np.ndarray) else len(kept)


def is_as_it_was(now: Any, then: Any) -> bool:
    """Tell whether a set, queue or array has what its copy has, in the same order."""
    if isinstance(then, (list, deque)):
        return count_of(now) == len(then) and all(map(is_the_same, iterated(now), then))
    is_array = isinstance(then, np.ndarray)
    is_alike = not is_array or (now.dtype == then.dtype and now.shape == then.shape)
    return bool(is_alike and bytes_in(now) == bytes_in(then))


def bytes_in(kept: Any) -> bytes:
    """Return the bytes of an array."""
    return bytes(kept) if isinstance(kept, bytearray) else bytes(kept.tobytes())


def is_the_same(now: Any, then: Any) -> bool:
    """Tell whether a value is what it was: of what is not simple, the object itself."""
    return now is then or (is_simple(then) and is_equal(now, then))


def state_of_generator(value: Any) -> Any:
    """Return the state of a random generator on the CPU; None of anything else."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return bytes_in(value.get_state().numpy())
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return pickle.dumps(value)
    return None


def is_strided(tensor: Any) -> bool:
    """Tell whether a tensor is one piece of memory, gone through in strides."""
    return tensor.layout is torch.strided and not tensor.is_nested


def hooks_on(owner: Any) -> tuple[Any, ...]:
    """Return what tells the hooks of a module, tensor or optimizer from others."""
    if isinstance(owner, torch.Tensor):
        hooks = [getattr(owner, name, None) for name in HOOKS_OF_TENSORS]
    elif isinstance(owner, (torch.nn.Module, torch.optim.Optimizer)):
        hooks = [d for key, d in vars(owner).items() if key.endswith("_hooks")]
    else:
        return ()
    return tuple(tuple(d) if isinstance(d, dict) else None for d in hooks)


def is_simple(value: Any) -> bool:
    """Tell whether a value is a number, a text, a flag, or a tuple of such."""
    return isinstance(value, SIMPLE) or (type(value) is tuple and all(map(is_simple, value)))


def is_equal(now: Any, then: Any) -> bool:
    """Tell whether two simple values are of one type and cannot be told apart."""
    if type(now) is not type(then):
        return False
    if isinstance(then, tuple):
        return len(now) == len(then) and all(map(is_equal, now, then))
    if isinstance(then, Number):  # zeros have signs, and what is no number is itself
        return now is then or repr(now) == repr(then)
    return bool(now == then)


def is_equal_tensor(now: Any, then: Any) -> bool:
    """Tell whether two tensors have the same values, zeros with their signs."""
    is_signed = now.is_floating_point() and is_strided(now)
    return torch.equal(now, then) and (not is_signed or torch.equal(now.signbit(), then.signbit()))
