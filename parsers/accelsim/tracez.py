"""Accel-Sim 2.0's ``.tracez``: grouped text, packed warp by warp, with an index at the end.

Source: ``util/tracer_nvbit/tracer_tool/tracez_format.h`` of accel-sim/accel-sim-framework. All
numbers are little endian: header text up to a zero byte; u32 dictionary size, u32 instructions a
chunk; the zstd dictionary; for every warp u32 instructions, u32 chunks and the chunks, each a u32
size and a zstd frame; the index (see `_read_index`); u64 offset of the index.
"""

import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from depgraph.errors import TraceError
from depgraph.parsers.scanning.inputs import TraceStream
from depgraph.parsers.scanning.zst import zstd

_MAX_HEADER_BYTES = 1 << 16
_MAX_DICTIONARY_BYTES = 64 << 20
_MAX_CHUNK_BYTES = 64 << 20
_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"
_PIECE_BYTES = 1 << 20
_BLOCK = struct.Struct("<11I")  # block, cluster and cluster block x, y, z; rank; warps
_WARP = struct.Struct("<IIQ")  # instructions, chunks, offset
_INSTRUCTION = re.compile(rb"\n(?:[0-9a-f]|#BEGIN_TB)")
_HINT = "copy the file again"


def sniff(head: bytes) -> bool:
    """Tell whether the first bytes of a file are a kernel header, closed by a zero byte."""
    header, zero, _ = head.partition(b"\0")
    return bool(zero) and header.startswith(b"-") and not _INSTRUCTION.search(header)


class TracezStream(TraceStream):
    """The text of a ``.tracez`` file, as its ``.traceg`` would have it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.compression = "zst"
        self._stream = _TracezText(path)

    def _explained(self, error: Exception) -> TraceError | None:
        if isinstance(error, struct.error | zstd.ZstdError | OSError | EOFError | ValueError):
            return TraceError(self.path, f"the .tracez file is damaged ({error})", _HINT)
        return None


class _TracezText(io.RawIOBase):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._size = path.stat().st_size
        self._pieces = self._text()
        self._unpacked = 0  # packed bytes of the chunks so far
        self._ahead = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._ahead = self._ahead or memoryview(next(self._pieces, b""))
        taken = min(len(self._ahead), len(buffer))
        buffer[:taken] = self._ahead[:taken]
        self._ahead = self._ahead[taken:]
        return taken

    def close(self) -> None:
        self._file.close()
        super().close()

    def _text(self) -> Iterator[bytes]:
        head = self._file.read(_MAX_HEADER_BYTES)
        header_size = head.find(b"\0")
        if header_size < 0:
            raise EOFError("no end of the kernel header")
        yield head[:header_size] + b"\n"
        self._file.seek(header_size + 1)
        dictionary_size, _ = struct.unpack("<II", self._exactly(8))
        if dictionary_size > min(self._size, _MAX_DICTIONARY_BYTES):
            raise EOFError(f"dictionary of {dictionary_size} bytes")
        content = self._exactly(dictionary_size)
        is_raw = not content.startswith(_DICTIONARY_MAGIC)
        dictionary = zstd.ZstdDict(content, is_raw=is_raw) if content else None
        for block, warps in self._index():
            yield b"\n#BEGIN_TB\n\nthread block = %d,%d,%d\n" % block
            for number, (instructions, chunks, offset) in enumerate(warps):
                yield b"\nwarp = %d\ninsts = %d\n" % (number, instructions)
                yield from self._warp(offset, chunks, dictionary)
            yield b"\n#END_TB\n"

    def _index(self) -> Iterator[tuple[tuple[int, int, int], list[tuple[int, int, int]]]]:
        self._file.seek(-8, 2)
        (at,) = struct.unpack("<Q", self._exactly(8))
        if at >= self._size:
            raise EOFError("no index")
        self._file.seek(at)
        (blocks,) = struct.unpack("<I", self._exactly(4))
        at += 4
        for _ in range(blocks):
            self._file.seek(at)
            x, y, z, *_, warps = _BLOCK.unpack(self._exactly(_BLOCK.size))
            found = []
            for _ in range(warps):
                instructions, chunks, offset = _WARP.unpack(self._exactly(_WARP.size))
                if 4 * chunks > self._size:
                    raise EOFError(f"warp of {chunks} chunks")
                self._file.seek(4 * chunks, 1)
                found.append((instructions, chunks, offset))
            at = self._file.tell()
            yield (x, y, z), found

    def _warp(self, offset: int, chunks: int, dictionary: zstd.ZstdDict | None) -> Iterator[bytes]:
        if offset + 8 > self._size:
            raise EOFError(f"warp at offset {offset}")
        self._file.seek(offset + 8)
        for _ in range(chunks):
            (size,) = struct.unpack("<I", self._exactly(4))
            if size > min(self._size, _MAX_CHUNK_BYTES):
                raise EOFError(f"chunk of {size} bytes")
            # Chunks that the index names again and again would unpack to any size.
            self._unpacked += size
            if self._unpacked > self._size:
                raise EOFError("its chunks overlap")
            packed = self._exactly(size)
            after = self._file.tell()
            decoder = zstd.ZstdDecompressor(zstd_dict=dictionary)
            last = b"\n"
            while not decoder.eof:
                piece = decoder.decompress(packed, max_length=_PIECE_BYTES)
                packed = b""
                if not piece and decoder.needs_input:
                    raise EOFError("a chunk ends early")
                if piece:
                    last = piece
                    yield piece
            if not last.endswith(b"\n"):
                yield b"\n"
            self._file.seek(after)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("it ends early")
        return data
