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
    from depgraph.analysis.bound import BoundTable, bound
    from depgraph.extraction.pipeline import analyse, extract
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.scenario.build_scenario import build_scenario
    from depgraph.scenario.scenario import Scenario
    from depgraph.store.store import Store

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
    "BlockGraph": "graph.block_graph",
    "BoundTable": "analysis.bound",
    "Scenario": "scenario.scenario",
    "Store": "store.store",
    "analyse": "extraction.pipeline",
    "bound": "analysis.bound",
    "build_scenario": "scenario.build_scenario",
    "extract": "extraction.pipeline",
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
