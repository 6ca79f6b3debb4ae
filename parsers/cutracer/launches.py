"""What CUTracer says of launches: the line in front of a kernel's records, and its kernel events.

Source: ``kernel_metadata.schema.json`` and ``docs/Outputs-and-File-Formats.md`` of
facebookresearch/CUTracer.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from depgraph.errors import TraceError
from depgraph.parsers.scanning.inputs import TraceInput
from depgraph.parsers.scanning.json_lines import LARGEST, lines_of, three, whole
from depgraph.parsers.scanning.tables import MemoryOpcode, decode_opcode, untraced_by
from depgraph.trace.names import demangle
from depgraph.trace.records import Dim3, KernelLaunch, checked_launch, programmatic_code, signed64

METADATA, EVENT = "kernel_metadata", "kernel_launch"
ADDRESSES = frozenset({"mem_addr_trace", "mem_trace"})  # today's name, and that until 2025
MOST_LAUNCHES = 1 << 62
MOST_IN_CLUSTER = 16  # bits of a multicast mask
_INSTRUCTION = re.compile(r"\s*(?:@!?\w+\s+)?([A-Z][\w.]*)")


@lru_cache(maxsize=1 << 14)
def opcode_of(sass: str) -> MemoryOpcode | None:
    """Return the opcode of an instruction such as ``@!P0 LDG.E R4, [R2.64] ;``, if there is one."""
    found = _INSTRUCTION.match(sass)
    return None if found is None or sass == "N/A" else decode_opcode(found[1])


@dataclass(frozen=True, slots=True)
class KernelMetadata:
    """A kernel as the line in front of its records states it."""

    launch: KernelLaunch  # its number and context stand in the records
    opcodes: dict[int, MemoryOpcode]  # by number; none where the line has no instructions
    left_out: str | None = None  # what the tracer was told not to trace
    cluster: Dim3 | None = None  # blocks of a cluster, where the line has them

    def unseen(self, *, shows_bulk: bool) -> str | None:
        """Say what its code has that no record shows, textures and the like, or tiles by TMA."""
        opcodes = sorted(self.opcodes.values(), key=lambda opcode: opcode.is_bulk)
        unseen = (o for o in opcodes if o.is_untraced_global and not (o.is_bulk and shows_bulk))
        return self.left_out or next(map(untraced_by, unseen), None)


def read_metadata(record: dict[str, Any]) -> KernelMetadata:
    """Read a ``kernel_metadata`` line; a `ValueError` or `TypeError` says what is wrong."""
    shared = [whole(record, f"shmem_{kind}") for kind in ("static", "dynamic")]
    table = record.get("instructions", {})
    if not isinstance(table, dict) or not all(map(str.isdecimal, table)):
        raise TypeError("instructions are not numbered")
    named = {int(number): opcode_of(str(each["sass"])) for number, each in table.items()}
    opcodes = {number: opcode for number, opcode in named.items() if opcode is not None}
    mangled = _text(record, "mangled_name")
    has_name = bool(record.get("unmangled_name"))
    launch = checked_launch(
        name=_text(record, "unmangled_name") if has_name else demangle(mangled),
        grid=three(record, "grid"),
        block=three(record, "block"),
        registers=whole(record, "nregs"),
        shared_bytes=sum(shared),
        mangled_name=mangled,
        # Not every instruction need stand in the table.
        programmatic=programmatic_code(o.mnemonic for o in opcodes.values()) or None,
        is_unified=True,
    )
    is_known = "cluster_dim" in record and record.get("cluster_dim_source") != "unknown"
    cluster = three(record, "cluster_dim", 1, MOST_IN_CLUSTER) if is_known else None
    return KernelMetadata(launch, opcodes, _left_out(record), cluster)


def _left_out(record: dict[str, Any]) -> str | None:
    """Say which accesses were not traced; files of before 2026 do not state it."""
    config = record.get("capture_config") or {"instr_begin": 0, "instr_end": LARGEST}
    code = (
        whole(config, "root_instruction_count") if "root_instruction_count" in config else LARGEST
    )
    is_part = whole(config, "instr_begin") > 0 or whole(config, "instr_end") < code
    if is_part or record.get("instr_categories") is not None:
        return "has accesses that CUTRACER_INSTR_CATEGORIES, INSTR_BEGIN or INSTR_END left out"
    if ADDRESSES.isdisjoint(record.get("instrument_modes", ADDRESSES)):
        return "has accesses that CUTRACER_INSTRUMENT without mem_addr_trace left out"
    return None


def read_events(source: TraceInput) -> dict[int, KernelLaunch]:
    """Read the launches of a kernel events file, by number."""
    found = {}
    with source.open() as stream:
        for line, content in enumerate(lines_of(stream), 1):
            if not content.strip():
                continue
            try:
                record = json.loads(content)
                if record["type"] == EVENT:
                    number = whole(record, "kernel_launch_id", most=MOST_LAUNCHES)
                    found[number] = _event(record, number)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                why = f"the kernel event cannot be read ({error})"
                raise TraceError(source.name, why, "trace the program again", line=line) from None
    return found


def _event(record: dict[str, Any], number: int) -> KernelLaunch:
    name = _text(record, "kernel_name")
    return checked_launch(
        name=demangle(name),
        grid=three(record, "grid"),
        block=three(record, "block"),
        registers=whole(record, "nregs"),
        shared_bytes=whole(record, "shmem"),
        stream=signed64(int(record["stream_id"])),
        mangled_name=name,
        trace_id=number,
        is_unified=True,
    )


def _text(record: dict[str, Any], key: str) -> str:
    if not isinstance(record[key], str):
        raise TypeError(f"{key} is no text")
    return str(record[key].encode("utf-8", "replace").decode())
