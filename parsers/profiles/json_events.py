"""Read a Chrome trace, however large, one event at a time."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from depgraph.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLANKS = re.compile(r"[ \t\r\n]+")
_SEPARATORS = re.compile(r"[ \t\r\n,]+")
_UNQUOTED = re.compile(
    r'(":\s*)(-?(?:inf(?:inity)?|nan)(?:\([a-z]*\))?)(?=[\s,}\]])', re.IGNORECASE
)
_LARGEST_VALUE = 1 << 24
_NEAR_END = 12
_EVENTS = "traceEvents"


class ChromeTrace:
    """The events of a Chrome trace, as a stream.

    Numbers with a fraction become `Decimal`, since time stamps have more digits than a float;
    numbers that are not finite become None, unquoted ``inf`` and ``nan`` included.

    Parameters
    ----------
    path : Path
        For messages.
    chunks : iterator of str
        The text of the file, in pieces of any size.

    Attributes
    ----------
    properties : dict
        The other members of the outer object, as far as they have been read.
    has_events : bool
        Whether there is a list of events at all.
    cut_at : int or None
        Line on which the text ended in the midst of something, if it did.
    """

    def __init__(self, path: Path, chunks: Iterator[str]) -> None:
        self.properties: dict[str, Any] = {}
        self.has_events = False
        self.cut_at: int | None = None
        self._path = path
        self._chunks = chunks
        self._text = ""
        self._position = 0
        self._lines_before = 0
        self._ended = False
        self._repair = False
        self._decode = json.JSONDecoder(
            parse_float=Decimal, parse_constant=lambda _: None, strict=False
        ).raw_decode

    def events(self) -> Iterator[object]:
        """Yield every member of the list of events.

        Raises
        ------
        ProfileError
            If the text is damaged. A text that merely ends early sets `cut_at`.
        """
        try:
            outer = self._next_character()
            if outer == "[":
                yield from self._members()
            elif outer == "{":
                yield from self._object()
        except _TextEndedError:
            self.cut_at = self._line(len(self._text))

    def _object(self) -> Iterator[object]:
        self._position += 1
        while self._next_character(_SEPARATORS) != "}":
            key = self._value()
            if self._next_character() != ":":
                raise self._damaged()
            self._position += 1
            opening = self._next_character()
            if key == _EVENTS and opening == "[":
                yield from self._members()
            else:
                self.properties[str(key)] = self._value()

    def _members(self) -> Iterator[object]:
        self.has_events = True
        self._position += 1
        while self._next_character(_SEPARATORS) != "]":
            yield self._value()
        self._position += 1

    def _next_character(self, skipped: re.Pattern[str] = _BLANKS) -> str:
        while True:
            if match := skipped.match(self._text, self._position):
                self._position = match.end()
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._more():
                raise _TextEndedError

    def _value(self) -> object:
        while True:
            try:
                value, end = self._decode(self._text, self._position)
            except json.JSONDecodeError as error:
                self._recover(error)
            except (RecursionError, ValueError):
                raise self._damaged() from None
            else:
                if end < len(self._text) or not self._more():
                    self._position = end
                    return value

    def _recover(self, error: json.JSONDecodeError) -> None:
        """Make the next attempt succeed: repair a number that is none, or get more text."""
        if _UNQUOTED.search(self._text, max(0, error.pos - _NEAR_END)) and not self._repair:
            self._repair = True
            self._text = _repaired(self._text)
            return
        unfinished = (
            error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR_END
        )
        if not unfinished or len(self._text) - self._position > _LARGEST_VALUE:
            raise self._damaged(error.pos)
        if not self._more():
            raise _TextEndedError

    def _more(self) -> bool:
        chunk = "" if self._ended else next(self._chunks, "")
        if not chunk:
            self._ended = True
            return False
        self._lines_before += self._text.count("\n", 0, self._position)
        text = self._text[self._position :] + chunk
        self._text = _repaired(text) if self._repair else text
        self._position = 0
        return True

    def _line(self, position: int) -> int:
        return 1 + self._lines_before + self._text.count("\n", 0, position)

    def _damaged(self, position: int | None = None) -> ProfileError:
        return ProfileError(
            self._path,
            "the JSON is damaged",
            "copy the file again, or profile again",
            line=self._line(self._position if position is None else position),
        )


class _TextEndedError(Exception):
    """The text ended where more was expected."""


def _repaired(text: str) -> str:
    """Replace unquoted numbers that are not finite by ``NaN``, which the decoder knows."""
    return _UNQUOTED.sub(lambda match: f"{match[1]}NaN", text)
