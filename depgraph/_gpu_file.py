"""What a TOML file may say of a GPU: the keys, and the values each can have."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from depgraph.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; `ModelError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not TOML: {error}") from None


def read_keys(path: Path, table: dict[str, Any], *more: str) -> dict[str, Any]:
    """Return the checked values of a table whose keys are those of `READERS` and `more`.

    Raises
    ------
    ModelError
        If a key is unknown or its value impossible.
    """
    known = (*READERS, *more)
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            raise ModelError(
                f"{path}: {key} is not a key of a GPU model"
                + (f"; did you mean {close[0]}?" if close else "")
            )
    checked = {}
    for key, value in table.items():
        try:
            checked[key] = READERS.get(key, _text)(value)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{path}: {key} = {value!r}: expected {error}") from None
    return checked


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("a list of texts")
    return tuple(_text(item) for item in value)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("a whole number above 0")
    return value


def _rate(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError("a number above 0")
    return float(value)


def _size(value: object) -> int:
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+) ?([KMG])iB", value)):
        return int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError('a number of bytes, or "N KiB" or "N MiB"')
    return value


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of sizes")
    return tuple(_size(item) for item in value)


def _sources(value: object) -> tuple[Source, ...]:
    expected = "tables with title, numbers (names of keys) and perhaps url"
    if not isinstance(value, list):
        raise TypeError(expected)
    try:
        return tuple(
            Source(_text(item["title"]), _texts(item["numbers"]), item.get("url", ""))
            for item in value
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(expected) from None


READERS: dict[str, Callable[[object], Any]] = {
    "name": _text,
    "aliases": _texts,
    "architecture": _count,
    "sms": _count,
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
    "graph_launch_us": _rate,
    "sources": _sources,
}
