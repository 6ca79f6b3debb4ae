"""What machine code says of kernels that no hook of the recorder sees."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from depgraph.errors import RecorderError
from depgraph.recorder.module_code import (
    disassembled,
    find_nvdisasm,
    functions_in,
    read_module,
)
from depgraph.trace.records import programmatic_code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

STORES_TILES = "stores tiles by TMA"
READS_CONSTANTS = "reads __constant__ memory"
READS_TEXTURES = "reads textures"
USES_SURFACES = "uses surfaces"
USES_MULTICAST = "reaches the memory of several GPUs at once"
UNKNOWN = "accesses memory by {}, which nobody knows"

_MODULES = "module-{}-*.cubin"
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?PT?\d*\s+)?([A-Z][A-Z0-9_]*)")
_CONSTANTS = re.compile(r"\bcx?\[0x3\]")  # the bank of __constant__ variables
_CALL = "CALL"
_OF_NAMES = {
    STORES_TILES: {"UTMASTG", "UTMAREDG"},
    READS_TEXTURES: {"TEX", "TLD", "TLD4", "TMML", "TXD", "TXQ", "TEXS", "TLDS", "TLD4S"},
    USES_SURFACES: {"SULD", "SUST", "SURED", "SUATOM", "SUQUERY"},
    USES_MULTICAST: {"LDGMC", "STGMC", "REDGMC", "LDMC", "STMC", "REDMC", "UREDGR"},
}
# Of what begins like an access: those that hooks see, and those of shared or thread-local memory.
_ACCESS = re.compile("LD|ST|RED|ATOM|UBLK|UTMA|SU|TEX|TLD")
_SEEN = frozenset(
    """
    ATOM ATOMG ATOMS LD LDC LDCU LDG LDGDEPBAR LDGSTS LDL LDS LDSM LDT LDTM RED REDAS REDG REDUX ST
    STAS STG STL STS STSM STT STTM SUB UBLKCP UBLKPF UBLKRED UTMACCTL UTMACMDFLUSH UTMALDG UTMAPF
    """.split()  # noqa: SIM905 - easier to read
)


def note_unseen(events: Iterable[dict[str, Any]], folder: Path, process: int) -> str:
    """Note in each kernel's event what its code says; tell why not, else "".

    ``unseen`` lists accesses that no hook sees, ``programmatic`` is as in `KernelLaunch`.
    """
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return "there is no nvdisasm (a CUDA toolkit has it, and the package triton)"
    kernels = [event for event in events if event["event"] == "kernel"]
    wanted = frozenset(event["mangled"] for event in kernels)
    paths = sorted(folder.glob(_MODULES.format(process)))
    found: dict[str, set[str]] = {}
    programmatic: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:  # each waits for a process
        for unseen, launching in pool.map(lambda path: _of_module(path, nvdisasm, wanted), paths):
            programmatic |= launching
            for name, reasons in unseen.items():
                found.setdefault(name, set()).update(reasons)
    for event in kernels:
        if event["mangled"] in found:
            event["unseen"] = sorted(found[event["mangled"]])
            event["programmatic"] = programmatic[event["mangled"]]
    left = sum("unseen" not in event for event in kernels)
    large = "its module is too large, or nvdisasm does not read it"
    return f"of {left} of {len(kernels)} kernels: {large}" if left else ""


def _of_module(
    path: Path, nvdisasm: Path, wanted: Collection[str]
) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Return `unseen_in` and `programmatic_in` of the wanted kernels; nothing if unreadable."""
    try:
        module = read_module(path)
        kernels = [name for name in module.symbol_of if name in wanted]
        if not kernels:
            return {}, {}
        others = [name for name in module.symbol_of if name not in module.begin_of]
        symbols = [module.symbol_of[name] for name in (*kernels, *others)]
        code = functions_in(disassembled(path, nvdisasm, symbols))
    except (RecorderError, OSError):
        return {}, {}
    called = [line for name, lines in code.items() if name not in kernels for line in lines]
    there = [name for name in kernels if name in code]
    unseen = {name: unseen_in(code[name], called) for name in there}
    return unseen, {name: programmatic_in(code[name], called) for name in there}


def programmatic_in(lines: Iterable[str], called: Iterable[str] = ()) -> str:
    """Return what code that nvdisasm prints, or what it calls, has of programmatic launch."""
    names = [match[1] for line in lines if (match := _INSTRUCTION.match(line))]
    if _CALL in names:
        names += [match[1] for line in called if (match := _INSTRUCTION.match(line))]
    return programmatic_code(names)


def unseen_in(lines: Iterable[str], called: Iterable[str] = ()) -> set[str]:
    """Return what code that nvdisasm prints, or what it calls, does that no hook sees."""
    found: set[str] = set()
    calls = False
    for line in lines:
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        name = match[1]
        calls |= name == _CALL
        known = [reason for reason, names in _OF_NAMES.items() if name in names]
        if not known and name not in _SEEN and _ACCESS.match(name):
            known = [UNKNOWN.format(name)]
        if _CONSTANTS.search(line):
            known.append(READS_CONSTANTS)
        found.update(known)
    return found | unseen_in(called) if calls else found
