"""What a Python function reads beside its arguments: names that lead to tensors or settings.

A *slot* is a place that holds an object: a name in a module or closure, an attribute, an item. The
slots that can be reached from a function lead to the tensors it uses, and to the numbers, flags and
functions that decide which operators it calls.
"""

import functools
import gc
import inspect
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

import numpy as np
import torch

from depgraph.torch import values
from depgraph.torch.executed import (
    Everything,
    Executed,
    function_in,
    globals_in,
    imported_in,
    is_library,
    names_in,
)
from depgraph.torch.operator_log import OperatorLog, addresses_of

ITEM, ATTRIBUTE, CALLED, EMPTY = "item", "attribute", "called", "empty"
_MAPPINGS = dict, types.MappingProxyType
_HOLDING = *_MAPPINGS, list, tuple, set, frozenset, deque
_CACHE = type(functools.lru_cache(len))
OF_MODULES = "_modules", "_parameters", "_buffers"
# A slot's first fields, and whether its name was read.
_Found = tuple[Any, str, Any, Any, str, bool]
# Modules of Python whose objects lead everywhere, and hold nothing that decides about operators.
_TOOLS = frozenset(
    """
    _abc _ctypes _frozen_importlib _frozen_importlib_external _io abc asyncio concurrent ctypes http
    importlib inspect io json linecache logging multiprocessing pathlib re socket ssl tempfile
    traceback typing urllib warnings zipimport
    """.split()  # noqa: SIM905 - easier to read
)
_WITHOUT_ATTRIBUTES = (
    dict, list, tuple, set, frozenset, deque, type, types.MappingProxyType, types.FunctionType,
    types.MethodType, types.ModuleType, ContextVar,
)  # fmt: skip
_AS_ATTRIBUTES = types.FunctionType, staticmethod  # descriptors of which a class has the function
_LEAVES = (
    torch.cuda.Stream, torch.cuda.Event, torch.Generator, types.CodeType, OperatorLog,
)  # fmt: skip
_COMPILING = "torch._dynamo"
_OF_SEVERAL = (
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "DTensor",
)  # fmt: skip
_MOST_OBJECTS = 200_000
_MOST_ITEMS = 10_000
_MOST_BYTES = 1 << 16
_ITERATED = (
    torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential, torch.nn.ParameterList,
    torch.nn.ParameterDict,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds an object."""

    owner: Any
    # `ITEM`, `ATTRIBUTE`, `CALLED`, `EMPTY` for an attribute that is not there yet; "" where the
    # owner cannot change what it holds
    kind: str
    key: Any
    value: Any
    path: str  # what a message calls it
    of: Any  # what a user would say that it belongs to: the module whose dictionary the owner is
    is_named: bool = False  # whether the function's code has its name

    def now(self) -> Any:
        """Return what the slot holds now; raise LookupError, AttributeError or ValueError."""
        if self.kind == ITEM:
            return values.item_of(self.owner, self.key)
        if self.kind == CALLED:
            return getattr(self.owner, self.key)()
        if self.kind == EMPTY:
            return values.attribute_of(self.owner, self.key)
        return getattr(self.owner, self.key) if self.kind == ATTRIBUTE else self.value


@dataclass(slots=True)
class Bindings:
    """All slots that can be reached from a function."""

    slots: list[Slot] = field(default_factory=list)
    # owners with their size, copy or hooks, and path; whether the function goes through them
    sizes: list[tuple[Any, int, str, bool]] = field(default_factory=list)
    contents: list[tuple[Any, Any, str]] = field(default_factory=list)
    hooks: list[tuple[Any, tuple[Any, ...], str]] = field(default_factory=list)
    roots: tuple[Any, ...] = ()
    codes: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)  # what ran, globals
    names: Container[str] = frozenset()  # that code of no library reads
    read_of: Callable[[type], Container[str]] = lambda _: frozenset()  # of an object of a class
    too_large: str = ""  # what is too large to be looked at before each call, "" if nothing is

    def tensors(self) -> list[Slot]:
        """Return the slots that hold tensors, but for those that have no memory."""
        return [
            slot
            for slot in self.slots
            if isinstance(slot.value, torch.Tensor) and addresses_of(slot.value)
        ]

    def state(self) -> dict[str, list[Any]]:
        """Return by path what slots hold, the bytes of arrays, and the order of dictionaries."""
        found: dict[str, list[Any]] = {}
        for slot in self.slots:
            found.setdefault(slot.path, []).append(_held(slot.value))
        for _, kept, path in self.contents:
            if not isinstance(kept, (list, deque)):  # their items have slots
                found.setdefault(path, []).append(values.bytes_in(kept))
        for owner, _, path, is_needed in self.sizes:
            if is_needed and isinstance(owner, dict):
                found.setdefault(path, []).append([*map(_held, values.iterated(owner))])
        return found


def _held(value: Any) -> Any:
    """Return the identity and memory of a tensor, a simple value, else a type."""
    if isinstance(value, torch.Tensor):
        return id(value), addresses_of(value)
    if isinstance(value, values.SIMPLE):
        return type(value), value
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return type(value), len(value)
    return type(value), values.state_of_generator(value)


def of_several_processes(bindings: Bindings) -> str:
    """Name the class of what several processes or GPUs do together; "" if nothing does."""
    for value in (*bindings.roots, *(slot.value for slot in bindings.slots)):
        for cls in type(value).__mro__:
            if cls.__name__ in _OF_SEVERAL and is_library(str(cls.__module__)):
                return cls.__name__
    return ""


def find_bindings(roots: dict[str, Any], executed: Executed | None = None) -> Bindings:
    """Go through all that can be reached from these roots, and from what ran and is no root."""
    # Of flags and numbers those count that the call read, not all.
    found = Bindings(roots=tuple(roots.values()))
    known: set[int] = set()
    waiting = deque((path, owner, True) for path, owner in roots.items())
    _go_through(waiting, executed or Executed(takes_all=True), found, known)
    if executed is not None:
        own = executed.own()
        found.codes, found.names = executed.codes(), executed.names
        found.read_of = executed.read_of
        _go_through(deque(_read_by(own, found, known)), executed, found, known)
    return found


def _go_through(
    waiting: deque[tuple[str, Any, bool]], executed: Executed, found: Bindings, known: set[int]
) -> None:
    roots = {id(owner) for _, owner, _ in waiting}
    while waiting:
        path, owner, is_read = waiting.popleft()
        if id(owner) in known or (_is_leaf(owner) and id(owner) not in roots):
            continue
        known.add(id(owner))
        if len(known) > _MOST_OBJECTS:
            found.too_large = "what it refers to"
            return
        is_searched = path.rpartition(".")[2] in executed.searched
        for owner_, kind, key, value, where, is_named in _slots_of(
            owner, path, executed, is_searched=is_searched
        ):
            found.slots.append(Slot(owner_, kind, key, value, where, owner, is_named))
            # An item is read if what holds it is; a name if some code has it.
            waiting.append((where, value, is_named or (is_read and isinstance(owner, _HOLDING))))
        _take_sizes(owner, path, executed, found, is_read=is_read)


def held_by(module: Any) -> list[dict[str, Any]]:
    """Return the sub-modules, parameters and buffers of a module, by name."""
    return [vars(module).get(key, {}) for key in OF_MODULES]


def _take_sizes(
    owner: Any, path: str, executed: Executed, found: Bindings, *, is_read: bool
) -> None:
    """Take the sizes of what an object holds, its hooks, and what has no slots of its own."""
    if hooks := values.hooks_on(owner):
        found.hooks.append((owner, hooks, path))
    if isinstance(owner, torch.nn.Module):
        for held in held_by(owner):
            found.sizes.append((held, len(held), path, isinstance(owner, _ITERATED)))
    if isinstance(owner, (*_MAPPINGS, list)):
        if values.count_of(owner) <= _MOST_ITEMS:
            found.sizes.append((owner, values.count_of(owner), path, is_read))
        elif is_read and path.rpartition(".")[2] in executed.names:
            found.too_large = path
    elif is_read and (kept := values.copy_of(owner)) is not None:
        if values.size_of(kept) <= _MOST_BYTES:
            found.contents.append((owner, kept, path))
        else:
            found.too_large = path


def _read_by(
    own: dict[types.CodeType, dict[str, Any]], found: Bindings, known: set[int]
) -> Iterator[tuple[str, Any, bool]]:
    """Yield what code reads that ran, whatever leads to it: hooks, backward passes."""
    seen = {(id(slot.owner), slot.key) for slot in found.slots if slot.kind == ITEM}
    for code, names in own.items():
        for name in sorted(globals_in(code) & names.keys()):
            if (id(names), name) not in seen:
                seen.add((id(names), name))
                found.slots.append(Slot(names, ITEM, name, names[name], name, names, is_named=True))
                yield name, names[name], True
    with_more = [code for code in own if code.co_freevars or code.co_argcount]
    if with_more:
        for each in gc.get_referrers(*with_more):
            if isinstance(each, types.FunctionType) and id(each) not in known:
                yield each.__name__, each, True


def _is_leaf(value: Any) -> bool:
    if value is values.NOTHING:
        return True
    if isinstance(value, values.SIMPLE):  # but for those of the user's, which may have attributes
        return type(value) in values.SIMPLE or is_library(type(value).__module__)
    if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return True
    if isinstance(value, (types.FunctionType, type, types.ModuleType)):
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        return is_library(str(name))
    home = str(type(value).__module__)
    if home.startswith(_COMPILING):  # but for what it calls, which a module leads to
        return not isinstance(value, torch.nn.Module)
    return home.split(".", maxsplit=1)[0] in _TOOLS or isinstance(value, _LEAVES)


def _slots_of(  # noqa: C901, PLR0912
    owner: Any, path: str, executed: Executed, *, is_searched: bool
) -> Iterator[_Found]:
    if isinstance(owner, types.FunctionType):
        yield from _of_function(owner, path, executed)
    elif isinstance(owner, types.MethodType):
        before = path.removesuffix(f".{owner.__name__}")
        yield (owner, "", "__self__", owner.__self__, before, True)
        yield (owner, "", "__func__", owner.__func__, path, True)
    elif isinstance(owner, functools.partial):
        for key in ("func", "args", "keywords"):
            yield (owner, "", key, getattr(owner, key), f"{path}.{key}", True)
    elif isinstance(owner, torch.Tensor):
        if owner.is_leaf and owner.requires_grad:
            yield (owner, ATTRIBUTE, "grad", owner.grad, f"{path}.grad", False)
        for name in values.HOOKS_OF_TENSORS:
            for key, hook in (getattr(owner, name, None) or {}).items():
                yield (getattr(owner, name), ITEM, key, hook, f"{path}'s hook", True)
    elif isinstance(owner, (*_MAPPINGS, list, tuple)):
        if values.count_of(owner) <= _MOST_ITEMS:
            kind = "" if isinstance(owner, tuple) else ITEM
            for key, value in values.items_of(owner):
                yield (owner, kind, key, value, f"{path}[{_shown(key)}]", False)
    elif isinstance(owner, (set, frozenset, deque)) or _is_of_objects(owner):
        items = owner.flat if _is_of_objects(owner) else values.iterated(owner)
        for value in islice(items, _MOST_ITEMS):
            yield (owner, "", None, value, f"{path}[...]", False)
    elif isinstance(owner, ContextVar):
        with suppress(LookupError):
            yield (owner, CALLED, "get", owner.get(), path, True)
    elif isinstance(owner, weakref.ref):
        yield (owner, CALLED, "__call__", owner(), path, True)
    elif isinstance(owner, (type, types.ModuleType)):
        yield from _of_namespace(owner, path, executed, is_searched=is_searched)
    else:
        yield from _of_object(owner, path, _read_of(owner, executed, is_searched=is_searched))
        return
    is_own = not is_library(type(owner).__module__)
    if type(owner) not in _WITHOUT_ATTRIBUTES and (is_own or getattr(owner, "__dict__", None)):
        yield from _of_object(owner, path, _read_of(owner, executed, is_searched=is_searched))


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object


def _read_of(owner: Any, executed: Executed, *, is_searched: bool) -> Container[str]:
    if is_searched or isinstance(owner, _ITERATED):
        return Everything()
    return executed.read_of(type(owner))


def _of_function(  # noqa: C901
    function: types.FunctionType, path: str, executed: Executed
) -> Iterator[_Found]:
    if not executed.may_have_run(function):
        return
    code = function.__code__
    if executed.ran(function):
        yield (function, ATTRIBUTE, "__code__", code, path, True)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        bound = values.attribute_of(cell, "cell_contents")
        kind = EMPTY if bound is values.NOTHING else ATTRIBUTE
        yield (cell, kind, "cell_contents", bound, name, True)
    names = function.__globals__
    for name in sorted(globals_in(code) & names.keys()):
        yield (names, ITEM, name, names[name], name, True)
    for name in sorted(_modules_read(code, names) & sys.modules.keys()):
        if not is_library(name):
            yield (sys.modules, ITEM, name, sys.modules[name], name, True)
    if function.__defaults__:
        defaults = function.__defaults__
        yield (function, ATTRIBUTE, "__defaults__", defaults, f"{path}'s defaults", True)
    if function.__kwdefaults__ is not None:
        of_names = function.__kwdefaults__
        yield (function, ATTRIBUTE, "__kwdefaults__", of_names, f"{path}'s defaults", True)
    for key, value in (function.__kwdefaults__ or {}).items():
        yield (function.__kwdefaults__, ITEM, key, value, f"{path}'s default {key}", True)
    for key, value in vars(function).items():
        yield (vars(function), ITEM, key, value, f"{path}.{key}", key in executed.names)


def _modules_read(code: types.CodeType, names: dict[str, Any]) -> set[str]:
    """Return the names of modules that code may find by their names, and of what holds these."""
    *packages, _ = accumulate(f"{names.get('__package__') or ''}.".split("."), "{}.{}".format)
    imported = imported_in(code)
    found = {*imported, *(names_in(code) - names.keys())}
    found |= {f"{package}.{name}".strip(".") for package in packages for name in imported}
    while above := {name.rpartition(".")[0] for name in found} - found:
        found |= above
    return found


def _of_namespace(
    owner: Any, path: str, executed: Executed, *, is_searched: bool
) -> Iterator[_Found]:
    """Yield what was read of a class or a module."""
    wanted = executed.names if isinstance(owner, types.ModuleType) else executed.read_of(owner)
    for key, value in list(vars(owner).items()):
        function = function_in(value)
        if not isinstance(key, str):
            continue
        is_wanted = key in wanted and not key.startswith("__")
        if isinstance(owner, types.ModuleType) and (is_searched or executed.takes_all):
            is_wanted = values.is_simple(value) or isinstance(value, (torch.Tensor, dict, list))
        if not is_wanted and not executed.ran(function):
            continue
        if hasattr(type(value), "__get__") and not isinstance(value, _AS_ATTRIBUTES):
            yield (vars(owner), ITEM, key, value, f"{path}.{key}", True)
            yield (owner, "", key, function, f"{path}.{key}", True)
        else:
            yield (owner, ATTRIBUTE, key, function, f"{path}.{key}", True)
    if isinstance(owner, type):
        yield from _classes_of(owner, [*owner.__mro__[1:], *inspect.getmro(type(owner))])


def _of_object(owner: Any, path: str, wanted: Container[str]) -> Iterator[_Found]:
    cls = type(owner)
    is_module = isinstance(owner, torch.nn.Module)
    unread = values.OF_COMPILER if is_module else frozenset()
    mine = getattr(owner, "__dict__", None)
    for key, value in list(mine.items()) if isinstance(mine, dict) else ():
        if is_module and (key in OF_MODULES or "_hooks" in key):
            between = "" if key in OF_MODULES else f"{key} "
            for name, each in (value or {}).items():
                yield (value, ITEM, name, each, f"{path}.{between}{name}", True)
        elif key not in unread and (not values.is_simple(value) or key in wanted):
            yield (mine, ITEM, key, value, f"{path}.{key}", key in wanted)
    for each in cls.__mro__:
        for key, value in vars(each).items():
            if isinstance(value, types.MemberDescriptorType):
                there = values.attribute_of(owner, key)
                kind = EMPTY if there is values.NOTHING else ATTRIBUTE
                yield (owner, kind, key, there, f"{path}.{key}", key in wanted)
    yield from _classes_of(owner, cls.__mro__)
    if cls is _CACHE:  # what else holds objects out of sight may hold others next time
        referents = gc.get_referents(owner)
        yield from ((owner, "", None, value, f"{path}...", False) for value in referents)


def _classes_of(owner: Any, classes: Iterable[type]) -> Iterator[_Found]:
    for cls in classes:
        if not is_library(cls.__module__):
            yield (owner, "", cls, cls, cls.__qualname__, False)


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
