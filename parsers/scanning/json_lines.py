"""Traces in JSON, an object a line of up to 64 MiB, and the numbers and texts in one.

A `ValueError` or `TypeError` says what is wrong with those.
"""

import io
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from depgraph.errors import TraceError
from depgraph.parsers.scanning.inputs import TraceStream
from depgraph.parsers.scanning.tables import TouchTable
from depgraph.system.text import in_short
from depgraph.trace.records import Damage, Dim3, Overflow, ScannedPart

DAMAGE = (ValueError, LookupError, TypeError, OverflowError, AttributeError, RecursionError)
"""What a record that is damaged raises where it is read."""
LARGEST = (1 << 32) - 1  # of what recorders count
Event = dict[str, Any]
_DIMENSIONS = 3
_DAMAGED = "damaged access lines"
_LINES_AT_ONCE = 4096
_MOST_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 20


def lines_of(stream: TraceStream) -> Iterator[bytes]:
    """Yield the lines of a stream; of one that is too long only how it begins, and its end."""
    reader = io.BufferedReader(stream, _READ_BYTES)
    try:
        while line := reader.readline(_MOST_LINE_BYTES):
            end = line
            while end and not end.endswith(b"\n") and len(end) == _MOST_LINE_BYTES:
                end = reader.readline(_MOST_LINE_BYTES)
            yield line if end is line else line[:_READ_BYTES] + b"\n"
    finally:
        reader.detach()  # or it closes standard input


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
        raise ValueError(f"{key} is {in_short(repr(values))}, no three numbers")
    x, y, z = (checked(key, value, least, most) for value in values)
    return x, y, z


def text_of(event: Event, key: str) -> str:
    """Return a text that can be written as UTF-8."""
    value = event[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {in_short(repr(value))}, no text")
    return encodable(key, value)


def encodable(key: str, text: str) -> str:
    """Return a text; raise ValueError if half of a character stands in it alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key} is {in_short(ascii(text))}, no text") from None
    return text


def lanes_of(record: Event, key: str, least: int, most: int) -> list[int]:
    """Return the addresses of lanes; `ValueError` if they are none, or too few or many."""
    lanes: list[int] = record[key]
    if not least <= len(lanes) <= most or {*map(type, lanes)} != {int}:
        raise ValueError(f"{key} are not {least} to {most} numbers")
    if min(lanes) < 0 or max(lanes) >> 64:
        raise ValueError(f"{key} that 64 bits do not hold")
    return lanes


class JsonLines:
    """Reads lines into a part; each format says what a line means, and what follows from all."""

    _take: Callable[[bytes], Any]  # from a line to the access to global memory that it is, if any
    _add: Callable[[list[Any]], None]  # takes accesses
    _finish: Callable[[], None]  # says what only all lines together tell

    def __init__(self, part: ScannedPart, overflow: Overflow | None = None) -> None:
        self._part = part
        self._touches = TouchTable(overflow)

    def read(self, stream: TraceStream) -> ScannedPart:
        """Read all lines; return all that they said."""
        lines = lines_of(stream)
        try:
            while some := list(islice(lines, _LINES_AT_ONCE)):
                self._add([access for line in some if (access := self._taken(line)) is not None])
        except TraceError as error:
            if not self._part.lines:
                raise
            self._part.damage.append(Damage(self._part.lines, error.found))
        self._finish()
        return self._part

    def _taken(self, line: bytes) -> Any:
        part = self._part
        part.lines += 1
        part.text_bytes += len(line)
        try:
            return self._take(line)
        except DAMAGE:
            if line.endswith(b"\n"):
                self._note_damaged(part.lines)
            else:
                part.damage.append(Damage(part.lines, "the last line is cut"))
        return None

    def _note_damaged(self, line: int) -> None:
        self._part.add_damaged_line("access line is damaged", line)
        self._part.skipped[_DAMAGED] += 1
        self._part.warnings[_DAMAGED] += 1
