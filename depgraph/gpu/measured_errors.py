"""How far predictions were off from what a GPU was measured to do, by family of programs."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from depgraph.system.described import real, short_text, whole
from depgraph.system.limits import LARGEST_PARAMETER
from depgraph.system.toml_file import toml_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_LARGEST = 1000  # measured or predicted a thousand times too long
_Share = Annotated[float, real(0, _LARGEST, f"a share, from 0 to {_LARGEST}")]


@dataclass(frozen=True, slots=True)
class MeasuredErrors:
    """How far predictions were off for programs of a family that no constant was fitted to."""

    family: Annotated[str, short_text]
    gpu: Annotated[str, short_text]  # that ran them, as CUDA names it
    programs: Annotated[int, whole(1, LARGEST_PARAMETER)]
    mean: _Share  # relative error of the predicted time
    nine_of_ten: _Share  # of nine programs in ten at most
    worst: _Share
    direction: _Share  # of the programs told right to be faster or slower than serial
    # low, high: at least nine measured times in ten are from `low` to `high` times the predicted
    low: _Share
    high: _Share

    def to_toml(self) -> str:
        """Return the table ``[[errors]]`` of a GPU's file."""
        lines = ["[[errors]]"]
        for each in fields(self):
            value = getattr(self, each.name)
            shown = toml_text(value) if isinstance(value, str) else f"{round(value, 4):g}"
            lines.append(f"{each.name} = {shown}")
        return "\n".join(lines) + "\n"


def with_errors(file: str, errors: Iterable[MeasuredErrors]) -> str:
    """Return the text of a GPU's file with these errors, which replace those that it has."""
    rest = re.sub(r"\n*^\[\[errors\]\]\n(?:[^\[\n].*\n)*", "\n", file, flags=re.MULTILINE)
    return "\n".join([f"{rest.rstrip()}\n", *(each.to_toml() for each in errors)])
