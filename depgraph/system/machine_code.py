"""Machine code that numba has made: kept in a file, loaded and called without numba.

Importing numba and setting it up takes longer than most commands compute. What it makes of a
function for some types of arguments is a piece of machine code that needs neither numba nor
Python. It is kept in a file whose name tells what it was made of, and counts only for that.

Numba passes an array as seven words and more (`_words_of`), bundles as what is in them. Whether it
does is checked when a function is compiled; what is passed otherwise is not kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import json
import os
import pickle
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.system.loading import (
    Linked,
    NotLinkableError,
    address_in_libc,
    link,
    load,
    names_outside,
    read_ours,
)

if TYPE_CHECKING:
    Described = Any  # of a result: how it lies in memory, as lists and texts for JSON

COMMON = "x86-64-v3"  # as LLVM calls processors since 2013 (Intel) and 2015 (AMD)
SHIPPED = Path(__file__).with_name(COMMON)
_HAS_COMMON = {
    "cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3",
    "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave",
}  # fmt: skip
_ONE_PROCESSOR = 4096  # bytes of what Linux says of the first
_TOLD_BY = "vendor_id", "cpu family", "model", "stepping", "flags"
_SUFFIX = ".code"
# By what they are called in LLVM's language, and by NumPy's letters.
_WORDS = {
    "i1": ctypes.c_uint8, "i8": ctypes.c_uint8, "i16": ctypes.c_uint16, "i32": ctypes.c_uint32,
    "i64": ctypes.c_uint64, "float": ctypes.c_float, "double": ctypes.c_double,
    "*": ctypes.c_void_p,
}  # fmt: skip
_NUMBERS = {
    "b1": ctypes.c_bool, "f4": ctypes.c_float, "f8": ctypes.c_double,
    "i1": ctypes.c_int8, "i2": ctypes.c_int16, "i4": ctypes.c_int32, "i8": ctypes.c_int64,
    "u1": ctypes.c_uint8, "u2": ctypes.c_uint16, "u4": ctypes.c_uint32, "u8": ctypes.c_uint64,
}  # fmt: skip
# What compiled code calls to allocate an array, and once nobody needs it. The record before the
# data is numba's `MemInfo`: references, two fields of no use here, the address of the data, the
# size, and one that compiled code does not know.
_MEMORY_FIELDS = "{i64, i8*, i8*, i8*, i64}"
_MEMORY = """
declare i64 @malloc(i64)
declare void @free(i64)
define i64 @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %most = add i64 %wide, 48
  %all = add i64 %size, %most
  %info = call i64 @malloc(i64 %all)
  %none = icmp eq i64 %info, 0
  br i1 %none, label %done, label %fill
fill:
  %after = add i64 %info, %most
  %over = urem i64 %after, %wide
  %data = sub i64 %after, %over
  %references = inttoptr i64 %info to POINTER
  store i64 1, POINTER %references
  %dtor = getelementptr i64, POINTER %references, i64 1
  store i64 0, POINTER %dtor
  %dtor_info = getelementptr i64, POINTER %references, i64 2
  store i64 0, POINTER %dtor_info
  %at = getelementptr i64, POINTER %references, i64 3
  store i64 %data, POINTER %at
  %length = getelementptr i64, POINTER %references, i64 4
  store i64 %size, POINTER %length
  %allocator = getelementptr i64, POINTER %references, i64 5
  store i64 0, POINTER %allocator
  br label %done
done:
  ret i64 %info
}
define void @NRT_MemInfo_call_dtor(i64 %info) {
  call void @free(i64 %info)
  ret void
}
"""
_OPAQUE_POINTERS = 17  # from this version on LLVM knows no others
_ALLOCATES = frozenset({"NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor"})


class NotPortableError(Exception):
    """Numba has made something that only numba can call."""


def types_of(argument: Any) -> Any:
    """Return what decides which machine code an argument needs."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        types = argument.dtype, argument.ndim, layout, flags.writeable, flags.aligned
        return types if type(argument) is np.ndarray else (type(argument), *types)
    if isinstance(argument, tuple):
        return type(argument), *map(types_of, argument)
    if isinstance(argument, int) and not -(1 << 63) <= argument < 1 << 63:
        if not 0 <= argument < 1 << 64:
            message = f"{argument} does not fit into 64 bits"
            raise OverflowError(message)
        return np.uint64
    return type(argument)


def _text_of(types: Any) -> str:
    """Return the same as a text that another process can tell from others."""
    if isinstance(types, type):
        fields = getattr(types, "_fields", ())
        return f"{types.__module__}.{types.__qualname__}{fields}"
    if isinstance(types, tuple):
        return f"({', '.join(map(_text_of, types))})"
    return repr(types)


def _words_of(argument: Any, words: list[Any]) -> None:
    """Append the words that numba's code takes for an argument; nobody owns what is passed."""
    if isinstance(argument, np.ndarray):
        # An array begins as every object does, then comes where its data are. To be told by
        # `argument.ctypes` takes ten times as long, and most calls pass a dozen arrays.
        data = ctypes.c_void_p.from_address(id(argument) + object.__basicsize__).value
        words += (0, 0, argument.size, argument.itemsize, data)
        words += argument.shape
        words += argument.strides
    elif isinstance(argument, tuple):
        for item in argument:
            _words_of(item, words)
    elif argument is None:
        words.append(0)
    else:
        words.append(argument if isinstance(argument, (int, float)) else argument.item())


def _kinds_of(argument: Any, *, boolean: str = "i1") -> Iterator[str]:
    """Yield for each of these words whether it is an address (``*``), or what number."""
    if isinstance(argument, np.ndarray):
        yield from ("*", "*", "i64", "i64", "*", *["i64"] * (2 * argument.ndim))
    elif isinstance(argument, tuple):
        for item in argument:
            yield from _kinds_of(item, boolean="i8")
    elif argument is None:
        yield "*"
    else:
        dtype = np.asarray(argument).dtype
        names = {"f4": "float", "f8": "double", "b1": boolean}
        yield names.get(dtype.str[1:], f"i{8 * dtype.itemsize}")


class _Array(ctypes.Structure):
    """What numba returns of an array, less its shape and its strides."""

    _fields_ = (
        ("info", ctypes.c_void_p),
        ("parent", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("itemsize", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    )


class _Raised(ctypes.Structure):
    """What numba says of an exception, less what only numba can read."""

    _fields_ = (("text", ctypes.c_void_p), ("size", ctypes.c_int32))


@cache
def _array_type(n: int) -> Any:
    fields = [("head", _Array), ("shape", ctypes.c_int64 * n), ("strides", ctypes.c_int64 * n)]
    return type("Array", (ctypes.Structure,), {"_fields_": fields})


def _result_type(result: Described) -> Any:
    """Return how a result lies in memory."""
    kind, *rest = result
    if kind == "array":
        return _array_type(rest[1])
    if kind == "tuple":
        fields = [(f"item{i}", _result_type(item)) for i, item in enumerate(rest[1])]
        return type("Items", (ctypes.Structure,), {"_fields_": fields})
    return ctypes.c_void_p if kind == "none" else _NUMBERS[rest[0]]


_free: Any = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]


class _Memory:
    """Memory that compiled code has allocated, or that of its arguments."""

    def __init__(self, interface: dict[str, Any], info: int | None, arguments: Any) -> None:
        self.__array_interface__ = interface
        self._arguments = None if info else arguments
        self._references = ctypes.c_int64.from_address(info) if info else None
        self._free = _free  # which is gone as the interpreter ends

    def __del__(self) -> None:
        if self._references is not None:
            self._references.value -= 1
            if self._references.value == 0:
                self._free(ctypes.addressof(self._references))


def _result_of(result: Described, filled: Any, arguments: Any) -> Any:
    kind, *rest = result
    if kind == "none":
        return None
    if kind == "tuple":
        items = [
            _result_of(item, getattr(filled, f"item{i}"), arguments)
            for i, item in enumerate(rest[1])
        ]
        if rest[0] is None:
            return tuple(items)
        module, name = rest[0]
        return getattr(importlib.import_module(module), name)(*items)
    if kind == "array":
        head = filled.head
        interface = {
            "data": (head.data or 0, not rest[2]),
            "shape": tuple(filled.shape),
            "strides": tuple(filled.strides),
            "typestr": rest[0],
            "version": 3,
        }
        return np.asarray(_Memory(interface, head.info, arguments))
    return getattr(filled, "value", filled)  # a field of a structure is a number already


class MachineCode:
    """A compiled function for some types of arguments."""

    def __init__(self, about: dict[str, Any], code: bytes) -> None:
        self.about = about
        self.code = code
        linked = about["linked"]
        loaded = load(Linked(code, *linked)) if linked else _by_llvm(about, code)
        self._held, address = loaded  # the code is there as long as this object
        words: Any = [_WORDS[word] for word in ("*", "*", *about["words"])]
        call: Any = ctypes.CFUNCTYPE(ctypes.c_int32, *words)
        self._call = call(address)
        self._result_type = _result_type(about["result"])

    def __call__(self, *arguments: Any) -> Any:
        """Run the code, with the interpreter's lock released."""
        words: list[Any] = []
        _words_of(arguments, words)
        filled = self._result_type()
        error = ctypes.POINTER(_Raised)()
        if self._call(ctypes.addressof(filled), ctypes.addressof(error), *words):
            raised = ctypes.string_at(error.contents.text, error.contents.size)
            kind, details, _ = pickle.loads(raised)  # noqa: S301  a constant of the code
            raise kind(*details)
        return _result_of(self.about["result"], filled, arguments)


def of_numba(dispatcher: Any, arguments: tuple[Any, ...]) -> MachineCode:
    """Compile a function of numba's for the types of some arguments, or say that it cannot be."""
    import numba

    types = tuple(map(numba.typeof, arguments))
    dispatcher.compile(types)
    made = dispatcher.overloads[types]
    context, library = made.target_context, made.library
    returned = made.signature.return_type
    result = _described(returned)
    called = context.call_conv.get_function_type(returned, made.signature.args)
    words = ["*" if str(word).endswith("*") else str(word) for word in called.args]
    size = context.get_abi_sizeof(context.get_return_type(returned))
    code = library._get_compiled_object()  # noqa: SLF001
    try:
        outside = names_outside(code)
    except NotLinkableError:
        raise NotPortableError from None
    from numba.core.runtime import nrtdynmod

    is_as_said = (
        words == ["*", "*", *_kinds_of(arguments)]
        and size == ctypes.sizeof(_result_type(result))
        and str(nrtdynmod._meminfo_struct_type) == _MEMORY_FIELDS  # noqa: SLF001
        and not library.has_dynamic_globals
        and all(name in _ALLOCATES or address_in_libc(name) for name in outside)
    )
    if not is_as_said:
        raise NotPortableError
    about = {
        "name": made.fndesc.llvm_func_name,
        "words": words[2:],
        "result": result,
        "allocates": bool(outside & _ALLOCATES),
        "needs": sorted(outside - _ALLOCATES),
        "linked": None,
    }
    with suppress(NotLinkableError):
        codes = [code, _memory()] if about["allocates"] else [code]
        code, *about["linked"] = link(codes, about["name"])
    return MachineCode(about, code)


def _described(type_: Any) -> Described:
    """Describe how numba returns something of a type."""
    from numba import types
    from numba.np.numpy_support import as_dtype

    if isinstance(type_, types.NoneType):
        return ["none"]
    if isinstance(type_, types.BaseTuple):
        items: Any = type_
        home = getattr(type_, "instance_class", None)
        named = None
        if home is not None:
            named = [home.__module__, home.__qualname__]
            if getattr(sys.modules[home.__module__], home.__qualname__, None) is not home:
                raise NotPortableError  # made within a function or a class: not to be found by name
        return ["tuple", named, [_described(item) for item in items.types]]
    if isinstance(type_, types.Array) and not isinstance(type_.dtype, types.Record):
        return ["array", as_dtype(type_.dtype).str, type_.ndim, type_.mutable]
    if isinstance(type_, (types.Integer, types.Float, types.Boolean)):
        return ["number", as_dtype(type_).str[1:]]
    raise NotPortableError


@cache
def _llvm() -> Any:
    llvm = importlib.import_module("llvmlite.binding")  # which numba brings
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine() -> Any:
    return _llvm().Target.from_default_triple().create_target_machine(jit=True)


def _by_llvm(about: dict[str, Any], code: bytes) -> tuple[object, int]:
    """Have LLVM load code, apart from all other code; return what is returned by `load`."""
    engine = _llvm().create_mcjit_compiler(_llvm().parse_assembly(""), _machine())
    for each in [_memory(), code] if about["allocates"] else [code]:
        engine.add_object_file(_llvm().ObjectFileRef.from_data(each))
    engine.finalize_object()
    return engine, engine.get_function_address(about["name"])


@cache
def _memory() -> bytes:
    """Return the code that allocates arrays."""
    pointer = "ptr" if _llvm().llvm_version_info[0] >= _OPAQUE_POINTERS else "i64*"
    module = _llvm().parse_assembly(_MEMORY.replace("POINTER", pointer))
    code: bytes = _machine().emit_object(module)
    return code


def _numba_settings() -> list[tuple[str, str]]:
    """Return the variables that tell numba how to compile."""
    return sorted(
        item
        for item in os.environ.items()
        if item[0].startswith("NUMBA_") and item[0] != "NUMBA_CACHE_DIR"
    )


def _first_processor() -> dict[str, str]:
    """Return what Linux says of an x86-64, by what it calls it; nothing of other machines."""
    if (sys.platform, platform.machine(), sys.maxsize) == ("linux", "x86_64", (1 << 63) - 1):
        with suppress(OSError), open("/proc/cpuinfo", "rb", buffering=0) as file:  # noqa: PTH123
            lines = file.read(_ONE_PROCESSOR).decode(errors="replace").split("\n")[:-1]
            end = lines.index("") if "" in lines else len(lines)
            said = (line.partition(":") for line in lines[:end])
            return {name.strip(): value.strip() for name, _, value in said}
    return {}


@cache
def _processor() -> str:
    """Return what code is made for: this processor, and how numba is set."""
    said = _first_processor()
    if said.get("flags"):  # importing LLVM would take a tenth of a short command
        return f"{[said.get(name) for name in _TOLD_BY]} {_numba_settings()}"
    llvm = _llvm()
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features} {_numba_settings()}"


@cache
def is_common_processor() -> bool:
    """Tell whether code runs here that was made for `COMMON`, and nobody has asked for another.

    What a processor must have: x86-64 psABI, section 3.1.1, "Processor Architecture".
    """
    has = _first_processor().get("flags", "").split()
    return _HAS_COMMON.issubset(has) and not _numba_settings()


@cache
def runner() -> bytes:
    """Return what links and loads code, passes arguments and takes results: two files."""
    return Path(__file__).with_name("loading.py").read_bytes() + Path(__file__).read_bytes()


@cache
def makers() -> bytes:
    """Return the versions of what makes and runs code, without importing it."""
    files = []
    for name in ("numba", "llvmlite"):
        found = importlib.util.find_spec(name)
        if found is not None:
            files.append(Path(found.origin or "").with_name("_version.py"))
    texts = [file.read_bytes() for file in files if file.is_file()]
    return b"".join([runner(), *texts]) + f"{np.__version__} {platform.python_version()}".encode()


class CodeCache:
    """The files in which the code of one function is kept; `source` tells what it was made of."""

    def __init__(
        self, folder: Path, name: str, source: bytes, processor: Callable[[], str] | None = None
    ) -> None:
        self.folder = folder
        self._name = name
        self._processor = processor or _processor
        self._stamp = hashlib.sha256(source).hexdigest()[:16]
        self._is_any = False
        self._looked_at = 0

    @property
    def is_any(self) -> bool:
        """Whether there is code for any types of arguments."""
        if not self._is_any:
            with suppress(OSError):  # somebody may have deleted the folder
                changed = self.folder.stat().st_mtime_ns
                if changed != self._looked_at:
                    begin = f"{self._name}-{self._stamp}-"
                    names = os.listdir(self.folder)  # noqa: PTH208  no path is made of each
                    self._is_any = any(
                        name.startswith(begin) and name.endswith(_SUFFIX) for name in names
                    )
                    self._looked_at = changed
        return self._is_any

    def load(self, types: Any) -> MachineCode | None:
        """Return what an earlier run has made, unless others may have written it."""
        if not self.is_any:
            return None
        path = self._path(types)
        try:
            head, _, rest = read_ours(path).partition(b"\n")
            digest, _, code = rest.partition(b"\n")
            if digest_of(path, head + code) != digest:
                return None
            about = json.loads(head)
            if all(map(address_in_libc, about["needs"])):
                return MachineCode(about, code)
        except OSError:  # or memory may not be made executable
            pass
        return None

    def save(self, types: Any, made: MachineCode) -> None:
        """Keep code, and drop what was made of an earlier source."""
        head = json.dumps(made.about).encode()
        path = self._path(types)
        digest = digest_of(path, head + made.code)
        with suppress(OSError):
            for old in self.folder.glob(f"{self._name}-*"):
                if not old.name.startswith(f"{self._name}-{self._stamp}"):
                    old.unlink()
            number, aside = tempfile.mkstemp(dir=self.folder)
            try:
                with open(number, "wb") as file:  # noqa: PTH123  no path
                    file.write(b"\n".join([head, digest, made.code]))
                Path(aside).replace(path)
            except OSError:  # a full disk
                Path(aside).unlink()

    def _path(self, types: Any) -> Path:
        key = hashlib.sha256(f"{_text_of(types)} {self._processor()}".encode()).hexdigest()[:32]
        return self.folder / f"{self._name}-{self._stamp}-{key}{_SUFFIX}"


def digest_of(path: Path, content: bytes) -> bytes:
    """Return what tells a file that is whole, and what its name says, from others."""
    return hashlib.sha256(path.name.encode() + content).hexdigest().encode()


def folder_of(source: Path) -> Path | None:
    """Return where the code of a file's functions is kept; None if nowhere.

    In ``NUMBA_CACHE_DIR`` where that is said, else beside the file, else in the user's cache.
    """
    digest = hashlib.sha256(str(source.parent).encode()).hexdigest()[:16]
    own = f"{source.parent.name}_{digest}"
    if not source.is_file():
        return None
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        folders = [Path(named) / own]
    else:
        users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folders = [source.parent / "__pycache__", users / "depgraph" / own]
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None
