"""Recordings of a few kernels, written without a GPU."""

import numpy as np

from depgraph.parsers.recording.archive import MAPS, SECTORS, TILES
from depgraph.parsers.recording.packing import pack

KERNEL = {
    "event": "kernel", "number": 1, "grid_id": 1, "name": "k()", "mangled": "_Z1kv",
    "grid": [2, 1, 1], "block": [32, 1, 1], "cluster": [0, 0, 0], "registers": 8,
    "static_shared": 0, "dynamic_shared": 0, "stream": 0, "context": 0, "device": 0,
    "graph": 0, "state": "recorded", "lost": 0,
}  # fmt: skip
COPY = {
    "event": "copy", "from": 0, "to": 4096, "bytes": 32, "width": 32, "height": 1, "depth": 1,
    "from_pitch": 0, "to_pitch": 0, "direction": 2, "stream": 0,
}  # fmt: skip
MEMSET = {
    "event": "memset", "address": 4096, "width": 32, "height": 1, "pitch": 0, "element": 1,
    "stream": 0,
}  # fmt: skip


def recording(tmp_path, *events, sectors=((128, 0, 1, 1, 0, 0, 1),), tiles=(), maps=(), process=1):
    """Write a recording whose kernels, numbered 1, have the same tables."""
    path = tmp_path / "it.recording"
    tables = {"sectors": SECTORS, "tiles": TILES, "maps": MAPS}
    raw, places = b"", {}
    for (name, dtype), rows in zip(tables.items(), (sectors, tiles, maps), strict=True):
        places |= {f"{name}_at": len(raw), name: len(rows)}
        raw += np.array(list(rows), dtype).tobytes()
    events = [event | places if event["event"] == "kernel" else event for event in events]
    pack(path, {"process": process}, events, np.frombuffer(raw, np.uint8))
    return path
