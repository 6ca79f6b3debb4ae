"""CUTracer's files, made to its published schema: from records, and from a log of mem_trace."""

from __future__ import annotations

import json
import re

_LAUNCH = re.compile(
    r"CTX 0x([0-9a-f]+) - LAUNCH - .* - Kernel name (.*) - grid launch id (\d+) - grid size"
    r" ([\d,]+) - block size ([\d,]+) - nregs (\d+) - shmem (\d+) - cuda stream id (\d+)"
)
_ACCESS = re.compile(
    r"CTX 0x([0-9a-f]+) - grid_launch_id (\d+) - CTA ([\d,]+) - warp (\d+) - (\S+) - (.*)"
)
ALL_LANES = 0xFFFFFFFF


def metadata(grid=(4, 1, 1), *, name="k", block=(32, 1, 1), instructions=(), **more):
    """Return the first record of a file; `instructions` are SASS, numbered from 0."""
    record = {
        "type": "kernel_metadata", "mangled_name": name, "unmangled_name": name,
        "kernel_checksum": "7fa21c3", "func_addr": "0x7f0010", "nregs": 32, "shmem_static": 0,
        "shmem_dynamic": 0, "grid": list(grid), "block": list(block),
        "instructions": {str(i): {"sass": sass} for i, sass in enumerate(instructions)},
    }  # fmt: skip
    return record | more


def access(launch, block, sass, addresses, *, opcode=0, mask=ALL_LANES, context="33c98dc0"):
    """Return an access as today's writer has it; with `sass`, as that of 2025 did."""
    record = {
        "addrs": [*addresses, *[0] * (32 - len(addresses))], "cta": list(block),
        "ctx": f"0x{context}", "grid_launch_id": launch, "ipoint": "B", "opcode_id": opcode,
        "pc": "0x43d0", "timestamp": 4, "trace_index": 3, "type": "mem_addr_trace", "warp": 0,
    }  # fmt: skip
    if sass is not None:
        return record | {"sass": sass}
    return record | {"active_mask": hex(mask)}


def tile(launch, block, opcode, **info):
    """Return a record of a tensor copy; `info` replaces what it says of the transfer."""
    tiled = {
        "data_type": "FLOAT16", "data_type_id": 6, "rank": 2, "global_address": "0x7f0000000000",
        "global_dim": [64, 16, 1, 1, 1], "global_strides": [128, 0, 0, 0],
        "box_dim": [32, 4, 1, 1, 1], "element_strides": [1, 1, 1, 1, 1],
        "interleave": "NONE", "interleave_id": 0, "swizzle": "NONE", "swizzle_id": 0,
        "l2_promotion": "NONE", "oob_fill": "NONE",
    } | info.pop("tiled", {})  # fmt: skip
    transfer = {
        "is_bulk": False, "is_tensor": True, "is_prefetch": False, "is_multicast": False,
        "transfer_count": 1, "transfer_size": 256, "byte_count": 256, "multicast_cta_mask": 0,
        "src_memspace": "GLOBAL", "dst_memspace": "SHARED",
        "tensor": {
            "dim": 2, "mode": "TILED", "coords": [0, 0, 0, 0, 0], "intended_transfer_count": 1,
            "oob_transfer_count": 0, "tiled": tiled,
        } | info.pop("tensor", {}),
    } | info  # fmt: skip
    return {
        "active_mask": "0x1", "cta": list(block), "ctx": "0x33c98dc0", "grid_launch_id": launch,
        "opcode_id": opcode, "pc": "0x77", "timestamp": 4, "tma_param_size": 64, "trace_index": 1,
        "type": "tma_trace", "warp": 0, "tma_transfer_info": transfer,
        "desc_addr": tiled["global_address"],
    }  # fmt: skip


def event(number, *, grid=(4, 1, 1), name="k", stream=0):
    return {
        "type": "kernel_launch", "kernel_launch_id": number, "kernel_name": name,
        "kernel_checksum": "7fa21c3", "grid": list(grid), "block": [32, 1, 1], "nregs": 16,
        "shmem": 0, "stream_id": stream,
    }  # fmt: skip


def completion(launch, status="complete"):
    """Return what the receiver writes behind the records of a launch."""
    is_whole = status == "complete"
    return {
        "type": "capture_completion", "version": 1, "grid_launch_id": launch, "status": status,
        "kernel_completed": True, "channel_drained": is_whole, "trace_records_written": 7,
        "dropped_records": 0 if is_whole else 3, "errors": [] if is_whole else ["dropped"],
    }  # fmt: skip


def ndjson(*records):
    return b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in records)


def files_of(log, *, with_sass=False):
    """Return the files of the program that a log of mem_trace (NVBit 1.7) is of, by name."""
    launches, records, opcodes = {}, {}, {}
    for line in log.splitlines():
        if launched := _LAUNCH.search(line):
            _, name, number, grid, block, registers, shared, _ = launched.groups()
            launches[int(number)] = metadata(
                map(int, grid.split(",")), name=name, block=list(map(int, block.split(","))),
                nregs=int(registers), shmem_static=int(shared),
            )  # fmt: skip
        elif accessed := _ACCESS.search(line):
            context, launch, block, _, opcode, lanes = accessed.groups()
            launch = int(launch)
            table = opcodes.setdefault(launch, {})
            number = table.setdefault(opcode, len(table))
            addresses = [int(lane, 16) for lane in lanes.split()]
            sass = f"@!P0 {opcode} R4, [R2.64] ;"
            mask = sum(1 << lane for lane, address in enumerate(addresses) if address)
            records.setdefault(launch, []).append(
                access(
                    launch, map(int, block.split(",")), sass if with_sass else None, addresses,
                    opcode=number, mask=mask, context=context,
                )
            )  # fmt: skip
    files = {}
    for launch, announced in launches.items():
        if not with_sass:
            for opcode, number in opcodes.get(launch, {}).items():
                announced["instructions"][str(number)] = {"sass": f"{opcode} R4, [R2.64] ;"}
        name = f"kernel_{launch:x}fa_iter0_k.ndjson"
        files[name] = ndjson(announced, *records.get(launch, []))
    return files
