"""The one place that decides how numeric code is compiled, and when it is not worth it.

Importing numba and setting it up takes longer than a whole `bound` of a small graph, and compiling
much longer. Both are left until there is enough to do, and small inputs are interpreted.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

# Elements of arguments that a process interprets before it loads numba instead: about as much
# time as loading takes.
_INTERPRETED_ELEMENTS = 250_000
_IN_ONE_CALL = 30_000
# Numba's own variable. Without compilation nothing need stand between a function and its callers.
_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}


def compiled(function: Function) -> Function:
    """Compile a function on plain arrays: no Python objects, no GIL, cached on disk if possible.

    The on-disk cache is keyed by the file of `function` alone, so functions that call each
    other belong in one file.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledFunction(function, interpretable=False))


def compiled_if_large(function: Function) -> Function:
    """As `compiled`, but interpret small inputs where the compiled form is not at hand.

    For functions that take time in proportion to the size of their arguments.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledFunction(function, interpretable=True))


def compile_always() -> None:
    """Interpret nothing from now on."""
    _Interpreter.elements_left = -1


def before_compiling(announce: Callable[[], object] | None) -> None:
    """Have a function called, once, before anything is compiled that no earlier run has.

    Parameters
    ----------
    announce : callable or None
        Is called on whatever thread compiles first. None: nothing is called.
    """
    _announcements[:] = [announce] if announce is not None else []


def announce_compiling() -> None:
    """Call what `before_compiling` was given, unless that has been done."""
    try:
        announce = _announcements.pop()  # atomic: threads may get here side by side
    except IndexError:
        return
    announce()


_announcements: list[Callable[[], object]] = []


class CompiledFunction:
    """A function that numba compiles, or loads from its cache, when it is first called.

    Attributes
    ----------
    py_func : callable
        What is compiled.
    """

    def __init__(self, function: Callable[..., Any], *, interpretable: bool) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._interpretable = interpretable
        self._dispatcher: Any = None
        self._chosen: Callable[..., Any] | None = None  # once it is clear that it is compiled

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        if self._chosen is not None and not _interpreter.is_running:
            return self._chosen(*arguments)
        if _interpreter.is_running:
            return self.py_func(*arguments)
        if self._interpretable and not self._is_at_hand and _interpreter.affords(arguments):
            return _interpreter.run(self.py_func, arguments)
        if not self.is_kept:
            announce_compiling()
        self._chosen = self.dispatcher
        return self._chosen(*arguments)

    @property
    def dispatcher(self) -> Any:
        """What numba makes of the function; the function itself if compilation is off."""
        with _one_dispatcher:  # a second thread's would compile everything once more
            if self._dispatcher is None:
                self._dispatcher = _dispatcher(self.py_func)
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        # By this name numba finds the type of an object that compiled code mentions.
        return self.dispatcher._numba_type_

    @property
    def is_kept(self) -> bool:
        """Whether an earlier run has left a compiled form on disk, or none will."""
        index = self._index
        return index is None or index.is_file()

    @property
    def _index(self) -> Path | None:
        """The file that says what is kept; None if compilation is off, or nothing can be kept."""
        try:
            return Path(self.dispatcher._cache._cache_file._index_path)  # noqa: SLF001
        except AttributeError:
            return None

    @property
    def _is_at_hand(self) -> bool:
        if "numba" not in sys.modules:
            return False
        index = self._index
        return index is not None and index.is_file()

_one_dispatcher = threading.Lock()


def _dispatcher(function: Callable[..., Any]) -> Any:
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder it may write its cache to
        return numba.njit(nogil=True)(function)


class _Interpreter(threading.local):
    """Runs functions uncompiled, as long as they have little to do in all.

    Attributes
    ----------
    is_running : bool
        In this thread: what is called now is part of an interpreted function.
    elements_left : int
        What all threads together may still interpret.
    """

    is_running = False
    elements_left = _INTERPRETED_ELEMENTS

    def affords(self, arguments: tuple[Any, ...]) -> bool:
        elements = sum(getattr(argument, "size", 1) for argument in arguments)
        if elements > _IN_ONE_CALL:  # many such calls will follow
            compile_always()
        _Interpreter.elements_left -= elements
        return self.elements_left >= 0

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        import numpy as np

        self.is_running = True
        try:
            with np.errstate(over="ignore"):  # hashes wrap around
                return function(*arguments)
        finally:
            self.is_running = False


_interpreter = _Interpreter()
