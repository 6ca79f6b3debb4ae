"""Objects of a data class from columns, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Row = TypeVar("_Row", bound=DataclassInstance)


def rows_of(kind: type[_Row], columns: Mapping[str, Iterable[Any]]) -> list[_Row]:
    """Return objects with the defaults of fields that have no column; the first field has one."""
    return list(map(kind, *(columns.get(f.name, repeat(f.default)) for f in fields(kind))))


def columns_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return an attribute of all objects under each name."""
    return {name: list(map(attrgetter(name), rows)) for name in names}
