"""Inter-block dependence graphs of GPU programs, and the overlap they allow.

>>> import depgraph
>>> from depgraph import parsers
>>> store = depgraph.extract(parsers.open_trace("trace.log"), "out")
>>> graph = store.graph()
>>> depgraph.bound(graph, sms=80).to_pandas()
>>> graph.to_networkx(level="kernel")
>>> depgraph.open("out").report(sms=80).speedup_by_sms()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

_here = Path(__file__).resolve().parent
if not (_here / "cli").is_dir():
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from depgraph.analysis.answer import conclude
    from depgraph.analysis.bound import BoundTable, bound
    from depgraph.analysis.compare_mechanisms import Comparison, compare_mechanisms
    from depgraph.analysis.compare_stores import StoreDiff, compare
    from depgraph.analysis.kernel_groups import group_kernels
    from depgraph.analysis.renaming import study_renaming
    from depgraph.analysis.study import Study, study
    from depgraph.cli.notebook import open_program as open  # noqa: A004 - as gzip.open
    from depgraph.errors import DepgraphError
    from depgraph.extraction.pipeline import analyse, extract
    from depgraph.gpu.model import available_gpus, load_gpu, load_gpu_file
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.mechanisms.base import Mechanism, serial
    from depgraph.mechanisms.registry import find_mechanisms
    from depgraph.scenario.build_scenario import build_scenario
    from depgraph.scenario.of_store import Request
    from depgraph.scenario.scenario import Scenario
    from depgraph.scenario.what_if import parse_what_if
    from depgraph.store.store import Store
    from depgraph.timing.fit import fit_profile
    from depgraph.timing.profile import Where
    from depgraph.timing.program_times import parse_launch

__all__ = [
    "BlockGraph",
    "BoundTable",
    "Comparison",
    "DepgraphError",
    "Mechanism",
    "Request",
    "Scenario",
    "Store",
    "StoreDiff",
    "Study",
    "Where",
    "analyse",
    "available_gpus",
    "bound",
    "build_scenario",
    "compare",
    "compare_mechanisms",
    "conclude",
    "extract",
    "find_mechanisms",
    "fit_profile",
    "group_kernels",
    "load_gpu",
    "load_gpu_file",
    "open",
    "parse_launch",
    "parse_what_if",
    "serial",
    "study",
    "study_renaming",
]

_NAMES_IN = {
    "analysis.answer": ("conclude",),
    "analysis.bound": ("BoundTable", "bound"),
    "analysis.compare_mechanisms": ("Comparison", "compare_mechanisms"),
    "analysis.compare_stores": ("StoreDiff", "compare"),
    "analysis.kernel_groups": ("group_kernels",),
    "analysis.renaming": ("study_renaming",),
    "analysis.study": ("Study", "study"),
    "cli.notebook": ("open",),
    "errors": ("DepgraphError",),
    "extraction.pipeline": ("analyse", "extract"),
    "gpu.model": ("available_gpus", "load_gpu", "load_gpu_file"),
    "graph.block_graph": ("BlockGraph",),
    "mechanisms.base": ("Mechanism", "serial"),
    "mechanisms.registry": ("find_mechanisms",),
    "scenario.build_scenario": ("build_scenario",),
    "scenario.of_store": ("Request",),
    "scenario.scenario": ("Scenario",),
    "scenario.what_if": ("parse_what_if",),
    "store.store": ("Store",),
    "timing.fit": ("fit_profile",),
    "timing.profile": ("Where",),
    "timing.program_times": ("parse_launch",),
}
_HOMES = {name: module for module, names in _NAMES_IN.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import depgraph`` and --help stay fast."""
    if name not in _HOMES:
        message = f"module 'depgraph' has no attribute {name!r}"
        raise AttributeError(message)
    import importlib

    home = importlib.import_module(f"depgraph.{_HOMES[name]}")
    value = getattr(home, "open_program" if name == "open" else name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Add ``%depgraph COMMAND ...`` to a notebook: ``%load_ext depgraph``."""
    from depgraph.cli.hooks import add_magic

    add_magic(shell)
