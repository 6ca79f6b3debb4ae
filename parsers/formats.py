"""Readers of memory-access traces, one module per format; `open_trace` tells them apart.

A format is a module with `FORMAT`, `sniff` and `open_inputs`, and a line in `_FORMATS`, or an entry
point ``depgraph.parsers`` of another package.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from depgraph.errors import ProfileError, TraceError

if TYPE_CHECKING:
    from depgraph.parsers.scanning.inputs import TraceInput
    from depgraph.trace.records import Trace


# Modules carry compiled code: they are imported when a trace is opened, in this order.
_FORMATS = (
    "depgraph.parsers.nvbit.log",
    "depgraph.parsers.recording.trace",
    "depgraph.parsers.accelsim.trace",
    "depgraph.parsers.simlog.accesses",
    "depgraph.parsers.cutracer.trace",
    "depgraph.parsers.omniprobe",
)
# How much of a file is looked at: a program may print for long before its first kernel.
_HEAD_BYTES = (1 << 16, 1 << 20, 1 << 24)
_TAR_AT = 257

PathLike = str | Path


class Format(Protocol):
    """What the module of a format offers."""

    FORMAT: str

    def sniff(self, head: bytes) -> bool:
        """Tell whether a file that begins so is of this format."""

    def open_inputs(self, inputs: Sequence[TraceInput]) -> Trace:
        """Open the files of one run."""


def open_trace(
    paths: PathLike | Sequence[PathLike],
    *,
    allow_outside: bool = False,
    memory_limit: int | None = None,
) -> Trace:
    """Open a trace of any known format, told by its content.

    Parameters
    ----------
    paths : str or Path, or several of them
        A file, plain or packed with xz, gz, zst or bz2; ``-`` for standard input; the folder or
        the kernelslist of an Accel-Sim trace; the folder of a run under CUTracer; several kernel
        files, or several logs, of one run.
    allow_outside : bool
        Follow a kernelslist, or a link, to files outside its folder.
    memory_limit : int, optional
        Bytes that what is unpacked of a recording may take at once; default half of what is free.

    Raises
    ------
    TraceError
        If a file cannot be read or is no trace; the message says what it looks like.
    """
    from depgraph.parsers.scanning.inputs import TraceInput

    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise TraceError("no file", "no trace is given", "name a trace file or folder")
    if any(str(path) == "-" for path in given):
        if len(given) > 1:
            raise TraceError("<stdin>", "standard input comes alone", "give it without other files")
        return _open_inputs([TraceInput(None)])
    files = [Path(path) for path in given]
    if len(files) == 1 and files[0].is_dir():
        from depgraph.parsers.cutracer.trace import files_in

        files = files_in(files[0]) or files
    inputs = [TraceInput(path, memory_limit) for path in files]
    is_named = any(path.is_dir() or path.name.startswith("kernelslist") for path in files)
    if is_named or (len(files) == 1 and _format_of(inputs[0]).FORMAT == "accelsim"):
        return _listed(files, allow_outside=allow_outside) or _open_inputs(inputs)
    return _open_inputs(inputs)


def _listed(files: list[Path], *, allow_outside: bool) -> Trace | None:
    """Open an Accel-Sim trace by its folder or its list; None if `files` are files of it."""
    from depgraph.parsers.accelsim.kernel_list import is_list, list_folder, read_list

    folders = [path for path in files if path.is_dir()]
    lists = [path for path in files if is_list(path, by_content=len(files) == 1)]
    if not folders and not lists:
        return None
    if len(folders) + len(lists) > 1 or (folders and len(files) > 1):
        other = (folders + lists)[1 if len(folders) + len(lists) > 1 else 0]
        found = "belongs to another trace than the files before it"
        raise TraceError(other, found, "give one folder, or one kernelslist")
    from depgraph.parsers.accelsim.trace import AccelSimTrace

    if folders:
        if (folders[0] / "kernels.parquet").is_file():
            found = "is a depgraph store, not a trace"
            raise TraceError(folders[0], found, "depgraph bound and report read it")
        return AccelSimTrace(list_folder(folders[0], allow_outside=allow_outside))
    others = [path for path in files if path.parent != lists[0].parent]
    if others:
        raise TraceError(others[0], f"is not beside {lists[0]}", "give the list alone")
    return AccelSimTrace(read_list(lists[0], allow_outside=allow_outside))


def _open_inputs(inputs: list[TraceInput]) -> Trace:
    first = _format_of(inputs[0])
    if len(inputs) > 1:
        _refuse_other_formats(first, inputs)
    return first.open_inputs(inputs)


def _refuse_other_formats(first: Format, inputs: list[TraceInput]) -> None:
    from depgraph.parsers.accelsim.kernel_list import kernel_number

    for other in inputs[1:]:
        # A kernel file that is none is found when it is read: there may be ten thousands.
        if all(kernel_number(Path(item.name)) for item in (inputs[0], other)):
            continue
        if (theirs := _format_of(other)) is not first:
            found = f"is a trace of another format ({theirs.FORMAT})"
            found += f" than {inputs[0].name} ({first.FORMAT})"
            raise TraceError(other.name, found, "give the files of one trace")


def _format_of(source: TraceInput) -> Format:
    head = b""
    for size in _HEAD_BYTES:
        head = source.head(size)
        if is_archive(head):
            break
        if found := next((module for module in _formats() if module.sniff(head)), None):
            return found
        if len(head) < size:
            break
    raise TraceError(source.name, *_described(source.name, head))


def _formats() -> Iterator[Format]:
    """Import the readers of this package, then of others, of which few files have need."""
    for name in _FORMATS:
        yield cast("Format", importlib.import_module(name))
    from depgraph.system.plugins import PARSERS, installed, loaded

    for point in installed(PARSERS).values():
        yield cast("Format", loaded(point))


def is_archive(head: bytes) -> bool:
    """Tell whether a file is a tar archive, whatever is in it."""
    return head[_TAR_AT:].startswith(b"ustar")


_HINT = (
    "give the standard output of a program under NVBit's mem_trace, or an Accel-Sim kernelslist,"
    " its folder or its kernel files"
)
_AS_TIMES = "it has times but no memory accesses: give it as --timing, beside a trace"
_PROFILE_HEAD_BYTES = 1 << 17  # every line of it is looked at in turn
_PROFILES = {
    "kineto": "is a PyTorch profiler trace",
    "chakra": "is a Chakra execution trace",
    "nsys-csv": "is a profile of nsys",
    "ncu": "is a profile of Nsight Compute",
    "nvprof": "is a profile of nvprof",
    "own-csv": "is a table of times",
}


@cache
def other_files() -> dict[str, dict[str, str]]:
    """Return what other files are, by kind: how their text is told, and what to do about them."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("other_files.toml").read_text("utf-8"))


def _described(name: str, head: bytes) -> tuple[str, str]:
    """Say what a file of no known format is, and what to do."""
    if not head.strip():
        return "the file is empty", "trace the program again"
    if is_archive(head):
        return "is a tar archive", "unpack it, and give the folder"
    for kind in other_files().values():
        if re.search(kind["pattern"].encode(), head, re.MULTILINE):
            return kind["found"], kind["hint"]
    if (profile := _profile(name, head)) is not None:
        return profile, _AS_TIMES
    is_binary = b"\0" in head[: 1 << 16]
    return "is binary, and no trace" if is_binary else "is not a memory-access trace", _HINT


def _profile(name: str, head: bytes) -> str | None:
    from depgraph.parsers.profiles.formats import sniff
    from depgraph.parsers.profiles.source import Head

    text = head[:_PROFILE_HEAD_BYTES]
    if text.lstrip().startswith((b"{", b"[")) and b'"traceEvents"' not in text:
        return None
    try:
        return _PROFILES.get(sniff(Head(Path(name), text, None)))
    except ProfileError as error:
        return error.found if error.found.startswith(("is a report", "is a summary")) else None
