"""The one place that decides how numeric code is compiled, and when it is not worth it.

Importing numba and setting it up takes longer than a whole `bound` of a small graph, and compiling
much longer. Both are left until there is enough to do, and small inputs are interpreted.

A function is compiled for each set of types that it is called with, by compiled code as well: once
for ``int32`` and once for ``int64``, and once for every constant that is passed as such. A first
run takes seconds less where numbers of one type are passed (`np.int64` of a constant), arrays are
allocated in the caller, and functions are few.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

# Elements of the arguments of one call that may be interpreted: a tenth of a second.
_IN_ONE_CALL = 30_000
# Seconds that all functions together are interpreted before numba is loaded instead: about as long
# as loading takes.
_SECONDS_BEFORE_LOADING = 0.25
# Seconds that one function is interpreted, where no earlier run has compiled it, before it is.
# Compiling takes from half a second to five.
_SECONDS_BEFORE_COMPILING = 1.0
# Numba's own variable. Without compilation nothing need stand between a function and its callers.
_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}


def compiled(function: Function) -> Function:
    """Compile a function on plain arrays: no Python objects, no GIL, cached on disk if possible.

    The on-disk cache is keyed by the file of `function` alone: after a change in a function of
    another file that it calls, delete ``__pycache__``.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledFunction(function))


def compiled_in_place(function: Function) -> Function:
    """As `compiled`, for a function that makes no arrays: it fills those that it is given.

    Numba then counts no references to arrays, which would take longer than the steps of a scanner.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledFunction(function, options={"_nrt": False}))


def compiled_within(function: Function) -> Function:
    """Compile a function as a part of each compiled function that calls it.

    It takes less compiling, as nothing is made to call it from Python: there it is interpreted.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledPart(function))


def compiled_in_line(function: Function) -> Function:
    """As `compiled_within`, for a step of a long function, which takes bundles of many arrays.

    Its code is put where it is called, so that nothing is passed.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledPart(function, options={"forceinline": True}))


def compiled_if_large(function: Function) -> Function:
    """As `compiled`, but interpret small inputs where the compiled form is not at hand.

    For functions that take time in proportion to the size of their arguments.
    """
    if _IS_OFF:
        return function
    return cast("Function", CompiledFunction(function, function, _IN_ONE_CALL))


def compiled_if_larger(
    elements: int, otherwise: Callable[..., Any]
) -> Callable[[Function], Function]:
    """As `compiled_if_large`, but call another function instead of interpreting.

    Parameters
    ----------
    elements : int
        Of the arguments of one call: with more, the function is compiled.
    otherwise : callable
        Gives the same, with NumPy alone.
    """

    def decorate(function: Function) -> Function:
        if _IS_OFF:
            return function
        return cast("Function", CompiledFunction(function, otherwise, elements))

    return decorate


def compile_always() -> None:
    """Interpret nothing from now on."""
    _Interpreter.is_off = True


def before_compiling(announce: Callable[[], object] | None) -> None:
    """Have a function called before anything is compiled that no earlier run has.

    Parameters
    ----------
    announce : callable or None
        Is called once, on whatever thread compiles first. None: nothing is called.
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

    Parameters
    ----------
    function : callable
        What is compiled.
    otherwise : callable, optional
        What is called while compiling is not worth it.
    most_elements : int
        Of the arguments of one call of `otherwise`.
    options : dict, optional
        Of numba.

    Attributes
    ----------
    py_func : callable
        What is compiled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        otherwise: Callable[..., Any] | None = None,
        most_elements: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._otherwise = otherwise
        self._most_elements = most_elements
        self._options = options or {}
        self._seconds_interpreted = 0.0
        self._index_state = (0, 0)
        self._has_entries = False
        self._dispatcher: Any = None
        self._chosen: Callable[..., Any] | None = None  # once it is clear that it is compiled

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        if _interpreter.is_running:
            return self.py_func(*arguments)
        if self._chosen is not None:
            return self._chosen(*arguments)
        if self._otherwise is not None and self._is_interpreted(arguments):
            return self._interpret(self._otherwise, arguments)
        if self._index is not None and not self.is_kept:
            announce_compiling()
        self._chosen = self.dispatcher
        return self._chosen(*arguments)

    def _is_interpreted(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether that takes less time than loading, or compiling, what would be faster."""
        if _Interpreter.is_off:
            return False
        if sum(getattr(argument, "size", 1) for argument in arguments) > self._most_elements:
            return False
        if "numba" not in sys.modules and _Interpreter.seconds < _SECONDS_BEFORE_LOADING:
            return True
        return not self.is_kept and self._seconds_interpreted < _SECONDS_BEFORE_COMPILING

    def _interpret(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        import numpy as np

        began = time.thread_time()
        _interpreter.is_running = True
        try:
            with np.errstate(over="ignore"):  # hashes wrap around
                return function(*arguments)
        finally:
            _interpreter.is_running = False
            seconds = time.thread_time() - began
            self._seconds_interpreted += seconds
            _Interpreter.seconds += seconds

    @property
    def dispatcher(self) -> Any:
        """What numba makes of the function; the function itself if compilation is off."""
        with _one_dispatcher:  # a second thread's would compile everything once more
            if self._dispatcher is None:
                self._dispatcher = _dispatcher(self.py_func, self._options)
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        # By this name numba finds the type of an object that compiled code mentions.
        return self.dispatcher._numba_type_

    @property
    def is_kept(self) -> bool:
        """Whether an earlier run has left a compiled form of today's source on disk."""
        index = self._index
        if index is None:
            return False
        try:
            status = index.stat()
        except OSError:
            return False
        state = status.st_mtime_ns, status.st_size
        if state != self._index_state:
            self._index_state = state
            self._has_entries = _has_entries(self.dispatcher)
        return self._has_entries

    @property
    def can_be_kept(self) -> bool:
        """Whether what is compiled is kept on disk."""
        return self._index is not None

    @property
    def _index(self) -> Path | None:
        """The file that says what is kept; None if nothing can be kept."""
        try:
            return Path(self.dispatcher._cache._cache_file._index_path)  # noqa: SLF001
        except AttributeError:
            return None


class CompiledPart:
    """A function that numba compiles for those it compiles that call it; Python interprets it.

    Parameters
    ----------
    function : callable
    options : dict, optional
        Of numba.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any] | None = None) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._options = options or {}
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        return self.py_func(*arguments)

    @property
    def _numba_type_(self) -> Any:
        import numba

        with _one_dispatcher:
            if self._dispatcher is None:
                make = numba.njit(
                    nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **self._options
                )
                self._dispatcher = make(self.py_func)
        return self._dispatcher._numba_type_


def _has_entries(dispatcher: Any) -> bool:
    """Tell whether the index of a cache holds anything: none of another source or numba does."""
    try:
        return bool(dispatcher._cache._cache_file._load_index())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - whatever a damaged index does to pickle: numba writes it anew
        return False


_one_dispatcher = threading.Lock()


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import numba

    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # numba found no folder it may write its cache to
        return numba.njit(nogil=True, **options)(function)


class _Interpreter(threading.local):
    """What is run uncompiled.

    Attributes
    ----------
    is_running : bool
        In this thread: what is called now is part of an interpreted function.
    is_off : bool
        Of the class: nothing is to be interpreted.
    seconds : float
        Of the class: how long all threads have interpreted.
    """

    is_running = False
    is_off = False
    seconds = 0.0


_interpreter = _Interpreter()
