"""Objects of data classes, made of columns and taken apart into them."""

from dataclasses import dataclass

import pytest

from depgraph.system.arrays import columns_of, rows_of


@dataclass(slots=True)
class _Car:
    name: str
    wheels: int = 4
    load: float | None = None


@dataclass(slots=True)
class _Truck(_Car):
    axles: int = 2


def test_columns_become_objects_with_defaults():
    assert rows_of(_Car, {"name": ["a", "b"], "load": iter([1.5, None])}) == [
        _Car("a", 4, 1.5),
        _Car("b", 4, None),
    ]


def test_columns_that_are_no_fields_are_left_out():
    assert rows_of(_Car, {"colour": ["red"], "name": ["a"]}) == [_Car("a")]


def test_fields_of_a_parent_come_first():
    assert rows_of(_Truck, {"axles": [3], "name": ["a"]}) == [_Truck("a", axles=3)]


def test_no_rows():
    assert rows_of(_Car, {"name": []}) == []
    assert columns_of([], ["name"]) == {"name": []}


@pytest.mark.parametrize("names", [("name", "wheels", "load"), ("wheels",), ()])
def test_objects_become_columns_in_the_order_asked_for(names):
    columns = columns_of([_Car("a"), _Car("b", 6, 2.0)], names)
    whole = {"name": ["a", "b"], "wheels": [4, 6], "load": [None, 2.0]}
    assert list(columns.items()) == [(name, whole[name]) for name in names]


def test_there_and_back():
    cars = [_Car("a"), _Car("b", 6, 2.0)]
    assert rows_of(_Car, columns_of(cars, ["load", "name", "wheels"])) == cars
