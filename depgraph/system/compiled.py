"""The one place that decides how numeric code is compiled, and when it is not worth it.

Importing numba and setting it up takes longer than a whole `bound` of a small graph, and compiling
much longer. Both are left until there is enough to do, and small inputs are interpreted.

A function is compiled for each set of types that it is called with, by compiled code as well: once
for ``int32`` and once for ``int64``, and once for every constant that is passed as such. A first
run takes seconds less where numbers of one type are passed (`np.int64` of a constant), arrays are
allocated in the caller, and functions are few.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import io
import os
import pickle
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from depgraph.ownership import is_ours, read_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Function = TypeVar("Function", bound="Callable[..., Any]")

# Elements of the arguments of one call that may be interpreted: a tenth of a second.
_IN_ONE_CALL = 30_000
# Bytes of text that one call may scan interpreted: a tenth of a second, too.
_BYTES_IN_ONE_CALL = 16_000
# The same where the arguments hold all that is written as well.
_IN_PLACE = 60_000
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

    What is kept on disk counts as long as neither the file of `function` has changed nor what that
    file imports: compiled functions, named tuples, and numbers.
    """
    return _compiled(function)


def compiled_if_large(function: Function) -> Function:
    """As `compiled`, but interpret small inputs: the size of arguments tells the time."""
    return _compiled(function, function, _IN_ONE_CALL)


def compiled_if_larger(
    elements: int, otherwise: Callable[..., Any]
) -> Callable[[Function], Function]:
    """As `compiled_if_large`, but call `otherwise`, by NumPy alone, up to some elements."""
    return lambda function: _compiled(function, otherwise, elements)


def compiled_in_place(function: Function) -> Function:
    """As `compiled_if_large`, for functions that allocate nothing.

    Their code counts no references to arrays, which takes most of the time, and of the
    compilation, where arrays come in bundles (`NamedTuple`).
    """
    return _compiled(function, function, _IN_PLACE, allocates=False)


def compiled_on_records(function: Function) -> Function:
    """As `compiled_in_place`, for functions of tables (`depgraph.system.record_tables`).

    Where they are interpreted, a record is an object; the names of its fields are the same.
    """
    # Imported here: this module is loaded for --help, and numpy takes longer than that.
    from depgraph.system.record_tables import interpreted

    otherwise = interpreted(function)
    if _IS_OFF:
        return cast("Function", otherwise)
    return _compiled(function, otherwise, _IN_PLACE, allocates=False)


def compiled_scanner(begin: int) -> Callable[[Function], Function]:
    """As `compiled_in_place`, for functions that take time in proportion to a piece of text.

    Argument `begin` says where the piece begins, the next one where it ends; the others are tables
    to be filled, which say nothing about that.
    """

    def size_of(arguments: tuple[Any, ...]) -> int:
        return int(arguments[begin + 1] - arguments[begin])

    return lambda function: _compiled(
        function, function, _BYTES_IN_ONE_CALL, allocates=False, size_of=size_of
    )


def _compiled(
    function: Function,
    otherwise: Callable[..., Any] | None = None,
    most_elements: int = 0,
    *,
    allocates: bool = True,
    size_of: Callable[[tuple[Any, ...]], int] | None = None,
) -> Function:
    """Return what is called in place of a function, see `CompiledFunction`."""
    if _IS_OFF:
        return function
    options = {} if allocates else {"_nrt": False}  # numba's run time, which counts references
    made = CompiledFunction(function, otherwise, most_elements, options, size_of or _elements)
    return cast("Function", made)


def compiled_helper(function: Function) -> Function:
    """Compile, in less time, for compiled functions alone; called from Python it is interpreted."""
    return function if _IS_OFF else cast("Function", _Part(function, in_line=False))


def compiled_within(function: Function) -> Function:
    """Compile a function as a part of each compiled function that calls it.

    A step of a long function: it may take bundles of many arrays, as nothing is passed. Called
    from Python it is interpreted.
    """
    return function if _IS_OFF else cast("Function", _Part(function, in_line=True))


def compile_always() -> None:
    """Interpret nothing from now on."""
    _Interpreter.is_off = True


def before_compiling(announce: Callable[[], object] | None) -> None:
    """Have a function called, once, by the thread that first compiles what no run has kept."""
    _announcements[:] = [announce] if announce is not None else []


def announce_compiling() -> None:
    """Call what `before_compiling` was given, unless that has been done."""
    try:
        announce = _announcements.pop()  # atomic: threads may get here side by side
    except IndexError:
        return
    announce()


_announcements: list[Callable[[], object]] = []


def if_distrusted(say: Callable[[Path], object] | None) -> None:
    """Have a function called, once, with the folder of compiled code if others may write there.

    Nothing is loaded from there then, and nothing kept: it is compiled in memory.
    """
    _complaints[:] = [say] if say is not None else []


def _distrust(folder: Path) -> None:
    try:
        say = _complaints.pop()
    except IndexError:
        return
    say(folder)


_complaints: list[Callable[[Path], object]] = []


class CompiledFunction:
    """A function that numba compiles, or loads from its cache, when it is first called."""

    def __init__(
        self,
        function: Callable[..., Any],
        otherwise: Callable[..., Any] | None,  # called while compiling is not worth it
        most_elements: int,  # of the arguments of one call of `otherwise`
        options: dict[str, Any],
        size_of: Callable[[tuple[Any, ...]], int],
    ) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.size_of = size_of
        self._otherwise = otherwise
        self._most_elements = most_elements
        self._options = options
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
        with _without_collecting():
            return self._chosen(*arguments)

    def _is_interpreted(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether that takes less time than loading, or compiling, what would be faster."""
        if _Interpreter.is_off:
            return False
        if self.size_of(arguments) > self._most_elements:
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
            # In this order: another thread may ask meanwhile.
            self._has_entries = _has_entries(self.dispatcher)
            self._index_state = state
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


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Look for no garbage, which takes a sixth of the time that numba compiles in."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _elements(argument: Any) -> int:
    """Count the elements of an array, of all arrays of a tuple; each field of a record is one."""
    if isinstance(argument, tuple):
        return sum(map(_elements, argument))
    fields = getattr(getattr(argument, "dtype", None), "names", None)
    return getattr(argument, "size", 1) * len(fields or (0,))


class _Part:
    """A function for compiled functions alone; called from Python it is interpreted."""

    def __init__(self, function: Callable[..., Any], *, in_line: bool) -> None:
        update_wrapper(self, function)
        self.py_func = function
        # By these names numba finds what to compile in line.
        self.targetoptions = {"inline": "always"} if in_line else {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        return self.py_func(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of the function, which nothing links with Python."""
        import numba

        jit: Any = numba.njit
        return jit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        import numba

        # Where a function was put in line its name stays behind, as a value of no use.
        return numba.types.none if self.targetoptions else self.dispatcher._numba_type_


def _has_entries(dispatcher: Any) -> bool:
    """Tell whether the index of a cache holds anything: none of another source or numba does."""
    try:
        return bool(dispatcher._cache._cache_file._load_index())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - whatever a damaged index does to pickle: numba writes it anew
        return False


_one_dispatcher = threading.Lock()


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import numba

    jit: Any = numba.njit
    dispatcher = jit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    with suppress(RuntimeError):  # numba found no folder it may write its cache to
        dispatcher._cache = _cache_class()(function)  # noqa: SLF001
    return dispatcher


@cache
def _cache_class() -> type:
    from numba.core import caching

    base: Any = caching.FunctionCache

    files: Any = caching.IndexDataCacheFile

    class Files(files):  # type: ignore[misc]
        """Files of the cache, which are unpickled: those that others may have written are not."""

        def _load_index(self) -> Any:
            # As numba does, but from what was looked at.
            try:
                content = io.BytesIO(read_ours(Path(self._index_path)))
                if pickle.load(content) != self._version:  # noqa: S301 - nobody else wrote it
                    return {}
                stamp, known = pickle.load(content)  # noqa: S301 - as above
            except Exception:  # noqa: BLE001 - of pickle, as damage or an earlier version has it
                return {}
            return known if stamp == self._source_stamp else {}

        def _load_data(self, name: str) -> Any:
            content = read_ours(Path(self._data_path(name)))
            try:
                return pickle.loads(content)  # noqa: S301 - as above
            except Exception as error:  # as above
                raise OSError(errno.EIO, "is damaged") from error  # which numba takes for missing

    class Cache(base):  # type: ignore[misc]
        """The cache of numba, which takes note of one file alone and of no name of a field."""

        def __init__(self, function: Callable[..., Any]) -> None:
            super().__init__(function)  # type: ignore[no-untyped-call, unused-ignore]
            folder = Path(self._cache_file._cache_path)  # noqa: SLF001
            if not is_ours(folder):
                _distrust(folder)
                message = "others may write there"
                raise RuntimeError(message)
            self._cache_file.__class__ = Files
            own = self._cache_file._source_stamp  # noqa: SLF001
            self._cache_file._source_stamp = own, _imports(function.__module__)  # noqa: SLF001

        def _index_key(self, types: Any, codegen: Any) -> Any:
            fields = tuple(getattr(type_, "fields", None) for type_ in types)
            key = super()._index_key(types, codegen)  # type: ignore[no-untyped-call, unused-ignore]
            return *key, fields

    return Cache


@cache
def _imports(module: str) -> bytes:
    """Digest the functions, tuples and numbers that the compiled code of a module may import."""
    import numpy as np

    digest = hashlib.sha256()
    for name, value in sorted(vars(sys.modules[module]).items()):
        if isinstance(value, (CompiledFunction, _Part)) or hasattr(value, "_fields"):
            home = value.__module__
            if home != module:
                digest.update(Path(sys.modules[home].__file__ or "").read_bytes())
                digest.update(_imports(home))
        elif isinstance(value, np.ndarray):
            digest.update(f"{name} {value.dtype} {value.tobytes()!r}".encode())
        elif isinstance(value, (int, float, np.generic)):
            digest.update(f"{name} {value!r}".encode())
    return digest.digest()


class _Interpreter(threading.local):
    """What is run uncompiled."""

    is_running = False  # in this thread: what is called now is part of an interpreted function
    is_off = False  # of the class: nothing is to be interpreted
    seconds = 0.0  # of the class: how long all threads have interpreted


_interpreter = _Interpreter()
