"""Which kernels are matrix products, by their names: the patterns are data, in gemms.toml."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.trace.names import base_name

if TYPE_CHECKING:
    from collections.abc import Sequence


@cache
def _patterns() -> tuple[tuple[str, ...], tuple[str, ...]]:
    content = tomllib.loads(Path(__file__).with_name("gemms.toml").read_text(encoding="utf-8"))
    return tuple(content["gemms"]), tuple(content["not_gemms"])


@lru_cache(maxsize=4096)
def is_gemm(name: str) -> bool:
    """Tell whether a function is a matrix product that runs along k in equal steps."""
    gemms, others = _patterns()
    bare = base_name(name)
    # CUTLASS names what it runs in a template argument of a function called Kernel or Kernel2.
    said = name if bare.startswith("Kernel") else bare
    return any(fnmatchcase(said.lower(), p) for p in gemms) and not matches_any(name, others)


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a function's bare or full name matches a pattern, whatever the case."""
    spellings = {base_name(name).lower(), name.lower()}
    return any(fnmatchcase(s, p.lower()) for s in spellings for p in patterns)
