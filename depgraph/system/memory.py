"""How much memory may be used."""

import ctypes
import re
import sys
from functools import cache
from pathlib import Path

from depgraph.errors import ModelError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
LEAST_LIMIT = 64 << 20
_FALLBACK = 2 << 30
# What a run takes beside what a limit counts: the interpreter, libraries, buffers of the scan.
BASE_BYTES = 256 << 20
_GROUPS = Path("/sys/fs/cgroup")


def parse_size(text: str, least: int = LEAST_LIMIT) -> int:
    """Turn ``512MiB``, ``2G`` or ``1.5GB`` into bytes, not below `least`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        message = f"{text!r} is not a size: give one such as 512MiB or 8GiB"
        raise ModelError(message)
    units = _BINARY_UNITS if match[3] else _UNITS
    size = int(min(float(match[1]) * units[match[2].upper()], sys.maxsize))
    if size < least:
        message = f"a memory limit of {text} is too small: give at least {least >> 20}MiB"
        raise ModelError(message)
    return size


def return_free_memory() -> None:
    """Give back what this process has freed, where the C library has ``malloc_trim``."""
    # It and Arrow keep freed memory; what is freed in one order and asked for in another grows.
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None


def default_limit() -> int:
    """Return half of the memory that is free to this process, in bytes."""
    free = [_FALLBACK * 2]
    meminfo = _read("/proc/meminfo")
    if available := re.search(r"MemAvailable:\s+(\d+) kB", meminfo):
        free = [int(available[1]) * 1024]
    free += _free_in_groups(_read("/proc/self/cgroup"), _GROUPS)
    return max(LEAST_LIMIT, min(free) // 2)


def _free_in_groups(membership: str, root: Path) -> list[int]:
    """Return what control groups leave this process, by lines ``number:controllers:path``."""
    free = []
    for line in ["0::/", "1:memory:/", *membership.splitlines()]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            limit, usage = (_read(base / folder / name).strip() for name in names)
            if limit.isdigit() and usage.isdigit():
                free.append(int(limit) - int(usage))
    return free


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
