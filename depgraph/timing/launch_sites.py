"""Where in the code of a program a kernel was launched, as a profile tells."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the code a kernel was launched; empty where the profile does not say.

    Attributes
    ----------
    op : str
        Innermost operator, such as "aten::addmm".
    module : str
        Modules from the outermost to the innermost, such as "Block_0/Linear_3".
    line : str
        Innermost line of the program itself, such as "model.py(12): forward".
    range : str
        Annotations and NVTX ranges from the outermost to the innermost, such as "step/loss".
    """

    op: str = ""
    module: str = ""
    line: str = ""
    range: str = ""


NOWHERE = Site()
SITE_COLUMNS = tuple(field.name for field in fields(Site))
