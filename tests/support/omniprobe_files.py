"""Records of omniprobe's AddressLogger, as ``message_logger.cc`` there writes them."""

import json


def record(dispatch, block, op, addresses, *, wave=0, name="k(int*) [clone .kd]"):
    """Return the record of an access, of as many lanes as there are addresses."""
    x, y, z = block
    return {
        "kernel_name": name, "dispatch_id": dispatch, "exec": (1 << len(addresses)) - 1,
        "timestamp": 1234, "dwarf_line": 12, "dwarf_column": 7, "block_idx_x": x, "block_idx_y": y,
        "block_idx_z": z, "wave_num": wave, "xcc_id": 0, "se_id": 0, "cu_id": 3,
        "active_lane_count": len(addresses), "user_type": 0, "op_type": op,
        "addresses": list(addresses),
    }  # fmt: skip


def basic_block(dispatch):
    """Return a record of another kind than accesses."""
    of_wave = record(dispatch, (0, 0, 0), "", [0])
    del of_wave["op_type"], of_wave["addresses"]
    return of_wave | {"user_type": 1, "user_data": 5}


def log(*records):
    """Return a log, between lines that the program and its tool print."""
    lines = [json.dumps(each, separators=(",", ": ")) for each in records]
    return "\n".join(["loading", *lines, "Omniprobe Message Logger complete.", ""]).encode()
