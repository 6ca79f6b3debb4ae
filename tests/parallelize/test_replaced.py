"""Whatever is replaced so that a function gives other results, its guards notice."""

from __future__ import annotations

import builtins
import enum
import sys
import types
from collections import OrderedDict, defaultdict, namedtuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from guarding import guarded  # noqa: E402
from torch import nn  # noqa: E402

X = torch.randn(4, 8)
CASES = {}


def case(make):
    """Take in a function that returns a function and what changes its results."""
    CASES[make.__name__] = make
    return make


def layers(*names):
    torch.manual_seed(0)
    return {name: nn.Linear(8, 8).requires_grad_(requires_grad=False) for name in names}


@case
def order_of_a_dictionary():
    held = {"a": torch.ones(8), "b": torch.zeros(8)}
    return lambda x: torch.cat([x * v for v in held.values()]), lambda: held.update(a=held.pop("a"))


@case
def order_of_an_ordered_dictionary():
    held = OrderedDict(a=1.0, b=2.0)

    def function(x):
        for name in held:
            x = x * held[name] + 1
        return x

    return function, lambda: held.move_to_end("a")


@case
def order_of_modules():
    held = nn.ModuleDict(layers("a", "b"))

    def function(x):
        for layer in held.values():
            x = layer(x)
        return x

    def change():
        held._modules["a"] = held._modules.pop("a")

    return function, change


@case
def all_parameters_of_a_module():
    net = layers("a")["a"]
    new = {"weight": torch.ones(8, 8), "bias": torch.ones(8)}
    return net, lambda: setattr(net, "_parameters", new)


class Pace(enum.Enum):
    SLOW = 1

    def __init__(self, number):
        self.gain = number


@case
def an_attribute_of_an_enum():
    pace = Pace.SLOW
    pace.gain = 1.0
    return lambda x: x * pace.gain, lambda: setattr(pace, "gain", 2.0)


@case
def an_attribute_that_an_enum_gets():
    pace = Pace.SLOW
    vars(pace).pop("more", None)
    return lambda x: x * getattr(pace, "more", 3.0), lambda: setattr(pace, "more", 2.0)


def marked(kind):
    def make():
        held = type("Marked", (kind,), {})()
        held.gain = 1.0
        return lambda x: x * held.gain, lambda: setattr(held, "gain", 2.0)

    return make


for _kind in (int, float, str, bytes, complex):
    CASES[f"an attribute of what is a {_kind.__name__}, too"] = marked(_kind)


@case
def a_tensor_of_what_is_a_number_too():
    held = type("Marked", (int,), {})(3)
    held.gain = torch.ones(8)
    return lambda x: x * held.gain, lambda: setattr(held, "gain", torch.zeros(8))


@case
def a_cell_that_nothing_was_bound_to():
    def function(x):
        try:
            return x * gain
        except NameError:
            return x

    def change():
        nonlocal gain
        gain = 2.0

    if not CASES:
        gain = 1.0
    return function, change


class Slotted:
    __slots__ = ("gain", "unread")


@case
def a_slot_that_nothing_was_put_into():
    held = Slotted()
    return lambda x: x * getattr(held, "gain", 1.0), lambda: setattr(held, "gain", 2.0)


@case
def a_slot_of_a_base_that_nothing_was_put_into():
    held = type("Derived", (Slotted,), {"__slots__": ()})()

    def function(x):
        return x * held.gain if hasattr(held, "gain") else x

    return function, lambda: Slotted.gain.__set__(held, 2.0)


@case
def a_slot_that_is_emptied():
    held = Slotted()
    held.gain = 2.0
    return lambda x: x * getattr(held, "gain", 1.0), lambda: delattr(held, "gain")


class Adapted(nn.Module):
    def forward(self, x):
        return x * self.gain if hasattr(self, "gain") else x


class Summed(nn.Module):
    def forward(self, x):
        state = (*self.parameters(), *self.buffers(), *self.children())
        return x * (1 + len(state))


@case
def a_parameter_that_a_module_gains():
    net = nn.Sequential(Adapted())
    gain = nn.Parameter(torch.zeros(8), requires_grad=False)
    return net, lambda: net[0].register_parameter("gain", gain)


@case
def a_first_parameter():
    net = Summed()
    return net, lambda: net.register_parameter("bias", nn.Parameter(torch.ones(8)))


@case
def another_buffer():
    net = Summed()
    net.register_buffer("mean", torch.ones(8))
    return net, lambda: net.register_buffer("variance", torch.ones(8))


@case
def a_first_module():
    net = Summed()
    return net, lambda: net.add_module("head", nn.ReLU())


class Defaults:
    gain, table = 2.0, {"shift": 1.0}


class Chosen(Defaults):
    pass


@case
def a_number_that_a_class_inherits(monkeypatch):
    return lambda x: x * Chosen.gain, lambda: monkeypatch.setattr(Defaults, "gain", 5.0)


@case
def what_a_dictionary_holds_that_a_class_inherits(monkeypatch):
    held = {"chosen": Chosen}
    change = lambda: monkeypatch.setitem(Defaults.table, "shift", 5.0)
    return lambda x: x + held["chosen"].table["shift"], change


@case
def a_name_that_hides_a_function_of_python():
    own = types.ModuleType("own")
    exec("def function(x):\n    return x * sum([1.0, 2.0])\n", vars(own))  # noqa: S102
    return own.function, lambda: setattr(own, "sum", lambda _: 9.0)


@case
def a_function_of_python_itself(monkeypatch):
    def function(x):
        return x * abs(-2.0)

    return function, lambda: monkeypatch.setattr(builtins, "abs", lambda _: 9.0)


@case
def a_global_that_was_not_there():
    own = types.ModuleType("own")
    code = "def function(x):\n    try:\n        return x * late\n    except NameError:\n        return x\n"
    exec(code, vars(own))  # noqa: S102
    return own.function, lambda: setattr(own, "late", 3.0)


class Base(nn.Module):
    def helper(self, x):
        return x * 2

    def forward(self, x):
        return self.helper(x)


@case
def a_method_that_hides_that_of_a_base():
    derived = type("Derived", (Base,), {"__module__": __name__})
    return derived(), lambda: setattr(derived, "helper", lambda _, x: x * 5)


@case
def a_method_of_a_module_of_pytorch(monkeypatch):
    net = layers("a")["a"]
    return net, lambda: monkeypatch.setattr(nn.Linear, "forward", lambda _, x: x)


@case
def a_function_of_pytorch(monkeypatch):
    return lambda x: torch.tanh(x) + 1, lambda: monkeypatch.setattr(torch, "tanh", lambda v: v * 3)


@case
def a_function_of_a_module_in_pytorch(monkeypatch):
    return lambda x: F.relu(x) + 1, lambda: monkeypatch.setattr(F, "relu", lambda v: v * 3)


@case
def a_function_that_pytorch_calls(monkeypatch):
    net = nn.ReLU()
    return net, lambda: monkeypatch.setattr(F, "relu", lambda v, **_: v * 3)


@case
def an_attribute_instead_of_getattr():
    class Told:
        def __getattr__(self, name):
            return 3.0

    told = Told()
    return lambda x: x * told.gain, lambda: setattr(told, "gain", 9.0)


@case
def the_class_of_an_object_without_attributes():
    class Two:
        def gain(self):
            return 2.0

    class Five:
        def gain(self):
            return 5.0

    held = Two()
    return lambda x: x * held.gain(), lambda: setattr(held, "__class__", Five)


@case
def a_property_of_a_metaclass():
    class Meta(type):
        @property
        def gain(cls):
            return 2.0

    class Held(metaclass=Meta):
        pass

    return lambda x: x * Held.gain, lambda: setattr(Meta, "gain", property(lambda _: 5.0))


@case
def defaults_by_name():
    def scaled(x, *, by=2.0):
        return x * by

    return lambda x: scaled(x) + 1, lambda: setattr(scaled, "__kwdefaults__", {"by": 5.0})


@case
def a_tuple_in_a_list():
    pair = namedtuple("pair", "gain shift")  # noqa: PYI024
    held = [pair(2.0, 1.0)]
    return lambda x: x * held[0].gain, lambda: held.__setitem__(0, pair(3.0, 1.0))


@case
def an_item_that_had_a_default():
    held = defaultdict(float)
    return lambda x: x + held.get("shift", 0.0), lambda: held.update(shift=2.0)


@case
def a_tensor_of_which_only_the_type_is_read():
    held = types.SimpleNamespace(like=torch.zeros(1))
    return lambda x: x.to(held.like.dtype), lambda: setattr(held, "like", torch.zeros(1).int())


@case
def an_item_of_a_list_of_modules():
    held = [nn.Tanh(), nn.Sigmoid()]
    return lambda x: held[1](held[0](x)), held.reverse


@case
def an_attribute_of_a_dictionary():
    class Settings(dict):
        pass

    held = Settings()
    held.gain = 2.0
    return lambda x: x * held.gain, lambda: setattr(held, "gain", 5.0)


@case
def order_of_a_set():
    held = {8, 0}

    def change():
        held.clear()
        held.update([0])
        held.update([8])

    return lambda x: torch.cat([x * v for v in held]), change


@case
def an_attribute_that_was_not_there():
    held = types.SimpleNamespace()
    return lambda x: x * getattr(held, "gain", 2.0), lambda: setattr(held, "gain", 5.0)


@case
def an_attribute_of_a_module_that_was_not_there():
    held = types.ModuleType("held")
    return lambda x: x * getattr(held, "gain", 2.0), lambda: setattr(held, "gain", 5.0)


@case
def an_attribute_in_place_of_another():
    class Held:
        gain = 2.0

        def __init__(self):
            self.junk = 1

    held = Held()

    def change():
        del held.junk
        held.gain = 5.0

    return lambda x: x * held.gain, change


@case
def what_calls_an_object_if_it_is_a_condition():
    class Held:
        pass

    held = Held()
    return lambda x: x * 2 if held else x, lambda: setattr(Held, "__bool__", lambda _: False)


@case
def the_bases_of_a_class():
    class Two:
        def gain(self):
            return 2.0

    class Five:
        def gain(self):
            return 5.0

    held = type("Held", (Two,), {"__module__": __name__})()
    return lambda x: x * held.gain(), lambda: setattr(type(held), "__bases__", (Five,))


@case
def a_method_of_tensors(monkeypatch):
    return lambda x: x.tanh() + 1, lambda: monkeypatch.setattr(
        torch.Tensor, "tanh", lambda v: v * 3
    )


@case
def a_value_of_a_module_that_is_imported_within(monkeypatch):
    settings = types.ModuleType("settings_of_a_test")
    settings.GAIN = 2.0
    monkeypatch.setitem(sys.modules, "settings_of_a_test", settings)

    def function(x):
        import settings_of_a_test

        return x * settings_of_a_test.GAIN

    return function, lambda: setattr(settings, "GAIN", 5.0)


@case
def a_gradient_that_is_asked_for():
    weight = torch.ones(8, requires_grad=True)

    def function(x):
        with torch.no_grad():
            return x * 2 if weight.grad is None else x * weight

    return function, lambda: setattr(weight, "grad", torch.ones(8))


@pytest.mark.parametrize("name", CASES)
def test_it_is_noticed(name, monkeypatch):
    make = CASES[name]
    takes_more = make.__code__.co_argcount
    function, change = make(monkeypatch) if takes_more else make()
    guards = guarded(function, X.clone())
    assert [guards.failed() for _ in range(2)] == ["", ""]
    before = function(X)
    change()
    assert not torch.equal(function(X), before)
    reason = guards.failed()
    monkeypatch.undo()
    assert reason


def test_what_has_nothing_to_do_with_a_function_may_change(monkeypatch):
    net = nn.Sequential(*layers("a", "b").values())
    guards = guarded(net, X.clone())
    assert guards.failed() == ""
    monkeypatch.setattr(F, "gelu", lambda v: v)
    monkeypatch.setattr(torch, "another", 1, raising=False)
    monkeypatch.setattr(nn.Linear, "counted", 1, raising=False)
    globals()["X_OF_ANOTHER"] = 7
    net.epoch = 3
    net[0].tag = "first"
    handle = nn.ReLU().register_forward_hook(lambda *_: None)
    assert guards.failed() == ""
    handle.remove()
    torch.compile(lambda x: x * 2, backend="eager")(X)  # wraps Module.__init__
    assert guards.failed() == ""


def test_a_global_that_has_the_name_of_an_attribute_is_another_thing():
    own = types.ModuleType("own")
    code = """
def function(batch):
    return batch.x * batch.gain
x, gain = None, 1.0
"""
    exec(code, vars(own))  # noqa: S102
    held = types.SimpleNamespace(x=torch.ones(8), gain=2.0)
    own.x = torch.ones(8)
    run = own.function
    guards = guarded(lambda x: run(held) + x, X.clone())
    assert guards.failed() == ""
    own.x, own.gain = torch.zeros(8), 3.0
    assert guards.failed() == ""
    held.x = torch.zeros(8)
    assert guards.failed() != ""
