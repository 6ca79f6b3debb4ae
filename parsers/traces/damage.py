"""Place the faults of a part of a trace in the file that it was cut from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depgraph.records import Damage, ScannedPart


def place_damage(part: ScannedPart, path: str, lines_before: int) -> None:
    """Let the faults of a part name their file, and count lines from its start.

    Parameters
    ----------
    part : ScannedPart
    path : str
    lines_before : int
        Lines of the file in front of the part.
    """

    def placed(damage: Damage) -> Damage:
        return replace(damage, path=path, line=lines_before + damage.line)

    part.damage = [placed(damage) for damage in part.damage]
    if part.damaged_line is not None:
        part.damaged_line = placed(part.damaged_line)
