"""What the programs here print: figures compared with targets, as a Markdown table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pages
from measure import machine

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1 << 20
MB = 10**6


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table."""

    what: str  # what was measured, on which input
    measured: str
    target: str = ""  # empty where there is none
    met: bool | None = None  # None where there is no target
    cores: int | None = None  # None for all there are


def seconds(value: float) -> str:
    """Write a time with as many digits as it bears."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"  # noqa: PLR2004


def size(n_bytes: float) -> str:
    """Write a number of bytes in decimal units."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"  # noqa: PLR2004


def table(figures: Iterable[Figure]) -> str:
    """Return figures as a Markdown table."""
    verdicts = {None: "", True: "met", False: "**missed**"}
    rows = ((f.what, f.cores or "all", f.measured, f.target, verdicts[f.met]) for f in figures)
    return pages.table(("what", "cores", "measured", "target", None), "lllll", rows)


def section(title: str, figures: Iterable[Figure]) -> str:
    """Return a table with its title and the machine it was made on."""
    rows = list(figures)
    return f"## {title}\n\n{machine()}\n\n{table(rows)}\n"
