"""What a captured graph takes for granted, looked at before each call."""

import re
import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils.hooks import RemovableHandle

from depgraph.errors import ApplyError
from depgraph.torch import values
from depgraph.torch.bindings import (
    CALLED,
    EMPTY,
    ITEM,
    OF_MODULES,
    Bindings,
    Slot,
    held_by,
    leading_to,
)
from depgraph.torch.executed import is_library
from depgraph.torch.namespaces import (
    ASKED,
    IN_DICTIONARY,
    IN_LIST,
    IN_WORD,
    Names,
    Namespaces,
    is_changeable,
)
from depgraph.torch.operator_log import addresses_of
from depgraph.torch.unchanged import KeptWords, Versions, described, objects_as_now, tensors_as_now

_CALLABLE = (type(lambda: 0), type, type(len), CodeType, property, classmethod)
_NO_OBJECTS = (
    *values.SIMPLE, MethodType, CodeType, type, dict, list, tuple, set, frozenset, object,
)  # fmt: skip
_WITH_ATTRIBUTES = FunctionType, ModuleType
_GONE = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
_READERS = {
    "default dtype": torch.get_default_dtype,
    "hooks of saved tensors": partial(
        torch._C._autograd._top_saved_tensors_default_hooks,
        True,  # noqa: FBT003
    ),
    "autocast's dtype": partial(torch.get_autocast_dtype, "cuda"),
    "autocast": partial(torch.is_autocast_enabled, "cuda"),
    "anomaly detection": torch.is_anomaly_enabled,
    "fast paths of transformers": torch.backends.mha.get_fastpath_enabled,
}
# The public ways take twenty times as long; not every PyTorch has all of them.
_PRIVATE = {
    "float32 matmul precision (TF32)": "_get_float32_matmul_precision",
    "deterministic algorithms": "_get_deterministic_algorithms",
    "warnings instead of deterministic algorithms": "_get_deterministic_algorithms_warn_only",
    "filling of new memory": "_get_deterministic_fill_uninitialized_memory",
    "functions of tensors' classes": "_is_torch_function_enabled",
    "fp16 reductions": "_get_cublas_allow_fp16_reduced_precision_reduction",
    "bf16 reductions": "_get_cublas_allow_bf16_reduced_precision_reduction",
    "fp16 accumulation": "_get_cublas_allow_fp16_accumulation",
    "TF32 in cuDNN": "_get_cudnn_allow_tf32",
    "cuDNN": "_get_cudnn_enabled",
    "cudnn.benchmark": "_get_cudnn_benchmark",
    "cudnn.deterministic": "_get_cudnn_deterministic",
    "flash attention": "_get_flash_sdp_enabled",
    "memory-efficient attention": "_get_mem_efficient_sdp_enabled",
    "plain attention": "_get_math_sdp_enabled",
    "cuDNN attention": "_get_cudnn_sdp_enabled",
    "flash attention 3": "_get_fa3_sdp_enabled",
    "attention of others": "_get_overrideable_sdp_enabled",
    "reductions in plain attention": "_get_math_sdp_allow_fp16_bf16_reduction",
    "cuDNN's kernels by channel": "_get_cudnn_depthwise_kernel",
    "the order of attention's ways": "_get_sdp_priority_order",
}
_PRECISIONS = [("generic", "all"), *(("cuda", part) for part in ("all", "matmul", "conv", "rnn"))]


def _readers() -> dict[str, Callable[[], Any]]:
    """Return what reads the settings that decide which kernels run, and how exact they are."""
    found: dict[str, Callable[[], Any]] = dict(_READERS)
    known = vars(torch._C)
    found |= {name: known[get] for name, get in _PRIVATE.items() if get in known}
    if (get := known.get("_get_fp32_precision_getter")) is not None:
        found |= {f"fp32_precision of {a} {b}": partial(get, a, b) for a, b in _PRECISIONS}
    return found


_SETTINGS = _readers()
_QUICK = tuple(_SETTINGS.values())


def settings() -> tuple[Any, ...]:
    """Return PyTorch's settings; of one that PyTorch refuses to tell, that it does."""
    try:
        return tuple([read() for read in _QUICK])
    except RuntimeError:
        return tuple(map(_value_or_error, _QUICK))


def _value_or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError as error:
        return type(error)


def _modes() -> tuple[Any, ...]:
    """Return the modes that see what a function calls."""
    get = torch._C
    return (
        *map(get._get_function_stack_at, range(get._len_torch_function_stack())),
        *map(get._get_dispatch_stack_at, range(get._len_torch_dispatch_stack())),
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """One slot, and what it must hold."""

    slot: Slot
    place: str  # where what it holds can be looked at
    described: Any = None  # of a tensor: where it lies, and how

    def holds(self) -> bool:
        now, then = self.slot.now(), self.slot.value
        if isinstance(then, torch.Tensor):
            return now is then and bool(_described(now) == self.described)
        return values.is_the_same(now, then)


class Guards:
    """Tells whether a function would still make the same calls on the same memory."""

    def __init__(
        self,
        bindings: Bindings,  # of the function
        used: Sequence[Any],  # the tensors on the GPU that it uses beside its arguments
        on_host: Sequence[Any] = (),  # those on the CPU: their values are part of the graph
        names: Mapping[int, str] | None = None,  # by the address of a storage: what used it first
        *,
        needs_grad: bool = False,  # whether something that it uses requires gradients
        ignored: Callable[[Slot], bool] = lambda _: False,  # slots that each call sets anew, unread
    ) -> None:
        if bindings.too_large:
            raise ApplyError(
                f"{bindings.too_large} holds too much to be looked at before each call",
                "let the function refer to what it needs alone",
            )
        wanted = {at for tensor in (*used, *on_host) for at in addresses_of(tensor)}
        bound = {at: s.path for s in bindings.tensors() for at in addresses_of(s.value)}
        arrays = {a.ctypes.data for a, *_ in bindings.contents if isinstance(a, np.ndarray)}
        unbound = [t for t in used if bound.keys().isdisjoint(addresses_of(t))]
        unbound += [t for t in on_host if (bound.keys() | arrays).isdisjoint(addresses_of(t))]
        _refuse_unbound(unbound, names or {})

        # Without gradients a parameter is left out by an optimizer, and by nobody else.
        steps = "grad" in bindings.names or any(
            isinstance(slot.value, torch.optim.Optimizer) for slot in bindings.slots
        )

        looked_through = {id(owner) for owner, _, _, is_needed in bindings.sizes if is_needed}
        looked_through |= {id(owner) for owner, _, _ in bindings.contents}

        def is_wanted(slot: Slot) -> bool:
            if ignored(slot):
                return False
            is_tensor = isinstance(slot.value, torch.Tensor)
            if is_tensor and not wanted.isdisjoint(addresses_of(slot.value)):
                return True
            if slot.key == "grad" and isinstance(slot.of, torch.Tensor):
                return steps
            if slot.is_named or not looked_through.isdisjoint({id(slot.value), id(slot.owner)}):
                return True
            return not is_tensor and (
                values.is_simple(slot.value) or isinstance(slot.value, _CALLABLE)
            )

        chosen = [slot for slot in leading_to(bindings, is_wanted) if not ignored(slot)]
        slots = [slot for slot in chosen if slot.kind]
        namespaces = Namespaces()
        self._checks = [
            _Check(
                slot,
                namespaces.note_slot(slot),
                _described(slot.value) if isinstance(slot.value, torch.Tensor) else None,
            )
            for slot in slots
        ]
        in_slots = [each for slot in chosen for each in (slot.of, slot.value)]
        objects = _objects_of((*bindings.roots, *in_slots))
        classes = {*map(type, [*objects, *in_slots]), *filter(_is_class, in_slots)}
        self._bases = {cls: cls.__mro__ for cls in classes if not is_library(cls.__module__)}
        # What is not asked for its attributes must be what it was.
        looked_up = {id(c.slot.owner): c.slot.owner for c in self._checks if c.place != ASKED}
        known = {id(each) for each in objects}
        for owner in looked_up.values():
            cls = owner if isinstance(owner, type) else type(owner)
            self._bases |= {each: each.__mro__ for each in (cls, type(cls)) if is_changeable(each)}
            if isinstance(owner, type) or (is_changeable(cls) and id(owner) not in known):
                objects.append(owner)
        held = {id(slot.owner) for slot in slots}
        modules = (each for each in objects if isinstance(each, torch.nn.Module))
        held |= {id(each) for module in modules for each in held_by(module)}
        self._sizes = [
            (owner, size, path, is_needed)
            for owner, size, path, is_needed in bindings.sizes
            if is_needed or id(owner) in held
        ]
        self._namespaces = _namespaces(namespaces, bindings, chosen, objects, self._sizes)
        self._ordered = [
            Names(owner, path).note_order()
            for owner, _, path, is_needed in self._sizes
            if is_needed and isinstance(owner, (dict, MappingProxyType)) and type(owner) is not dict
        ]
        self._are_objects_as_then = objects_as_now(objects)
        self._contents = bindings.contents
        self._host = [
            (tensor, tensor.detach().clone(), bound[at])
            for tensor in on_host
            for at in addresses_of(tensor)
            if at in bound
        ]
        self._hooked = bindings.hooks
        self._of_all = _hooks_of_all()
        self._hooks = RemovableHandle.next_id
        self._settings = settings()
        self._modes = _modes()
        self._transformation = torch._C._functorch.peek_interpreter_stack()
        self._needs_grad = needs_grad or "is_grad_enabled" in bindings.names
        self._grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._generate()
        self.count = len(self._checks) + len(self._sizes)

    def in_other_modes(self) -> str:
        """Say whether something sees what is called that did not when the graph was captured."""
        get = torch._C
        if get._functorch.peek_interpreter_stack() is not self._transformation:
            return "one of functorch's transformations is active"
        if forward_ad._current_level >= 0:
            return "derivatives are carried forward"
        n = get._len_torch_function_stack() + get._len_torch_dispatch_stack()
        if n != len(self._modes) or (n and not all(map(is_, _modes(), self._modes))):
            return "other modes see what it calls"
        return ""

    def failed(self) -> str:
        """Say what is not as it was; "" if all is."""
        grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if self._needs_grad and grad != self._grad:
            return "grad mode or inference mode is another one"
        if (now := settings()) != self._settings:
            changed = zip(_SETTINGS, now, self._settings, strict=True)
            return next(f"{name}: {a}, not {b}" for name, a, b in changed if a != b)
        for tensor, then, path in self._host:
            if not values.is_equal_tensor(tensor, then):
                return f"{path}, a tensor on the CPU, was changed"
        try:
            is_hooked = RemovableHandle.next_id != self._hooks
            if self._fast() and not (is_hooked and self._other_hooks()):
                return self._versions.changed()
        except _GONE:
            pass
        return self._look_again()

    def _look_again(self) -> str:
        """Look at each slot: what it holds is expected from now on if all is well after all."""
        checks, is_as_before = [], True
        for check in self._checks:
            try:
                holds = check.holds()
            except _GONE:
                holds = False
            if not holds:
                return f"{check.slot.path} was replaced or changed"
            now = check.slot.now()
            is_as_before &= now is check.slot.value
            checks.append(replace(check, slot=replace(check.slot, value=now)))
        if reason := self._other_holders():
            return reason
        if not is_as_before:
            self._checks = checks
            self._generate()
        return ""

    def _other_holders(self) -> str:
        """Say what holds other things than it did, or has other hooks."""
        if not self._are_objects_as_then():
            return "an object that it reads has another class or other attributes"
        for cls, bases in self._bases.items():
            if cls.__mro__ is not bases:
                return f"{cls.__qualname__} has other bases"
        for names in (*self._namespaces, *self._ordered):
            if reason := names.changed():
                return reason
        for owner, size, path, _ in self._sizes:
            if values.count_of(owner) != size:
                return f"{path} has {values.count_of(owner)} items, not {size}"
        for owner, copy, path in self._contents:
            if not values.is_as_it_was(owner, copy):
                return f"what {path} holds was changed"
        return self._other_hooks()

    def _other_hooks(self) -> str:
        """Say what has other hooks."""
        registered = RemovableHandle.next_id
        for owner, hooks, path in self._hooked:
            if values.hooks_on(owner) != hooks:
                return f"{path} has other hooks"
        if _hooks_of_all() != self._of_all:
            return "every module has other hooks"
        self._hooks = registered
        return ""

    def _generate(self) -> None:
        """Write functions that look at everything: a loop takes three times as long."""
        look = _Look()
        tensors: dict[int, Any] = {}  # a parameter stands in its module and in an optimizer
        for check in self._checks:
            slot = check.slot
            if check.place != IN_DICTIONARY:
                look.test_slot(slot, check.place)
            if isinstance(slot.value, torch.Tensor) and id(slot.value) not in tensors:
                tensors[id(slot.value)] = slot.value
                if not values.is_strided(slot.value):
                    look.test(f"addresses_of({look.name_of(slot.value)}) == {check.described!r}")
        for owner, size, _, _ in self._sizes:
            look.test_size(owner, size)
        for names in self._ordered:
            look.test(f"not {look.name_of(names)}.changed()")
        look.test_hooks()
        for cls, bases in self._bases.items():
            look.test_bases(cls, bases)
        for owner, copy, _ in self._contents:
            look.test_content(owner, copy)
        strided = [*filter(values.is_strided, tensors.values())]
        for each in (self._are_objects_as_then, tensors_as_now(strided)):
            look.test(f"{look.name_of(each)}()")
        self._fast = look.function()
        self._versions = Versions(self._namespaces)


class _Look:
    """A function in the making that tells whether all of some tests hold."""

    def __init__(self) -> None:
        self._words = KeptWords()
        self._counted: list[tuple[Any, int]] = []  # what has a size, and this size
        self._tests: list[str] = []
        self._held: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def name_of(self, thing: Any) -> str:
        """Return what a thing is called in tests."""
        name = self._names.setdefault(id(thing), f"v{len(self._names)}")
        self._held[name] = thing
        return name

    def test(self, text: str) -> None:
        self._tests.append(text)

    def test_size(self, owner: Any, size: int) -> None:
        """Test how many items a container has; versions tell of dictionaries."""
        if type(owner) is dict:
            return
        if type(owner).__len__ is values.container_of(owner).__len__:
            self.test_count(owner, size)
        else:
            self.test(f"count_of({self.name_of(owner)}) == {size}")

    def test_count(self, owner: Any, count: int) -> None:
        """Test how many items something of Python has."""
        try:
            self._words.note_count(owner, count)
        except LookupError:
            self._counted.append((owner, count))

    def test_hooks(self) -> None:
        """Test how many hooks every module has."""
        for hooks in _global_hooks():
            self.test_count(hooks, len(hooks))

    def test_bases(self, cls: type, bases: tuple[type, ...]) -> None:
        """Test whether a class has its bases."""
        try:
            self._words.note_value(cls, "__mro__", bases)
        except LookupError:
            self.test(f"{self.name_of(cls)}.__mro__ is {self.name_of(bases)}")

    def test_content(self, owner: Any, copy: Any) -> None:
        """Test whether a set, queue or array has what its copy has; most sets have nothing."""
        has = f"({self.name_of(owner)}, {self.name_of(copy)})"
        if type(owner) not in {set, deque}:
            self.test(f"has{has}")
            return
        self.test_count(owner, len(copy))
        if copy:
            self.test(f"all(map(is_, *{has}))")

    def test_slot(self, slot: Slot, place: str) -> None:
        """Test whether a slot holds what it held."""
        # What an object of C tells is another number each time, but for those that there are once.
        is_told = slot.kind != ITEM and values.is_simple(slot.value)
        with suppress(LookupError):
            if place == IN_LIST:
                self._words.note_item(slot.owner, slot.key, slot.value)
                return
            if place == IN_WORD and (
                not is_told or slot.value is None or slot.value is True or slot.value is False
            ):
                self._words.note_value(slot.owner, slot.key, slot.value)
                return
        owner, value = self.name_of(slot.owner), self.name_of(slot.value)
        if slot.kind == CALLED:
            where = f"{owner}.{slot.key}()"
        elif slot.kind == EMPTY:
            where = f"attribute_of({owner}, {slot.key!r})"
        elif slot.kind != ITEM:
            where = f"{owner}.{slot.key}"
        else:
            key = repr(slot.key) if type(slot.key) in {str, int} else self.name_of(slot.key)
            is_pythons = type(slot.owner) in {list, OrderedDict}
            where = f"{owner}[{key}]" if is_pythons else f"item_of({owner}, {key})"
        self.test(f"same({where}, {value})" if is_told else f"{where} is {value}")

    def function(self) -> Callable[[], bool]:
        held = {
            **self._held,
            "counted": [owner for owner, _ in self._counted],
            "sizes": [size for _, size in self._counted],
            "are_words_as_then": self._words.as_then(),
            "same": values.is_the_same,
            "is_": is_,
            "has": values.is_as_it_was,
            "addresses_of": addresses_of,
            "count_of": values.count_of,
            "item_of": values.item_of,
            "attribute_of": values.attribute_of,
        }
        tests = "\n        and ".join(
            ["are_words_as_then()", "[*map(len, counted)] == sizes", *self._tests]
        )
        # Globals: a frame of hundreds of variables may need memory of its own in each call.
        exec(f"def look():\n    return (\n        {tests}\n    )\n", held)  # noqa: S102 - names made here
        look: Callable[[], bool] = held["look"]
        return look


def _is_class(thing: Any) -> bool:
    return isinstance(thing, type)


def _objects_of(things: Sequence[Any]) -> list[Any]:
    """Return the objects whose classes and attributes count."""
    found = {id(each): each for each in things}
    return [
        each
        for each in found.values()
        if type(each) not in _NO_OBJECTS and not isinstance(each, type)
    ]


def _namespaces(
    found: Namespaces,
    bindings: Bindings,
    slots: Sequence[Slot],
    objects: Sequence[Any],
    sizes: Sequence[tuple[Any, int, str, bool]],
) -> list[Names]:
    """Return what dictionaries must hold: of objects, their classes, modules, and others."""
    for slot in slots:
        for key in OF_MODULES if isinstance(slot.of, torch.nn.Module) else ():
            if vars(slot.of).get(key) is slot.owner:
                found.of(vars(slot.of)).note(key, slot.path)
    for owner, _, path, is_needed in sizes:
        if type(owner) is dict:
            names = found.of(owner)
            names.path = path
            names.note_order() if is_needed else names.note_size()
    things = {id(each): each for slot in slots for each in (slot.of, slot.value)}.values()
    for each in objects:
        if type(mine := getattr(each, "__dict__", None)) is dict:
            path = each.__name__ if isinstance(each, _WITH_ATTRIBUTES) else type(each).__qualname__
            unread = values.OF_COMPILER if isinstance(each, torch.nn.Module) else frozenset()
            found.note_object(mine, bindings.read_of(type(each)), path, unread)
    classes = {torch.Tensor, *(type(each) for each in objects)}
    classes |= {each for each in things if isinstance(each, type)}
    for cls in classes:
        found.note_class(cls, bindings.read_of(cls), bindings.codes)
    for code, names_of_code in bindings.codes.items():
        found.note_code(code, names_of_code)
    return [*found.found.values()]


def _described(tensor: Any) -> Any:
    """Return where a tensor lies, and what decides what operators do with it."""
    return described(tensor) if values.is_strided(tensor) else addresses_of(tensor)


def _hooks_of_all() -> list[tuple[Any, ...]]:
    """Return what tells the hooks that PyTorch calls for every module from others."""
    return [tuple(hooks) for hooks in _global_hooks()]


def _global_hooks() -> list[dict[Any, Any]]:
    found = [
        *vars(torch.nn.modules.module).items(),
        *vars(sys.modules[torch.optim.Optimizer.__module__]).items(),
    ]
    named = (d for name, d in found if re.fullmatch("_global_.*_hooks.*", name))
    return [d for d in named if isinstance(d, dict)]


def _refuse_unbound(tensors: Sequence[Any], names: Mapping[int, str]) -> None:
    """Refuse a function that uses a tensor that nothing leads to."""
    for tensor in tensors:
        storage = addresses_of(tensor)[0]
        what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        by = f", used by {names[storage]}" if storage in names else ""
        raise ApplyError(
            f"the function uses a tensor ({what}{by}) that nothing it refers to leads to",
            "pass it as an argument, or make it an attribute or a global name",
        )


class WarnOnce:
    """Warns once that the function itself runs, and why."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_said = False

    def say(self, reason: str) -> None:
        """Warn, unless there was a warning before."""
        if not self._is_said:
            self._is_said = True
            self.warn(f"depgraph: {self._name} runs by itself, not as a graph: {reason}")

    @staticmethod
    def warn(text: str) -> None:
        """Warn where the function was called."""
        warnings.warn(text, RuntimeWarning, stacklevel=4)
