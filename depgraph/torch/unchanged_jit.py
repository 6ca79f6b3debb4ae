"""What compiled code compares: words of Python's objects, and what libtorch says of tensors."""

import ctypes
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.int64]

# C functions that libtorch keeps stable (torch/csrc/inductor/aoti_torch/c/shim.h), and three of
# C++, by their names in the library: of `at::native` and of `c10::TensorImpl`.
_OF_A_HANDLE = (
    "data_ptr", "dim", "dtype", "layout", "device_type", "device_index", "sizes", "strides",
)  # fmt: skip
ANYWHERE = -1  # an address that no tensor has
_IS_NEGATED = "_ZN2at6native6is_negERKNS_6TensorE"
_IS_CONJUGATED = "_ZN2at6native7is_conjERKNS_6TensorE"
_REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_LOW = 0xFFFFFFFF


class Comparisons(NamedTuple):
    """The compiled functions."""

    first_moved: Callable[..., int]
    are_other: Callable[..., bool]
    tensors_differ: Callable[..., bool]
    told_of: Callable[[int], tuple[int, ...]]


@cache
def comparisons() -> Comparisons:
    """Compile, once; raise what an import or a missing function of a library raises."""
    numba: Any = import_module("numba")
    types, intrinsic = numba.core.types, numba.extending.intrinsic
    if numba.config.DISABLE_JIT or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError
    library = Path(torch.__file__).parent / "lib"
    of_torch = ctypes.CDLL(str(library / "libtorch_cpu.so"))
    of_core = ctypes.CDLL(str(library / "libc10.so"))
    address = ctypes.c_void_p

    def function(of: Any, name: str, result: Any, *takes: Any) -> Any:
        found = getattr(of, name)
        found.restype, found.argtypes = result, takes
        return found

    data_ptr, dim, dtype, layout, device, index, sizes, strides = (
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
    def first_moved(addresses: Words, values: Words, start: int, now: Words) -> int:
        for i in range(start, addresses.size):
            now[0] = words_at(addresses[i])[0]
            if now[0] != values[i]:
                return i
        return -1

    @numba.njit  # type: ignore[untyped-decorator]
    def are_other(addresses: Words, items: Words, values: Words) -> bool:
        for i in range(addresses.size):
            word = words_at(addresses[i])[0]
            if items[i] >= 0:
                if words_at(addresses[i] - 8)[0] <= items[i]:  # a list has fewer
                    return True
                word = words_at(word)[items[i]]
            if word != values[i]:
                return True
        return False

    @numba.njit  # type: ignore[untyped-decorator]
    def differs(
        objects: Words, at_class: int, at_tensor: int, facts: Words, shapes: Words, answer: Words
    ) -> bool:
        told = answer.ctypes.data
        at = 0
        for i in range(objects.size):
            tensor = objects[i] + at_tensor
            if words_at(objects[i] + at_class)[0] != facts[i, 0]:
                return True
            if facts[i, 1] != ANYWHERE and (data_ptr(tensor, told) or answer[0] != facts[i, 1]):
                return True
            if dim(tensor, told) or answer[0] != facts[i, 2]:
                return True
            for get, place in ((dtype, 4), (layout, 5), (device, 6), (index, 7)):
                if place > 4 and facts[i, 1] != ANYWHERE:
                    continue  # what lies where it lay is on the same device
                if get(tensor, told) or answer[0] & _LOW != facts[i, place]:
                    return True
            bits = np.int64(requires_grad(words_at(tensor)[0]))
            bits |= np.int64(is_negated(tensor)) << 1 | np.int64(is_conjugated(tensor)) << 2
            if bits != facts[i, 3]:
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

    def told_of(tensor: int) -> tuple[int, ...]:
        told = ctypes.c_uint32()

        def answer(get: Any) -> int:
            get(tensor, ctypes.addressof(told))
            return told.value

        return answer(dtype), answer(layout), answer(device), answer(index)

    return Comparisons(first_moved, are_other, differs, told_of)
