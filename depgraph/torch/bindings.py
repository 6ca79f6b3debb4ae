"""What a Python function reads beside its arguments: names that lead to tensors or settings.

A *slot* is a place that holds an object: a name in a module or closure, an attribute, an item. The
slots that can be reached from a function lead to the tensors it uses, and to the numbers, flags and
functions that decide which operators it calls.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
import weakref
from array import array
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from enum import Enum
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from depgraph.torch.operator_log import OperatorLog, addresses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

ITEM, ATTRIBUTE, CALLED = "item", "attribute", "called"
_SIMPLE = (
    bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, torch.Size,
    torch.layout, torch.memory_format, range, slice, np.generic, Number, date, time, timedelta,
)  # fmt: skip
_MAPPINGS = dict, types.MappingProxyType
_CACHE = type(functools.lru_cache(len))
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "triton"})
_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})
_SOURCES = (torch.__file__, 0), (__file__, 1)  # this package, too
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
_LEAVES = (
    torch.cuda.Stream, torch.cuda.Event, torch.Generator, types.CodeType, OperatorLog,
)  # fmt: skip
_IMPORTING = "<frozen importlib._bootstrap>"
_MOST_OBJECTS = 200_000
_MOST_ITEMS = 10_000
_MOST_BYTES = 1 << 16
_DYNAMIC = frozenset({"getattr", "hasattr", "vars", "attrgetter"})
_DYNAMIC_ATTRIBUTES = frozenset({"__dict__", "__getattribute__"})
_HOOKS_OF_TENSORS = "_backward_hooks", "_post_accumulate_grad_hooks"
_ITERATED = (
    torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential, torch.nn.ParameterList,
    torch.nn.ParameterDict,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds an object.

    Attributes
    ----------
    owner : object
    kind : str
        `ITEM`, `ATTRIBUTE`, or `CALLED` where a method returns it; "" where the owner cannot change
        what it holds.
    key : object
    value : object
    path : str
        What a message calls it.
    of : object
        What a user would say that it belongs to: the module whose dictionary the owner is.
    is_named : bool
        Whether the function's code has its name.
    """

    owner: Any
    kind: str
    key: Any
    value: Any
    path: str
    of: Any
    is_named: bool = False

    def now(self) -> Any:
        """Return what the slot holds now; raise LookupError, AttributeError or ValueError."""
        if self.kind == ITEM:
            return self.owner[self.key]
        if self.kind == CALLED:
            return getattr(self.owner, self.key)()
        return getattr(self.owner, self.key) if self.kind == ATTRIBUTE else self.value


@dataclass(slots=True)
class Bindings:
    """All slots that can be reached from a function.

    Attributes
    ----------
    slots : list of Slot
    sizes : list of (object, int, str, bool)
        Containers and attributes of objects, how many there are, what a message calls them, and
        whether the function goes through them.
    contents : list of (object, object, str)
        Sets, queues and arrays that it reads, copies of them, and what a message calls them.
    hooks : list of (object, tuple, str)
        Modules, tensors and optimizers, and what tells their hooks from others.
    too_large : str
        What is too large to be looked at before each call, "" if nothing is.
    """

    slots: list[Slot] = field(default_factory=list)
    sizes: list[tuple[Any, int, str, bool]] = field(default_factory=list)
    contents: list[tuple[Any, Any, str]] = field(default_factory=list)
    hooks: list[tuple[Any, tuple[Any, ...], str]] = field(default_factory=list)
    too_large: str = ""

    def tensors(self) -> list[Slot]:
        """Return the slots that hold tensors, but for those that have no memory."""
        return [
            slot
            for slot in self.slots
            if isinstance(slot.value, torch.Tensor) and addresses_of(slot.value)
        ]

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
    """The code of Python functions that ran, and the names that they read.

    Parameters
    ----------
    is_compiled : bool
        Whether functions run in a compiled form, so that not all of them are seen.
    """

    def __init__(self, *, is_compiled: bool = False) -> None:
        self._is_compiled = is_compiled
        self._globals_of: dict[types.CodeType, dict[str, Any]] = {}
        self._of_class: dict[type, Container[str]] = {}
        self._names: frozenset[str] = frozenset()
        self._attributes: Container[str] = frozenset()
        self._searched: frozenset[str] = frozenset()
        self._counted = -1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what runs in this thread meanwhile, and nothing of what ran before."""
        self._globals_of.clear()
        self._counted = -1
        before = sys.getprofile()
        globals_of = self._globals_of
        importing: list[types.FrameType] = []  # what a module does once is not what a function does

        def note(frame: types.FrameType, event: str, _: object) -> None:
            if importing:
                if event == "return" and frame is importing[0]:
                    importing.clear()
            elif event == "call":
                if frame.f_code.co_filename == _IMPORTING:
                    importing.append(frame)
                else:
                    globals_of[frame.f_code] = frame.f_globals

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def note_stack(self, frame: types.FrameType | None) -> None:
        """Note what runs in another thread, such as one of a backward pass."""
        while frame is not None:
            self._globals_of[frame.f_code] = frame.f_globals
            frame = frame.f_back

    def own(self) -> dict[types.CodeType, dict[str, Any]]:
        """Return the code that is of no library, and the globals that it reads."""
        others = {getattr(each, "__code__", None) for each in gc.callbacks}
        return {
            code: names
            for code, names in self._globals_of.items()
            if code not in others and not _is_of_library(code, names)
        }

    def _count(self) -> None:
        if len(self._globals_of) == self._counted:
            return
        self._counted = len(self._globals_of)
        self._of_class.clear()
        own = list(self.own())
        self._names = frozenset(name for code in own for name in _names_in(code))
        searching = [code for code in own if _searches(code)]
        # What a method searches is its object, or what it has; of a function nobody knows.
        is_anything = any("." not in _home_of(code) for code in searching)
        self._attributes = _Everything() if is_anything else self._names
        self._searched = frozenset(name for code in searching for name in code.co_names)

    @property
    def names(self) -> Container[str]:
        """What functions read that are of no library."""
        self._count()
        return self._names

    @property
    def searched(self) -> Container[str]:
        """Names of objects whose attributes are read by names that are computed."""
        self._count()
        return self._searched

    def may_have_run(self, function: Any) -> bool:
        """Tell whether a function was called, for all that is known."""
        return self._is_compiled or self.ran(function)

    def ran(self, function: Any) -> bool:
        """Tell whether a function was seen to be called."""
        return getattr(function, "__code__", None) in self._globals_of

    def read_of(self, cls: type) -> Container[str]:
        """Return the names that the methods of a class have read."""
        self._count()
        names = self._attributes
        if cls not in self._of_class:
            codes = list(self._methods_of(cls))
            own = (code for code in codes if not _lies_in_library(code.co_filename))
            if isinstance(names, frozenset) and not any(map(_searches, own)):
                names = names.union(*map(_names_in, codes))
            else:
                names = _Everything()
            self._of_class[cls] = names
        return self._of_class[cls]

    def asks_of(self, cls: type) -> bool:
        """Tell whether methods of a class ask for attributes that need not be there."""
        own = (c for c in self._methods_of(cls) if not _lies_in_library(c.co_filename))
        return any(not _DYNAMIC.isdisjoint(code.co_names) for code in own)

    def _methods_of(self, cls: type) -> Iterator[types.CodeType]:
        for each in cls.__mro__:
            for value in vars(each).values():
                function = _function_in(value)
                if self.ran(function):
                    yield function.__code__


def _is_of_library(code: types.CodeType, names: dict[str, Any]) -> bool:
    return _is_library(str(names.get("__name__", ""))) or _lies_in_library(code.co_filename)


@functools.cache
def _lies_in_library(filename: str) -> bool:
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
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)  # getattr may be told so
    return found


@functools.cache
def _searches(code: types.CodeType) -> bool:
    """Tell whether code reads attributes by names that it computes."""
    if not _DYNAMIC_ATTRIBUTES.isdisjoint(code.co_names) or "vars" in code.co_names:
        return True
    if _DYNAMIC.isdisjoint(code.co_names):
        return False
    is_open = has_name = False
    for each in dis.get_instructions(code):
        if each.argval in _DYNAMIC and each.opname.startswith("LOAD_"):
            is_open, has_name = True, False
        elif is_open and each.opname == "LOAD_CONST" and isinstance(each.argval, str):
            has_name = True
        elif is_open and (each.opname.startswith(("BINARY_", "FORMAT_", "BUILD_"))):
            return True
        elif is_open and each.opname.startswith("CALL"):
            if not has_name:
                return True
            is_open = False
    return False


def _home_of(code: types.CodeType) -> str:
    """Return the name of code within its module, such as ``Model.forward``."""
    return code.co_qualname if sys.version_info >= (3, 11) else code.co_name


def _function_in(value: Any) -> Any:
    """Return the function that a descriptor of a class wraps."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


class _Everything:
    """All names."""

    def __contains__(self, name: object) -> bool:
        return True


class _All(Executed):
    """Takes every name for one that was read, and every function for one that ran."""

    def may_have_run(self, function: Any) -> bool:
        del function
        return True

    @property
    def names(self) -> Container[str]:
        return _Everything()

    def read_of(self, cls: type) -> Container[str]:
        del cls
        return _Everything()


def find_bindings(roots: dict[str, Any], executed: Executed | None = None) -> Bindings:
    """Go through everything that can be reached from a function.

    Parameters
    ----------
    roots : dict
        The function, and objects among its arguments, by what a message calls them.
    executed : Executed, optional
        What ran when it was called: of flags and numbers those count that it read, not all. What
        ran and cannot be reached from the function is gone through, too.
    """
    found = Bindings()
    known: set[int] = set()
    _go_through(deque((p, o, True) for p, o in roots.items()), executed or _All(), found, known)
    if executed is not None:
        own = executed.own()
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
            waiting.append((where, value, is_named or (is_read and _is_container(owner))))
        _take_sizes(owner, path, executed, found, is_read=is_read)


def _is_container(value: Any) -> bool:
    return isinstance(value, (*_MAPPINGS, list, tuple, set, frozenset, deque))


def _take_sizes(
    owner: Any, path: str, executed: Executed, found: Bindings, *, is_read: bool
) -> None:
    """Take the sizes of what an object holds, its hooks, and what has no slots of its own."""
    is_named = path.rpartition(".")[2] in executed.names
    if hooks := _hooks_on(owner):
        found.hooks.append((owner, hooks, path))
    if isinstance(owner, torch.nn.Module):
        modules, parameters = vars(owner)["_modules"], vars(owner)["_parameters"]
        is_iterated = isinstance(owner, _ITERATED)
        found.sizes.append((modules, len(modules), path, is_iterated))
        if is_iterated:
            found.sizes.append((parameters, len(parameters), path, True))
    if isinstance(owner, (*_MAPPINGS, list)):
        if len(owner) <= _MOST_ITEMS:
            found.sizes.append((owner, len(owner), path, is_read))
        elif is_read and is_named:
            found.too_large = path
    elif is_read:
        _take_contents(owner, path, found, is_named=is_named)
    mine = getattr(owner, "__dict__", None)
    if type(mine) is dict:  # an attribute may hide what the class has
        asks = not isinstance(owner, types.FunctionType) and executed.asks_of(type(owner))
        found.sizes.append((mine, len(mine), path, asks))


def _take_contents(owner: Any, path: str, found: Bindings, *, is_named: bool) -> None:
    """Take a copy of what is compared as a whole."""
    kept = _copy_of(owner)
    if kept is None:
        return
    if _size_of(kept) <= _MOST_BYTES:
        found.contents.append((owner, kept, path))
    elif is_named:
        found.too_large = path


def _copy_of(value: Any) -> Any:
    """Return a copy of what is compared as a whole; None if there is no need."""
    if type(value) in {set, bytearray}:
        return type(value)(value)
    if type(value) in {deque, array, np.ndarray}:
        return copy(value)
    return None


def _size_of(kept: Any) -> int:
    return int(kept.nbytes) if isinstance(kept, np.ndarray) else len(kept)


def is_as_it_was(now: Any, then: Any) -> bool:
    """Tell whether a set, queue or array has what its copy has."""
    if isinstance(then, set):
        return len(now) == len(then) and all(each in now for each in then)
    if isinstance(then, deque):
        return len(now) == len(then) and all(map(_is_the_same, now, then))
    if isinstance(then, bytearray):
        return bool(now == then)
    if isinstance(then, array):
        return bool(now.tobytes() == then.tobytes())
    is_alike = now.dtype == then.dtype and now.shape == then.shape
    return bool(is_alike and now.tobytes() == then.tobytes())


def _is_the_same(now: Any, then: Any) -> bool:
    return now is then or (is_simple(then) and is_equal(now, then))


def _hooks_on(owner: Any) -> tuple[Any, ...]:
    """Return what tells the hooks of a module, tensor or optimizer from others."""
    if isinstance(owner, torch.Tensor):
        hooks = [getattr(owner, name, None) for name in _HOOKS_OF_TENSORS]
    elif isinstance(owner, (torch.nn.Module, torch.optim.Optimizer)):
        hooks = [d for key, d in vars(owner).items() if key.endswith("_hooks")]
    else:
        return ()
    return tuple(tuple(d) if isinstance(d, dict) else None for d in hooks)


def has_other_hooks(owner: Any, hooks: tuple[Any, ...]) -> bool:
    """Tell whether the hooks of a module, tensor or optimizer are not those that it had."""
    return _hooks_on(owner) != hooks


def _read_by(
    own: dict[types.CodeType, dict[str, Any]], found: Bindings, known: set[int]
) -> Iterator[tuple[str, Any, bool]]:
    """Yield what code reads that ran, whatever leads to it: hooks, backward passes."""
    seen = {(id(slot.owner), slot.key) for slot in found.slots if slot.kind == ITEM}
    for code, names in own.items():
        for name in sorted(_names_in(code) & names.keys()):
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
    if isinstance(value, _SIMPLE):
        return True
    if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return True
    if isinstance(value, (types.FunctionType, type, types.ModuleType)):
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        return _is_library(str(name))
    home = type(value).__module__.split(".", maxsplit=1)[0]
    return home in _TOOLS or isinstance(value, _LEAVES)


def _is_library(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in _LIBRARIES or module.startswith("depgraph.torch.")


def _slots_of(  # noqa: C901, PLR0912
    owner: Any, path: str, executed: Executed, *, is_searched: bool
) -> Iterator[_Found]:
    """Yield the slots of one object."""
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
        for name in _HOOKS_OF_TENSORS:
            for key, hook in (getattr(owner, name, None) or {}).items():
                yield (getattr(owner, name), ITEM, key, hook, f"{path}'s hook", True)
    elif isinstance(owner, _MAPPINGS):
        if len(owner) <= _MOST_ITEMS:
            for key, value in owner.items():
                yield (owner, ITEM, key, value, f"{path}[{_shown(key)}]", False)
    elif isinstance(owner, (list, tuple)):
        if len(owner) <= _MOST_ITEMS:
            kind = ITEM if isinstance(owner, list) else ""
            for place, value in enumerate(owner):
                yield (owner, kind, place, value, f"{path}[{place}]", False)
    elif isinstance(owner, (set, frozenset, deque)):
        for value in list(owner)[:_MOST_ITEMS]:
            yield (owner, "", None, value, f"{path}[...]", False)
    elif isinstance(owner, ContextVar):
        with suppress(LookupError):
            yield (owner, CALLED, "get", owner.get(), path, True)
    elif isinstance(owner, weakref.ref):
        yield (owner, CALLED, "__call__", owner(), path, True)
    elif isinstance(owner, (type, types.ModuleType)):
        yield from _of_namespace(owner, path, executed, is_searched=is_searched)
    else:
        wanted = _Everything() if is_searched else executed.read_of(type(owner))
        yield from _of_object(owner, path, wanted)


def _of_function(function: types.FunctionType, path: str, executed: Executed) -> Iterator[_Found]:
    if not executed.may_have_run(function):
        return
    code = function.__code__
    if executed.ran(function):
        yield (function, ATTRIBUTE, "__code__", code, path, True)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield (cell, ATTRIBUTE, "cell_contents", cell.cell_contents, name, True)
        except ValueError:  # nothing is bound there yet
            continue
    names = function.__globals__
    for name in sorted(_names_in(code) & names.keys()):
        yield (names, ITEM, name, names[name], name, True)
    if function.__defaults__:
        defaults = function.__defaults__
        yield (function, ATTRIBUTE, "__defaults__", defaults, f"{path}'s defaults", True)
    for key, value in (function.__kwdefaults__ or {}).items():
        yield (function.__kwdefaults__, ITEM, key, value, f"{path}'s default {key}", True)
    for key, value in vars(function).items():
        yield (vars(function), ITEM, key, value, f"{path}.{key}", key in executed.names)


def _of_namespace(
    owner: Any, path: str, executed: Executed, *, is_searched: bool
) -> Iterator[_Found]:
    """Yield what was read of a class or a module."""
    wanted = executed.names if isinstance(owner, types.ModuleType) else executed.read_of(owner)
    for key, value in list(vars(owner).items()):
        function = _function_in(value)
        if not isinstance(key, str):
            continue
        is_wanted = key in wanted and not key.startswith("__")
        if isinstance(owner, types.ModuleType) and (is_searched or isinstance(executed, _All)):
            is_wanted = is_simple(value) or isinstance(value, (torch.Tensor, dict, list))
        if not is_wanted and not executed.ran(function):
            continue
        if isinstance(value, (classmethod, property)):
            yield (vars(owner), ITEM, key, value, f"{path}.{key}", True)
            yield (owner, "", key, function, f"{path}.{key}", True)
        else:
            yield (owner, ATTRIBUTE, key, function, f"{path}.{key}", True)


def _of_object(owner: Any, path: str, wanted: Container[str]) -> Iterator[_Found]:
    cls = type(owner)
    is_module = isinstance(owner, torch.nn.Module)
    mine = getattr(owner, "__dict__", None)
    for key, value in list(mine.items()) if isinstance(mine, dict) else ():
        if is_module and (key in _OF_MODULES or "_hooks" in key):
            between = "" if key in _OF_MODULES else f"{key} "
            for name, each in (value or {}).items():
                yield (value, ITEM, name, each, f"{path}.{between}{name}", True)
        elif not is_simple(value) or key in wanted:
            yield (mine, ITEM, key, value, f"{path}.{key}", key in wanted)
    for each in cls.__mro__:
        for key, value in vars(each).items():
            if isinstance(value, types.MemberDescriptorType) and hasattr(owner, key):
                there = getattr(owner, key)
                yield (owner, ATTRIBUTE, key, there, f"{path}.{key}", key in wanted)
        if not _is_library(each.__module__):
            yield (owner, "", each, each, each.__qualname__, False)
    if cls is _CACHE:  # what else holds objects out of sight may hold others next time
        referents = gc.get_referents(owner)
        yield from ((owner, "", None, value, f"{path}...", False) for value in referents)


def is_simple(value: Any) -> bool:
    """Tell whether a value is a number, a text, a flag, or a tuple of such."""
    return isinstance(value, _SIMPLE) or (type(value) is tuple and all(map(is_simple, value)))


def is_equal(now: Any, then: Any) -> bool:
    """Tell whether two simple values are of one type and cannot be told apart."""
    if type(now) is not type(then):
        return False
    if isinstance(then, tuple):
        return len(now) == len(then) and all(map(is_equal, now, then))
    if isinstance(then, Number):  # zeros have signs, and what is no number is itself
        return now is then or repr(now) == repr(then)
    return bool(now == then)


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
