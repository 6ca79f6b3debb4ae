"""What a trace is read from, whatever it is compressed with; its text in buffers of whole lines."""

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from depgraph.errors import TraceError
from depgraph.parsers.scanning.scanning_jit import MAX_LINE_BYTES, NEWLINE, PADDING
from depgraph.system.arrays import Text
from depgraph.trace.records import FileState, Overflow, ScannedPart, SourceFiles, Trace, unreadable

_MAGIC = {
    b"\xfd7zXZ\x00": "xz",
    b"\x1f\x8b": "gz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"BZh": "bz2",
    b"PK\x03\x04": "zip",
}
_MAGIC_BYTES = 6
_BUFFER_BYTES = 1 << 20
_XZ_READ_BYTES = 1 << 18
_XZ_MEMORY_BYTES = 256 << 20  # what `xz -9` makes needs 65 MB


def compression_of(head: bytes) -> str | None:
    """Name the compression of a file by its first bytes; None if it is not compressed."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


class _XzReader(io.RawIOBase):
    """An xz file of one or several streams, unpacked within a memory limit."""

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__()
        self._raw = raw
        self._packed = b""
        self._new_decoder()

    def _new_decoder(self) -> None:
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with what the next packed bytes give; return the number of bytes."""
        while True:
            if self._decoder.eof and not self._find_next_stream():
                return 0
            packed = b""
            if self._decoder.needs_input:
                packed = self._packed or self._raw.read(_XZ_READ_BYTES)
                self._packed = b""
                if not packed:
                    raise EOFError
            text = self._decoder.decompress(packed, max_length=len(buffer))
            if text:
                buffer[: len(text)] = text
                return len(text)

    def _find_next_stream(self) -> bool:
        rest = self._decoder.unused_data
        while not rest.strip(b"\0"):  # padding between streams
            rest = self._raw.read(_XZ_READ_BYTES)
            if not rest:
                return False
        self._packed = rest.lstrip(b"\0")
        self._new_decoder()
        return True


def _open_zst(raw: BinaryIO) -> Any:
    from depgraph.parsers.scanning.zst import zstd

    return zstd.open(raw)


_READERS: dict[str, Callable[[Any], Any]] = {
    "xz": _XzReader, "gz": gzip.open, "bz2": bz2.open, "zst": _open_zst
}  # fmt: skip


class TraceStream(io.RawIOBase):
    """A decompressing reader that turns every decoding failure into a `TraceError`."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = "<stdin>" if path is None else str(path)
        try:
            raw = sys.stdin.buffer if path is None else path.open("rb", buffering=_BUFFER_BYTES)
            # Standard input is something else where a test or a notebook has replaced it.
            if not isinstance(raw, io.BufferedReader):
                raw = io.BufferedReader(cast("io.RawIOBase", raw))
            self._raw: io.BufferedReader = raw
            head = raw.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.compression = compression_of(head)
        if self.compression is not None and self.compression not in _READERS:
            raw.close()
            raise TraceError(self.path, f"is a {self.compression} archive", "unpack it first")
        self._stream: Any = raw if self.compression is None else _READERS[self.compression](raw)
        self._ahead = b""
        self._failure: TraceError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end, without consuming them."""
        wanted = size - len(self._ahead)
        if wanted > 0:
            more = bytearray(wanted)
            got = self._fill(memoryview(more))
            self._ahead += bytes(more[:got])
        return self._ahead[:size]

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` as far as the stream goes; raise where the last call met damage."""
        view = memoryview(buffer)
        ahead = min(len(self._ahead), len(view))
        view[:ahead] = self._ahead[:ahead]
        self._ahead = self._ahead[ahead:]
        return ahead if ahead == len(view) else ahead + self._fill(view[ahead:], ahead)

    def _fill(self, view: memoryview, before: int = 0) -> int:
        """Fill `view`; an error waits for the next call if anything was read before it."""
        if self._failure is not None:
            if before:
                return 0
            raise self._failure
        filled = 0
        try:
            while filled < len(view):
                got = self._stream.readinto(view[filled:])
                if not got:
                    break
                filled += got
        except Exception as error:
            self._failure = self._explained(error)
            if self._failure is None:
                raise
            if filled + before == 0:
                raise self._failure from None
        return filled

    def _explained(self, error: Exception) -> TraceError | None:
        """Put a failure to read or to decode in one line; None if it is neither."""
        again = "copy or compress it again"
        if isinstance(error, EOFError):
            found = f"the {self.compression} stream ends early"
            return TraceError(self.path, found, f"the file was cut: {again}")
        if isinstance(error, OSError) and (self.compression is None or error.errno is not None):
            return unreadable(self.path, error)
        if isinstance(error, lzma.LZMAError) and "memory" in str(error).lower():
            found = f"the xz stream needs more than {_XZ_MEMORY_BYTES >> 20} MiB to unpack"
            return TraceError(self.path, found, "compress it again with xz -6")
        damage: tuple[type[Exception], ...] = OSError, lzma.LZMAError, zlib.error, ValueError
        if self.compression == "zst":
            from depgraph.parsers.scanning.zst import zstd

            damage = *damage, zstd.ZstdError
        if isinstance(error, damage):
            found = f"the {self.compression} stream is damaged ({error})"
            return TraceError(self.path, found, again)
        return None

    @property
    def input_position(self) -> int:
        """Bytes of the (compressed) file read so far, and 0 where that cannot be told."""
        try:
            return self._raw.tell()
        except OSError:
            return 0

    def close(self) -> None:
        """Close the decompressor and the file."""
        if not self.closed:
            self._stream.close()
            if self._raw is not sys.stdin.buffer:
                self._raw.close()
        super().close()


class TraceInput:
    """A file, or standard input (None), that can be looked at before it is read."""

    def __init__(self, path: Path | None, memory_limit: int | None = None) -> None:
        self.memory_limit = memory_limit  # bytes unpacked at once, where it is no stream
        self.name = "<stdin>" if path is None else str(path)
        self._path = path
        # A pipe, like standard input, can be read only once.
        self._is_file = path is not None and not (path.is_fifo() or path.is_char_device())
        self._state: FileState | None = None
        if self.path is not None:
            with suppress(OSError):  # said in words when the file is opened
                self._state = FileState.of(self.path)
        self._opened: TraceStream | None = None

    @property
    def path(self) -> Path | None:
        """The file; None if it is a pipe or standard input."""
        return self._path if self._is_file else None

    def add_to(self, sources: SourceFiles) -> None:
        """Add the file, if it is one, as it was when this was made."""
        if self.path is not None:
            sources.add(self.path, self._state)

    def head(self, size: int) -> bytes:
        """Return the first `size` bytes of the text, unpacked; fewer if it is shorter."""
        if not self._is_file:
            return self.open().peek(size)
        with self.open() as stream:
            return stream.peek(size)

    def open(self) -> TraceStream:
        """Return a stream at the start of the text; a pipe can be read once."""
        if self._is_file:
            return TraceStream(self._path)
        self._opened = self._opened or TraceStream(self._path)
        return self._opened


def name_of(first: TraceInput, n_inputs: int) -> str:
    """Name a trace of several inputs by the first."""
    return first.name if n_inputs == 1 else f"{first.name} and {n_inputs - 1} more"


class InputTrace(Trace):
    """A trace of one or several inputs."""

    def __init__(self, inputs: Sequence[TraceInput]) -> None:
        self._inputs = inputs
        self.sources = SourceFiles()
        for item in inputs:
            item.add_to(self.sources)
        self.name = name_of(inputs[0], len(inputs))

    @property
    def input_bytes(self) -> int | None:
        """Size of the input in bytes, compressed as it is; None for standard input."""
        return None if any(item.path is None for item in self._inputs) else self.sources.bytes


class WholeInput(NamedTuple):
    """An input that is read from its beginning to its end, at once."""

    source: TraceInput
    read: Callable[[TraceStream, Overflow | None], ScannedPart]
    input_bytes: int
    is_one_of_several: bool = False

    def scan(self, overflow: Overflow | None = None) -> ScannedPart:
        """Read the input."""
        with self.source.open() as stream:
            part = self.read(stream, overflow)
            part.bytes = self.input_bytes or stream.input_position
        part.path = self.source.name if self.is_one_of_several else None
        return part


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
) -> Iterator[LineBuffer]:
    """Cut a stream into buffers of whole lines, to be released after use, without long ones."""
    carry = b""
    is_dropping = anything = False
    capacity = MAX_LINE_BYTES + part_bytes + PADDING
    spare: list[NDArray[np.uint8]] = []
    while True:
        text = memory = spare.pop() if spare else np.empty(capacity, np.uint8)
        text[: len(carry)] = np.frombuffer(carry, np.uint8)
        failure = None
        got = 0
        try:
            got = stream.readinto(text.data[len(carry) : len(carry) + part_bytes])
            anything = anything or got > 0
            if got < part_bytes:
                stream.readinto(memoryview(bytearray(1)))  # raises what ended the stream early
        except TraceError as error:
            if not anything:
                raise
            failure = error.found
        filled = len(carry) + got
        is_last = got < part_bytes
        text[filled : filled + PADDING] = 0
        begin = 0
        if is_dropping:
            begin = min(find_text(text, b"\n", 0, filled) + 1, filled)
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


def last_line_end(text: Text, filled: int) -> int:
    """Return the position after the last newline in ``text[:filled]``, 0 if there is none."""
    for window in (4096, 1 << 16, filled):
        tail = text[max(0, filled - window) : filled].tobytes()
        at = tail.rfind(b"\n")
        if at >= 0:
            return filled - len(tail) + at + 1
    return 0


def find_mark(file: io.BufferedReader, mark: bytes, begin: int, limit: int) -> int:
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
