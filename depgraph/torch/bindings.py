"""What a Python function reads beside its arguments: names that lead to tensors or settings.

A *slot* is a place that holds an object: a name in a module or closure, an attribute, an item. The
slots that can be reached from a function lead to the tensors it uses, and to the numbers, flags and
functions that decide which operators it calls.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from depgraph.torch.operator_log import addresses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ITEM, ATTRIBUTE = "item", "attribute"
_SIMPLE = (
    bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, torch.Size,
    torch.layout, torch.memory_format, range, slice,
)  # fmt: skip
_CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, functools.partial,
    types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip
_CACHE = type(functools.lru_cache(len))
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "triton"})
_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})
_SOURCES = (torch.__file__, 0), (__file__, 1)  # this package, too
_Found = tuple[Any, str, Any, Any, str]  # the first fields of a slot
_MOST_OBJECTS = 200_000
_MOST_ITEMS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds an object.

    Attributes
    ----------
    owner : object
    kind : str
        `ITEM` or `ATTRIBUTE`; "" where the owner cannot change what it holds.
    key : object
    value : object
    path : str
        What a message calls it.
    of : object
        What a user would say that it belongs to: the module whose dictionary the owner is.
    """

    owner: Any
    kind: str
    key: Any
    value: Any
    path: str
    of: Any

    def now(self) -> Any:
        """Return what the slot holds now; raise LookupError, AttributeError or ValueError."""
        if self.kind == ITEM:
            return self.owner[self.key]
        return getattr(self.owner, self.key) if self.kind == ATTRIBUTE else self.value


@dataclass(slots=True)
class Bindings:
    """All slots that can be reached from a function.

    Attributes
    ----------
    slots : list of Slot
    sizes : list of (object, int, str)
        Containers and attributes of objects, how many there are, and what a message calls them.
    hooks : list of (dict, int, str)
        The same of the hooks of modules.
    is_whole : bool
        Whether there were not too many to look at.
    """

    slots: list[Slot] = field(default_factory=list)
    sizes: list[tuple[Any, int, str]] = field(default_factory=list)
    hooks: list[tuple[Any, int, str]] = field(default_factory=list)
    is_whole: bool = True

    def tensors(self) -> list[Slot]:
        """Return the slots that hold tensors."""
        return [slot for slot in self.slots if isinstance(slot.value, torch.Tensor)]

    def state(self) -> dict[str, list[Any]]:
        """Return what the slots hold, by their paths: to tell later what has changed.

        Of a tensor that is its identity and memory, of what is simple its value, of other objects
        their type.
        """
        found: dict[str, list[Any]] = {}
        for slot in self.slots:
            found.setdefault(slot.path, []).append(_held(slot.value))
        return found


def _held(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), addresses_of(value)
    if isinstance(value, _SIMPLE):
        return type(value), value
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return type(value), len(value)
    return type(value)


class Executed:
    """The code of Python functions that ran, and the names that they read."""

    def __init__(self) -> None:
        self._codes: set[types.CodeType] = set()
        self._of_class: dict[type, frozenset[str]] = {}
        self._names: frozenset[str] = frozenset()
        self._counted = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what runs in this thread meanwhile."""
        before = sys.getprofile()
        codes = self._codes

        def note(frame: types.FrameType, event: str, _: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)

    @property
    def names(self) -> Any:
        """What functions read that are of no library."""
        if len(self._codes) != self._counted:
            self._counted = len(self._codes)
            own = (c for c in self._codes if not _is_of_library(c.co_filename))
            self._names = frozenset(name for code in own for name in _names_in(code))
            self._of_class.clear()
        return self._names

    def ran(self, function: Any) -> bool:
        """Tell whether a function was called."""
        return getattr(function, "__code__", None) in self._codes

    def read_of(self, cls: type) -> Any:
        """Return the names that the methods of a class have read."""
        names = self.names
        if cls not in self._of_class:
            found = set(names)
            for each in cls.__mro__:
                for value in vars(each).values():
                    function = _function_in(value)
                    if self.ran(function):
                        found |= _names_in(function.__code__)
            self._of_class[cls] = frozenset(found)
        return self._of_class[cls]


@functools.cache
def _is_of_library(filename: str) -> bool:
    path = Path(filename)
    if any(path.is_relative_to(Path(file).parents[up]) for file, up in _SOURCES):
        return True
    is_installed = "site-packages" in path.parts
    return not is_installed and any(map(path.is_relative_to, (sys.prefix, sys.base_prefix)))


def _names_in(code: types.CodeType) -> set[str]:
    found = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names_in(constant)
    return found


def _function_in(value: Any) -> Any:
    """Return the function that a descriptor of a class wraps."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


class _Everything(Executed):
    """Takes every name for one that was read."""

    @property
    def names(self) -> Any:
        return self

    def __contains__(self, name: object) -> bool:
        return True

    def read_of(self, cls: type) -> Any:
        del cls
        return self


def find_bindings(roots: dict[str, Any], executed: Executed | None = None) -> Bindings:
    """Go through everything that can be reached from a function.

    Parameters
    ----------
    roots : dict
        The function, and objects among its arguments, by what a message calls them.
    executed : Executed, optional
        What ran when it was called: of flags and numbers those count that it read, not all.
    """
    executed = executed or _Everything()
    found = Bindings()
    known: set[int] = set()
    waiting: deque[tuple[str, Any]] = deque(roots.items())
    while waiting:
        path, owner = waiting.popleft()
        if id(owner) in known or (_is_leaf(owner) and path not in roots):
            continue
        known.add(id(owner))
        if len(known) > _MOST_OBJECTS:
            found.is_whole = False
            break
        for each in _slots_of(owner, path, executed):
            slot = Slot(*each, owner)
            found.slots.append(slot)
            waiting.append((slot.path, slot.value))
        if isinstance(owner, torch.nn.Module):
            hooks = ((d, path) for key, d in vars(owner).items() if key.endswith("_hooks"))
            found.hooks += [(d, len(d), path) for d, path in hooks if isinstance(d, dict)]
            modules = vars(owner)["_modules"]
            found.sizes.append((modules, len(modules), path))
        if isinstance(owner, (dict, list)) and len(owner) <= _MOST_ITEMS:
            found.sizes.append((owner, len(owner), path))
        mine = getattr(owner, "__dict__", None)
        if isinstance(mine, dict):  # an attribute may hide what the class has
            found.sizes.append((mine, len(mine), path))
    return found


def _is_leaf(value: Any) -> bool:
    if isinstance(value, _SIMPLE):
        return True
    if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return True
    if isinstance(value, (types.FunctionType, type, types.ModuleType)):
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        return _is_library(str(name))
    return isinstance(value, (torch.cuda.Stream, torch.cuda.Event, torch.Generator))


def _is_library(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in _LIBRARIES or module.startswith("depgraph.torch.")


def _slots_of(owner: Any, path: str, executed: Executed) -> Iterator[_Found]:  # noqa: C901, PLR0912
    """Yield the slots of one object."""
    if isinstance(owner, types.FunctionType):
        yield from _of_function(owner, path)
    elif isinstance(owner, types.MethodType):
        yield (owner, "", "__self__", owner.__self__, path.removesuffix(f".{owner.__name__}"))
        yield (owner, "", "__func__", owner.__func__, path)
    elif isinstance(owner, functools.partial):
        for key in ("func", "args", "keywords"):
            yield (owner, "", key, getattr(owner, key), f"{path}.{key}")
    elif isinstance(owner, torch.Tensor):
        if owner.is_leaf and owner.requires_grad:
            yield (owner, ATTRIBUTE, "grad", owner.grad, f"{path}.grad")
    elif isinstance(owner, dict):
        if len(owner) <= _MOST_ITEMS:
            for key, value in owner.items():
                yield (owner, ITEM, key, value, f"{path}[{_shown(key)}]")
    elif isinstance(owner, (list, tuple)):
        if len(owner) <= _MOST_ITEMS:
            kind = ITEM if isinstance(owner, list) else ""
            for place, value in enumerate(owner):
                yield (owner, kind, place, value, f"{path}[{place}]")
    elif isinstance(owner, (set, frozenset, deque)):
        for value in list(owner)[:_MOST_ITEMS]:
            yield (owner, "", None, value, f"{path}[...]")
    elif isinstance(owner, (type, types.ModuleType)):
        yield from _of_namespace(owner, path, executed)
    else:
        yield from _of_object(owner, path, executed)


def _of_function(function: types.FunctionType, path: str) -> Iterator[_Found]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield (cell, ATTRIBUTE, "cell_contents", cell.cell_contents, name)
        except ValueError:  # nothing is bound there yet
            continue
    names = function.__globals__
    for name in sorted(_names_in(code) & names.keys()):
        yield (names, ITEM, name, names[name], name)
    if function.__defaults__:
        yield (function, ATTRIBUTE, "__defaults__", function.__defaults__, f"{path}'s defaults")
    for key, value in (function.__kwdefaults__ or {}).items():
        yield (function.__kwdefaults__, ITEM, key, value, f"{path}'s default {key}")
    for key, value in vars(function).items():
        yield (vars(function), ITEM, key, value, f"{path}.{key}")


def _of_namespace(owner: Any, path: str, executed: Executed) -> Iterator[_Found]:
    """Yield what was read of a class or a module."""
    wanted = executed.names if isinstance(owner, types.ModuleType) else executed.read_of(owner)
    for key, value in list(vars(owner).items()):
        function = _function_in(value)
        is_wanted = key in wanted and not key.startswith("__")
        if isinstance(owner, types.ModuleType) and isinstance(executed, _Everything):
            is_wanted = is_simple(value) or isinstance(value, (torch.Tensor, dict, list))
        if is_wanted or executed.ran(function):
            kind = "" if isinstance(value, (classmethod, property)) else ATTRIBUTE
            yield (owner, kind, key, function, f"{path}.{key}")


def _of_object(owner: Any, path: str, executed: Executed) -> Iterator[_Found]:
    cls = type(owner)
    wanted = executed.read_of(cls)
    is_module = isinstance(owner, torch.nn.Module)
    mine = getattr(owner, "__dict__", None)
    for key, value in list(mine.items()) if isinstance(mine, dict) else ():
        if is_module and (key in _OF_MODULES or "_hooks" in key):
            between = "" if key in _OF_MODULES else f"{key} "
            for name, each in (value or {}).items():
                yield (value, ITEM, name, each, f"{path}.{between}{name}")
        elif not is_simple(value) or key in wanted:
            yield (mine, ITEM, key, value, f"{path}.{key}")
    for each in cls.__mro__:
        for key, value in vars(each).items():
            if isinstance(value, types.MemberDescriptorType) and hasattr(owner, key):
                yield (owner, ATTRIBUTE, key, getattr(owner, key), f"{path}.{key}")
        if not _is_library(each.__module__):
            yield (owner, "", each, each, each.__qualname__)
    if cls is _CACHE:  # what else holds objects out of sight may hold others next time
        referents = gc.get_referents(owner)
        yield from ((owner, "", None, value, f"{path}...") for value in referents)


def is_simple(value: Any) -> bool:
    """Tell whether a value is a number, a text, a flag, or a tuple of such."""
    return isinstance(value, _SIMPLE) or (type(value) is tuple and all(map(is_simple, value)))


def _shown(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int, float, bool)) else type(key).__name__


def leading_to(found: Bindings, is_wanted: Callable[[Slot], bool]) -> list[Slot]:
    """Return the slots that are wanted themselves, and those that lead to one."""
    into: dict[int, list[Slot]] = {}
    for slot in found.slots:
        into.setdefault(id(slot.value), []).append(slot)
    chosen: dict[int, Slot] = {}
    waiting = [slot for slot in found.slots if is_wanted(slot)]
    while waiting:
        slot = waiting.pop()
        if id(slot) not in chosen:
            chosen[id(slot)] = slot
            waiting += into.get(id(slot.of), ())
    return [slot for slot in found.slots if id(slot) in chosen]
