"""How far predictions were off from what a GPU was measured to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated

from depgraph.system.described import real, short_text, whole
from depgraph.system.limits import LARGEST_PARAMETER
from depgraph.system.text import show_percent
from depgraph.system.toml_file import toml_text

_LARGEST = 1000  # predicted a thousand times too long
_Share = Annotated[float, real(0, _LARGEST, f"a share, from 0 to {_LARGEST}")]


@dataclass(frozen=True, slots=True)
class MeasuredErrors:
    """How far predictions were off for programs that the constants were not fitted to."""

    gpu: Annotated[str, short_text]  # that ran them, as CUDA names it
    what: Annotated[str, short_text]  # which programs they are
    programs: Annotated[int, whole(1, LARGEST_PARAMETER)]
    mean: _Share  # relative error of the predicted time
    nine_of_ten: _Share  # of nine programs in ten at most
    worst: _Share
    direction: _Share  # of the programs told right to be faster or slower than serial
    fixed_mean: _Share  # the errors without contention: durations of blocks fixed
    fixed_worst: _Share

    def sentence(self, *, contention: bool) -> str:
        """Say how far off predictions were, with contention or with fixed durations."""
        compared = (
            f"compared with {self.programs} programs measured on an {self.gpu} that no constant "
            f"was fitted to ({self.what})"
        )
        if not contention:
            return (
                f"{compared}, times predicted without contention are off by "
                f"{show_percent(self.fixed_mean)} on average, {show_percent(self.fixed_worst)} at "
                "worst"
            )
        return (
            f"{compared}, predicted times are off by {show_percent(self.mean)} on average, nine of "
            f"ten by at most {show_percent(self.nine_of_ten)}, the worst by "
            f"{show_percent(self.worst)}; faster or slower is told right in "
            f"{show_percent(self.direction)}"
        )

    def to_toml(self) -> str:
        """Return the table ``[errors]`` of a GPU's file."""
        lines = ["[errors]"]
        for each in fields(self):
            value = getattr(self, each.name)
            shown = toml_text(value) if isinstance(value, str) else f"{round(value, 4):g}"
            lines.append(f"{each.name} = {shown}")
        return "\n".join(lines) + "\n"


def with_errors(file: str, errors: MeasuredErrors) -> str:
    """Return the text of a GPU's file with these errors, which replace those that it has."""
    rest = re.sub(r"\n*^\[errors\]\n(?:[^\[\n].*\n)*", "\n", file, flags=re.MULTILINE)
    return f"{rest.rstrip()}\n\n{errors.to_toml()}"
