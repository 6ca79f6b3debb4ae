"""Which Python functions ran, and what their code reads by name."""

import dis
import functools
import gc
import sys
import types
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "triton"})
_SOURCES = (torch.__file__, 0), (__file__, 1)  # this package, too
_IMPORTING = "<frozen importlib._bootstrap>"
_BY_NAME = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_BY_IMPORT = frozenset({"IMPORT_NAME"})
_DYNAMIC = frozenset({"getattr", "hasattr", "vars", "attrgetter"})
_DYNAMIC_ATTRIBUTES = frozenset({"__dict__", "__getattribute__"})


class Executed:
    """The code of Python functions that ran, and the names that they read."""

    def __init__(self, *, takes_all: bool = False) -> None:
        self.takes_all = takes_all  # every name for one that was read, every function for one run
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

    def codes(self) -> dict[types.CodeType, dict[str, Any]]:
        """Return all code that ran but this package's, and the globals that it reads."""
        return {
            code: names
            for code, names in self._globals_of.items()
            if not str(names.get("__name__", "")).startswith("depgraph.torch.")
        }

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
        self._names = frozenset(name for code in own for name in names_in(code))
        searching = [code for code in own if _searches(code)]
        # What a method searches is its object, or what it has; of a function nobody knows.
        is_anything = any("." not in code.co_qualname for code in searching)
        self._attributes = Everything() if is_anything else self._names
        self._searched = frozenset(name for code in searching for name in code.co_names)

    @property
    def names(self) -> Container[str]:
        """What functions read that are of no library."""
        self._count()
        return Everything() if self.takes_all else self._names

    @property
    def searched(self) -> Container[str]:
        """Names of objects whose attributes are read by names that are computed."""
        self._count()
        return self._searched

    def may_have_run(self, function: Any) -> bool:
        """Tell whether a function was called, for all that is known."""
        return self.takes_all or self.ran(function)

    def ran(self, function: Any) -> bool:
        """Tell whether a function was seen to be called."""
        return getattr(function, "__code__", None) in self._globals_of

    def read_of(self, cls: type) -> Container[str]:
        """Return the names that the methods of a class have read."""
        if self.takes_all:
            return Everything()
        self._count()
        names = self._attributes
        if cls not in self._of_class:
            codes = list(self._methods_of(cls))
            own = (code for code in codes if not _lies_in_library(code.co_filename))
            if isinstance(names, frozenset) and not any(map(_searches, own)):
                names = names.union(*map(names_in, codes))
            else:
                names = Everything()
            self._of_class[cls] = names
        return self._of_class[cls]

    def _methods_of(self, cls: type) -> Iterator[types.CodeType]:
        for each in cls.__mro__:
            for value in vars(each).values():
                function = function_in(value)
                if self.ran(function):
                    yield function.__code__


def _is_of_library(code: types.CodeType, names: dict[str, Any]) -> bool:
    return is_library(str(names.get("__name__", ""))) or _lies_in_library(code.co_filename)


@functools.cache
def _lies_in_library(filename: str) -> bool:
    path = Path(filename)
    if any(path.is_relative_to(Path(file).parents[up]) for file, up in _SOURCES):
        return True
    is_installed = "site-packages" in path.parts
    return not is_installed and any(map(path.is_relative_to, (sys.prefix, sys.base_prefix)))


def names_in(code: types.CodeType) -> set[str]:
    """Return the names that code reads, texts that may be such included."""
    found = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)  # getattr may be told so
    return found


def globals_in(code: types.CodeType) -> frozenset[str]:
    """Return the names that code looks up in its module, and then among Python's own."""
    return _named_by(code, _BY_NAME)


def imported_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of modules that code imports."""
    return _named_by(code, _BY_IMPORT)


@functools.cache
def _named_by(code: types.CodeType, instructions: frozenset[str]) -> frozenset[str]:
    found = {each.argval for each in dis.get_instructions(code) if each.opname in instructions}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(found).union(*(_named_by(each, instructions) for each in inner))


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


def function_in(value: Any) -> Any:
    """Return the function that a descriptor of a class wraps."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


class Everything:
    """All names."""

    def __contains__(self, name: object) -> bool:
        return True


def is_library(module: object) -> bool:
    """Tell by its name whether a module is Python's, PyTorch's, or this package's own."""
    if not isinstance(module, str):  # what classes of C say of their objects
        return False
    return module.split(".", maxsplit=1)[0] in _LIBRARIES or module.startswith("depgraph.torch.")
