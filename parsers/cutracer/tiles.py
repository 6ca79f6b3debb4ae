"""What a ``tma_trace`` record says: which bytes of global memory a bulk or tensor copy touches.

Source: ``serialize_tma`` of facebookresearch/CUTracer's ``trace_serialize.cpp`` (NVBit 1.8's
``TMATransferInfo_t``); ``cuTensorMapEncodeTiled`` in the CUDA driver API.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from depgraph.parsers.recording.tensor_maps import MOST_DIMENSIONS, TensorMap, tile_ranges
from depgraph.parsers.scanning.opcodes import Effect

if TYPE_CHECKING:
    from depgraph.parsers.scanning.opcodes import MemoryOpcode
    from depgraph.trace.records import Dim3

Bytes = tuple["NDArray[np.uint64]", "NDArray[np.uint64]"]

_ADDRESS_END = 1 << 57
_MOST_BYTES = 1 << 20  # more than shared memory holds
_MOST_ROWS = 1 << 14
# CUtensorMapDataType: u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, f32 ftz, tf32, tf32 ftz.
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)


def bytes_of(record: dict[str, Any], opcode: MemoryOpcode) -> Bytes | None:
    """Return where the ranges that a copy touches begin and end; None if it does not say so.

    Raises `KeyError`, `TypeError` or `ValueError` where the record is damaged.
    """
    info = record.get("tma_transfer_info")
    if info is None:
        return None
    if info["is_prefetch"]:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    if not info["is_tensor"]:
        return _bulk(record, info) if opcode.effect == Effect.READ else None
    tensor = info["tensor"]
    if tensor["mode"] != "TILED" or tensor["tiled"]["interleave_id"] != 0:
        return None
    tiled = _tensor_map(tensor["tiled"])
    if tiled is None or tiled.rows > _MOST_ROWS:
        return None
    at = np.array([tensor["coords"][: len(tiled.sizes)]], np.int32)
    _, start, end = tile_ranges(tiled, at)
    return start, end


def receivers(record: dict[str, Any], cluster: Dim3 | None) -> list[Dim3] | None:
    """Return the blocks that a copy is for: several of a cluster where it is a multicast.

    None if the record does not say it. Blocks of a cluster are counted along x first (PTX ISA,
    ``%cluster_ctarank``).
    """
    x, y, z = record["cta"]
    info = record.get("tma_transfer_info") or {}
    if not info.get("is_multicast"):
        return [(x, y, z)]
    mask = info.get("multicast_cta_mask", 0)
    if cluster is None or not 0 < mask < 1 << math.prod(cluster):
        return None
    cx, cy, cz = cluster
    first = x - x % cx, y - y % cy, z - z % cz
    ranks = [rank for rank in range(cx * cy * cz) if mask >> rank & 1]
    return [
        (first[0] + rank % cx, first[1] + rank // cx % cy, first[2] + rank // (cx * cy))
        for rank in ranks
    ]


def _bulk(record: dict[str, Any], info: dict[str, Any]) -> Bytes | None:
    """Return what a plain copy from global memory reads."""
    if not info["is_bulk"] or not 0 < info["byte_count"] <= _MOST_BYTES:
        return None
    start = int(record["desc_addr"], 16)
    _check_end(start, start + info["byte_count"])
    return np.array([start], np.uint64), np.array([start + info["byte_count"]], np.uint64)


def _tensor_map(tiled: dict[str, Any]) -> TensorMap | None:
    rank, kind = tiled["rank"], tiled["data_type_id"]
    if not 0 < rank <= MOST_DIMENSIONS or not 0 <= kind < len(_ELEMENT_BYTES):
        return None
    element = _ELEMENT_BYTES[kind]
    sizes, box, steps, strides = (
        tuple(map(int, tiled[name]))
        for name in ("global_dim", "box_dim", "element_strides", "global_strides")
    )
    found = TensorMap(
        address=int(tiled["global_address"], 16),
        element=element,
        sizes=sizes[:rank],
        strides=(element, *strides[: rank - 1]),
        box=box[:rank],
        steps=(1, *steps[1:rank]),  # the hardware takes all of the innermost dimension
    )
    if min((*found.sizes, *found.box, *found.steps)) < 1 or min(found.strides) < 0:
        raise ValueError("tensor map is damaged")
    _check_end(found.address, found.end)
    return found


def _check_end(start: int, end: int) -> None:
    if not 0 < start < end <= _ADDRESS_END:
        raise ValueError("address that no GPU has")
