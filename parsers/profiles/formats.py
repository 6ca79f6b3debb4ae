"""The formats of files of times: told by their contents, and each has a module that reads it."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import chakra, ncu, nsys_sqlite, own_tables, rocprof
from depgraph.parsers.profiles.gpu_trace import NSYS, NVPROF
from depgraph.parsers.profiles.source import Head, cells_of, header_of
from depgraph.timing.profile import BlockProfile, KernelProfile

Reader = Callable[[Path], KernelProfile | BlockProfile]

_SQLITE = b"SQLite format 3\0"
_PARQUET = b"PAR1"
_NCU_REPORT = b"NVR\0"
_SIMULATOR = re.compile(
    r"GPGPU-Sim |^gpu_(?:tot_)?sim_cycle = |^Accel-Sim \[build|^launching kernel (?:name|command)"
)
_MEMORY_TRACE = re.compile(
    r"MEMTRACE: |^#traces format|^-kernel name = |^thread block = ", re.MULTILINE
)
_HEADERS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("nsys-csv", NSYS.recognises),
    ("nvprof", NVPROF.recognises),
    ("ncu", ncu.is_ncu_header),
    ("rocprofv3", rocprof.recognises),
)
_READERS: dict[str, Reader] = {
    "chakra": chakra.read_chakra,
    "nsys-csv": NSYS.read,
    "nsys-sqlite": nsys_sqlite.read_nsys_sqlite,
    "ncu": ncu.read_ncu,
    "rocprofv3": rocprof.read_rocprof,
    "nvprof": NVPROF.read,
    "own-csv": own_tables.read_csv_table,
    "own-parquet": own_tables.read_parquet_table,
}
_HINTS = {
    "nsys-csv": NSYS.hint, "nsys-sqlite": nsys_sqlite.HINT, "nvprof": NVPROF.hint,
    "ncu": ncu.HINT, "rocprofv3": rocprof.HINT,
}  # fmt: skip
_REPORT_SUFFIXES = dict.fromkeys((".nsys-rep", ".qdrep", ".qdstrm"), nsys_sqlite.HINT)
_REPORT_SUFFIXES[".ncu-rep"] = ncu.HINT
ANY_HINT = (
    "give a PyTorch profiler trace, nsys cuda_gpu_trace CSV or SQLite, CSV of ncu, nvprof or "
    "rocprofv3, a GPGPU-Sim or Accel-Sim log, or a table with columns kernel,duration_us"
)


def reader_of(head: Head) -> Reader:
    """Return what reads a file that begins so."""
    format_ = sniff(head)
    if format_ == "simlog":
        from depgraph.parsers.simlog.times import read_simlog

        return read_simlog
    if format_ == "kineto":
        from depgraph.parsers.profiles.kineto import read_kineto

        return read_kineto
    return _READERS[format_]


def sniff(head: Head) -> str:
    """Return the format of a file; what has no time of single kernels is refused, and why."""
    if (binary := _binary_format(head)) is not None:
        return binary
    text = head.text
    if not (stripped := text.lstrip()):
        raise ProfileError(head.path, "the file is empty", ANY_HINT)
    if stripped[0] in "{[":
        return "kineto"
    refusal: ProfileError | None = None
    first_row = True
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if (found := _line_format(line, first_row=first_row)) is not None:
            return found
        refusal = refusal or _refusal(head.path, line, number)
        first_row = first_row and (not line.strip() or line.startswith("#"))
    if refusal is not None:
        raise refusal
    if _MEMORY_TRACE.search(text):
        raise ProfileError(head.path, "is a memory trace, which has no times", ANY_HINT)
    raise ProfileError(head.path, "is in no format that has kernel times", ANY_HINT)


def _binary_format(head: Head) -> str | None:
    if head.raw.startswith((_SQLITE, _PARQUET)):
        if head.compression is not None:
            found = f"is {head.compression}-compressed"
            raise ProfileError(head.path, found, "unpack it: this is no text")
        return "nsys-sqlite" if head.raw.startswith(_SQLITE) else "own-parquet"
    if chakra.is_chakra(head.raw):
        return "chakra"
    if head.raw.startswith(_NCU_REPORT):
        raise ProfileError(head.path, "is a report of Nsight Compute itself", ncu.HINT)
    hint = _REPORT_SUFFIXES.get(head.path.suffix)
    if hint is not None and b"\0" in head.raw:
        raise ProfileError(head.path, f"is a {head.path.suffix} report itself", hint)
    return None


def _line_format(line: str, *, first_row: bool) -> str | None:
    known = next((name for name, recognises in _HEADERS if recognises(line)), None)
    if known is None and first_row and own_tables.layout_of(cells_of(line)) is not None:
        return "own-csv"
    return known or ("simlog" if _SIMULATOR.search(line) else None)


def _refusal(path: Path, line: str, number: int) -> ProfileError | None:
    names = set(header_of(line).names)
    for table in _other_tables():
        columns, words = table.get("columns"), table["line"]
        if names.issuperset(columns) if columns else words.search(line):
            return ProfileError(path, table["found"], _HINTS[table["tool"]], line=number)
    return None


@cache
def _other_tables() -> list[dict[str, Any]]:
    import tomllib

    text = Path(__file__).with_name("other_tables.toml").read_text("utf-8")
    tables = tomllib.loads(text)["table"]
    return [{**table, "line": re.compile(table.get("line", ""))} for table in tables]
