"""What machine code says of kernels that no hook of the recorder sees."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from depgraph.errors import RecorderError
from depgraph.recorder.module_code import disassembled_code, find_nvdisasm, read_code
from depgraph.recorder.raw_recording import EARLIER
from depgraph.system.workers import available_jobs
from depgraph.trace.records import PROGRAMMATIC_OPCODES, programmatic_code

STORES_TILES = "stores tiles by TMA"
USES_OWN_MAPS = "uses tensor maps that were made on the GPU"
READS_CONSTANTS = "reads __constant__ memory"
READS_TEXTURES = "reads textures"
USES_SURFACES = "uses surfaces"
USES_MULTICAST = "reaches the memory of several GPUs at once"
UNKNOWN = "accesses memory by {}, which nobody knows"

_MODULES = "module-{}-*.cubin"
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?PT?\d*\s+)?([A-Z][A-Z0-9_]*)")
_CONSTANTS = re.compile(r"\bcx?\[0x3\]")  # the bank of __constant__ variables
_FRESH_MAP = "UTMACCTL.IV"  # what was kept of a tensor map may have changed in memory
_LEFT_OUT = "left out"  # the state of kernels that wait for other GPUs, as in launches.h
_FEWEST_BYTES = 1 << 16  # that are worth a process of their own
_OF_NAMES = {
    STORES_TILES: {"UTMASTG", "UTMAREDG"},
    READS_TEXTURES: {"TEX", "TLD", "TLD4", "TMML", "TXD", "TXQ", "TEXS", "TLDS", "TLD4S"},
    USES_SURFACES: {"SULD", "SUST", "SURED", "SUATOM", "SUQUERY"},
    USES_MULTICAST: {"LDGMC", "STGMC", "REDGMC", "LDMC", "STMC", "REDMC", "UREDGR"},
}
# Of what begins like an access, or has an operand in memory: those that hooks see, and those of
# shared or thread-local memory, or of caches.
_ACCESS = re.compile("LD|ST|RED|ATOM|UBLK|UTMA|SU|TEX|TLD|TTU")
_MEMORY = re.compile(r"(?<![\w\]])\[|\bdesc\[")
_SEEN = frozenset(
    """
    ARRIVES ATOM ATOMG ATOMS CCTL CCTLL CCTLT LD LDC LDCU LDG LDGDEPBAR LDGSTS LDL LDS LDSM LDT
    LDTM QSPC RED REDAS REDG REDUX ST STAS STG STL STS STSM STT STTM SUB SYNCS UBLKCP UBLKPF
    UBLKRED UTCBAR UTMACCTL UTMACMDFLUSH UTMALDG UTMAPF
    """.split()  # noqa: SIM905 - easier to read
)


class Function(NamedTuple):
    """What a function does."""

    unseen: frozenset[str]
    calls: bool  # other functions
    launching: frozenset[str] = frozenset()  # instructions of programmatic launches


def note_unseen(
    events: Iterable[dict[str, Any]], folder: Path, process: int, architecture: int | None
) -> str:
    """Note with kernels what no hook sees, and their programmatic launches; say why not, or ""."""
    # What is left out is opaque whatever its code says, and NCCL's takes minutes to read.
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return "there is no nvdisasm (of a CUDA toolkit, triton, or nvidia-cuda-nvdisasm)"
    if architecture is None:
        return "the GPU's architecture is not known"
    kernels = [
        event for event in events if event["event"] == "kernel" and event.get("state") != _LEFT_OUT
    ]
    wanted = frozenset(event["mangled"] for event in kernels)
    paths = sorted(folder.glob(_MODULES.format(process % EARLIER)))
    known: dict[bytes, Function] = {}
    with ThreadPoolExecutor(available_jobs()) as pool:  # each waits for a file, or for a process
        modules = list(pool.map(lambda path: _code_of(path, wanted), paths))
        codes = {code for module in modules for code in module.values()}
        largest_first = sorted(codes, key=len, reverse=True)
        n = min(available_jobs(), 1 + sum(map(len, codes)) // _FEWEST_BYTES)
        parts = filter(None, (largest_first[first::n] for first in range(n)))
        for part in pool.map(lambda codes: _read(codes, architecture, nvdisasm), parts):
            known |= part
    found: dict[str, list[Function]] = {}
    for module in modules:
        for name in wanted & module.keys():
            if (whole := _with_callees(name, module, known, wanted)) is not None:
                found.setdefault(name, []).append(whole)
    for event in kernels:
        if event["mangled"] in found:
            does = _combined(found[event["mangled"]])
            event["unseen"] = sorted(does.unseen)
            event["programmatic"] = programmatic_code(does.launching)
    return _unread(kernels, frozenset(name for module in modules for name in module))


def _unread(kernels: Sequence[dict[str, Any]], kept: frozenset[str]) -> str:
    """Say of which kernels no code was read, and why; "" if it was of all."""
    left = [event["mangled"] in kept for event in kernels if "unseen" not in event]
    unread, missing = left.count(True), left.count(False)
    reasons = [f"nvdisasm does not read {unread}"] if unread else []
    reasons += [f"{missing} in modules that were too large to keep"] if missing else []
    return f"of {len(left)} of {len(kernels)} kernels: {', '.join(reasons)}" if left else ""


def _code_of(path: Path, wanted: frozenset[str]) -> dict[str, bytes]:
    try:
        return read_code(path, wanted)
    except (RecorderError, OSError):
        return {}


def _read(codes: Sequence[bytes], architecture: int, nvdisasm: Path) -> dict[bytes, Function]:
    """Return what functions do, by their code, but for those that nvdisasm does not read."""
    try:
        text = disassembled_code(b"".join(codes), architecture, nvdisasm)
    except RecorderError:
        half = len(codes) // 2
        parts = (codes[:half], codes[half:]) if half else ()
        return {c: its for part in parts for c, its in _read(part, architecture, nvdisasm).items()}
    ends = list(accumulate(map(len, codes)))
    lines: list[list[str]] = [[] for _ in codes]
    place = 0
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            while int(match[1], 16) >= ends[place]:
                place += 1
            lines[place].append(line)
    return {code: function_in(mine) for code, mine in zip(codes, lines, strict=True)}


def _with_callees(
    name: str, module: dict[str, bytes], known: dict[bytes, Function], wanted: frozenset[str]
) -> Function | None:
    """Return what a kernel does, and what it may call; None if not known."""
    kernel = known.get(module[name])
    if kernel is None or not kernel.calls:
        return kernel
    called = [known.get(code) for other, code in module.items() if other not in wanted]
    there = [each for each in called if each is not None]
    return _combined([kernel, *there]) if len(there) == len(called) else None


def _combined(functions: Sequence[Function]) -> Function:
    return Function(
        frozenset().union(*(each.unseen for each in functions)),
        any(each.calls for each in functions),
        frozenset().union(*(each.launching for each in functions)),
    )


def function_in(lines: Iterable[str]) -> Function:
    """Return what code that nvdisasm prints does."""
    found: set[str] = set()
    names: set[str] = set()
    for line in lines:
        if (match := _INSTRUCTION.match(line)) is None:
            continue
        name = match[2]
        names.add(name)
        known = [reason for reason, names in _OF_NAMES.items() if name in names]
        is_access = _ACCESS.match(name) or _MEMORY.search(line)
        if not known and name not in _SEEN and is_access:
            known = [UNKNOWN.format(name)]
        if _CONSTANTS.search(line):
            known.append(READS_CONSTANTS)
        if _FRESH_MAP in line:
            known.append(USES_OWN_MAPS)
        found.update(known)
    return Function(
        frozenset(found), "CALL" in names, frozenset(PROGRAMMATIC_OPCODES.keys() & names)
    )
