"""Modules of machine code: which kernels are in one, and its code as nvdisasm prints it."""

import re
import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory

from depgraph.errors import RecorderError
from depgraph.recorder.toolkit import Toolkit, output_of

_MAGIC = b"\x7fELF\x02\x01"
_HEADER, _SECTION = struct.Struct("<16xHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
_TEXT, _INFO = ".text.", ".nv.info."
# What stands in the bank of addresses that code takes, and the bytes of an entry.
_POINTERS = {".rel.nv.constant4": 16, ".rela.nv.constant4": 24}
_SYMBOL, _ENTRY = struct.Struct("<IBBHQQ"), struct.Struct("<QQ")
_OBJECT = 1  # a type of symbols
_OF_VALUE, _OF_SIZE = 3, 4  # formats of attributes
_PARAMETERS = 0x0A  # EIATTR_PARAM_CBANK
_SECTION_OF_TEXT = re.compile(r"\s*\.section\s+([^,\s]+)")
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Module:
    """A module of machine code."""

    path: Path
    begin_of: dict[str, int]  # mangled kernel name -> byte of the constant bank with its parameters
    functions: frozenset[str]  # of others that it calls by their address; "" for one of its own


def read_module(path: Path) -> Module:
    """Read which kernels are in a module."""
    raw = path.read_bytes()
    try:
        sections = _sections(raw)
        kernels = {n.removeprefix(_TEXT) for n in sections if n.startswith(_TEXT)}
        begins = {name: _begin(raw, sections.get(_INFO + name)) for name in kernels}
        functions = _functions(raw, sections)
    except (struct.error, LookupError, UnicodeDecodeError, ValueError) as error:
        raise RecorderError(f"{path}: no module of machine code ({error})") from None
    begin_of = {name: begin for name, begin in begins.items() if begin is not None}
    return Module(path, begin_of, functions)


def read_code(path: Path, wanted: frozenset[str]) -> dict[str, bytes]:
    """Return the instructions of a module's wanted kernels, and of what they may call."""
    try:
        # Most of a library's module is of other kernels.
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as raw:
            sections = _sections(raw)
            functions = {n.removeprefix(_TEXT): n for n in sections if n.startswith(_TEXT)}
            if not wanted & functions.keys():
                return {}
            places = {
                name: sections[section]
                for name, section in functions.items()
                if name in wanted or _begin(raw, sections.get(_INFO + name)) is None
            }
            return {name: raw[at : at + size] for name, (at, size) in places.items()}
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise RecorderError(f"{path}: no module of machine code ({error})") from None


def _sections(raw: bytes | mmap) -> dict[str, tuple[int, int]]:
    """Return where the sections of an ELF file begin, and their sizes."""
    if raw[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not an ELF file")
    header = _HEADER.unpack_from(raw)
    at, size, count, names = header[5], header[10], header[11], header[12]
    rows = [_SECTION.unpack_from(raw, at + i * size) for i in range(count)]
    text = rows[names][4]
    found = {}
    for row in rows:
        begin = text + row[0]
        end = raw.find(b"\0", begin)
        if end < 0:
            raise ValueError("a name without an end")
        found[raw[begin:end].decode()] = (row[4], row[5])
    return found


def _functions(raw: bytes, sections: dict[str, tuple[int, int]]) -> frozenset[str]:
    """Return the functions whose address code may take; what is no variable counts as one."""
    entries = (
        _ENTRY.unpack_from(raw, entry)
        for section, step in _POINTERS.items()
        if section in sections
        for entry in range(sections[section][0], sum(sections[section]), step)
    )
    found = set()
    for _, what in entries:
        place = sections[".symtab"][0] + (what >> 32) * _SYMBOL.size
        name, kind, _, section, *_ = _SYMBOL.unpack_from(raw, place)
        if kind & 0xF != _OBJECT:  # one that the module has itself is the driver's by name alone
            begin = sections[".strtab"][0] + (0 if section else name)
            found.add(raw[begin : raw.index(b"\0", begin)].decode())
    return frozenset(found)


def _begin(raw: bytes | mmap, section: tuple[int, int] | None) -> int | None:
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
    """Return the disassembler, if there is one on this machine."""
    return Toolkit().nvdisasm


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


def disassembled(path: Path, nvdisasm: Path) -> str:
    """Return the code of a module's functions as text, but for where computed jumps lead."""
    return output_of(nvdisasm, "-c", "-ndf", path, seconds=_SECONDS)


def disassembled_code(code: bytes, architecture: int, nvdisasm: Path) -> str:
    """Return instructions, one behind the other, as text: a module around them takes longer."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        path.write_bytes(code)
        command = nvdisasm, "--binary", f"SM{architecture}", path
        return output_of(*command, seconds=_SECONDS)
