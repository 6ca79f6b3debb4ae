"""Numbers and texts of objects in JSON; `ValueError` or `TypeError` says what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.system.text import in_short

if TYPE_CHECKING:
    from depgraph.trace.records import Dim3

_DIMENSIONS = 3
LARGEST = (1 << 32) - 1  # of what the recorder counts
Event = dict[str, Any]


def whole(event: Event, key: str, least: int = 0, most: int = LARGEST) -> int:
    """Return a number of an event; raise ValueError if it cannot be."""
    return checked(key, event[key], least, most)


def checked(key: str, value: object, least: int, most: int) -> int:
    """Return a number if it is one within limits."""
    if type(value) is not int or not least <= value <= most:
        message = f"{key} is {in_short(repr(value))}, no whole number from {least} to {most}"
        raise ValueError(message)
    return value


def three(event: Event, key: str, least: int = 0, most: int = LARGEST) -> Dim3:
    """Return three numbers, of a grid or the like."""
    values = event[key]
    if not isinstance(values, list) or len(values) != _DIMENSIONS:
        message = f"{key} is {in_short(repr(values))}, no three numbers"
        raise ValueError(message)
    x, y, z = (checked(key, value, least, most) for value in values)
    return x, y, z


def text_of(event: Event, key: str) -> str:
    """Return a text that can be written as UTF-8."""
    value = event[key]
    if not isinstance(value, str):
        message = f"{key} is {in_short(repr(value))}, no text"
        raise TypeError(message)
    return encodable(key, value)


def encodable(key: str, text: str) -> str:
    """Return a text; raise ValueError if half of a character stands in it alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{key} is {in_short(ascii(text))}, no text"
        raise ValueError(message) from None
    return text
