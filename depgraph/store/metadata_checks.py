"""What the metadata of a store may hold: checked when it is opened, as its tables are when read."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from depgraph.errors import StoreError
from depgraph.footprint.footprints import GRANULARITIES
from depgraph.graph.communication import Communication
from depgraph.graph.kinds import KIND_NAMES
from depgraph.system.text import in_short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LARGEST_SPACE = (1 << 31) - 1


def check_metadata(file: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that no extraction writes.

    Raises
    ------
    StoreError
        If an entry is missing or of another type; the message names it.
    """
    for name, (is_right, is_needed) in _ENTRIES.items():
        if name not in metadata:
            if is_needed:
                raise _refused(file, f"lack {name!r}")
        elif not is_right(metadata[name]):
            said = in_short(repr(metadata[name]))
            raise _refused(file, f"say {said} for {name!r}")
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


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_list(value: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(is_right, value))


def _is_source(value: object) -> bool:
    return (
        isinstance(value, dict)
        and _is_text(value.get("path"))
        and _is_count(value.get("size"))
        and _is_text(value.get("sha256", ""))
    )


def _is_options(value: object) -> bool:
    return (
        isinstance(value, dict)
        and _is_list(value.get("kinds"), KIND_NAMES.__contains__)
        and value.get("granularity") in GRANULARITIES
    )


def _is_space(value: object) -> bool:
    return type(value) is int and -1 <= value <= _LARGEST_SPACE


def _is_step(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _is_remarks(value: object) -> bool:
    return isinstance(value, dict) and all(_is_list(which, _is_count) for which in value.values())


_NEEDED, _OPTIONAL = True, False
_ENTRIES: dict[str, tuple[Callable[[object], bool], bool]] = {
    "format": (_is_text, _OPTIONAL),
    "options": (_is_options, _NEEDED),
    "tool_version": (_is_text, _OPTIONAL),
    "sources": (lambda value: _is_list(value, _is_source), _OPTIONAL),
    "lines": (_is_count, _OPTIONAL),
    "input_bytes": (_is_count, _OPTIONAL),
    "text_bytes": (_is_count, _OPTIONAL),
    "opcodes": (_is_counts, _OPTIONAL),
    "skipped": (_is_counts, _OPTIONAL),
    "warnings": (_is_counts, _OPTIONAL),
    "blind_spots": (lambda value: _is_list(value, _is_text), _OPTIONAL),
    "false_edges": (lambda value: value is None or _is_count(value), _OPTIONAL),
    "address_spaces": (lambda value: value is None or _is_list(value, _is_space), _OPTIONAL),
    "remarks": (_is_remarks, _OPTIONAL),
    "duration_unit": (_is_text, _OPTIONAL),
    "position_step": (_is_step, _OPTIONAL),
}
