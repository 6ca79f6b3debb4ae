"""Code in files: what others may have written is not run; object files, put into memory to run.

LLVM is not needed for that: importing it takes as long as a short command. What numba makes for
x86-64 leaves open nothing but addresses, each a word of its own, as whatever it calls or reads may
be far away (System V psABI, "Large code model"). What it makes for other processors leaves open
more, which LLVM knows how to fill in.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_ROOT = 0
_MOST_LINKS = 40  # as Linux follows

# ELF-64: System V Application Binary Interface, "Object Files".
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_MACHINE_AT, _SECTIONS_AT, _SECTION_COUNT_AT = 0x12, 0x28, 0x3C
_X86_64 = 62
_SECTION = np.dtype(
    [
        ("name", "<u4"), ("kind", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("begin", "<u8"),
        ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("row", "<u8"),
    ]
)  # fmt: skip
_SYMBOL = np.dtype(
    [("name", "<u4"), ("kind", "<u2"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_OPEN_WORD = np.dtype([("at", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("plus", "<i8")])
_WRITTEN, _LOADED = 1, 2  # flags of sections
_CONTENT, _SYMBOLS, _OPEN_WORDS = 1, 2, 4  # kinds of sections; exceptions of C++ need others
_ADDRESS = 1  # a kind of open word
_BINDING, _OF_THE_FILE = 4, 0  # bits of a symbol's kind below its binding; the least binding
_KIND, _FOUND_AS_IT_RUNS = 0xF, 10  # GNU's indirect functions


def is_ours(path: Path) -> bool:
    """Tell whether only the user, root and this package's owner may write a file or folder.

    Nor may anybody else put another in its place: all folders on the way, and links, are theirs.
    """
    # What is not there is nobody's.
    if not hasattr(os, "getuid"):
        return True
    try:
        *way, last = _on_the_way_to(path)
    except OSError:
        return False
    return all(map(_keeps_its_entries, way)) and _is_written_by_us(last)


def read_ours(path: Path) -> bytes:
    """Read a file that is ours; raise `PermissionError` of another's."""
    # What is read is what was looked at, even if another file is there by now.
    with path.open("rb") as file:
        if not is_ours(path.parent) or not _is_written_by_us(os.fstat(file.fileno())):
            raise PermissionError(errno.EACCES, "others may write there", str(path))
        return file.read()


def _on_the_way_to(path: Path) -> Iterator[os.stat_result]:
    """Yield what stands at each step from the root to a file, links and where they lead."""
    left = list(reversed(path.absolute().parts))
    at, links = Path(), 0
    while left:
        part = left.pop()
        at = at.parent if part == ".." else at / part  # an absolute part begins anew
        status = at.lstat()
        yield status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            left += reversed(at.readlink().parts)
            at = at.parent


def _keeps_its_entries(status: os.stat_result) -> bool:
    """Tell whether nobody else may rename our entries of a folder, or lead a link elsewhere."""
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:  # such as /tmp
        return _is_owned(status)
    return _is_written_by_us(status)


def _is_written_by_us(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    if not _is_owned(status) or status.st_mode & stat.S_IWOTH:
        return False
    # A group named as the user, without other members, is the user's own.
    return not status.st_mode & stat.S_IWGRP or _is_own(status.st_gid)


def _is_owned(status: os.stat_result) -> bool:
    return status.st_uid in {_ROOT, os.getuid(), _owner_of_package()}


@cache
def _owner_of_package() -> int:
    return Path(__file__).stat().st_uid


@cache
def _is_own(group: int) -> bool:
    """Tell whether a group is root's, or one that was made for the user alone."""
    import grp
    import pwd

    try:
        found = grp.getgrgid(group)
        user = "root" if group == _ROOT else pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return group == _ROOT
    return found.gr_name == user and set(found.gr_mem) <= {user, "root"}


class NotLinkableError(Exception):
    """An object file leaves open what is not filled in here."""


class Linked(NamedTuple):
    """Code and constants as they lie in memory, less the addresses among them."""

    content: bytes
    entry: int  # where the function begins
    inside: list[tuple[int, int]]  # where the address of which byte of the content is to stand
    outside: list[tuple[int, str]]  # and where that of which function of the C library


class _Symbol(NamedTuple):
    name: str
    section: int  # 0: of another file
    value: int
    is_for_others: bool


class _ObjectFile:
    def __init__(self, data: bytes) -> None:
        if not data.startswith(_MAGIC):
            raise NotLinkableError
        self._data = data
        (self.machine,) = struct.unpack_from("<H", data, _MACHINE_AT)
        (begin,) = struct.unpack_from("<Q", data, _SECTIONS_AT)
        (count,) = struct.unpack_from("<H", data, _SECTION_COUNT_AT)
        self._sections = np.frombuffer(data, _SECTION, count, begin)
        (table,) = self._sections[self._sections["kind"] == _SYMBOLS]
        names = self._content(self._sections[table["link"]])
        self.symbols = []
        for name, kind, section, value, _ in np.frombuffer(self._content(table), _SYMBOL).tolist():
            if kind & _KIND == _FOUND_AS_IT_RUNS:
                raise NotLinkableError
            text = names[name : names.index(b"\0", name)].decode()
            is_for_others = kind >> _BINDING & _KIND != _OF_THE_FILE
            self.symbols.append(_Symbol(text, section, value, is_for_others))

    def _content(self, section: Any) -> bytes:
        return self._data[section["begin"] : section["begin"] + section["size"]]

    def place(self, content: bytearray) -> dict[int, int]:
        """Append what is there as the code runs; return where each section begins."""
        begins = {}
        for i, section in enumerate(self._sections):
            if section["kind"] == _CONTENT and section["flags"] & _LOADED:
                if section["flags"] & _WRITTEN or section["align"] > mmap.PAGESIZE:
                    raise NotLinkableError
                content += bytes(-len(content) % int(section["align"]))
                begins[i] = len(content)
                content += self._content(section)
        return begins

    def addresses(self, begins: dict[int, int]) -> Iterator[tuple[int, _Symbol, int]]:
        """Yield where addresses are to stand, of which symbol, and how far behind it."""
        for table in self._sections[self._sections["kind"] == _OPEN_WORDS]:
            if table["info"] not in begins:
                continue
            for at, kind, i, behind in np.frombuffer(self._content(table), _OPEN_WORD).tolist():
                if kind != _ADDRESS:
                    raise NotLinkableError
                yield begins[table["info"]] + at, self.symbols[i], behind


def names_outside(code: bytes) -> set[str]:
    """Return what an object file needs of others."""
    return {s.name for s in _ObjectFile(code).symbols if s.name and not s.section}


def link(codes: Iterable[bytes], name: str) -> Linked:
    """Put object files together, so that a function of one of them can run."""
    content = bytearray()
    defined: dict[str, int] = {}
    inside: list[tuple[int, int]] = []
    by_name: list[tuple[int, str]] = []
    for file in map(_ObjectFile, codes):
        if file.machine != _X86_64:
            raise NotLinkableError
        begins = file.place(content)
        for at, symbol, behind in file.addresses(begins):
            if symbol.section in begins:
                inside.append((at, begins[symbol.section] + symbol.value + behind))
            elif symbol.section or behind:
                raise NotLinkableError
            else:
                by_name.append((at, symbol.name))
        for symbol in file.symbols:
            if symbol.section in begins and symbol.is_for_others:
                defined[symbol.name] = begins[symbol.section] + symbol.value
    if name not in defined:
        raise NotLinkableError
    inside += [(at, defined[known]) for at, known in by_name if known in defined]
    outside = [(at, unknown) for at, unknown in by_name if unknown not in defined]
    return Linked(bytes(content), defined[name], inside, outside)


@cache
def address_in_libc(name: str) -> int | None:
    """Return where a function of the C library is; None if it has none of that name."""
    function = getattr(ctypes.CDLL(None), name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def load(linked: Linked) -> tuple[object, int]:
    """Return what must be held as long as the function may run, and where it begins."""
    memory = mmap.mmap(-1, len(linked.content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(linked.content)
    held = ctypes.c_char.from_buffer(memory)
    begin = ctypes.addressof(held)
    for at, to in linked.inside:
        struct.pack_into("<Q", memory, at, begin + to)
    for at, name in linked.outside:
        struct.pack_into("<Q", memory, at, address_in_libc(name))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(begin, len(linked.content), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory may not be made executable")
    return held, begin + linked.entry
