"""Inter-block dependence graphs of GPU programs, and the overlap they allow.

>>> import depgraph
>>> from depgraph import parsers
>>> store = depgraph.extract(parsers.open_trace("trace.log"), "out")
>>> graph = store.graph()
>>> depgraph.bound(graph, sms=80).to_pandas()
>>> graph.to_networkx(level="kernel")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

_here = Path(__file__).resolve().parent
if not (_here / "cli").is_dir():
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from depgraph.bounds import BoundTable, bound
    from depgraph.graph import BlockGraph
    from depgraph.pipeline import analyse, extract
    from depgraph.scenario import Scenario
    from depgraph.scenario_builder import build_scenario
    from depgraph.store import Store

__all__ = [
    "BlockGraph",
    "BoundTable",
    "Scenario",
    "Store",
    "analyse",
    "bound",
    "build_scenario",
    "extract",
]

_HOMES = {
    "BlockGraph": "graph",
    "BoundTable": "bounds",
    "Scenario": "scenario",
    "Store": "store",
    "analyse": "pipeline",
    "bound": "bounds",
    "build_scenario": "scenario_builder",
    "extract": "pipeline",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import depgraph`` and --help stay fast."""
    if name not in _HOMES:
        message = f"module 'depgraph' has no attribute {name!r}"
        raise AttributeError(message)
    import importlib

    value = getattr(importlib.import_module(f"depgraph.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
