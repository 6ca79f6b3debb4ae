"""Open a trace file as a stream of bytes, whatever it is compressed with."""

import bz2
import gzip
import io
import lzma
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from depgraph.errors import TraceError
from depgraph.trace.records import FileState, SourceFiles, unreadable

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


class _Reader(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def close(self) -> None: ...


def _decompressed(raw: io.BufferedReader, compression: str | None, path: str) -> _Reader:
    if compression is None:
        return raw
    if compression == "xz":
        return _XzReader(raw)
    if compression == "gz":
        return cast("_Reader", gzip.open(raw))
    if compression == "bz2":
        return cast("_Reader", bz2.open(raw))
    if compression == "zst":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        return cast("_Reader", zstd.open(raw))
    raise TraceError(path, f"is a {compression} archive", "unpack it first")


class TraceStream(io.RawIOBase):
    """A decompressing reader that turns every decoding failure into a `TraceError`."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = "<stdin>" if path is None else str(path)
        try:
            raw = sys.stdin.buffer if path is None else path.open("rb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise unreadable(self.path, error) from None
        # Standard input is something else where a test or a notebook has replaced it.
        self._raw: io.BufferedReader = (
            raw
            if isinstance(raw, io.BufferedReader)
            else io.BufferedReader(cast("io.RawIOBase", raw))
        )
        try:
            head = self._raw.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.compression = compression_of(head)
        try:
            self._stream = _decompressed(self._raw, self.compression, self.path)
        except TraceError:
            self._raw.close()
            raise
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
            return TraceError(
                self.path, f"the {self.compression} stream ends early", f"the file was cut: {again}"
            )
        if isinstance(error, OSError) and (self.compression is None or error.errno is not None):
            return unreadable(self.path, error)
        if isinstance(error, lzma.LZMAError) and "memory" in str(error).lower():
            return TraceError(
                self.path,
                f"the xz stream needs more than {_XZ_MEMORY_BYTES >> 20} MiB to unpack",
                "compress it again with xz -6",
            )
        if (
            isinstance(error, OSError | lzma.LZMAError | zlib.error | ValueError)
            or type(error).__name__ == "ZstdError"
        ):
            return TraceError(
                self.path, f"the {self.compression} stream is damaged ({error})", again
            )
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
        self._state = None if self.path is None else _state_of(self.path)
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
        if self._opened is None:
            self._opened = TraceStream(self._path)
        return self._opened


def _state_of(path: Path) -> FileState | None:
    try:
        return FileState.of(path)
    except OSError:  # said in words when the file is opened
        return None
