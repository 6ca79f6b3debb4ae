"""The one place that decides how numeric code is compiled, and when it is not worth it.

Importing numba and setting it up takes longer than a whole `bound` of a small graph, and compiling
much longer. Both are left until there is enough to do, and small inputs are interpreted.

A function is compiled for each set of types that it is called with, by compiled code as well: once
for ``int32`` and once for ``int64``, and once for every constant that is passed as such. A first
run takes seconds less where numbers of one type are passed (`np.int64` of a constant), arrays are
allocated in the caller, and functions are few.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property, update_wrapper
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from depgraph.system.machine_code import CodeCache

Function = TypeVar("Function", bound="Callable[..., Any]")

# Elements of the arguments of one call that may be interpreted: a tenth of a second.
_IN_ONE_CALL = 30_000
# Bytes of text that one call may scan interpreted: a tenth of a second, too.
_BYTES_IN_ONE_CALL = 16_000
# The same where the arguments hold all that is written as well.
_IN_PLACE = 60_000
# Seconds that a run interprets one function before it compiles it, which takes up to five.
_SECONDS_BEFORE_COMPILING = 0.5
# Numba's own variable. Without compilation nothing need stand between a function and its callers.
_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}


def compiled(function: Function) -> Function:
    """Compile a function on plain arrays: no Python objects, no GIL, cached on disk if possible.

    What is kept on disk counts as long as neither the file of `function` has changed nor what that
    file imports: compiled functions, named tuples, and numbers. A function within another one may
    use numbers of that.
    """
    return _compiled(function)


def compiled_if_large(function: Function) -> Function:
    """As `compiled`, but interpret small inputs: the size of arguments tells the time."""
    return _compiled(function, function, _IN_ONE_CALL)


def compiled_in_place(function: Function) -> Function:
    """As `compiled_if_large`, for functions that allocate nothing.

    Their code counts no references to arrays, which takes most of the time, and of the
    compilation, where arrays come in bundles (`NamedTuple`).
    """
    return _compiled(function, function, _IN_PLACE, allocates=False)


def compiled_on_records(function: Function) -> Function:
    """As `compiled_in_place`, for functions of tables, which are arrays of records.

    Where they are interpreted, a record is an object; the names of its fields are the same.
    """
    otherwise = interpreted(function)
    if _IS_OFF:
        return cast("Function", otherwise)
    return _compiled(function, otherwise, _IN_PLACE, allocates=False)


def interpreted(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that runs `function` on objects, and writes back what became of them."""

    def run(*arguments: Any) -> None:
        changed: list[tuple[NDArray[np.void], list[Any]]] = []
        function(*[_for_python(argument, changed) for argument in arguments])
        for records, rows in changed:
            records[:] = list(map(attrgetter(*records.dtype.names or ()), rows))

    return run


def _for_python(argument: Any, changed: list[tuple[NDArray[np.void], list[Any]]]) -> Any:
    """Return a table as a list of objects, and bundles with such lists instead of tables."""
    import numpy as np

    if isinstance(argument, tuple):
        return argument._replace(  # type: ignore[attr-defined]
            **{
                name: _for_python(value, changed)
                for name, value in zip(argument._fields, argument, strict=True)  # type: ignore[attr-defined]
            }
        )
    if isinstance(argument, np.ndarray) and argument.dtype.names:
        row = _row(argument.dtype.names)
        rows = [row(*values) for values in argument.tolist()]
        changed.append((argument, rows))
        return rows
    return argument


@cache
def _row(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a class with an attribute for each field of a record."""

    def fill(self: Any, *values: Any) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(self, name, value)

    return type("Row", (), {"__slots__": names, "__init__": fill})


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


class _Once:
    """Calls what it is given once, whatever thread comes first."""

    def __init__(self) -> None:
        self._given: list[Callable[..., object]] = []

    def give(self, function: Callable[..., object] | None) -> None:
        self._given[:] = [] if function is None else [function]

    def __call__(self, *arguments: Any) -> None:
        try:
            function = self._given.pop()  # atomic: threads may get here side by side
        except IndexError:
            return
        function(*arguments)


_announce, _distrust = _Once(), _Once()


def before_compiling(announce: Callable[[], object] | None) -> None:
    """Have a function called, once, by the thread that first compiles what no run has kept."""
    _announce.give(announce)


def if_distrusted(say: Callable[[Path], object] | None) -> None:
    """Have a function called, once, with the folder of compiled code if others may write there.

    Nothing is loaded from there then, and nothing kept: it is compiled in memory.
    """
    _distrust.give(say)


class CompiledFunction:
    """A function that numba compiles, unless an earlier run has, when it is first called."""

    def __init__(
        self,
        function: Callable[..., Any],
        otherwise: Callable[..., Any] | None,  # called while compiling is not worth it
        most_elements: int,  # of the arguments of one call of `otherwise`
        options: dict[str, Any],
        size_of: Callable[[tuple[Any, ...]], int],
    ) -> None:
        update_wrapper(self, function)
        file = function.__code__.co_filename
        _imported.setdefault(file, _state_of(file))
        self.py_func = function
        self.size_of = size_of
        self._otherwise = otherwise
        self._most_elements = most_elements
        self._options = options
        self._seconds_interpreted = 0.0
        # For the types of arguments; None where no earlier run has left any.
        self._code: dict[Any, Callable[..., Any] | None] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        if _interpreter.is_running:
            return self.py_func(*arguments)
        from depgraph.system.machine_code import types_of

        types = tuple(map(types_of, arguments))
        code = self._load(types)
        if code is None and self._otherwise is not None and self._is_interpreted(arguments):
            return self._interpret(self._otherwise, arguments)
        return (code or self._compile(types, arguments))(*arguments)

    def code_for(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """Return what runs the function on such arguments: loaded, or compiled now."""
        from depgraph.system.machine_code import types_of

        types = tuple(map(types_of, arguments))
        return self._load(types) or self._compile(types, arguments)

    def _load(self, types: Any) -> Callable[..., Any] | None:
        """Return what this run or an earlier one has made for some types of arguments."""
        if types not in self._code:
            self._code.setdefault(types, self._kept_for(types))
        return self._code[types]

    def _kept_for(self, types: Any) -> Callable[..., Any] | None:
        kept = (place.load(types) for place in self._places())
        return next(filter(None, kept), None)

    def _compile(self, types: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        with _one_at_a_time:  # a second thread would compile everything once more
            code = self._code.get(types) or self._kept_for(types)  # another process may have
            code = self._code[types] = code or self._made_for(types, arguments)
        return code

    def _made_for(self, types: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        from depgraph.system.machine_code import NotPortableError, of_numba

        if self._kept is not None:
            _announce()
        try:
            made = of_numba(self._uncallable, arguments)
        except NotPortableError:
            return cast("Callable[..., Any]", _dispatcher(self.py_func, self._options))
        if self._kept is not None:
            self._kept.save(types, made)
        return made

    def _is_interpreted(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether that takes less time than compiling what would be faster."""
        return (
            not _Interpreter.is_off
            and self._seconds_interpreted < _SECONDS_BEFORE_COMPILING
            and self.size_of(arguments) <= self._most_elements
        )

    def _interpret(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        import numpy as np

        began = time.thread_time()
        _interpreter.is_running = True
        try:
            with np.errstate(over="ignore"):  # hashes wrap around
                return function(*arguments)
        finally:
            _interpreter.is_running = False
            self._seconds_interpreted += time.thread_time() - began

    @cached_property
    def _uncallable(self) -> Any:
        """What numba makes of the function, which nothing links with Python."""
        return _dispatcher(self.py_func, {**self._options, **_FOR_COMPILED_CODE})

    @property
    def _numba_type_(self) -> Any:
        # By this name numba finds the type of an object that compiled code mentions.
        return self._uncallable._numba_type_

    def _places(self) -> Iterator[CodeCache]:
        """Yield where code may be; the second only where the first has none."""
        if self._shipped is not None:
            yield self._shipped
        if self._kept is not None:
            yield self._kept

    def ship(self, folder: Path, arguments: tuple[Any, ...]) -> None:
        """Compile for arguments of some types what is not yet there where a package is made."""
        from depgraph.system.machine_code import of_numba, types_of

        types, place = tuple(map(types_of, arguments)), self._shipped_in(folder)
        if place.load(types) is None:
            place.save(types, of_numba(self._uncallable, arguments))

    def _shipped_in(self, folder: Path) -> CodeCache:
        from depgraph.system.machine_code import COMMON, CodeCache, runner

        return CodeCache(folder, self._kept_as, self._made_of() + runner(), lambda: COMMON)

    @cached_property
    def _shipped(self) -> CodeCache | None:
        """The files of code that came with depgraph, where its sources are as they came, too."""
        from depgraph.system.loading import is_ours
        from depgraph.system.machine_code import SHIPPED, is_common_processor

        if not self.__module__.startswith("depgraph.") or not SHIPPED.is_dir():
            return None
        if not (_is_as_imported() and is_common_processor() and is_ours(SHIPPED)):
            return None
        return self._shipped_in(SHIPPED)

    @cached_property
    def _kept(self) -> CodeCache | None:
        """The files in which compiled code is kept; None if nothing can be kept."""
        from depgraph.system.loading import is_ours
        from depgraph.system.machine_code import CodeCache, folder_of, makers

        folder = folder_of(Path(self.py_func.__code__.co_filename))
        if folder is None or not _is_as_imported():
            return None
        if not is_ours(folder):
            _distrust(folder)
            return None
        return CodeCache(folder, self._kept_as, self._made_of() + makers())

    @property
    def _kept_as(self) -> str:
        return f"{self.py_func.__module__}.{self.py_func.__qualname__}"

    def _made_of(self) -> bytes:
        """Return what decides the code."""
        source = Path(self.py_func.__code__.co_filename).read_bytes()
        options = repr(self._options).encode()
        return source + _imports(self.py_func.__module__) + _code_of(self.py_func) + options


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
        file = function.__code__.co_filename
        _imported.setdefault(file, _state_of(file))
        self.py_func = function
        # By these names numba finds what to compile in line.
        self.targetoptions = {"inline": "always"} if in_line else {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        return self.py_func(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of the function, which nothing links with Python."""
        return _dispatcher(self.py_func, _FOR_COMPILED_CODE)

    @property
    def _numba_type_(self) -> Any:
        import numba

        # Where a function was put in line its name stays behind, as a value of no use.
        return numba.types.none if self.targetoptions else self.dispatcher._numba_type_


_one_at_a_time = threading.RLock()
_FOR_COMPILED_CODE = {"no_cpython_wrapper": True}


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import numba

    jit: Any = numba.njit
    return jit(nogil=True, no_cfunc_wrapper=True, **options)(function)


_imported: dict[str, tuple[int, int] | None] = {}  # files of compiled functions, as imported


def _state_of(file: str) -> tuple[int, int] | None:
    """Return what changes when a file does; None of what is not there."""
    try:
        status = os.stat(file)  # noqa: PTH116  each time that --help is asked for
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _is_as_imported() -> bool:
    """Tell whether what runs here is what stands in the files of compiled functions."""
    return all(_state_of(file) == state for file, state in list(_imported.items()))


@cache
def _imports(module: str) -> bytes:
    """Digest the functions, tuples and numbers that the compiled code of a module may import."""
    import numpy as np

    digest = hashlib.sha256()
    for name, value in sorted(vars(sys.modules[module]).items()):
        if isinstance(value, (CompiledFunction, _Part)):
            digest.update(_code_of(value.py_func))
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


def _code_of(function: Callable[..., Any]) -> bytes:
    """Return what a function is beside its text.

    Of one text come other functions for each call of the function around it, on either side of an
    ``if``, with ``python -O``.
    """
    import numpy as np

    within = [cell.cell_contents for cell in function.__closure__ or ()]
    texts = [x.tobytes() if isinstance(x, np.ndarray) else b"" for x in within]
    where = function.__qualname__, function.__code__.co_firstlineno, sys.flags.optimize
    return b"".join([*texts, repr((where, within, function.__defaults__)).encode()])


class _Interpreter(threading.local):
    """What is run uncompiled."""

    is_running = False  # in this thread: what is called now is part of an interpreted function
    is_off = False  # of the class: nothing is to be interpreted


_interpreter = _Interpreter()
