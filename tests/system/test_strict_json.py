"""JSON that `json` reads and depgraph never writes is refused, and so are values of other types."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.system.strict_json import read_json, restore


@dataclass(frozen=True)
class Part:
    name: str
    at: int


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    pair: tuple[int, int]
    times: list[float]
    by_name: dict[str, Part]
    chosen: frozenset[int]
    is_done: bool
    left: float | None = None


PART = {"name": "a", "at": -1}
WHOLE = {
    "parts": [PART], "pair": [1, 2**64 - 1], "times": [1, 0.5], "by_name": {"b": PART},
    "chosen": [3, 3], "is_done": True, "left": None,
}  # fmt: skip
STRANGE = [
    None, True, 1, -(2**63) - 1, 2**64, 1.5, float("inf"), float("nan"), 10**400, "x", "\ud800",
    [], [[]], {}, {"name": "a"}, [1, 2, 3],
]  # fmt: skip


def test_dataclasses_come_back():
    found = restore(Whole, WHOLE)
    part = Part("a", -1)
    assert found == Whole(
        (part,), (1, 2**64 - 1), [1.0, 0.5], {"b": part}, frozenset({3}), is_done=True
    )
    again = asdict(found) | {"parts": [PART], "pair": [1, 2], "chosen": [3]}
    assert restore(Whole, again).pair == (1, 2)


@pytest.mark.parametrize("key", WHOLE)
def test_each_field_is_of_its_type_or_refused(key):
    others = [value for value in STRANGE if value is not WHOLE[key]]
    taken = [value for value in others if not is_refused(Whole, WHOLE | {key: value})]
    fine = {
        "parts": [[]], "times": [[], [1, 2, 3]], "by_name": [{}], "chosen": [[], [1, 2, 3]],
        "is_done": [], "left": [1, -(2**63) - 1, 1.5], "pair": [],
    }  # fmt: skip
    assert taken == fine[key]
    assert is_refused(Whole, {k: v for k, v in WHOLE.items() if k != key})


def is_refused(kind, value):
    try:
        restore(kind, value)
    except ValueError:
        return True
    return False


def test_other_keys_are_refused():
    assert is_refused(Part, PART | {"more": 1})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from([*WHOLE]),
)
def test_whatever_stands_there_is_taken_or_a_value_error(value, key):
    is_refused(Whole, WHOLE | {key: value})
    is_refused(Whole, value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "'a' is there twice"),
        ('{"x": {"a": 1, "a": 1}}', "'a' is there twice"),
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[" * 1_000_000, "nested too deep"),
        ('{"a":' * 1_000_000, "nested too deep"),
        ("1" * 10_000, "Exceeds the limit"),
        ("{", "Expecting property name"),
        (b"\xff", "can't decode"),
    ],
)
def test_what_depgraph_never_writes_is_a_value_error(text, said):
    with pytest.raises(ValueError, match=said):
        read_json(text)
