"""Readers of memory-access traces, one module per format; `open_trace` tells them apart.

A format is a module with `FORMAT`, `sniff` and `open_inputs`, and a line in `_FORMATS`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from depgraph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.parsers.scanning.compression import TraceInput
    from depgraph.trace.records import Trace

# Modules carry compiled code: they are imported when a trace is opened, in this order.
_FORMATS = (
    "depgraph.parsers.nvbit.log",
    "depgraph.parsers.recording.trace",
    "depgraph.parsers.accelsim.trace",
    "depgraph.parsers.simlog.accesses",
)
# How much of a file is looked at: a program may print for long before its first kernel.
_HEAD_BYTES = (1 << 16, 1 << 20, 1 << 24)
_TAR_AT = 257
_STORE_MARK = "kernels.parquet"

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
        the kernelslist of an Accel-Sim trace; several kernel files, or several logs, of one run.
    allow_outside : bool
        Follow a kernelslist, or a link, to files outside its folder.
    memory_limit : int, optional
        Bytes that what is unpacked of a recording may take at once; default half of what is free.

    Raises
    ------
    TraceError
        If a file cannot be read or is no trace; the message says what it looks like.
    """
    from depgraph.parsers.scanning.compression import TraceInput

    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise TraceError("no file", "no trace is given", "name a trace file or folder")
    if any(str(path) == "-" for path in given):
        if len(given) > 1:
            raise TraceError("<stdin>", "standard input comes alone", "give it without other files")
        return _open_inputs([TraceInput(None)])
    files = [Path(path) for path in given]
    listed = _listed(files, allow_outside=allow_outside)
    return listed or _open_inputs([TraceInput(path, memory_limit) for path in files])


def _listed(files: list[Path], *, allow_outside: bool) -> Trace | None:
    """Open an Accel-Sim trace by its folder or its list; None if `files` are files of it."""
    from depgraph.parsers.accelsim.kernel_list import is_list, list_folder, read_list

    folders = [path for path in files if path.is_dir()]
    lists = [path for path in files if is_list(path, by_content=len(files) == 1)]
    if not folders and not lists:
        return None
    if len(folders) + len(lists) > 1 or (folders and len(files) > 1):
        raise TraceError(
            (folders + lists)[1 if len(folders) + len(lists) > 1 else 0],
            "belongs to another trace than the files before it",
            "give one folder, or one kernelslist",
        )
    from depgraph.parsers.accelsim.trace import AccelSimTrace

    if folders:
        if (folders[0] / _STORE_MARK).is_file():
            raise TraceError(
                folders[0], "is a depgraph store, not a trace", "depgraph bound and report read it"
            )
        return AccelSimTrace(list_folder(folders[0], allow_outside=allow_outside))
    others = [path for path in files if path.parent != lists[0].parent]
    if others:
        raise TraceError(others[0], f"is not beside {lists[0]}", "give the list alone")
    return AccelSimTrace(read_list(lists[0], allow_outside=allow_outside))


def _open_inputs(inputs: list[TraceInput]) -> Trace:
    from depgraph.parsers.accelsim.kernel_list import is_kernel_file_name

    def is_named_as_kernel(item: TraceInput) -> bool:
        return is_kernel_file_name(Path(item.name).name)

    first = _format_of(inputs[0])
    for other in inputs[1:]:
        # A kernel file that is none is found when it is read: there may be ten thousands.
        if is_named_as_kernel(inputs[0]) and is_named_as_kernel(other):
            continue
        if (found := _format_of(other)) is not first:
            raise TraceError(
                other.name,
                f"is a trace of another format ({found.FORMAT}) than {inputs[0].name}"
                f" ({first.FORMAT})",
                "give the files of one trace",
            )
    return first.open_inputs(inputs)


def _format_of(source: TraceInput) -> Format:
    head = b""
    for size in _HEAD_BYTES:
        head = source.head(size)
        if is_archive(head):
            break
        for name in _FORMATS:
            module = cast("Format", importlib.import_module(name))
            if module.sniff(head):
                return module
        if len(head) < size:
            break
    from depgraph.parsers.refusals import refusal

    raise refusal(source.name, head)


def is_archive(head: bytes) -> bool:
    """Tell whether a file is a tar archive, whatever is in it."""
    return head[_TAR_AT:].startswith(b"ustar")
