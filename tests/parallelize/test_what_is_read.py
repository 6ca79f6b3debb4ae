"""What Python reads in ways of its own: each change that the function would see is noticed."""

from __future__ import annotations

import argparse
import operator
import threading
import types
import weakref
from array import array
from collections import OrderedDict, deque
from contextvars import ContextVar
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from guarding import guarded, guards_of  # noqa: E402
from torch import nn  # noqa: E402

from depgraph.errors import ApplyError  # noqa: E402
from depgraph.torch.bindings import find_bindings  # noqa: E402
from depgraph.torch.executed import Executed  # noqa: E402
from depgraph.torch.guards import Guards  # noqa: E402
from depgraph.torch.operator_log import OperatorLog  # noqa: E402
from depgraph.torch.warm_up import Probe, Saved  # noqa: E402

CPU, META = torch.device("cpu"), torch.device("meta")
X = torch.arange(16.0).reshape(4, 4)


class Scaled(nn.Module):
    """Holds things, and does something with them."""

    def __init__(self, does, **held):
        super().__init__()
        self.does = does
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.does(self, x)


class Fixed(nn.Module):
    @property
    def scale(self):
        return 2.0

    @classmethod
    def shifted(cls, x):
        return x + 1

    def forward(self, x):
        return self.shifted(x) * self.scale * helper(x)


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha_0 = 2.0

    def forward(self, x):
        return x * getattr(self, "alpha_" + "0") * getattr(self, "beta", 1.0)


class Behind:
    def __init__(self):
        object.__setattr__(self, "_held", {"scale": 2.0})

    def __getattr__(self, name):
        return self._held[name]


class Plain:
    value = 2.0


def helper(x):
    return x * 2


def other(x):
    return x * 9


HERE = threading.local()
HERE.scale = 2.0
SCALE = ContextVar("SCALE", default=2.0)
PLAIN = Plain()
PLAIN.value = 2.0
WEAK = weakref.ref(PLAIN)
SHARED = {"a": 2.0}
SETTINGS = types.ModuleType("settings_of_mine")
SETTINGS.scale_1 = 2.0


def scaled_in_order(m, x):
    for each in m.extra:
        x = each(x) if callable(each) else x + each
    return x * 2


CASES = {
    "an empty list": (
        lambda: Scaled(scaled_in_order, extra=[]), lambda m: m.extra.append(torch.ones(4)),
    ),
    "an empty list of modules": (
        lambda: Scaled(scaled_in_order, extra=nn.ModuleList()),
        lambda m: m.extra.append(nn.Softmax(-1)),
    ),
    "an empty dictionary": (
        lambda: Scaled(lambda m, x: x * m.kept.get("scale", 1.0), kept={}),
        lambda m: m.kept.update(scale=9.0),
    ),
    "a set": (
        lambda: Scaled(lambda m, x: x * 3 if "b" in m.kept else x, kept={"a"}),
        lambda m: m.kept.add("b"),
    ),
    "a queue of tensors": (
        lambda: Scaled(lambda m, x: x + m.kept[0], kept=deque([torch.ones(4)], maxlen=1)),
        lambda m: m.kept.append(torch.zeros(4)),
    ),
    "a queue of numbers": (
        lambda: Scaled(lambda m, x: x * m.kept[0], kept=deque([1.0, 2.0], maxlen=2)),
        lambda m: m.kept.append(9.0),
    ),
    "an array": (
        lambda: Scaled(lambda m, x: x * float(m.kept[0]), kept=np.array([2.0])),
        lambda m: m.kept.__setitem__(0, 5.0),
    ),
    "a read-only dictionary": (
        lambda: Scaled(lambda m, x: x * m.kept["a"], kept=types.MappingProxyType(SHARED)),
        lambda m: SHARED.update(a=SHARED["a"] + 1),
    ),
    "a module without weights": (
        lambda: Scaled(lambda m, x: m.kept(x / 9), kept=nn.Tanh()),
        lambda m: setattr(m, "kept", nn.Sigmoid()),
    ),
    "a module of several without weights": (
        lambda: nn.Sequential(nn.Tanh(), nn.Tanh()), lambda m: m.__setitem__(1, nn.Sigmoid()),
    ),
    "an object that is asked for": (
        lambda: Scaled(lambda m, x: x * (1 if m.kept is None else 2), kept=object()),
        lambda m: setattr(m, "kept", None),
    ),
    "a namespace": (
        lambda: Scaled(lambda m, x: x * m.kept.scale, kept=argparse.Namespace(scale=2.0)),
        lambda m: setattr(m.kept, "scale", 5.0),
    ),
    "a number of NumPy": (
        lambda: Scaled(lambda m, x: x * float(m.kept), kept=np.float32(2)),
        lambda m: setattr(m, "kept", np.float32(5)),
    ),
    "a fraction": (
        lambda: Scaled(lambda m, x: x * float(m.kept), kept=Fraction(1, 2)),
        lambda m: setattr(m, "kept", Fraction(1, 3)),
    ),
    "an array of Python's": (
        lambda: Scaled(lambda m, x: x * m.kept[0], kept=array("d", [2.0])),
        lambda m: m.kept.__setitem__(0, 5.0),
    ),
    "a computed name of a module": (
        lambda: Scaled(lambda _, x: x * getattr(SETTINGS, "scale_" + "1")),
        lambda _: setattr(SETTINGS, "scale_1", SETTINGS.scale_1 + 1),
    ),
    "the sign of a zero": (
        lambda: Scaled(lambda m, x: x / m.kept, kept=0.0), lambda m: setattr(m, "kept", -0.0),
    ),
    "a computed name": (Asking, lambda m: setattr(m, "alpha_0", 5.0)),
    "a name that comes later": (Asking, lambda m: setattr(m, "beta", 5.0)),
    "the dictionary of an object": (
        lambda: Scaled(lambda m, x: x * m.__dict__["kept"], kept=2.0),
        lambda m: setattr(m, "kept", 5.0),
    ),
    "an attribute got by an operator": (
        lambda: Scaled(lambda m, x: x * operator.attrgetter("kept")(m), kept=2.0),
        lambda m: setattr(m, "kept", 5.0),
    ),
    "what stands behind an object": (
        lambda: Scaled(lambda m, x: x * m.kept.scale, kept=Behind()),
        lambda m: m.kept._held.update(scale=9.0),
    ),
    "what a thread has": (
        lambda: Scaled(lambda _, x: x * HERE.scale), lambda _: setattr(HERE, "scale", 9.0),
    ),
    "what a context has": (
        lambda: Scaled(lambda _, x: x * SCALE.get()), lambda _: SCALE.set(9.0),
    ),
    "what a weak reference leads to": (
        lambda: Scaled(lambda _, x: x * WEAK().value), lambda _: setattr(PLAIN, "value", 9.0),
    ),
    "a property": (Fixed, lambda _: setattr(Fixed, "scale", property(lambda _: 7.0))),
    "a class method": (
        Fixed, lambda _: setattr(Fixed, "shifted", classmethod(lambda _, x: x + 9)),
    ),
    "the code of a function": (
        Fixed, lambda _: setattr(helper, "__code__", other.__code__),
    ),
    "the shape of a weight": (
        lambda: Scaled(lambda m, x: x @ m.kept, kept=X.clone()),
        lambda m: setattr(m.kept, "data", m.kept.data.t()),
    ),
    "a tensor turned in place": (
        lambda: Scaled(lambda m, x: x @ m.kept, kept=X.clone()), lambda m: m.kept.t_(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_the_function_would_see_is_noticed(case, monkeypatch):
    monkeypatch.setattr(helper, "__code__", helper.__code__)  # put back at the end
    for name in ("scale", "shifted"):
        monkeypatch.setattr(Fixed, name, vars(Fixed)[name])
    make, change = CASES[case]
    function = make()
    guards = guarded(function, X)
    before = function(X)
    assert [guards.failed() for _ in range(2)] == ["", ""]
    change(function)
    assert not torch.equal(function(X), before)
    assert guards.failed() != ""


class Step:
    """A step of training, with a hook."""

    def __init__(self):
        self.layer = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)
        self.hook = self.layer.bias.register_hook(lambda g: g * FACTOR)

    def __call__(self, x):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.layer(x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


FACTOR = 1.0


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.layer.weight.register_hook(lambda g: g * 100),
        lambda s: s.layer.bias.register_post_accumulate_grad_hook(lambda _: None),
        lambda s: s.hook.remove(),
        lambda s: s.layer.weight.requires_grad_(requires_grad=False),
        lambda s: s.optimizer.register_step_pre_hook(lambda *_: None),
        lambda s: s.optimizer.param_groups[0].update(lr=0.2),
        lambda _: globals().update(FACTOR=FACTOR + 1),
    ],
)
def test_what_a_step_of_training_would_see_is_noticed(change):
    step = Step()
    step(X)
    guards = guarded(step, X)
    assert guards.failed() == ""
    change(step)
    assert guards.failed() != ""


@pytest.mark.parametrize("is_noticed", [True, False])
def test_gradients_that_a_call_adds_to_count_and_others_do_not(is_noticed):
    """`optimizer.zero_grad()` lets go of them: a graph would add to what nobody has any more."""
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def function(x):
        loss = layer(x).square().sum()
        if is_noticed:
            loss.backward()
        return loss.detach()

    layer(X).sum().backward()
    guards = guarded(function, X)
    assert guards.failed() == ""
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert guards.failed() == ""
    optimizer.zero_grad()
    said = "layer.weight.grad was replaced or changed" if is_noticed else ""
    assert guards.failed() == said


def test_a_hook_of_every_module_that_is_gone_counts():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    guards = guarded(nn.Linear(4, 4).requires_grad_(requires_grad=False), X)
    assert guards.failed() == ""
    handle.remove()
    assert guards.failed() == "every module has other hooks"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * FACTOR


def test_what_a_backward_pass_reads_in_another_thread_is_noticed(monkeypatch):
    weight = torch.ones(4, requires_grad=True)
    executed = Executed()
    probe = Probe(CPU, Saved(), executed)

    def backward(y, found):
        with probe:
            found.append(torch.autograd.grad(y, weight)[0])

    def step(x):
        y, found = (Doubled.apply(weight) * x).sum(), []
        thread = threading.Thread(target=backward, args=(y, found))
        thread.start()
        thread.join()
        return found[0]

    with executed.listening(), probe:
        step(X[0])
    guards = guards_of(step, executed, probe, [X])
    assert guards.failed() == ""
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert guards.failed() == "FACTOR was replaced or changed"


def test_a_function_that_searches_attributes_does_not_read_whole_modules():
    """Models are full of functions such as getattr(config, name): that is no reason to refuse."""

    def picked(thing, name):
        return getattr(thing, name)

    module = Scaled(
        lambda m, x: x * picked(m, "kept"), kept=2.0, vocabulary={str(i): i for i in range(20_000)}
    )
    guards = guarded(module, X)
    assert guards.count < 200
    assert guards.failed() == ""
    module.kept = 3.0
    assert guards.failed() == "function.kept was replaced or changed"


def test_what_is_too_large_to_be_looked_at_is_refused():
    with pytest.raises(ApplyError, match=r"function\.kept holds too much"):
        guarded(Scaled(lambda m, x: x * m.kept[3], kept=[1.0] * 20_001), X)
    with pytest.raises(ApplyError, match=r"function\.kept holds too much"):
        guarded(Scaled(lambda m, x: x * float(m.kept[3]), kept=np.ones(1 << 16)), X)
    with pytest.raises(ApplyError, match=r"function\.kept\['a'\] holds too much"):
        guarded(Scaled(lambda m, x: x * float(m.kept["a"][3]), kept={"a": np.ones(1 << 16)}), X)


def of_the_host(function, *inputs):
    executed, log = Executed(), OperatorLog(META)
    with executed.listening(), log:
        function(*inputs)
    log.on_host.pop(X.untyped_storage().data_ptr(), None)
    return Guards(find_bindings({"f": function}, executed), [], list(log.on_host.values()))


@pytest.mark.parametrize(
    "change",
    [lambda m: setattr(m, "kept", torch.tensor(5.0)), lambda m: m.kept.fill_(5.0)],
)
def test_a_tensor_on_the_cpu_counts_by_name_and_by_value(change):
    module = Scaled(lambda m, x: x * m.kept, kept=torch.tensor(2.0))
    guards = of_the_host(module, X)
    assert guards.failed() == ""
    change(module)
    assert "kept" in guards.failed()


def test_tensors_on_the_cpu_may_be_made_of_numbers_and_of_arrays_that_are_looked_at():
    assert (
        of_the_host(lambda x: x * torch.tensor(2.0) + torch.as_tensor([1.0] * 4), X).failed() == ""
    )
    module = Scaled(lambda m, x: x * torch.from_numpy(m.kept), kept=np.ones(4, np.float32))
    guards = of_the_host(module, X)
    module.kept[1] = 3
    assert guards.failed() == "what f.kept holds was changed"


def test_a_tensor_on_the_cpu_that_nothing_leads_to_is_refused():
    hidden = iter([torch.ones(4)] * 5)
    with pytest.raises(ApplyError, match="that nothing it refers to leads to"):
        of_the_host(lambda x: x * next(hidden), X)


def test_modes_that_see_what_is_called_count():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    weight = torch.ones(4)
    guards = guarded(lambda x: x * weight, X)
    assert guards.in_other_modes() == ""
    with Mode():
        assert guards.in_other_modes() == "other modes see what it calls"
    with torch.device("meta"):
        assert guards.in_other_modes() == "other modes see what it calls"
    seen = []
    torch.vmap(lambda x: seen.append(guards.in_other_modes()) or x)(X)
    assert seen == ["one of functorch's transformations is active"]


def _unreadable(*_):
    msg = "importing all that there is"
    raise RuntimeError(msg)


NAMES = "__len__", "__iter__", "__getitem__", "__contains__", "items", "keys", "values", "get"


@pytest.mark.parametrize("kind", [dict, OrderedDict, list, tuple, set, frozenset, deque])
def test_containers_that_run_code_when_they_are_looked_into_are_left_alone(kind):
    given = {"a": 1.0, "b": 2.0} if issubclass(kind, dict) else [("a", 1.0), ("b", 2.0)]
    lazy = type("Lazy", (kind,), dict.fromkeys(NAMES, _unreadable))(given)
    lazy.scale = 3.0
    guards = guarded(lambda x: x * lazy.scale, X)
    assert guards.failed() == ""
    lazy.scale = 4.0
    assert guards.failed() == "lazy.scale was replaced or changed"


@pytest.mark.parametrize("kind", [dict, OrderedDict, list, deque])
def test_what_a_container_holds_counts_though_its_class_tells_other_things(kind):
    items = {0: 2.0, 1: 5.0} if issubclass(kind, dict) else [2.0, 5.0]
    first = type("First", (kind,), {"__getitem__": lambda mine, _: kind.__getitem__(mine, 0)})(
        items
    )
    guards = guarded(lambda x: x * first[1], X)
    assert guards.failed() == ""
    kind.__setitem__(first, 0, 3.0)
    assert "first" in guards.failed()


def test_a_class_may_say_of_its_objects_which_module_they_are_of():
    kind = type("Named", (), {"__module__": property(lambda _: "elsewhere"), "scale": 3.0})
    held = kind()
    guards = guarded(lambda x: x * held.scale, X)
    assert guards.failed() == ""
    kind.scale = 4.0
    assert "scale" in guards.failed()
