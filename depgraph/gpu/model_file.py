"""What a TOML file may say of a GPU: the keys, and the values each can have."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from depgraph.errors import ModelError
from depgraph.gpu.measured_errors import MeasuredErrors
from depgraph.system.limits import FASTEST_MEMORY, LARGEST_PARAMETER, MOST_SMS, SLOWEST_MEMORY
from depgraph.system.toml_file import (
    TomlError,
    check_keys,
    line_of_key,
    parse_toml,
    read_toml_text,
    show_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_LONGEST_TEXT = 1000
_MOST_ITEMS = 1000
_LARGEST_SIZE = 1 << 50  # bytes
_LARGEST_ERROR = 1000  # predicted a thousand times too long


@dataclass(frozen=True, slots=True)
class Source:
    """Where numbers of a GPU model come from.

    Attributes
    ----------
    title : str
        The document.
    numbers : tuple of str
        The fields of `Gpu` that it gives.
    url : str
    """

    title: str
    numbers: tuple[str, ...]
    url: str = ""


def read_gpu_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file, and its tables; `ModelError` if it cannot be read."""
    try:
        text = read_toml_text(path)
        return text, parse_toml(text)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except TomlError as error:
        raise ModelError(f"{_place(path, error.line)}: not TOML: {error.found}") from None


def read_keys(path: Path, text: str, table: dict[str, Any], *more: str) -> dict[str, Any]:
    """Return the checked values of a table whose keys are those of `READERS` and `more`.

    Parameters
    ----------
    path : Path
        For messages.
    text : str
        What the table was read from, for the line numbers of messages.
    table : dict
    *more : str

    Raises
    ------
    ModelError
        If a key is unknown or its value impossible.
    """
    known = (*READERS, *more)
    try:
        check_keys(text, table, known)
    except TomlError as error:
        raise ModelError(f"{_place(path, error.line)}: {error.found}; {error.hint}") from None
    checked = {}
    for key, value in table.items():
        try:
            checked[key] = READERS.get(key, _text)(value)
        except (TypeError, ValueError) as error:
            place = _place(path, line_of_key(text, key))
            raise ModelError(f"{place}: {key} = {show_value(value)}: expected {error}") from None
    return checked


def _place(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}:{line}"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_TEXT:
        raise ValueError("text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        raise TypeError("a list of texts")
    return tuple(_text(item) for item in value)


def _count(value: object, most: int = LARGEST_PARAMETER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("a whole number above 0")
    if value > most:
        raise ValueError(f"a whole number up to {most}")
    return value


def _sm_count(value: object) -> int:
    return _count(value, MOST_SMS)


def _rate(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError("a number above 0")
    if not SLOWEST_MEMORY <= value <= FASTEST_MEMORY:
        raise ValueError(f"a number from {SLOWEST_MEMORY:g} to {FASTEST_MEMORY:g}")
    return float(value)


def _share(value: object) -> float:
    share = _rate(value)
    if share >= 1:
        raise ValueError("a number below 1")
    return share


def _size(value: object) -> int:
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,15}) ?([KMG])iB", value)):
        value = int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_SIZE:
        raise ValueError('a number of bytes, or "N KiB" or "N MiB"')
    return value


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_ITEMS:
        raise ValueError("a list of sizes")
    return tuple(_size(item) for item in value)


def _sources(value: object) -> tuple[Source, ...]:
    expected = "tables with title, numbers (names of keys) and perhaps url"
    if not isinstance(value, list):
        raise TypeError(expected)
    try:
        return tuple(
            Source(
                _text(item["title"]),
                _texts(item["numbers"]),
                _text(item["url"]) if "url" in item else "",
            )
            for item in value
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(expected) from None


def _errors(value: object) -> MeasuredErrors:
    readers: dict[str, Callable[[object], Any]] = {"gpu": _text, "what": _text, "programs": _count}
    names = [each.name for each in fields(MeasuredErrors)]
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError(f"a table with {', '.join(names)}")
    read: dict[str, Any] = {}
    for name in names:
        try:
            read[name] = readers.get(name, _error)(value[name])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None
    return MeasuredErrors(**read)


def _error(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= _LARGEST_ERROR:
        raise ValueError(f"a share, from 0 to {_LARGEST_ERROR}")
    return float(value)


READERS: dict[str, Callable[[object], Any]] = {
    "name": _text,
    "aliases": _texts,
    "architecture": _count,
    "sms": _sm_count,
    "warp_size": _count,
    "max_threads_per_block": _count,
    "max_threads_per_sm": _count,
    "max_blocks_per_sm": _count,
    "registers_per_sm": _count,
    "max_registers_per_block": _count,
    "max_registers_per_thread": _count,
    "register_allocation_unit": _count,
    "warp_allocation_granularity": _count,
    "shared_carveouts": _sizes,
    "max_shared_bytes_per_block": _size,
    "reserved_shared_bytes_per_block": _size,
    "shared_allocation_unit": _count,
    "memory_gb_per_s": _rate,
    "l2_bytes": _size,
    "base_clock_mhz": _count,
    "boost_clock_mhz": _count,
    "launch_host_us": _rate,
    "launch_gap_us": _rate,
    "launch_sync_us": _rate,
    "graph_node_us": _rate,
    "graph_path_us": _rate,
    "graph_fork_us": _rate,
    "graph_root_us": _rate,
    "graph_launch_us": _rate,
    "device_stall_cycles": _rate,
    "device_lane_cycles": _rate,
    "device_dispatch_cycles": _rate,
    "device_finish_cycles": _rate,
    "contention": _rate,
    "block_spread": _share,
    "kernel_lead_us": _rate,
    "errors": _errors,
    "sources": _sources,
}
