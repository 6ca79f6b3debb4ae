"""Open a trace file as a stream of bytes, whatever it is compressed with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from depgraph.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = {
    b"\xfd7zXZ\x00": "xz",
    b"\x1f\x8b": "gz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"BZh": "bz2",
    b"PK\x03\x04": "zip",
}
_MAGIC_BYTES = 6
_BUFFER_BYTES = 1 << 20


def compression_of(head: bytes) -> str | None:
    """Name the compression of a file by its first bytes; None if it is not compressed."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _decompressed(raw: BinaryIO, compression: str | None, path: str) -> BinaryIO:
    if compression is None:
        return raw
    if compression == "xz":
        return cast("BinaryIO", lzma.open(raw))
    if compression == "gz":
        return cast("BinaryIO", gzip.open(raw))
    if compression == "bz2":
        return cast("BinaryIO", bz2.open(raw))
    if compression == "zst":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        return cast("BinaryIO", zstd.open(raw))
    raise TraceError(path, f"is a {compression} archive", "unpack it first")


class TraceStream(io.RawIOBase):
    """A decompressing reader that turns every decoding failure into a `TraceError`.

    Parameters
    ----------
    path : Path or None
        The file, or None for standard input.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = "<stdin>" if path is None else str(path)
        try:
            raw = sys.stdin.buffer if path is None else path.open("rb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise unreadable(self.path, error) from None
        self._raw = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
        try:
            head = self._raw.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.compression = compression_of(head)
        self._stream = _decompressed(cast("BinaryIO", self._raw), self.compression, self.path)
        self._consumed = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` as far as the stream goes; return the number of bytes."""
        view = memoryview(buffer)
        filled = 0
        try:
            while filled < len(view):
                got = self._stream.readinto(view[filled:])  # type: ignore[attr-defined]
                if not got:
                    break
                filled += got
        except EOFError:
            raise TraceError(
                self.path,
                f"the {self.compression} stream ends early",
                "the file was cut: copy or compress it again",
            ) from None
        except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, ValueError) as error:
            raise TraceError(
                self.path,
                f"the {self.compression} stream is damaged ({error})",
                "copy or compress it again",
            ) from None
        except OSError as error:
            if self.compression is not None and error.errno is None:
                raise TraceError(
                    self.path,
                    f"the {self.compression} stream is damaged ({error})",
                    "copy or compress it again",
                ) from None
            raise unreadable(self.path, error) from None
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise TraceError(
                self.path, f"the zst stream is damaged ({error})", "copy or compress it again"
            ) from None
        return filled

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


def unreadable(path: str, error: OSError) -> TraceError:
    """Put an operating-system error about `path` in one line."""
    if isinstance(error, FileNotFoundError):
        return TraceError(path, "no such file")
    if isinstance(error, IsADirectoryError):
        return TraceError(path, "is a folder", "name the trace file inside it")
    return TraceError(path, f"cannot be read ({error.strerror or error})")
