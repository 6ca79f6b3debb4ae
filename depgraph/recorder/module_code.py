"""Modules of machine code: which kernels are in one, and its code as nvdisasm prints it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.errors import RecorderError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC = b"\x7fELF\x02\x01"
_HEADER, _SECTION = struct.Struct("<16xHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
_TEXT, _INFO = ".text.", ".nv.info."
_OF_VALUE, _OF_SIZE = 3, 4  # formats of attributes
_PARAMETERS = 0x0A  # EIATTR_PARAM_CBANK
_SYMBOL, _FUNCTION = struct.Struct("<IBBHQQ"), 2  # STT_FUNC
_UNDEFINED = 0  # SHN_UNDEF: what the driver puts in, such as __assertfail
_SECTION_OF_TEXT = re.compile(r"\s*\.section\s+([^,\s]+)")
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Module:
    """A module of machine code."""

    path: Path
    begin_of: dict[str, int]  # mangled kernel name -> byte of the constant bank with its parameters
    symbol_of: dict[str, int]  # from the name of a function to the number of its symbol


def read_module(path: Path) -> Module:
    """Read which kernels are in a module."""
    raw = path.read_bytes()
    try:
        sections = _sections(raw)
        kernels = {n.removeprefix(_TEXT) for n in sections if n.startswith(_TEXT)}
        begins = {name: _begin(raw, sections.get(_INFO + name)) for name in kernels}
        symbols = _functions(raw, sections)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise RecorderError(f"{path}: no module of machine code ({error})") from None
    begin_of = {name: begin for name, begin in begins.items() if begin is not None}
    return Module(path, begin_of, symbols)


def _sections(raw: bytes) -> dict[str, tuple[int, int]]:
    """Return where the sections of an ELF file begin, and their sizes."""
    if not raw.startswith(_MAGIC):
        message = "not an ELF file"
        raise ValueError(message)
    header = _HEADER.unpack_from(raw)
    at, size, count, names = header[5], header[10], header[11], header[12]
    rows = [_SECTION.unpack_from(raw, at + i * size) for i in range(count)]
    text = rows[names][4]
    found = {}
    for row in rows:
        begin = text + row[0]
        found[raw[begin : raw.index(b"\0", begin)].decode()] = (row[4], row[5])
    return found


def _functions(raw: bytes, sections: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the numbers of the symbols of functions that have code here."""
    at, size = sections.get(".symtab", (0, 0))
    text, _ = sections.get(".strtab", (0, 0))
    found = {}
    for number in range(size // _SYMBOL.size):
        name, kind, _, section, *_ = _SYMBOL.unpack_from(raw, at + number * _SYMBOL.size)
        if kind & 15 == _FUNCTION and section != _UNDEFINED:
            begin = text + name
            found[raw[begin : raw.index(b"\0", begin)].decode()] = number
    return found


def _begin(raw: bytes, section: tuple[int, int] | None) -> int | None:
    """Return where parameters begin, as an attribute says; None for what is no kernel."""
    if section is None:
        return None
    at, end = section[0], sum(section)
    while at + 4 <= end:
        form, attribute, value = struct.unpack_from("<BBH", raw, at)
        at += 4
        if form == _OF_SIZE:
            if attribute == _PARAMETERS:
                return int(struct.unpack_from("<IHH", raw, at)[1])
            at += value
        elif form != _OF_VALUE and form > _OF_SIZE:
            break
    return None


def find_nvdisasm() -> Path | None:
    """Return the disassembler: of a CUDA toolkit, of Triton, or of its own package."""
    if (found := shutil.which("nvdisasm")) is not None:
        return Path(found)
    places = []
    for package, inside in (("triton", "backends/nvidia/bin"), ("nvidia", "cu13/bin")):
        spec = importlib.util.find_spec(package)
        roots = (spec.submodule_search_locations or ()) if spec else ()
        places += [Path(root) / inside / "nvdisasm" for root in roots]
    places.append(Path("/usr/local/cuda/bin/nvdisasm"))
    return next((place for place in places if place.is_file()), None)


def functions_in(text: str) -> dict[str, list[str]]:
    """Return the lines of each function of a text that nvdisasm printed."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if section := _SECTION_OF_TEXT.match(line):
            name = section[1]
            lines = found.setdefault(name.removeprefix(_TEXT), []) if name.startswith(_TEXT) else []
        else:
            lines.append(line)
    return found


def disassembled(path: Path, nvdisasm: Path, symbols: Sequence[int] = ()) -> str:
    """Return the code of a module's functions, by symbol number, as text; default all."""
    chosen = ["-fun", ",".join(map(str, symbols))] if symbols else []
    try:
        done = subprocess.run(  # noqa: S603 - the user's own tool
            [nvdisasm, "-c", *chosen, path],
            capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderError(f"{nvdisasm}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RecorderError(f"{path}: nvdisasm failed: {(lines or ['no word'])[0]}")
    return done.stdout
