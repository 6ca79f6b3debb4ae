"""Tables of records: arrays for compiled code, lists of plain objects where it is interpreted."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray


Number = TypeVar("Number", bound="np.generic[Any]")


def table(record: np.dtype[np.void], n: int, **columns: ArrayLike) -> NDArray[np.void]:
    """Return `n` records: fields that are not given are 0."""
    made = np.zeros(n, record)
    for name, values in columns.items():
        made[name] = values
    return made


def per(values: ArrayLike | None, default: float, size: int, dtype: type) -> NDArray[Any]:
    """Return a value for each of so many, where one may be said for all, or none."""
    result: NDArray[Any] = np.empty(size, dtype)
    result[:] = default if values is None else values
    return result


def writable(values: NDArray[Number]) -> NDArray[Number]:
    """Return an array that compiled code need not be compiled for once more."""
    return values if values.flags.writeable else values.copy()


def interpreted(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that runs `function` on objects, and writes back what became of them."""

    def run(*arguments: Any) -> None:
        changed: list[tuple[NDArray[np.void], list[Any]]] = []
        function(*[_for_python(argument, changed) for argument in arguments])
        for records, rows in changed:
            records[:] = list(map(attrgetter(*records.dtype.names or ()), rows))

    return run


def _for_python(argument: Any, changed: list[tuple[NDArray[np.void], list[Any]]]) -> Any:
    """Return a table as a list of objects, and bundles with such lists instead of tables."""
    if isinstance(argument, tuple):
        return argument._replace(  # type: ignore[attr-defined]
            **{
                name: _for_python(value, changed)
                for name, value in zip(argument._fields, argument, strict=True)  # type: ignore[attr-defined]
            }
        )
    if isinstance(argument, np.ndarray) and argument.dtype.names:
        row = _row(argument.dtype.names)
        rows = [row(*values) for values in argument.tolist()]
        changed.append((argument, rows))
        return rows
    return argument


@cache
def _row(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a class with an attribute for each field of a record."""

    def fill(self: Any, *values: Any) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(self, name, value)

    return type("Row", (), {"__slots__": names, "__init__": fill})
