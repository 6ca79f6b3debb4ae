"""Say of a file that is no trace what it looks like, and what to give instead."""

from __future__ import annotations

import re
from pathlib import Path

from depgraph.errors import ProfileError, TraceError
from depgraph.parsers.formats import is_archive

_HINT = (
    "give the standard output of a program under NVBit's mem_trace, or an Accel-Sim kernelslist,"
    " its folder or its kernel files"
)
_RUN_IT = "run it under NVBit's mem_trace and give what that prints"
_AS_TIMES = "it has times but no memory accesses: give it as --timing, beside a trace"
_MEM_TRACE = "trace the program again with NVBit's mem_trace"
_NO_AMD = "it has times but no memory accesses, and traces are read of NVIDIA GPUs only"
GPUCACHESIM = "is a trace of gpucachesim (JSON and MessagePack), which depgraph does not read"
EITHER_TRACER = "trace the program again with NVBit's mem_trace or Accel-Sim's tracer"

_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"\x7fELF", "is a program", _RUN_IT),
    (b"MZ", "is a program", _RUN_IT),
    (b"SQLite format 3\0", "is an SQLite file, as nsys exports it", _AS_TIMES),
    (b"PAR1", "is a Parquet file", _HINT),
    (b"%PDF", "is a PDF file", _HINT),
)
_TOOLS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (
        re.compile(rb'\{"op": ?"[A-Z0-9_.]+", ?"kernel_name"'),
        "is the output of snoopie, whose lines name no thread block",
        _MEM_TRACE,
    ),
    (
        re.compile(rb'"instr_opcode"\s{0,9}:|"(?:KernelLaunch|MemcpyHtoD)"\s{0,9}:\s{0,9}\{'),
        GPUCACHESIM,
        EITHER_TRACER,
    ),
    (
        re.compile(
            rb'"rocprofiler-sdk-tool"|"\d* ?CPU H(?:IP|SA) API"|^"?Index"?,"?KernelName"?,"?gpu-id'
            rb'|^"Kind","Agent_Id",',
            re.MULTILINE,
        ),
        "is a profile of rocprof, of an AMD GPU",
        _NO_AMD,
    ),
    (
        re.compile(rb"CTX 0x[0-9a-f]+ - CTA \d+,\d+,\d+ - warp \d+ - [A-Z][^\n]{0,400};:"),
        "is the output of CUTracer, which has registers but no addresses",
        _MEM_TRACE,
    ),
    (
        re.compile(
            rb"^CTA \d+,\d+,\d+ - warp \d+ - [A-Z][^\n]*:[ \t]*\n[ \t]+\* Reg\d", re.MULTILINE
        ),
        "is the output of NVBit's record_reg_vals, which has registers but no addresses",
        _MEM_TRACE,
    ),
    (
        re.compile(rb"^kernel \d+ - [^\n]* - #thread-blocks \d+,", re.MULTILINE),
        "is the output of an NVBit tool that counts instructions",
        _MEM_TRACE,
    ),
    (
        re.compile(rb"\A\s*kernel id, kernel mangled name,"),
        "is the statistics file of an Accel-Sim trace",
        "give the kernelslist beside it, or the folder",
    ),
    (
        re.compile(rb"^(?:GPGPU-Sim |gpu_sim_cycle = |[ \t]+mf: uid=)", re.MULTILINE),
        "is a simulator's log without memory lines that name a thread block",
        _AS_TIMES,
    ),
)
_PROFILE_HEAD_BYTES = 1 << 17  # every line of it is looked at in turn
_PROFILES = {
    "kineto": "is a PyTorch profiler trace",
    "nsys-csv": "is a profile of nsys",
    "ncu": "is a profile of Nsight Compute",
    "nvprof": "is a profile of nvprof",
    "own-csv": "is a table of times",
}


def refusal(name: str, head: bytes) -> TraceError:
    """Return the error for a file of no known format, by how it begins."""
    found, hint = _described(name, head)
    return TraceError(name, found, hint)


def _described(name: str, head: bytes) -> tuple[str, str]:
    if not head.strip():
        return "the file is empty", "trace the program again"
    if is_archive(head):
        return "is a tar archive", "unpack it, and give the folder"
    for signature, found, hint in _SIGNATURES:
        if head.startswith(signature):
            return found, hint
    for pattern, found, hint in _TOOLS:
        if pattern.search(head):
            return found, hint
    profile = _profile(name, head)
    if profile is not None:
        return profile, _AS_TIMES
    is_binary = b"\0" in head[: 1 << 16]
    return "is binary, and no trace" if is_binary else "is not a memory-access trace", _HINT


def _profile(name: str, head: bytes) -> str | None:
    """Say which profile it is, if it is one."""
    from depgraph.parsers.profiles.formats import sniff
    from depgraph.parsers.profiles.source import Head

    text = head[:_PROFILE_HEAD_BYTES]
    if text.lstrip().startswith((b"{", b"[")) and b'"traceEvents"' not in text:
        return None
    try:
        return _PROFILES.get(sniff(Head(Path(name), text, None)))
    except ProfileError as error:
        return error.found if error.found.startswith(("is a report", "is a summary")) else None
