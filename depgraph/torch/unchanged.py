"""Whether tensors, objects and dictionaries are what they were: hundreds in a few microseconds.

Python takes 50 to 100 ns for each thing that it asks a tensor. Here compiled code asks libtorch's
exported functions, and reads the words of Python's objects. Where in an object an address stands is
looked up, not assumed: it must stand there in exactly one place; that a dictionary's version (PEP
509) changes with it is tried. If anything is not as expected, Python asks.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.int64]

_WORD = 8  # bytes
_HAS_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the address stands before the object
_BEFORE = 4  # words
# C functions that libtorch keeps stable (torch/csrc/inductor/aoti_torch/c/shim.h), and three of
# C++, by their names in the library: of `at::native` and of `c10::TensorImpl`.
_OF_A_HANDLE = ("data_ptr", "dim", "dtype", "sizes", "strides")
_IS_NEGATED = "_ZN2at6native6is_negERKNS_6TensorE"
_IS_CONJUGATED = "_ZN2at6native7is_conjERKNS_6TensorE"
_REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_DTYPE_MASK = 0xFFFFFFFF
_NO_VERSIONS = 3, 14  # from this Python on
_TRIALS = 64
_MOST_RENEWALS = 16  # of versions: a dictionary that changes with each call is looked through
_OTHERWISE = (
    ImportError,
    AttributeError,
    OSError,
    LookupError,
    ValueError,
)  # another PyTorch, Python


def tensors_as_now(tensors: Sequence[Any]) -> Callable[[], bool]:
    """Return what tells whether strided tensors are what they are now, by all but their values.

    Class, address, shape, strides, type, `requires_grad`, and whether bytes are yet to be
    conjugated or negated.
    """
    kept, then = [*tensors], [*map(described, tensors)]
    try:
        is_same = _compiled(tensors)
        if is_same():
            return is_same
    except _OTHERWISE:
        pass
    return lambda: [*map(described, kept)] == then


def described(tensor: Any) -> tuple[Any, ...]:
    """Return what decides where a strided tensor lies and what operators do with it."""
    bits = tensor.requires_grad, tensor.is_conj(), tensor.is_neg()
    place = type(tensor), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
    return *place, *bits


def objects_as_now(objects: Sequence[Any]) -> Callable[[], bool]:
    """Return what tells whether objects have the classes and the `__dict__` that they have now."""
    kept = [(each, type(each), each.__dict__) for each in objects]
    try:
        differ = _comparisons()[0]
        words = [(id(each) + _place_of([each], _class_of), id(cls)) for each, cls, _ in kept]
        words += [(id(each) + _place_of([each], _dict_of), id(mine)) for each, _, mine in kept]
        addresses, values = np.array(words, dtype=np.int64).reshape(-1, 2).T.copy()
        if not differ(addresses, values):
            return lambda _kept=kept: not differ(addresses, values)  # type: ignore[misc]
    except _OTHERWISE:
        pass
    return lambda: all(type(o) is cls and o.__dict__ is mine for o, cls, mine in kept)


class Versions:
    """Tells whether dictionaries were changed in any way since `renew`: their versions count that.

    Where Python keeps no versions, or some dictionary changes all the time, they count as changed.
    """

    def __init__(self, dictionaries: Sequence[dict[Any, Any]]) -> None:
        self._kept = [*dictionaries]
        place = _version_place()
        addresses = [id(each) + place for each in dictionaries] if place else []
        self._addresses = np.array(addresses, dtype=np.int64)
        self._then = np.zeros_like(self._addresses)
        self._renewals_left = _MOST_RENEWALS if addresses else 0

    def are_as_then(self) -> bool:
        """Tell whether all are as they were."""
        return self._renewals_left > 0 and not _comparisons()[0](self._addresses, self._then)

    def renew(self, holds: Callable[[], bool]) -> bool:
        """Ask whether they hold what they should; what they are now counts from now on."""
        if self._renewals_left <= 0:
            return holds()
        self._renewals_left -= 1
        now = np.array([ctypes.c_int64.from_address(int(at)).value for at in self._addresses])
        if holds():
            self._then = now
            return True
        return False


@cache
def _version_place() -> int:
    """Return how many bytes into a dictionary its version stands; 0 if there is none."""
    if sys.version_info >= _NO_VERSIONS:
        return 0
    try:
        _comparisons()
    except _OTHERWISE:
        return 0
    thing = _Tried()
    mine = vars(thing)
    words = (ctypes.c_int64 * (dict.__basicsize__ // _WORD)).from_address(id(mine))
    places = set(range(len(words)))
    # Often enough for Python to have special instructions for it.
    for number in range(_TRIALS):
        for change in _CHANGES:
            before = [*words]
            change(thing, number)
            places = {at for at in places if words[at] != before[at]}
    return places.pop() * _WORD if len(places) == 1 else 0


class _Tried:
    def __init__(self) -> None:
        self.held: object = None
        self.other: object = None


def _set_attribute(thing: Any, number: int) -> None:
    thing.held = [number]


_CHANGES: tuple[Callable[[Any, int], object], ...] = (
    _set_attribute,
    lambda thing, number: vars(thing).__setitem__("held", [number]),
    lambda thing, number: setattr(thing, f"more{number}", number),
    lambda thing, number: delattr(thing, f"more{number}"),
    lambda thing, number: vars(thing).update(held=[number], other=[number]),
    lambda thing, _: vars(thing).pop("other"),
    lambda thing, _: vars(thing).clear(),
)


def _class_of(thing: Any) -> int:
    return id(type(thing))


def _dict_of(thing: Any) -> int:
    return id(thing.__dict__)


def _compiled(tensors: Sequence[Any]) -> Callable[[], bool]:
    at_class = _place_of(tensors, _class_of)
    at_tensor = _place_of(tensors, lambda tensor: tensor._cdata)
    _, differs, dtype_of = _comparisons()
    objects = np.array([id(tensor) for tensor in tensors], dtype=np.int64)
    facts = np.array(
        [
            (
                id(type(tensor)),
                tensor.data_ptr(),
                tensor.dim(),
                dtype_of(id(tensor) + at_tensor),
                tensor.requires_grad | tensor.is_neg() << 1 | tensor.is_conj() << 2,
            )
            for tensor in tensors
        ],
        dtype=np.int64,
    )
    shapes = np.array(
        [number for tensor in tensors for number in (*tensor.shape, *tensor.stride())],
        dtype=np.int64,
    )
    answer = np.zeros(1, dtype=np.int64)
    places = np.int64(at_class), np.int64(at_tensor)
    kept = [*tensors]
    return lambda _kept=kept: not differs(objects, *places, facts, shapes, answer)  # type: ignore[misc]


def _place_of(things: Sequence[Any], value_of: Callable[[Any], int]) -> int:
    """Return how many bytes into each of these Python objects a value stands."""
    places: set[int] = set()
    for number, thing in enumerate(things):
        cls = type(thing)
        first = -_BEFORE if cls.__flags__ & _HAS_MANAGED_DICT else 0
        start, count = first * _WORD, cls.__basicsize__ // _WORD - first
        words = (ctypes.c_int64 * count).from_address(id(thing) + start)
        value = value_of(thing)
        found = {start + _WORD * i for i, word in enumerate(words) if word == value}
        places = places & found if number else found
    if len(places) != 1:
        raise LookupError
    return places.pop()


@cache
def _comparisons() -> tuple[Callable[..., bool], Callable[..., bool], Callable[[int], int]]:  # noqa: C901
    """Return what compares words, what compares tensors, what tells the type of elements."""
    numba: Any = import_module("numba")
    types, intrinsic = numba.core.types, numba.extending.intrinsic
    if numba.config.DISABLE_JIT:
        raise ImportError
    library = Path(torch.__file__).parent / "lib"
    of_torch = ctypes.CDLL(str(library / "libtorch_cpu.so"))
    of_core = ctypes.CDLL(str(library / "libc10.so"))
    address = ctypes.c_void_p

    def function(of: Any, name: str, result: Any, *takes: Any) -> Any:
        found = getattr(of, name)
        found.restype, found.argtypes = result, takes
        return found

    data_ptr, dim, dtype, sizes, strides = (
        function(of_torch, f"aoti_torch_get_{name}", ctypes.c_int32, address, address)
        for name in _OF_A_HANDLE
    )
    is_negated = function(of_torch, _IS_NEGATED, ctypes.c_bool, address)
    is_conjugated = function(of_torch, _IS_CONJUGATED, ctypes.c_bool, address)
    requires_grad = function(of_core, _REQUIRES_GRAD, ctypes.c_bool, address)

    @intrinsic  # type: ignore[untyped-decorator]
    def words_at(_typing: Any, _address: Any) -> Any:
        made = types.CPointer(types.int64)(types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return made, generate

    @numba.njit  # type: ignore[untyped-decorator]
    def words_differ(addresses: Words, values: Words) -> bool:
        for i in range(addresses.size):  # noqa: SIM110 - numba has no any()
            if words_at(addresses[i])[0] != values[i]:
                return True
        return False

    @numba.njit  # type: ignore[untyped-decorator]
    def differs(  # noqa: C901, PLR0911
        objects: Words, at_class: int, at_tensor: int, facts: Words, shapes: Words, answer: Words
    ) -> bool:
        told = answer.ctypes.data
        at = 0
        for i in range(objects.size):
            tensor = objects[i] + at_tensor
            if words_at(objects[i] + at_class)[0] != facts[i, 0]:
                return True
            if data_ptr(tensor, told) or answer[0] != facts[i, 1]:
                return True
            if dim(tensor, told) or answer[0] != facts[i, 2]:
                return True
            if dtype(tensor, told) or answer[0] & _DTYPE_MASK != facts[i, 3]:
                return True
            bits = np.int64(requires_grad(words_at(tensor)[0]))
            bits |= np.int64(is_negated(tensor)) << 1 | np.int64(is_conjugated(tensor)) << 2
            if bits != facts[i, 4]:
                return True
            for get in (sizes, strides):
                if get(tensor, told):
                    return True
                now = words_at(answer[0])
                for axis in range(facts[i, 2]):
                    if now[axis] != shapes[at + axis]:
                        return True
                at += facts[i, 2]
        return False

    def dtype_of(tensor: int) -> int:
        told = ctypes.c_int32()
        dtype(tensor, ctypes.addressof(told))
        return told.value

    return words_differ, differs, dtype_of
