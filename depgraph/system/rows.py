"""Objects: from columns and back, and put together by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

_Thing = TypeVar("_Thing")
_Key = TypeVar("_Key", bound=Hashable)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Row = TypeVar("_Row", bound=DataclassInstance)


def rows_of(kind: type[_Row], columns: Mapping[str, Iterable[Any]]) -> list[_Row]:
    """Return objects with the defaults of fields that have no column; the first field has one."""
    return list(map(kind, *(columns.get(f.name, repeat(f.default)) for f in fields(kind))))


def columns_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return an attribute of all objects under each name."""
    return {name: list(map(attrgetter(name), rows)) for name in names}


def grouped(things: Iterable[_Thing], key: Callable[[_Thing], _Key]) -> dict[_Key, list[_Thing]]:
    """Return the things of each key; keys and things keep the order in which they come.

    >>> grouped(["raw", "war", "edge"], len)
    {3: ['raw', 'war'], 4: ['edge']}
    """
    groups: dict[_Key, list[_Thing]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups
