"""What compiled code notices of tensors and objects is what Python notices."""

from __future__ import annotations

from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from depgraph.torch import unchanged  # noqa: E402
from depgraph.torch.unchanged import Versions, described, objects_as_now, tensors_as_now  # noqa: E402
from depgraph.torch.values import is_equal_tensor  # noqa: E402

MEMORY = torch.zeros(64)
CHANGES = {
    "nothing": lambda _: None,
    "values": lambda t: t.fill_(3),
    "shape": lambda t: setattr(t, "data", t.data.view(2, -1)),
    "strides": lambda t: setattr(t, "data", t.data.t()),
    "one more axis": lambda t: setattr(t, "data", t.data.unsqueeze(0)),
    "memory": lambda t: setattr(t, "data", t.data.clone()),
    "type": lambda t: setattr(t, "data", t.data.view(torch.int32)),
    "larger memory": lambda t: t.untyped_storage().resize_(1 << 20),
    "gradients": lambda t: t.requires_grad_(not t.requires_grad),
    "class": lambda t: setattr(t, "__class__", torch.nn.Parameter),
    "the object in C++": lambda t: torch.utils.swap_tensors(t, torch.zeros(4, 4)),
}
KINDS = {
    "plain": lambda: torch.zeros(4, 4),
    "a view": lambda: MEMORY[8:24].view(4, 4),
    "one axis": lambda: torch.zeros(16),
    "no axis": lambda: torch.zeros(()),
    "nothing in it": lambda: torch.zeros(0, 4),
    "seven axes": lambda: torch.zeros(1, 2, 1, 2, 1, 2, 1),
    "halves": lambda: torch.zeros(4, 4, dtype=torch.bfloat16),
    "complex": lambda: torch.zeros(4, 4, dtype=torch.cfloat),
    "to be conjugated": lambda: torch.zeros(4, 4, dtype=torch.cfloat).conj(),
    "to be negated": lambda: torch.zeros(4, 4, dtype=torch.cfloat).conj().imag,
}


@given(st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=5), st.data())
def test_what_is_noticed_is_what_differs(kinds, data):
    tensors = [KINDS[kind]() for kind in kinds]
    is_same, then = tensors_as_now(tensors), [*map(described, tensors)]
    assert is_same()
    change = CHANGES[data.draw(st.sampled_from([*CHANGES]))]
    with suppress(RuntimeError, TypeError):  # there is no such change of this tensor
        change(data.draw(st.sampled_from(tensors)))
    assert is_same() is ([*map(described, tensors)] == then)


@pytest.mark.parametrize("bit", ["conj", "neg"])
def test_bits_of_tensors_count(bit):
    tensor = torch.zeros(4, dtype=torch.cfloat)
    tensor = tensor if bit == "conj" else tensor.conj().imag
    is_same = tensors_as_now([tensor])
    tensor.data = tensor.data.conj() if bit == "conj" else torch._neg_view(tensor.data)
    assert not is_same()


class Thing:
    def __init__(self):
        self.held = 1


class WithSlots:
    __slots__ = ("__dict__", "held")

    def __init__(self):
        self.held, self.other = 1, 2


@pytest.mark.parametrize("make", [Thing, WithSlots, lambda: torch.nn.Linear(1, 1), lambda: len_of])
def test_classes_and_attributes_of_objects(make):
    thing = make()
    is_same = objects_as_now([Thing(), thing])
    thing.held = 7
    assert is_same()
    thing.__dict__ = dict(vars(thing))
    assert not is_same()


def len_of():
    """Return nothing: a function whose attributes are looked at."""


def test_another_class_is_noticed():
    thing = Thing()
    is_same = objects_as_now([thing])
    thing.__class__ = type("Other", (Thing,), {})
    assert not is_same()


def test_python_asks_where_a_library_lacks_a_function(monkeypatch):
    def missing():
        raise AttributeError("aoti_torch_get_dim")

    monkeypatch.setattr(unchanged, "comparisons", missing)
    monkeypatch.setattr(unchanged, "_is_compiled", unchanged._is_compiled.__wrapped__)
    tensor, thing = torch.zeros(4, 4), Thing()
    is_same, has_its = tensors_as_now([tensor]), objects_as_now([thing])
    assert is_same()
    assert has_its()
    tensor.t_()
    thing.__dict__ = {}
    assert not is_same()
    assert not has_its()


def test_an_address_that_stands_twice_is_not_taken():
    class Empty:
        __slots__ = ("one", "two")

    with pytest.raises(LookupError):
        unchanged._place_of([Empty()], lambda _: 0)


CHANGES_OF_DICTIONARIES = {
    "an item": lambda d, n: d.__setitem__("a", [n]),
    "an equal item": lambda d, _: d.__setitem__("a", list(d["a"])),
    "one more": lambda d, n: d.__setitem__(f"more{n}", 0),
    "one less": lambda d, _: d.pop("b"),
    "update": lambda d, n: d.update(b=[n]),
    "in place": lambda d, n: d.__ior__({"c": [n]}),
    "popitem": lambda d, _: d.popitem(),
    "setdefault": lambda d, n: d.setdefault(f"more{n}", 0),
    "clear": lambda d, _: d.clear(),
}


class Counted:
    """Stands for what a dictionary must hold; counts how often it is looked at."""

    def __init__(self, dictionary):
        self.dictionary, self.looks, self.reason = dictionary, 0, ""

    def changed(self):
        self.looks += 1
        return self.reason


@given(st.lists(st.sampled_from([*CHANGES_OF_DICTIONARIES]), max_size=4), st.integers(0, 2))
def test_a_dictionary_is_looked_at_again_when_it_changed(names, which):
    kept = [Counted({"a": [0], "b": [0]}), Counted({}), Counted(vars(Thing()))]
    kept[which].dictionary.update(a=[1], b=[1])
    versions = Versions(kept)
    assert versions.changed() == ""
    assert [each.looks for each in kept] == [1, 1, 1]
    for number, name in enumerate(names):
        with suppress(KeyError):
            CHANGES_OF_DICTIONARIES[name](kept[which].dictionary, number)
    kept[which].reason = "it was changed"
    if names:
        assert [versions.changed() for _ in range(2)] == ["it was changed"] * 2
    elif unchanged._version_place():
        assert versions.changed() == ""


def test_attributes_set_in_any_way_count():
    def set_held(thing, value):
        thing.held = value

    things = [Thing() for _ in range(3)]
    kept = [Counted(vars(thing)) for thing in things]
    versions = Versions(kept)
    for number in range(300):  # long enough for Python to have an instruction for it
        which = number % 3
        assert versions.changed() == ""
        looks = kept[which].looks
        set_held(things[which], [number])
        assert versions.changed() == ""
        assert kept[which].looks > looks


def test_zeros_are_told_apart_by_their_signs():
    zeros = torch.zeros(3)
    assert is_equal_tensor(zeros, zeros.clone())
    assert not is_equal_tensor(zeros, -zeros)
    assert is_equal_tensor(torch.arange(3), torch.arange(3))
