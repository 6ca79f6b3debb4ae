"""Programs that papers on overlapping kernels measure, in PyTorch, to be recorded."""

import json
from pathlib import Path
from typing import Any, Literal


def summaries(of: Literal["recorded", "launching"] = "recorded") -> list[dict[str, Any]]:
    """Return what was found of the programs of the suite, one after another.

    Parameters
    ----------
    of : str
        `recorded`: programs recorded on a GPU; times in us, speedups as ratios.
        `launching`: programs that launch kernels from the device; times in cycles.

    Examples
    --------
    >>> [each["name"] for each in summaries("launching")][:2]
    ['bfs', 'sssp']
    """
    path = Path(__file__).with_name(f"{of}.json")
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found
