"""What dictionaries hold: those of modules, classes and objects, and those that a function uses."""

import builtins
import gc
import inspect
import types
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from depgraph.torch.bindings import ATTRIBUTE, ITEM, Slot
from depgraph.torch.executed import function_in, globals_in, is_library, names_in
from depgraph.torch.unchanged import WORDS
from depgraph.torch.values import count_of, is_the_same, iterated

# Where what a slot holds can be looked at; `ASKED`: nobody knows but the object.
IN_DICTIONARY, IN_LIST, IN_WORD, ASKED = "dictionary", "list", "word", ""
_ABSENT = object()
_AS_THEY_ARE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
_FUNCTIONS = (*_AS_THEY_ARE, types.MethodType, type, staticmethod, classmethod, property)
_CAN_CHANGE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class is made in Python
_DEPTH = 4  # of modules in modules, such as torch.nn.functional
# What an operator or a statement calls of a class.
_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_BY_SYNTAX = frozenset(
    f"__{name}__"
    for name in (
        *(before + name for name in _ARITHMETIC.split() for before in ("", "r", "i")),
        *"""
        call getattr getattribute setattr delattr bool len iter next contains reversed missing
        getitem setitem delitem enter exit get set delete hash index int float complex str repr
        format round trunc floor ceil eq ne lt le gt ge neg pos abs invert instancecheck
        subclasscheck torch_function
        """.split(),  # noqa: SIM905 - easier to read
    )
)


class Names:
    """What a dictionary holds under some names, or that it holds nothing there."""

    def __init__(self, dictionary: Mapping[Any, Any], path: str) -> None:
        self.dictionary, self.path = dictionary, path
        self._then: dict[Any, tuple[Any, str]] = {}
        self._size = -1
        self._unread: frozenset[str] = frozenset()  # what may come and go
        self._keys: list[Any] = []

    def note(self, name: Any, path: str = "") -> None:
        """Keep what is there under a name now; `path` is what a message calls it."""
        path = path or (f"{self.path}.{name}" if self.path else str(name))
        self._then.setdefault(name, (self.dictionary.get(name, _ABSENT), path))

    def note_size(self, unread: frozenset[str] = frozenset()) -> None:
        """Keep how many items there are, but for some that nobody reads."""
        self._unread = unread
        self._size = self._count()

    def _count(self) -> int:
        return count_of(self.dictionary) - sum(name in self.dictionary for name in self._unread)

    def note_order(self) -> "Names":
        """Keep in which order they are."""
        self.note_size()
        self._keys = [*iterated(self.dictionary)]
        return self

    def changed(self) -> str:
        """Say what is not as it was; "" if all is."""
        for name, (then, path) in self._then.items():
            now = self.dictionary.get(name, _ABSENT)
            if now is not then and not is_the_same(now, then):
                return f"{path} was replaced or changed"
        if self._size >= 0 and self._count() != self._size:
            return f"{self.path} has {self._count()} items, not {self._size}"
        if self._keys and not all(map(is_the_same, iterated(self.dictionary), self._keys)):
            return f"{self.path} has its items in another order"
        return ""


class Namespaces:
    """Dictionaries by identity, each with the names that count."""

    def __init__(self) -> None:
        self.found: dict[int, Names] = {}

    def of(self, dictionary: dict[Any, Any], path: str = "") -> Names:
        """Return the names of a dictionary that count so far."""
        return self.found.setdefault(id(dictionary), Names(dictionary, path))

    def note_slot(self, slot: Slot) -> str:
        """Note what dictionaries tell of a slot; return where what it holds can be looked at."""
        owner, key = slot.owner, slot.key
        if slot.kind == ITEM:
            if type(owner) is types.MappingProxyType:
                owner = gc.get_referents(owner)[0]
            if type(owner) is not dict:
                return IN_LIST if type(owner) is list else ASKED
            self.of(owner).note(key, slot.path)
            return IN_DICTIONARY
        if slot.kind != ATTRIBUTE:
            return IN_WORD if type(owner) is weakref.ref else ASKED
        if type(owner) is types.ModuleType and vars(owner).get(key, _ABSENT) is slot.value:
            self.of(vars(owner), owner.__name__).note(key, slot.path)
            return IN_DICTIONARY
        if not _is_looked_up(owner, key, slot.value):
            return ASKED
        for each in _classes_of(owner if isinstance(owner, type) else type(owner)):
            names = self.of(_dictionary_of(each), each.__qualname__)
            names.note(key, slot.path)
            names.note("__getattribute__")
        return IN_DICTIONARY if isinstance(owner, type) else IN_WORD

    def note_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Note which functions of which modules code reads that ran with some globals."""
        read = names_in(code)
        mine = str(names.get("__name__", ""))
        if is_library(mine):
            if mine.partition(".")[0] == "torch":
                self._note_functions(names, mine, read)
                self._note_modules(names, read)
            return
        # A name that is added to a module hides a function of Python.
        absent = {name for name in globals_in(code) if name not in names}
        for name in absent:
            self.of(names, mine).note(name, name)
            if name in vars(builtins):
                self.of(vars(builtins), "builtins").note(name)
        self._note_modules(names, read)

    def _note_modules(self, names: Mapping[str, Any], read: set[str], depth: int = 0) -> None:
        for name in read & names.keys():
            module = names[name]
            if isinstance(module, types.ModuleType) and depth < _DEPTH:
                self._note_functions(vars(module), module.__name__, read)
                self._note_modules(vars(module), read, depth + 1)

    def _note_functions(self, names: dict[str, Any], path: str, read: Iterable[str]) -> None:
        for name in read:
            if isinstance(names.get(name), _FUNCTIONS):
                self.of(names, path).note(name)

    def note_object(
        self,
        mine: dict[str, Any],
        read: Container[str],
        path: str,
        unread: frozenset[str] = frozenset(),  # attributes that may come and go
    ) -> None:
        """Note what is read of an object and is not among its own attributes."""
        names = self.of(mine)
        names.path = path
        if not isinstance(read, frozenset):
            names.note_size(unread)
            return
        for name in read - mine.keys():
            names.note(name)

    def note_class(self, cls: type, read: Container[str], ran: Container[types.CodeType]) -> None:
        """Note the functions of a class that ran or may, and what it might hide of its bases."""
        names = (read if isinstance(read, frozenset) else frozenset()) | _BY_SYNTAX
        for each in _classes_of(cls):
            mine = _dictionary_of(each)
            of_class = self.of(mine, each.__qualname__)
            for name, value in mine.items():
                is_read = name in names and isinstance(value, _FUNCTIONS)
                if is_read or getattr(function_in(value), "__code__", None) in ran:
                    of_class.note(name)
            for name in names - mine.keys():
                of_class.note(name)


def _is_looked_up(owner: Any, key: str, value: Any) -> bool:
    """Tell whether a class has an attribute in its dictionary, or an object in one of its words."""
    cls = type(owner)
    found = _in_classes(cls, key)
    if isinstance(owner, type):
        mine = _in_classes(owner, key)
        is_itself = isinstance(mine, _AS_THEY_ARE) or not hasattr(type(mine), "__get__")
        is_usual = _in_classes(cls, "__getattribute__") is vars(type)["__getattribute__"]
        return is_usual and is_itself and found is _ABSENT and mine is value
    if not is_changeable(cls):
        return key in WORDS.get(cls, ())
    is_usual = _in_classes(cls, "__getattribute__") is vars(object)["__getattribute__"]
    is_slot = isinstance(found, types.MemberDescriptorType)
    return is_usual and is_slot and "__slots__" in vars(found.__objclass__)


def _in_classes(cls: type, key: str) -> Any:
    """Return what a class or one of its bases has under a name."""
    return next((vars(each)[key] for each in cls.__mro__ if key in vars(each)), _ABSENT)


def _dictionary_of(cls: type) -> dict[str, Any]:
    """Return the dictionary of a class itself, whose version changes with it."""
    found: dict[str, Any] = gc.get_referents(vars(cls))[0]
    return found


def is_changeable(cls: type) -> bool:
    """Tell whether a class can change, as those can that are made in Python."""
    return bool(cls.__flags__ & _CAN_CHANGE)


def _classes_of(cls: type) -> Iterator[type]:
    """Yield a class, its bases, and their classes, as far as they can change."""
    for each in (*inspect.getmro(cls), *inspect.getmro(type(cls))):
        if is_changeable(each):
            yield each
