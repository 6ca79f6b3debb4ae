"""What the metadata of a store may hold: checked when it is opened, as its tables are when read."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from depgraph.errors import StoreError
from depgraph.footprint.footprints import GRANULARITIES
from depgraph.graph.communication import Communication
from depgraph.graph.kinds import KIND_NAMES
from depgraph.system.described import (
    REQUIRED,
    Field,
    any_text,
    items,
    one_of,
    optional,
    real,
    record,
    values_of,
    whole,
)
from depgraph.system.limits import LARGEST_ID
from depgraph.system.text import in_short

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _granularity(value: object) -> object:
    if value not in GRANULARITIES:
        raise ValueError("a granularity")
    return value


_COUNT = whole(0, LARGEST_ID)
_COUNTS = values_of(_COUNT)
_SPACE = whole(-1, (1 << 31) - 1)
_SOURCE = record(
    Field("path", any_text, "as it was given", default=REQUIRED),
    Field("size", _COUNT, "of the file", "bytes", REQUIRED),
    Field("sha256", any_text, "of what was read"),
)
_OPTIONS = record(
    Field("kinds", items(one_of(KIND_NAMES), "kinds"), "of dependence", default=REQUIRED),
    Field("granularity", _granularity, "of addresses", "bytes", REQUIRED),
)
_ENTRIES = (
    Field("format", any_text, "of the input"),
    Field("options", _OPTIONS, "that edges depend on", default=REQUIRED),
    Field("tool_version", any_text, "that wrote it"),
    Field("sources", items(_SOURCE, "files"), "what was read"),
    Field("lines", _COUNT, "read"),
    Field("input_bytes", _COUNT, "read", "bytes"),
    Field("text_bytes", _COUNT, "the same, not compressed", "bytes"),
    Field("opcodes", _COUNTS, "instructions of each"),
    Field("skipped", _COUNTS, "instructions of each sort"),
    Field("warnings", _COUNTS, "how often each"),
    Field("blind_spots", items(any_text, "texts"), "what the input cannot show"),
    Field("false_edges", optional(_COUNT), "found by comparing", "edges"),
    Field("address_spaces", optional(items(_SPACE, "spaces")), "of each operation"),
    Field("remarks", values_of(items(_COUNT, "kernels")), "kernels of each"),
    Field("duration_unit", any_text, "of blocks"),
    Field("position_step", real(0, 1), "of a block's work", "share"),
)


def check_metadata(file: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that no extraction writes, by the name of the entry."""
    for field in _ENTRIES:
        if field.key not in metadata:
            if field.default is REQUIRED:
                raise _refused(file, f"lack {field.key!r}")
            continue
        try:
            field.read(metadata[field.key])
        except ValueError:
            said = in_short(repr(metadata[field.key]))
            raise _refused(file, f"say {said} for {field.key!r}") from None
    try:
        known = Communication.from_metadata(metadata)
        numbers = [each.time for each in known.collectives.values()]
        for link in known.links.values():
            numbers += [link.bandwidth, link.alpha, link.dma_bandwidth, link.dma_alpha]
            numbers += [link.engines, link.computation_slowed, link.communication_slowed]
        is_finite = all(map(isfinite, numbers))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        is_finite = False
    if not is_finite:
        raise _refused(file, "describe communication in a way that depgraph does not write")


def _refused(file: Path, found: str) -> StoreError:
    message = f"holds what no extraction writes: its metadata {found}"
    return StoreError(file, message, "extract again")
