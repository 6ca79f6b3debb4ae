"""Whether tensors, objects and dictionaries are what they were: hundreds in a few microseconds.

Python takes 50 to 100 ns for each thing that it asks a tensor. Here compiled code asks libtorch's
exported functions, and reads the words of Python's objects. Where in an object an address stands is
looked up, not assumed: it must stand there in exactly one place; that a dictionary's version (PEP
509) changes with it is tried. If anything is not as expected, Python asks.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import cache
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.torch.unchanged_jit import ANYWHERE, Words, comparisons

if TYPE_CHECKING:
    from depgraph.torch.namespaces import Names

_WORD = 8  # bytes
_HAS_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the address stands before the object
_BEFORE = 4  # words
_NO_VERSIONS = 3, 14  # from this Python on
_TRIALS = 64
WORDS = {
    CellType: {"cell_contents"}, FunctionType: {"__code__", "__defaults__", "__kwdefaults__"},
    property: {"fget", "fset", "fdel", "__doc__"}, classmethod: {"__func__", "__wrapped__"},
}  # fmt: skip
_COUNTED = list, set, deque, dict, OrderedDict
_COUNTS = 37, 101  # items: numbers that nothing else in a container is


def tensors_as_now(tensors: Sequence[Any]) -> Callable[[], bool]:
    """Return what tells whether strided tensors are what they are now, by all but their values.

    Class, address, shape, strides, type, `requires_grad`, and whether bytes are yet to be
    conjugated or negated.
    """
    kept, then = [*tensors], [*map(described, tensors)]
    objects = np.array([id(tensor) for tensor in tensors], dtype=np.int64)
    try:
        are_same = _compiled(tensors, [tensor.data_ptr() for tensor in tensors])
        if are_same(objects):
            return lambda _kept=kept: are_same(objects)  # type: ignore[misc]
    except Exception:  # noqa: BLE001, S110 - another PyTorch, Python or numba: Python can tell
        pass
    return lambda: [*map(described, kept)] == then


def tensors_like(tensors: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """Return what tells whether as many other things are such tensors, wherever they lie."""
    # Where it says no, they may be all the same: it only knows what compiled code can tell.
    if not tensors:
        return lambda _: True
    try:
        are_same = _compiled(tensors, [ANYWHERE] * len(tensors))
    except Exception:  # noqa: BLE001 - another PyTorch, Python or numba
        return lambda _: False
    return lambda given: are_same(np.fromiter(map(id, given), np.int64, len(tensors)))


def described(tensor: Any) -> tuple[Any, ...]:
    """Return what decides where a strided tensor lies and what operators do with it."""
    bits = tensor.requires_grad, tensor.is_conj(), tensor.is_neg()
    place = type(tensor), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
    return *place, *bits


def objects_as_now(objects: Sequence[Any]) -> Callable[[], bool]:
    """Return what tells whether objects have the classes and the `__dict__` that they have now."""
    words = KeptWords()
    others: list[tuple[Any, type, Any]] = []
    for each in objects:
        mine = _attributes_of(each)
        try:
            words.note(each, type(each))
            if mine is not None:
                words.note(each, mine)
        except LookupError:
            others.append((each, type(each), mine))
    are_words_as_then = words.as_then()
    if not others:
        return are_words_as_then
    return lambda: (
        are_words_as_then()
        and all(type(each) is cls and _attributes_of(each) is mine for each, cls, mine in others)
    )


class KeptWords:
    """Words of Python's objects, and whether they are what they were; LookupError where none is."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []  # address; place in the list there; value
        self._kept: list[Any] = []  # nobody else may get their addresses
        self._is_compiled = _is_compiled()

    def _note(self, owner: Any, value: Any, place: int, word: int, item: int = -1) -> None:
        address = id(owner) + place
        now = ctypes.c_int64.from_address(address).value
        if not self._is_compiled or (item < 0 and now != word):
            raise LookupError
        self._kept += owner, value
        self._rows.append((address, item, word))

    def note(self, owner: Any, value: Any, place: int | None = None) -> None:
        """Note the word of an object that holds a value: the only one, without a place."""
        if place is None:
            place = _place_of([owner], lambda _: id(value))
        self._note(owner, value, place, id(value))

    def note_value(self, owner: Any, key: str, value: Any) -> None:
        """Note the word of an object that holds what it has under a name."""
        self.note(owner, value, _place_in(type(owner)).get(key))  # type: ignore[arg-type]

    def note_item(self, owner: list[Any], item: int, value: Any) -> None:
        """Note what a list has in a place."""
        self._note(owner, value, _place_of_items(), id(value), item)

    def note_count(self, owner: Any, count: int) -> None:
        """Note how many items a container of Python has."""
        place = _place_of_count(type(owner))  # type: ignore[arg-type]
        self._note(owner, None, place, count)

    def as_then(self) -> Callable[[], bool]:
        """Return what tells whether all are what they were when they were noted."""
        if not self._rows:
            return lambda: True
        are_other = comparisons().are_other
        addresses, items, values = np.array(self._rows, dtype=np.int64).T.copy()
        return lambda _kept=self._kept: not are_other(addresses, items, values)  # type: ignore[misc]


@cache
def _is_compiled() -> bool:
    try:
        comparisons()
    except Exception:  # noqa: BLE001 - another PyTorch, Python or numba
        return False
    return True


def _probe(one: Any = None, *, two: Any = None) -> tuple[Any, Any]:
    """Have a word for each attribute of a function."""
    return one, two


@cache
def _place_in(cls: type) -> dict[str, int]:
    """Return how many bytes into an object of a class of Python its attributes stand."""
    all_differ = property(lambda _: 0, lambda _, __: None, lambda _: None, "all differ")
    if (made := {property: all_differ, FunctionType: _probe}.get(cls)) is None:
        return {}
    return {
        key: _place_of([made], lambda made, key=key: id(getattr(made, key)))  # type: ignore[misc]
        for key in WORDS[cls]
    }


@cache
def _place_of_count(kind: Any) -> int:
    """Return how many bytes into a container of Python the number of its items stands."""
    if kind not in _COUNTED:
        raise LookupError
    places = set(range(kind.__basicsize__ // _WORD))
    for count in _COUNTS:  # one less than there were: some count what is gone, too
        numbers = range(count + 1)
        made = kind.fromkeys(numbers) if issubclass(kind, dict) else kind(numbers)
        made.popitem() if issubclass(kind, dict) else made.pop()
        words = _words_of(made)
        places = {at for at in places if words[at] == count}
    if len(places) != 1:
        raise LookupError
    return places.pop() * _WORD


@cache
def _place_of_items() -> int:
    """Return how many bytes into a list the address of its items stands, behind their number."""
    behind = _place_of_count(list) + _WORD
    kept = list((object(), object()))  # noqa: C410 - with no room for more
    at = _words_of(kept)[behind // _WORD]
    if kept.__sizeof__() != list.__basicsize__ + _WORD * len(kept) or not at:
        raise LookupError
    if [*(ctypes.c_int64 * len(kept)).from_address(at)] != [*map(id, kept)]:
        raise LookupError
    return behind


def _words_of(thing: Any) -> Any:
    return (ctypes.c_int64 * (type(thing).__basicsize__ // _WORD)).from_address(id(thing))


class Versions:
    """Tells what dictionaries hold other things than they did; looks at those that changed."""

    def __init__(self, kept: Sequence[Names]) -> None:
        self._kept = [*kept]
        self._place = _version_place()
        self._addresses = np.array([id(n.dictionary) + self._place for n in kept], dtype=np.int64)
        self._then = np.zeros_like(self._addresses)  # none has been looked at
        self._now = np.zeros(1, dtype=np.int64)

    def changed(self) -> str:
        """Say what is not as it was; "" if all is."""
        if not self._place:
            return next(filter(None, (names.changed() for names in self._kept)), "")
        first_moved = comparisons().first_moved
        place = first_moved(self._addresses, self._then, 0, self._now)
        while place >= 0:
            version = self._now[0]
            if reason := self._kept[place].changed():
                return reason
            self._then[place] = version
            place = first_moved(self._addresses, self._then, place + 1, self._now)
        return ""


@cache
def _version_place() -> int:
    """Return how many bytes into a dictionary its version stands; 0 if there is none."""
    if sys.version_info >= _NO_VERSIONS:
        return 0
    if not _is_compiled():
        return 0
    thing = _Tried()
    mine = vars(thing)
    words = _words_of(mine)
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


def _attributes_of(thing: Any) -> dict[str, Any] | None:
    mine = getattr(thing, "__dict__", None)
    return mine if type(mine) is dict else None


def _class_of(thing: Any) -> int:
    return id(type(thing))


def _compiled(tensors: Sequence[Any], addresses: Sequence[int]) -> Callable[[Words], bool]:
    at_class = _place_of(tensors, _class_of)
    at_tensor = _place_of(tensors, lambda tensor: tensor._cdata)
    differs, told_of = comparisons().tensors_differ, comparisons().told_of
    facts = np.array(
        [
            (
                id(type(tensor)),
                address,
                tensor.dim(),
                tensor.requires_grad | tensor.is_neg() << 1 | tensor.is_conj() << 2,
                *told_of(id(tensor) + at_tensor),
            )
            for tensor, address in zip(tensors, addresses, strict=True)
        ],
        dtype=np.int64,
    )
    shapes = np.array(
        [number for tensor in tensors for number in (*tensor.shape, *tensor.stride())],
        dtype=np.int64,
    )
    answer = np.zeros(1, dtype=np.int64)
    places = np.int64(at_class), np.int64(at_tensor)
    return lambda objects: not differs(objects, *places, facts, shapes, answer)


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
