"""Leaves are found, and put back, as PyTorch's pytrees do it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from depgraph.torch.arguments import Arguments  # noqa: E402
from depgraph.torch.nesting import Nesting  # noqa: E402

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - as people write them
LEAVES = st.sampled_from([None, 1, 2.5, "text", object()])
KEYS = st.sampled_from(["a", "b", 1, ("a", "to", "b")])


def within(inner):
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=2).map(OrderedDict)
        | st.tuples(inner, inner).map(lambda both: Pair(*both))
    )


VALUES = st.recursive(LEAVES, within, max_leaves=8)


@given(VALUES, VALUES)
def test_leaves_and_values_are_those_of_pytrees(value, other):
    nesting = Nesting(value)
    for each in (value, other):
        leaves, tree = pytree.tree_flatten(each)
        found = nesting.leaves_of(each)
        if tree == pytree.tree_structure(value):
            assert found == leaves
            assert pytree.tree_structure(nesting.filled(leaves)) == tree
        elif found is not None:  # what holds others in a leaf's place is no leaf that was expected
            assert any(not pytree.tree_structure(leaf).is_leaf() for leaf in found)
    assert nesting.filled(nesting.leaves) == value


@given(VALUES)
def test_the_same_value_is_nested_in_the_same_way(value):
    copy = pytree.tree_map(lambda leaf: leaf, value)
    assert Nesting(value).leaves_of(copy) == pytree.tree_leaves(value)


class Named(dict):
    """A dictionary that functions may treat in another way."""


X = torch.ones(3)
NESTED = torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)


@pytest.mark.parametrize(
    ("example", "other"),
    [
        ({"a": X, "b": X + 1}, {"b": X + 1, "a": X}),  # the order in which they come
        ({1: X}, {True: X}),
        ({0.0: X}, {-0.0: X}),
        ({(1, 2): X}, {(1.0, 2): X}),
        ({"a": X}, Named(a=X)),
        ({"a": X}, OrderedDict(a=X)),
        ({"a": X}, defaultdict(list, a=X)),
        ([X, X + 1], (X, X + 1)),
        ((X, X + 1), Pair(X, X + 1)),
        ([X, []], [X, ()]),
        ([X, []], [X, {}]),
        ([X, [None]], [X, None]),
        ({"a": [X]}, {"a": X}),
        ({"a": X}, {"a": X, "b": None}),
    ],
)
def test_what_a_function_can_tell_apart_does_not_fit(example, other):
    for one, another in ((example, other), (other, example)):
        made = Arguments((one,), gpu="cpu")
        assert made.matched((one,), {})[1] == ""
        assert made.matched((another,), {})[1] != ""


@pytest.mark.parametrize(
    "other",
    [torch.eye(3).to_sparse(), X.to_mkldnn(), NESTED, X.to(torch.device("meta"))],
)
def test_tensors_of_other_layouts_and_devices_do_not_fit(other):
    for example in ((X,), ({"a": X},), (X, 2)):
        given_ = ({"a": other},) if isinstance(example[0], dict) else (other, *example[1:])
        assert "of another kind" in Arguments(example, gpu="cpu").matched(given_, {})[1]
