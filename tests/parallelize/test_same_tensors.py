"""What compiled code notices of tensors and objects is what Python notices."""

from __future__ import annotations

from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from depgraph.torch import same_tensors  # noqa: E402
from depgraph.torch.same_tensors import described, looked_at, with_their  # noqa: E402

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
    is_same, then = looked_at(tensors), [*map(described, tensors)]
    assert is_same()
    change = CHANGES[data.draw(st.sampled_from([*CHANGES]))]
    with suppress(RuntimeError, TypeError):  # there is no such change of this tensor
        change(data.draw(st.sampled_from(tensors)))
    assert is_same() is ([*map(described, tensors)] == then)


@pytest.mark.parametrize("bit", ["conj", "neg"])
def test_bits_of_tensors_count(bit):
    tensor = torch.zeros(4, dtype=torch.cfloat)
    tensor = tensor if bit == "conj" else tensor.conj().imag
    is_same = looked_at([tensor])
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
    is_same = with_their([Thing(), thing])
    thing.held = 7
    assert is_same()
    thing.__dict__ = dict(vars(thing))
    assert not is_same()


def len_of():
    """Return nothing: a function whose attributes are looked at."""


def test_another_class_is_noticed():
    thing = Thing()
    is_same = with_their([thing])
    thing.__class__ = type("Other", (Thing,), {})
    assert not is_same()


def test_python_asks_where_a_library_lacks_a_function(monkeypatch):
    def missing():
        raise AttributeError("aoti_torch_get_dim")

    monkeypatch.setattr(same_tensors, "_comparisons", missing)
    tensor, thing = torch.zeros(4, 4), Thing()
    is_same, has_its = looked_at([tensor]), with_their([thing])
    assert is_same()
    assert has_its()
    tensor.t_()
    thing.__dict__ = {}
    assert not is_same()
    assert not has_its()


def test_an_address_that_stands_twice_is_not_taken():
    with pytest.raises(LookupError):
        same_tensors._place_of([Thing()], lambda _: 0)
