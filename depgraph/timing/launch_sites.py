"""Where in the code of a program a kernel was launched, as a profile tells."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the code a kernel was launched; empty where the profile does not say."""

    op: str = ""  # the innermost operator, such as "aten::addmm"
    module: str = ""  # from the outermost to the innermost, such as "Block_0/Linear_3"
    line: str = ""  # the innermost of the program itself, such as "model.py(12): forward"
    range: str = ""  # annotations and NVTX ranges, the outermost first, such as "step/loss"


NOWHERE = Site()
SITE_COLUMNS = tuple(field.name for field in fields(Site))
