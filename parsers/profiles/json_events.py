"""Read a Chrome trace, however large, one event at a time."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any

from depgraph.errors import ProfileError

_BLANKS = re.compile(r"[ \t\r\n]+")
_SEPARATORS = re.compile(r"[ \t\r\n,]+")
_UNQUOTED = re.compile(
    r'(":\s*)(-?(?:inf(?:inity)?|nan)(?:\([a-z]*\))?)(?=[\s,}\]])', re.IGNORECASE
)
_LARGEST_VALUE = 1 << 24  # characters of a value that is decoded as a whole
_MOST_MEMBERS = 1000  # kept of a larger value
_DEEPEST = 100
_STRING_END = re.compile(r'["\\]')
_KEPT = frozenset({"deviceProperties", "baseTimeNanoseconds", "distributedInfo"})
ROCPROF = "JSON of AMD's rocprofiler, which depgraph does not read"
ROCPROF_HINT = (
    "write times with: rocprofv3 --kernel-trace --output-format csv -- PROGRAM, and give its "
    "kernel_trace.csv"
)
_NEAR_END = 12


class ChromeTrace:
    """The events of a Chrome trace, as a stream from pieces of text of any size.

    Numbers with a fraction become `Decimal`, since time stamps have more digits than a float; those
    that are not finite None. Of values of more than 16 million characters small members are kept.
    """

    def __init__(self, path: Path, chunks: Iterator[str]) -> None:
        self.properties: dict[str, Any] = {}  # members beside the events, of kernels, so far
        self.has_events = False  # whether there is a list of them at all
        self.passed_over = 0  # texts and members of very large values that were left out
        self.cut_at: int | None = None  # line on which the text ended in the midst of something
        self._path = path
        self._chunks = chunks
        self._text = ""
        self._position = 0
        self._lines_before = 0
        self._ended = False
        self._repair = False
        decoder = partial(json.JSONDecoder, parse_constant=lambda _: None, strict=False)
        self._decode = decoder(parse_float=Decimal).raw_decode
        self._decode_any_number = decoder(parse_float=_any_number, parse_int=_any_number).raw_decode

    def events(self) -> Iterator[object]:
        """Yield every member of the list of events; a text that merely ends early sets `cut_at`."""
        try:
            outer = self._next_character()
            if outer == "[":
                yield from self._members()
            elif outer == "{":
                yield from self._object()
        except _TextEndedError:
            self.cut_at = self._line(len(self._text))
        else:
            with suppress(_TextEndedError):
                self._next_character()
                found = "goes on behind the end of its JSON document"
                raise self._refused(found, "keep one profile per file")

    def _object(self) -> Iterator[object]:
        self._position += 1
        while self._next_character(_SEPARATORS) != "}":
            key = self._key()
            if key == "traceEvents" and self._next_character() == "[":
                yield from self._members()
            elif str(key).startswith("rocprofiler"):
                raise ProfileError(self._path, f"is {ROCPROF}", ROCPROF_HINT)
            else:
                value = self._value()
                if key in _KEPT:
                    self.properties[str(key)] = value
        self._position += 1

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

    def _key(self) -> object:
        key = self._value()
        if self._next_character() != ":":
            raise self._damaged()
        self._position += 1
        self._next_character()
        return key

    def _value(self, depth: int = 0) -> object:
        decode = self._decode
        while True:
            try:
                value, end = decode(self._text, self._position)
            except json.JSONDecodeError as error:
                length = len(self._text) - self._position
                if self._is_unfinished(error) and length > _LARGEST_VALUE:  # sound so far
                    return self._large_value(depth)
                self._recover(error)
            except RecursionError:
                raise self._too_deep() from None
            except (ValueError, ArithmeticError):
                decode = self._decode_any_number
            else:
                if end < len(self._text):
                    self._position = end
                    return value
                if len(self._text) - self._position > _LARGEST_VALUE:
                    raise self._damaged()  # a number without end
                if not self._more():
                    self._position = end
                    return value

    def _is_unfinished(self, error: json.JSONDecodeError) -> bool:
        is_near_end = error.pos >= len(self._text) - _NEAR_END
        return is_near_end or error.msg.startswith("Unterminated string")

    def _large_value(self, depth: int) -> object:
        """Read a value member by member; keep of it what is small."""
        if depth > _DEEPEST:
            raise self._too_deep()
        opening = self._text[self._position]
        if opening == '"':
            self._pass_over_text()
            return None
        if opening not in "{[":
            raise self._damaged()
        self._position += 1
        members: dict[object, object] = {}
        while self._next_character(_SEPARATORS) not in "}]":
            key = self._key() if opening == "{" else len(members)
            self._next_character()
            value = self._value(depth + 1)
            if len(members) < _MOST_MEMBERS:
                members[str(key) if opening == "{" else key] = value
            else:
                self.passed_over += 1
        self._position += 1
        return members if opening == "{" else list(members.values())

    def _pass_over_text(self) -> None:
        self.passed_over += 1
        self._position += 1
        while True:
            found = _STRING_END.search(self._text, self._position)
            if found is None:
                self._position = len(self._text)
            elif found[0] == '"':
                self._position = found.end()
                return
            elif found.end() < len(self._text):
                self._position = found.end() + 1
                continue
            else:
                self._position = found.start()
            if not self._more():
                raise _TextEndedError

    def _recover(self, error: json.JSONDecodeError) -> None:
        """Make the next attempt succeed: repair a number that is none, or get more text."""
        if _UNQUOTED.search(self._text, max(0, error.pos - _NEAR_END)) and not self._repair:
            self._repair = True
            self._text = _repaired(self._text)
            return
        if not self._is_unfinished(error):
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
        hint = "copy the file again, or profile again"
        return self._refused("the JSON is damaged", hint, position)

    def _too_deep(self) -> ProfileError:
        return self._refused("the JSON is nested too deep for a profile", "profile again")

    def _refused(self, found: str, hint: str, position: int | None = None) -> ProfileError:
        line = self._line(self._position if position is None else position)
        return ProfileError(self._path, found, hint, line=line)


class _TextEndedError(Exception):
    """The text ended where more was expected."""


def _any_number(text: str) -> Decimal | None:
    """Read a number of any size; None where its exponent has no end."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _repaired(text: str) -> str:
    """Replace unquoted numbers that are not finite by ``NaN``, which the decoder knows."""
    return _UNQUOTED.sub(lambda match: f"{match[1]}NaN", text)
