"""Cut a stream of text into buffers of whole lines, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.parsers.scanning.text_jit import MAX_LINE_BYTES, NEWLINE, PADDING

if TYPE_CHECKING:
    from io import BufferedReader

    from depgraph.system.arrays import Text

_FIRST_WINDOW = 512
_SEARCH_BYTES = 1 << 18


class Readable(Protocol):
    """What text is read from."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer as far as the text goes; raise a `TraceError` if it is damaged."""


@dataclass(frozen=True, slots=True)
class LineBuffer:
    """Whole lines of a stream."""

    text: Text  # [>= size + PADDING]
    size: int  # bytes of text
    is_last: bool  # whether the stream ends here
    failure: str | None  # why the stream could not be read on
    overlong: int  # lines of more than `MAX_LINE_BYTES` that were left out behind this text, 0 or 1
    _memory: list[NDArray[np.uint8]]  # empty once released
    _spare: list[NDArray[np.uint8]]

    def release(self) -> None:
        """Let the stream use the memory of `text` again, which must not be looked at any more."""
        self._spare.extend(self._memory)
        self._memory.clear()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Take only the text along to another process."""
        text = self.text[: self.size + PADDING]
        return LineBuffer, (text, self.size, self.is_last, self.failure, self.overlong, [], [])


def whole_lines(
    stream: Readable,
    part_bytes: int,  # to read for each buffer
    cut: Callable[[bytes], int] | None = None,  # from whole lines to how many bytes to take now
    *,
    first_bytes: int = 0,  # to read for the first buffer, if they are more
) -> Iterator[LineBuffer]:
    """Cut a stream into buffers of whole lines, to be released after use, without long ones."""
    carry = b""
    is_dropping = anything = False
    wanted = max(part_bytes, first_bytes)
    capacity = MAX_LINE_BYTES + wanted + PADDING
    spare: list[NDArray[np.uint8]] = []
    while True:
        text = memory = spare.pop() if spare else np.empty(capacity, np.uint8)
        text[: len(carry)] = np.frombuffer(carry, np.uint8)
        failure = None
        got = 0
        try:
            got = stream.readinto(text.data[len(carry) : len(carry) + wanted])
            anything = anything or got > 0
            if got < wanted:
                stream.readinto(memoryview(bytearray(1)))  # raises what ended the stream early
        except TraceError as error:
            if not anything:
                raise
            failure = error.found
        filled = len(carry) + got
        is_last = got < wanted
        text[filled : filled + PADDING] = 0
        begin = 0
        if is_dropping:
            begin = min(end_of_line(text, 0, filled) + 1, filled)
            is_dropping = begin == 0 or text[begin - 1] != NEWLINE
        size = filled if is_last else max(begin, last_line_end(text, filled))
        if cut is not None and not is_last and size > begin:
            size = begin + cut(text[begin:size].tobytes())
        carry = b"" if is_dropping else text[size:filled].tobytes()
        overlong = int(len(carry) > MAX_LINE_BYTES)
        if overlong:
            carry, is_dropping = b"", True
        text = text[begin:]
        size = 0 if is_dropping and not overlong else size - begin
        text[size : size + PADDING] = 0
        yield LineBuffer(text, size, is_last, failure, overlong, [memory], spare)
        if is_last:
            spare.clear()
            return
        wanted = part_bytes


def find_text(text: Text, wanted: bytes, position: int, end: int) -> int:
    """Return where `wanted` next starts in ``text[position:end]``, or `end`; near is fast."""
    window = _FIRST_WINDOW
    while position < end:
        piece = text[position : min(position + window + len(wanted) - 1, end)]
        at = piece.tobytes().find(wanted)
        if at >= 0:
            return position + at
        position += window
        window *= 2
    return end


def end_of_line(text: Text, position: int, end: int) -> int:
    """Return the position of the next newline at or after `position`, or `end`."""
    return find_text(text, b"\n", position, end)


def last_line_end(text: Text, filled: int) -> int:
    """Return the position after the last newline in ``text[:filled]``, 0 if there is none."""
    for window in (4096, 1 << 16, filled):
        tail = text[max(0, filled - window) : filled].tobytes()
        at = tail.rfind(b"\n")
        if at >= 0:
            return filled - len(tail) + at + 1
    return 0


def find_mark(file: BufferedReader, mark: bytes, begin: int, limit: int) -> int:
    """Return where in ``[begin, limit)`` a line with `mark` starts, else `limit`; 0 is one, too."""
    if begin == 0 or begin >= limit:
        return min(begin, limit)
    at = begin - 1
    while at < limit:
        file.seek(at)
        found = file.read(_SEARCH_BYTES + len(mark)).find(mark)
        if found >= 0:
            return min(at + found + 1, limit)
        at += _SEARCH_BYTES
    return limit
