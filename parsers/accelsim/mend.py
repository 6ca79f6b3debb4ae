"""Copies of traces that Accel-Sim runs: headers, opcodes and EXIT masks mended, each counted.

What needs mending was seen with traces of an H100 in Accel-Sim's development branch of October
2024: ``docs/accel-sim.md``.
"""

import gzip
import io
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from depgraph.errors import TraceError
from depgraph.parsers.accelsim.header import parse_header, with_layout
from depgraph.parsers.scanning.inputs import TraceStream
from depgraph.parsers.scanning.zst import zstd

# What the simulator's trace reader has opcodes for (gpgpu-sim, ISA_Def of each architecture).
_KNOWN_VERSIONS = (35, 60, 61, 70, 75, 80, 86)
_AMPERE = 80
_MOST_REGISTERS = 255
_MOST_SHARED_BYTES = 228 << 10
_REGISTER_UNIT, _SHARED_UNIT = 8, 128  # what hardware allocates at least
_RZ = b"R255"
# Opcodes of Hopper that Ampere's map lacks, and what takes as long.
_OPCODES = {
    b"VIADD": b"IADD3", b"VIADDMNMX": b"IMNMX", b"VIMNMX": b"IMNMX", b"ACQBULK": b"NOP",
    b"PREEXIT": b"NOP",
}  # fmt: skip
_SHARED = (b"LDS", b"STS", b"LDSM", b"STSM", b"ATOMS")
_LIST, _STRIDE, _DELTAS = 0, 1, 2
_HEADER_BYTES = 1 << 16
_PAIR = re.compile(rb"-(nregs|shmem|binary version|cuda stream id) = (\S+)\s*\n?")
_WRITERS: dict[str, Callable[[Path], Any]] = {
    ".xz": partial(lzma.open, mode="wb", preset=0),
    ".gz": partial(gzip.GzipFile, mode="wb", compresslevel=1, mtime=0),
    ".zst": partial(zstd.open, mode="wb"),
}
_HINT = "export with --as-is, which changes nothing but streams"


class _Need:
    """What the instructions of a kernel use: the highest register, and the end of shared memory."""

    def __init__(self, shared_base: int) -> None:
        self.registers = 0
        self.shared_bytes = 0
        self._base = shared_base

    def see(self, tokens: list[bytes], opcode: int) -> None:
        for token in tokens[:opcode] + tokens[opcode + 1 :]:
            if token.startswith(b"R") and token != _RZ and token[1:].isdigit():
                self.registers = max(self.registers, int(token[1:]) + 1)
        if tokens[opcode].partition(b".")[0] in _SHARED:
            self.shared_bytes = max(self.shared_bytes, self._end(tokens, opcode))

    def _end(self, tokens: list[bytes], opcode: int) -> int:
        at = opcode + 2 + int(tokens[opcode + 1])
        width = int(tokens[at])
        if not width:
            return 0
        form, listed = int(tokens[at + 1]), tokens[at + 2 :]
        if form == _LIST:
            last = max((int(a, 16) for a in listed if a.startswith(b"0x")), default=0)
        elif form == _STRIDE:
            # The mask stands before the number of registers that an instruction writes.
            before = (place for place in range(opcode - 1, 0, -1) if tokens[place].isdigit())
            mask = int(tokens[next(before, 0) - 1], 16)
            lanes = mask.bit_length() - (mask & -mask).bit_length()
            last = int(listed[0], 16) + max(0, int(listed[1])) * max(0, lanes)
        else:
            address = last = int(listed[0], 16)
            for delta in listed[1:-1]:
                address += int(delta)
                last = max(last, address)
        return last + width - (self._base if last >= self._base > 0 else 0)


def mend_trace(source: Path, target: Path, stream: int) -> Counter[str]:
    """Copy a trace so that the simulator runs it; return what was mended, and how often."""
    with TraceStream(source) as file:
        head = file.read(_HEADER_BYTES)
    try:
        header = with_layout(head, parse_header(head))
    except ValueError as error:
        raise TraceError(source, str(error), _HINT) from None
    if not header.is_grouped:
        raise TraceError(source, "its instructions are not grouped by warp", _HINT)
    mask_at = header.columns + 1
    need = _Need(header.shared_base)
    try:
        for line in _lines(source):
            tokens = line.split()
            opcode = _opcode_at(tokens, mask_at)
            if opcode:
                need.see(tokens, opcode)
    except (ValueError, IndexError):
        raise TraceError(source, f"no instruction: {line[:60]!r}", _HINT) from None
    mended: Counter[str] = Counter()
    with _WRITERS.get(target.suffix, partial(open, mode="wb"))(target) as out:
        for warp in _warps(source):
            out.writelines(_mended_lines(warp, mask_at, need, stream, mended))
    return mended


def _mended_lines(
    lines: list[bytes], mask_at: int, need: _Need, stream: int, mended: Counter[str]
) -> Iterator[bytes]:
    later = 0
    changed: list[bytes] = []
    for line in reversed(lines):
        tokens = line.split()
        opcode = _opcode_at(tokens, mask_at)
        if not opcode:
            changed.append(_header_line(line, need, stream, mended))
            continue
        mask = int(tokens[mask_at], 16)
        base, dot, rest = tokens[opcode].partition(b".")
        if base == b"EXIT" and mask & later:
            tokens[mask_at] = b"%08x" % (mask & ~later)
            mended["EXIT masks"] += 1
        if base in _OPCODES:
            tokens[opcode] = _OPCODES[base] + (dot + rest if _OPCODES[base] != b"NOP" else b"")
            mended[f"opcodes {base.decode()} -> {_OPCODES[base].decode()}"] += 1
        later |= mask
        changed.append(line if tokens == line.split() else b" ".join(tokens) + b" \n")
    return reversed(changed)


def _header_line(line: bytes, need: _Need, stream: int, mended: Counter[str]) -> bytes:
    match = _PAIR.fullmatch(line)
    if match is None:
        return line
    key = match[1].decode()
    value = int(match[2]) if re.fullmatch(rb"-?\d{1,20}", match[2]) else -1
    if key == "cuda stream id":
        return b"-cuda stream id = %d\n" % stream
    if key == "binary version":
        mended_value = value if value in _KNOWN_VERSIONS else _AMPERE
    elif key == "nregs":
        fits = need.registers <= value <= _MOST_REGISTERS and value > 0
        least = -(-max(need.registers, 1) // _REGISTER_UNIT) * _REGISTER_UNIT
        mended_value = value if fits else min(_MOST_REGISTERS, least)
    else:
        fits = need.shared_bytes <= value <= _MOST_SHARED_BYTES
        mended_value = value if fits else -(-need.shared_bytes // _SHARED_UNIT) * _SHARED_UNIT
    if mended_value == value:
        return line
    mended[f"headers -{key}"] += 1
    return b"-%s = %d\n" % (match[1], mended_value)


def _opcode_at(tokens: list[bytes], mask_at: int) -> int:
    """Return where the opcode of an instruction stands; 0 for lines that are none."""
    if len(tokens) < mask_at + 3 or b"=" in tokens or tokens[0].startswith((b"#", b"-")):
        return 0
    return mask_at + 2 + int(tokens[mask_at + 1])


def _lines(path: Path) -> Iterator[bytes]:
    with io.BufferedReader(TraceStream(path), 1 << 20) as file:
        yield from file


def _warps(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of the header, and then those of one warp after another."""
    lines: list[bytes] = []
    for line in _lines(path):
        if line.startswith(b"warp = ") and lines:
            yield lines
            lines = []
        lines.append(line)
    yield lines
