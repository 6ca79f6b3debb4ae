"""What stands before the instructions of an Accel-Sim kernel trace, and how its lines are laid out.

Source: ``util/tracer_nvbit`` and ``gpu-simulator/trace-parser`` of accel-sim/accel-sim-framework,
tracer versions from March 2020 (unnumbered) to 6.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.scanning.scanning_jit import ADDRESS_END
from depgraph.trace.names import demangle
from depgraph.trace.records import Dim3, KernelLaunch, checked_launch, signed64

NAME_MARK = b"-kernel name = "
# The window of generic addresses that stand for shared, or local, memory.
_WINDOW_BYTES = 16 << 20
# Up to November 2020 addresses were those of the active lanes, though the mask leaves out lanes
# that are predicated off; traces of version 3 may be older or newer than that.
_LAST_VERSION_WITH_ACTIVE_LANES = 3
_SAMPLED_LINES = 64
_AGREEING_LINES = 8

_PAIR = re.compile(rb"-([^=\n]+?) = ?([^\n]*)")
_TRIPLE = re.compile(rb"\((\d{1,99}),(\d{1,99}),(\d{1,99})\)")
_PC = re.compile(rb"[0-9a-f]{4,16}")
_MASK = re.compile(rb"[0-9a-f]{8}")
_COUNT = re.compile(rb"\d{1,2}")
_OPCODE = re.compile(rb"[A-Z][A-Za-z0-9_.]+")
_REGISTER = re.compile(rb"U?[RPB]\d+|[A-Z]+\d*")
_MAX_COLUMNS = 14
_BLOCK_COLUMNS = 4  # block x, y, z and warp


@dataclass(frozen=True, slots=True)
class KernelHeader:
    """The header of one kernel file."""

    launch: KernelLaunch
    version: int = 0  # of the tracer; 0 where the header has none, 1 for "1.2"
    # Where the windows of generic addresses begin; 0 where that is not known.
    shared_base: int = 0
    local_base: int = 0
    has_line_numbers: bool = False
    # How lines are laid out: whether instructions stand below their thread block and warp, and the
    # columns in front of the program counter.
    is_grouped: bool = True
    columns: int = 0

    @property
    def lists_active_lanes(self) -> bool:
        """Whether an access may list more lanes than its mask has."""
        return self.version <= _LAST_VERSION_WITH_ACTIVE_LANES

    def windows(self) -> NDArray[np.uint64]:
        """Return begin and end of the shared and the local window, as the scanner takes them."""
        windows = np.zeros(4, np.uint64)
        for at, base in ((0, self.shared_base), (2, self.local_base)):
            if base:
                windows[at : at + 2] = base, base + _WINDOW_BYTES
        return windows


def parse_header(text: bytes, *, context: int = 0) -> KernelHeader:
    """Decode the header; a `ValueError` says why no kernel could be launched so."""
    pairs = _pairs(text)
    if not text.strip():
        raise ValueError("the file is empty")
    if b"kernel name" not in pairs and b"grid dim" not in pairs:
        raise ValueError("no kernel header")
    mangled = pairs.get(b"kernel name", b"").decode("utf-8", "replace").strip()
    return KernelHeader(
        checked_launch(
            name=demangle(mangled),
            grid=_triple(pairs, b"grid dim"),
            block=_triple(pairs, b"block dim"),
            registers=_number(pairs, b"nregs"),
            shared_bytes=_number(pairs, b"shmem", -1),
            stream=_number(pairs, b"cuda stream id"),
            context=context,
            mangled_name=mangled,
            trace_id=_number(pairs, b"kernel id"),
            architecture=_number(pairs, b"binary version"),
        ),
        version=_number(pairs, b"accelsim tracer version"),
        shared_base=_address(pairs, b"shmem base_addr"),
        local_base=_address(pairs, b"local mem base_addr"),
        has_line_numbers=_number(pairs, b"enable lineinfo") == 1,
    )


def _pairs(text: bytes) -> dict[bytes, bytes]:
    """Return the ``-key = value`` lines in front of the first instruction or ``#``."""
    pairs: dict[bytes, bytes] = {}
    for line in text.split(b"\n"):
        stripped = line.strip()
        if stripped.startswith(b"-"):
            if match := _PAIR.match(stripped):
                pairs.setdefault(match[1].strip(), match[2].strip())
        elif stripped and pairs:
            break
    return pairs


def _triple(pairs: dict[bytes, bytes], key: bytes) -> Dim3:
    match = _TRIPLE.match(pairs.get(key, b""))
    if match is None:
        raise ValueError(f"the header has no usable {key.decode()}")
    x, y, z = (int(n) for n in match.groups())
    return x, y, z


def _number(pairs: dict[bytes, bytes], key: bytes, missing: int = 0) -> int:
    match = re.match(rb"-?\d{1,20}", pairs.get(key, b""))
    return signed64(int(match[0])) if match else missing


def _address(pairs: dict[bytes, bytes], key: bytes) -> int:
    match = re.fullmatch(rb"0x([0-9a-fA-F]{1,16})", pairs.get(key, b""))
    address = int(match[1], 16) if match else 0
    return address if address < int(ADDRESS_END) - _WINDOW_BYTES else 0


def with_layout(text: bytes, header: KernelHeader) -> KernelHeader:
    """Add how a kernel file is laid out: its first lines tell, whatever the header says."""
    is_grouped = b"#BEGIN_TB" in text or b"\nthread block = " in text
    seen: Counter[int] = Counter()
    for line in text.split(b"\n"):
        columns = _columns_before_pc(line)
        if columns is not None:
            seen[columns] += 1
            if seen.total() >= (_SAMPLED_LINES if len(seen) > 1 else _AGREEING_LINES):
                break
    usual = int(header.has_line_numbers) + (0 if is_grouped else _BLOCK_COLUMNS)
    columns, _ = next(iter(seen.most_common(1)), (usual, 0))
    if columns < _BLOCK_COLUMNS and not is_grouped:
        raise ValueError("its instructions belong to no thread block")
    return replace(header, is_grouped=is_grouped, columns=columns)


def _columns_before_pc(line: bytes) -> int | None:
    """Count the columns in front of ``PC MASK n {registers} OPCODE``; None if there is no such."""
    tokens = line.split()
    for at in range(1, min(len(tokens) - 2, _MAX_COLUMNS + 2)):
        if not _MASK.fullmatch(tokens[at]) or not _PC.fullmatch(tokens[at - 1]):
            continue
        if not all(token.isdigit() for token in tokens[: at - 1]):
            return None
        destinations = tokens[at + 1]
        if not _COUNT.fullmatch(destinations):
            continue
        opcode = at + 2 + int(destinations)
        if (
            opcode < len(tokens)
            and all(_REGISTER.fullmatch(token) for token in tokens[at + 2 : opcode])
            and _OPCODE.fullmatch(tokens[opcode])
        ):
            return at - 1
    return None
