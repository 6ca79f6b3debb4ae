"""What guards look up in words and dictionaries, and do not ask for, is noticed however it changes."""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from guarding import guarded  # noqa: E402

from depgraph.torch import unchanged  # noqa: E402
from depgraph.torch.unchanged import KeptWords  # noqa: E402

X = torch.arange(8.0) + 1
CASES = {}


def case(make):
    """Take in a function that returns a function and what changes its results."""
    CASES[make.__name__] = make
    return make


def of_class(change):
    """Return a function that reads a tensor of a class, and what changes it."""

    class Meta(type):
        pass

    base = Meta("Base", (), {"gain": torch.ones(8) * 2, "__module__": "mine"})
    other = Meta("Other", (), {"gain": THREE, "__module__": "mine"})
    cls = Meta("Class", (base,), {"__module__": "mine"})
    return lambda x: x * cls.gain, lambda: change(cls, other)


THREE = torch.ones(8) * 3
IN_CLASSES = {
    "in the base": lambda cls, _: setattr(cls.__base__, "gain", THREE),
    "hidden by the class": lambda cls, _: setattr(cls, "gain", THREE),
    "hidden by the class's class": lambda cls, _: setattr(
        type(cls), "gain", property(lambda _: THREE)
    ),
    "another base": lambda cls, other: setattr(cls, "__bases__", (other,)),
    "another class of the class": lambda cls, _: setattr(
        cls, "__class__", type("Other", (type(cls),), {"gain": property(lambda _: THREE)})
    ),
    "what finds attributes": lambda cls, _: setattr(
        type(cls), "__getattribute__", lambda _, name: THREE if name == "gain" else 0
    ),
}
for _name, _change in IN_CLASSES.items():
    CASES[f"of a class, {_name}"] = lambda change=_change: of_class(change)


def of_slots(change):
    """Return a function that reads a tensor in a slot of an object, and what changes it."""

    class Slots:
        __slots__ = ("gain", "other")

    class Other(Slots):
        __slots__ = ()
        gain = property(lambda _: THREE)

    made = Slots()
    made.gain, made.other = torch.ones(8) * 2, "nothing"
    return lambda x: x * made.gain, lambda: change(made, Other)


IN_SLOTS = {
    "itself": lambda made, _: setattr(made, "gain", THREE),
    "through its descriptor": lambda made, _: type(made).gain.__set__(made, THREE),
    "another class": lambda made, other: setattr(made, "__class__", other),
    "another descriptor": lambda made, other: setattr(type(made), "gain", vars(other)["gain"]),
    "another slot's descriptor": lambda made, _: (
        setattr(made, "other", THREE), setattr(type(made), "gain", type(made).other),
    ),
    "what finds attributes": lambda made, _: setattr(
        type(made), "__getattribute__", lambda *_: THREE
    ),
}  # fmt: skip
for _name, _change in IN_SLOTS.items():
    CASES[f"of a slot, {_name}"] = lambda change=_change: of_slots(change)


def of_module(change):
    """Return a function that reads a tensor of a module, and what changes it."""
    module = types.ModuleType("settings_of_a_test")
    module.gain = torch.ones(8) * 2
    sys.modules[module.__name__] = module  # the next takes its place

    def function(x):
        import settings_of_a_test

        return x * settings_of_a_test.gain

    return function, lambda: change(module)


IN_MODULES = {
    "itself": lambda module: setattr(module, "gain", THREE),
    "in its dictionary": lambda module: vars(module).update(gain=THREE),
    "another class": lambda module: setattr(
        module,
        "__class__",
        type("Lazy", (types.ModuleType,), {"gain": property(lambda _: THREE)}),
    ),
    "another module": lambda module: sys.modules.update(
        {module.__name__: types.SimpleNamespace(gain=THREE)}
    ),
}
for _name, _change in IN_MODULES.items():
    CASES[f"of a module, {_name}"] = lambda change=_change: of_module(change)


def of_list(change):
    """Return a function that reads what a list has, and what changes it."""
    held = [torch.ones(8), torch.ones(8) * 2]
    return lambda x: torch.stack([x * each for each in held]).cumsum(0), lambda: change(held)


IN_LISTS = {
    "an item": lambda held: held.__setitem__(1, THREE),
    "the order": lambda held: held.reverse(),
    "a slice": lambda held: held.__setitem__(slice(0, 2), [held[0], THREE]),
    "one less": lambda held: held.pop(),
    "all in another place": lambda held: held.__init__([held[0], *[THREE] * 1000]),
    "one for another": lambda held: (held.pop(), held.append(THREE)),
    "one before": lambda held: (held.insert(0, THREE), held.pop()),
    "grown, and shrunk to other items": lambda held: (
        held.extend([THREE] * 5000), held.__delitem__(slice(1, 5000)),
    ),
}  # fmt: skip
for _name, _change in IN_LISTS.items():
    CASES[f"of a list, {_name}"] = lambda change=_change: of_list(change)


@case
def the_code_of_a_function():
    def scaled(x):
        return x * 2

    return lambda x: scaled(x) + 1, lambda: setattr(scaled, "__code__", (lambda x: x * 5).__code__)


@case
def the_defaults_of_a_function():
    def scaled(x, gain=2.0):
        return x * gain

    return lambda x: scaled(x) + 1, lambda: setattr(scaled, "__defaults__", (5.0,))


@case
def the_defaults_by_name_of_a_function():
    def scaled(x, *, gain=2.0):
        return x * gain

    return lambda x: scaled(x) + 1, lambda: scaled.__kwdefaults__.update(gain=5.0)


def a_property_that_is_made_anew():
    class Kept:
        gain = property(lambda _: 2.0)

    made = Kept()
    return lambda x: x * made.gain, lambda: vars(Kept)["gain"].__init__(lambda _: 5.0)


if sys.version_info < (3, 12):  # later ones go on calling the getter that they have once found
    case(a_property_that_is_made_anew)


@case
def a_method_of_the_class_made_anew():
    class Kept:
        @classmethod
        def gain(cls):
            return 2.0

        @staticmethod
        def shift():
            return 1.0

    def change():
        vars(Kept)["gain"].__init__(lambda _: 5.0)

    return lambda x: x * Kept.gain() + Kept.shift(), change


@case
def a_function_of_the_class_made_anew():
    class Kept:
        @staticmethod
        def shift():
            return 1.0

    return lambda x: x + Kept.shift(), lambda: vars(Kept)["shift"].__init__(lambda: 5.0)


@case
def what_a_closure_holds():
    gain = torch.ones(8) * 2

    def change():
        nonlocal gain
        gain = THREE

    return lambda x: x * gain, change


@case
def what_a_closure_holds_set_from_outside():
    gain = torch.ones(8) * 2

    def function(x):
        return x * gain

    return function, lambda: setattr(function.__closure__[0], "cell_contents", THREE)


@case
def how_many_a_queue_has():
    held = deque([1.0, 2.0])

    def function(x):
        for each in held:
            x = x * (each + 1)
        return x

    return function, lambda: held.append(7.0)


@case
def what_an_ordered_dictionary_has():
    held = OrderedDict(a=2.0)

    def function(x):
        for each in held.values():
            x = x * each
        return x

    return function, lambda: held.update(b=7.0)


@case
def the_attributes_of_a_function():
    def scaled(x):
        return x * scaled.gain

    scaled.gain = 2.0
    return lambda x: scaled(x) + 1, lambda: setattr(scaled, "__dict__", {"gain": 5.0})


@case
def the_attributes_of_a_tensor():
    gain = torch.ones(8)
    gain.times = 2.0
    return lambda x: x * gain * gain.times, lambda: setattr(gain, "__dict__", {"times": 5.0})


@case
def an_attribute_that_a_tensor_is_given():
    gain = torch.ones(8)
    return lambda x: x * gain * getattr(gain, "times", 2.0), lambda: setattr(gain, "times", 5.0)


HOLDERS = {
    "a tuple": lambda each: (each,),
    "an array": lambda each: np.array([each], dtype=object),
}


def of_holder(hold):
    """Return a function that reads an object out of what holds it, and what hides its class."""

    class Kept:
        gain = 2.0

    held = hold(Kept())
    return lambda x: x * held[0].gain, lambda: setattr(held[0], "gain", 5.0)


for _name, _hold in HOLDERS.items():
    CASES[f"an attribute of an object in {_name}"] = lambda hold=_hold: of_holder(hold)


def of_metaclass(change):
    """Return a function that reads what a class of a class may decide, and what changes it."""

    class Base(type):
        shift = 1.0

    class Other(type):
        shift, gain = 2.0, property(lambda _: 5.0)

    class Meta(Base):
        pass

    class Kept(metaclass=Meta):
        gain = 2.0

    return lambda x: x * Kept.gain + Kept.shift, lambda: change(Meta, Other)


IN_METACLASSES = {
    "its bases": lambda meta, other: setattr(meta, "__bases__", (other,)),
    "what it has": lambda meta, _: setattr(meta, "shift", 7.0),
}
for _name, _change in IN_METACLASSES.items():
    CASES[f"of a class's class, {_name}"] = lambda change=_change: of_metaclass(change)


@case
def what_a_class_of_lists_has():
    class Kept(list):
        gain = 2.0

    held = Kept([1.0])
    return lambda x: x * held.gain * held[0], lambda: setattr(Kept, "gain", 5.0)


@case
def what_a_named_tuple_calls_its_items():
    pair = namedtuple("pair", "left right")  # noqa: PYI024 - as people write them
    held = pair(2.0, 3.0)
    return lambda x: x * held.left, lambda: setattr(pair, "left", pair.right)


@case
def a_descriptor_of_the_users_own():
    class Kept:
        value = 2.0

        def __get__(self, *_):
            return self.value

    class Holder:
        gain = Kept()

    return lambda x: x * Holder.gain, lambda: setattr(vars(Holder)["gain"], "value", 5.0)


@case
def the_order_behind_a_view_of_a_dictionary():
    held = OrderedDict(a=2.0, b=3.0)
    view = types.MappingProxyType(held)

    def function(x):
        for each in view.values():
            x = x * each + 1
        return x

    return function, lambda: held.move_to_end("a")


def of_import(statement, change, **names):
    """Return a function that imports what a package has, and what changes it."""
    package = types.ModuleType("package_of_a_test")
    package.__path__ = []
    package.part = types.ModuleType("package_of_a_test.part")
    package.part.gain = 2.0
    sys.modules |= {each.__name__: each for each in (package, package.part)}
    scope = {"__name__": "package_of_a_test.mine", **names}
    exec(f"def function(x):\n    {statement}\n    return x * part.gain", scope)  # noqa: S102
    return scope["function"], lambda: change(package, types.SimpleNamespace(gain=5.0))


IMPORTS = {
    "import package_of_a_test.part as part": lambda package, new: setattr(package, "part", new),
    "from package_of_a_test import part": lambda package, new: setattr(package, "part", new),
    "from . import part": lambda package, new: setattr(package, "part", new),
    "import package_of_a_test; part = package_of_a_test.part": lambda _, new: sys.modules.update(
        package_of_a_test=types.SimpleNamespace(part=new)
    ),
}
for _name, _change in IMPORTS.items():
    CASES[_name] = lambda name=_name, change=_change: of_import(
        name, change, package_of_a_test=None, __package__="package_of_a_test"
    )


def of_syntax(kind, name, asked):
    """Return a function that asks an object, and what lets its class answer itself."""
    cls = type("Kept", (kind,), {})
    made = cls()
    return lambda x: x * asked(made), lambda: setattr(cls, name, lambda *_: iter([5.0]))


def missing(made):
    try:
        return sum(made["nothing"])
    except LookupError:
        return 2.0


class Shifted:
    def __rlshift__(self, _):
        return [2.0]


BY_SYNTAX = {
    "__missing__": (dict, missing),
    "__reversed__": (list, lambda made: sum(reversed(made))),
    "__lshift__": (object, lambda made, by=Shifted(): sum(made << by)),  # noqa: B008
}
for _name, (_kind, _asked) in BY_SYNTAX.items():
    CASES[_name] = lambda name=_name, kind=_kind, asked=_asked: of_syntax(kind, name, asked)


@case
def what_says_what_an_instance_is():
    meta = type("Meta", (type,), {})
    cls = meta("Kept", (), {})

    def change():
        meta.__instancecheck__ = lambda *_: True

    return lambda x: x * (2 if isinstance(X, cls) else 3), change


@case
def what_sets_attributes():
    class Kept:
        gain = 2.0

    made = Kept()
    made.gain = 2.0

    def function(x):
        made.gain = 2.0
        return x * made.gain

    def set_twice(thing, name, value):
        vars(thing)[name] = value * 2

    return function, lambda: setattr(Kept, "__setattr__", set_twice)


@pytest.fixture(params=["compiled", "by Python"])
def looks(request, monkeypatch):
    """Look at words by compiled code, and where there is none."""
    if request.param == "by Python":
        monkeypatch.setattr(unchanged, "_is_compiled", lambda: False)


@pytest.fixture(scope="module")
def _frozen():
    """Thaw in the end what `forget_other_tests` has set apart."""
    yield
    gc.unfreeze()


def forget_other_tests():
    """Collect functions of other tests, which have the same code; next time only what is new."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("_frozen", "looks")
@pytest.mark.parametrize("name", CASES)
def test_it_is_noticed(name):
    forget_other_tests()
    function, change = CASES[name]()
    guards = guarded(function, X.clone())
    assert [guards.failed() for _ in range(2)] == ["", ""]
    assert guards._fast()
    before = function(X)
    change()
    now = function(X)
    assert now.shape != before.shape or not torch.equal(now, before)
    assert guards.failed()
    assert guards.failed()


def test_words_are_not_noted_where_they_hold_something_else():
    words, held = KeptWords(), [X]

    def function():
        return X

    words.note_item(held, 0, X)
    words.note_count(held, 1)
    words.note_value(function, "__code__", function.__code__)
    are_as_then = words.as_then()
    assert are_as_then()
    for owner, key, value in ((function, "__code__", X), (function, "__module__", "another")):
        with pytest.raises(LookupError):
            words.note_value(owner, key, value)
    with pytest.raises(LookupError):
        words.note_count({}.keys(), 0)
    held.clear()
    assert not are_as_then()


def test_a_list_that_has_no_items_any_more_is_not_looked_into():
    words, held = KeptWords(), [object() for _ in range(10_000)]
    words.note_item(held, 9_999, held[-1])
    are_as_then = words.as_then()
    assert are_as_then()
    held.clear()
    assert not are_as_then()


def test_a_dictionary_that_makes_what_is_missing_is_not_asked_for_it():
    held = defaultdict(lambda: THREE, a=torch.ones(8) * 2)

    def function(x):
        return x * sum(held.values())

    guards = guarded(function, X.clone())
    assert not guards.failed()
    held["b"] = held.pop("a")
    assert guards.failed()
    assert [*held] == ["b"]
