"""The other way in: a program opened in a notebook, with objects that show themselves."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.analysis.answer import Answer, answer_bound, answer_mechanisms
from depgraph.analysis.next_steps import Invocation
from depgraph.analysis.study import Study, study
from depgraph.errors import ModelError
from depgraph.mechanisms import find_mechanisms
from depgraph.reports.page.folder import write_report
from depgraph.reports.page.study_report import study_report
from depgraph.reports.plots import drawn
from depgraph.reports.plots.style import Plot, house_style, save
from depgraph.reports.tables.answer_report import answer_report
from depgraph.reports.tables.render import facts_html, report_html
from depgraph.reports.tables.table import Report, table_rows
from depgraph.scenario.of_store import Request
from depgraph.scenario.scenario import Scenario
from depgraph.scenario.what_if import parse_what_if
from depgraph.store.store import Store
from depgraph.system.output import folder_bytes
from depgraph.system.text import show_bytes, show_number, size_text
from depgraph.timing.program_times import parse_launch

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

    from depgraph.analysis.bound import BoundTable
    from depgraph.analysis.compare_mechanisms import Comparison
    from depgraph.gpu.model import Gpu

_TABLE_ROWS = 20
_SOURCES = 3


def open_program(
    path: str | Path = "depgraph.out",
    *,
    timing: str | Path | None = None,
    gpu: str | Gpu | None = None,
    deps: Collection[str] | str | None = None,
    launch: str = "none",
    what_if: str | Sequence[str] = (),
    **options: Any,
) -> Program:
    """Open a store, for a notebook.

    Parameters
    ----------
    path : str or Path
        The store.
    timing : str or Path, optional
        Measured times, as ``--timing`` takes them; default those of a recording.
    gpu : str or Gpu, optional
        Whose limits apply: a name, a TOML file, or a model; default what the profile or the trace
        names.
    deps : collection of str, optional
        Kinds of dependence that count, such as ``"raw"`` or ``["RAW", "WAR"]``; default all.
    launch : str
        Launch costs, as ``--launch`` takes them.
    what_if : str or sequence of str
        What to change, as ``--what-if`` takes it.
    **options
        As `depgraph.Request` takes them.

    Raises
    ------
    StoreError, ProfileError, ModelError
        If there is no such store, or an option makes no sense for it.
    """
    from depgraph.parsers.profiles import read_profile

    store = Store(path)
    kinds = deps.split(",") if isinstance(deps, str) else deps
    request = Request(
        kinds=kinds and {kind.strip().upper() for kind in kinds},
        times=None if timing is None else Path(timing),
        read_profile=read_profile,
        gpu=gpu,
        launch=parse_launch(launch),
        what_ifs=[parse_what_if(w) for w in ([what_if] if isinstance(what_if, str) else what_if)],
        **options,
    )
    return Program(OpenedStore(store), Scenario.of_store(store, request))


class OpenedStore:
    """A store that shows itself; it has all that `depgraph.Store` has."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        """Return what the store has of that name."""
        return getattr(self._store, name)

    def __repr__(self) -> str:
        """Name the store."""
        return f"<store {self.path}>"

    def _repr_html_(self) -> str:
        metadata = self.metadata
        paths = [Path(source["path"]).name for source in metadata.get("sources", [])]
        sources = ", ".join(paths[:_SOURCES]) + (", ..." if len(paths) > _SOURCES else "")
        return facts_html(
            f"Store {self.path}",
            {
                "traced from": f"{sources} ({metadata.get('format', '')})",
                "kernels": show_number(len(self.kernels)),
                "copies and memsets": show_number(len(self.copies)),
                "size": show_bytes(folder_bytes(self.path)),
                "tables": "to_pandas('kernels'), 'blocks', 'footprints', 'pairs', 'copies', ...",
            },
        )


class OpenedGraph:
    """The dependences of a program, which show themselves; it has all that `BlockGraph` has."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def __getattr__(self, name: str) -> Any:
        """Return what the graph has of that name."""
        return getattr(self._scenario.graph, name)

    def __repr__(self) -> str:
        """Say how large the graph is."""
        return f"<graph of {self._scenario.graph.n_blocks} blocks>"

    def to_networkx(self, level: str = "kernel") -> nx.DiGraph[Any]:
        """Return the graph for networkx.

        Parameters
        ----------
        level : {"kernel", "block"}
            Nodes have names and durations. Edges between kernels have the number of edges between
            their blocks as `weight`; edges between blocks have the duration of their source, so
            that the longest path is the critical path but for its last block.
        """
        found = self._scenario.to_networkx(level)
        if level == "kernel":
            for *_, edge in found.edges(data=True):
                edge["weight"] = edge["edges"]
        else:
            for source, _, edge in found.edges(data=True):
                edge["weight"] = found.nodes[source]["duration"]
        return found

    def _repr_html_(self) -> str:
        pairs = self._scenario.pairs
        known = self._scenario.graph.known_kinds
        kinds = [kind for kind in ("RAW", "WAR", "WAW", "REUSE") if kind in known]
        return facts_html(
            "Dependence graph",
            {
                "kernels": show_number(len(self._scenario.kernels)),
                "blocks": show_number(self._scenario.graph.n_blocks),
                "pairs of kernels that depend": show_number(len(pairs)),
                "edges between blocks": show_number(sum(p.edges for p in pairs)),
                **{k: show_number(sum(getattr(p, k.lower()) for p in pairs)) for k in kinds},
            },
        )


@dataclass(frozen=True, repr=False)
class Program:
    """A program with its times, on a GPU.

    Attributes
    ----------
    store : OpenedStore
    scenario : Scenario
        What bounds, mechanisms and reports take.
    """

    store: OpenedStore
    scenario: Scenario

    @cached_property
    def graph(self) -> OpenedGraph:
        """The dependences that count."""
        return OpenedGraph(self.scenario)

    def bound(self, sms: float | Sequence[float] | None = None) -> Bounds:
        """Bound the speedup on one or several GPU sizes; default the GPU's.

        Raises
        ------
        ModelError
            If an SM count is below 1.
        """
        return Bounds(answer_bound(self.scenario, self._sizes(sms), invocation=self._invocation))

    def mechanisms(
        self, names: str | Sequence[str] = "all", sms: float | Sequence[float] | None = None
    ) -> Mechanisms:
        """Compare synchronisation mechanisms on one or several GPU sizes; default the GPU's.

        Raises
        ------
        ModelError
            If there is no such mechanism.
        """
        chosen = find_mechanisms(names.split(",") if isinstance(names, str) else names)
        return Mechanisms(
            answer_mechanisms(self.scenario, self._sizes(sms), chosen, invocation=self._invocation)
        )

    def report(self, sms: int | None = None, *, mechanisms: str | Sequence[str] = ()) -> Reported:
        """Work out all that ``depgraph report`` shows of one GPU size; default the GPU's.

        Parameters
        ----------
        sms : int, optional
        mechanisms : str or sequence of str
            Those that get a curve and a timeline; all get a row.
        """
        named = mechanisms.split(",") if isinstance(mechanisms, str) else mechanisms
        chosen = find_mechanisms(named)
        names = {m.name for m in chosen}
        others = [m for m in find_mechanisms(["all"]) if m.name not in names]
        (size,) = self._sizes(sms)
        scenario = self.scenario.on(size)
        return Reported(
            study(scenario, drawn=chosen, mechanisms=others, invocation=self._invocation)
        )

    def __repr__(self) -> str:
        """Name the store."""
        return f"<program in {self.store.path}>"

    @property
    def _invocation(self) -> Invocation:
        return Invocation(str(self.store.path))

    def _sizes(self, sms: float | Sequence[float] | None) -> list[float]:
        if sms is None:
            return [self.scenario.resources.gpu.sms]
        return [sms] if isinstance(sms, int | float) else list(sms)

    def _repr_html_(self) -> str:
        scenario = self.scenario
        gpu = scenario.resources.gpu
        return facts_html(
            f"Program in {self.store.path}",
            {
                "kernels": show_number(len(scenario.kernels)),
                "blocks": show_number(scenario.graph.n_blocks),
                "durations": f"{scenario.timing.source} ({scenario.unit})",
                "GPU": f"{gpu.name}, {size_text(gpu.sms)}",
                "dependences": scenario.dependences,
                "look at": "store, graph, scenario, bound(sms), mechanisms(), report(sms)",
            },
        )


class _Answer:
    """An answer that shows itself as the command prints it."""

    _report: Report

    def __repr__(self) -> str:
        """Say what it is an answer to."""
        return f"<{self._report.name} of {self._report.facts['gpu']}>"

    def _repr_html_(self) -> str:
        return report_html(self._report.cut(_TABLE_ROWS))

    @property
    def verdict(self) -> str:
        """What keeps the program slow."""
        return str(self._report.facts["verdict"])


class Bounds(_Answer):
    """Upper bounds on the speedup.

    Attributes
    ----------
    table : BoundTable
        The numbers.
    """

    def __init__(self, found: Answer[BoundTable]) -> None:
        self.table = found.table
        self._report = answer_report(found)

    @property
    def upper_bound(self) -> float:
        """Upper bound on the speedup on the first size, with all dependences that count."""
        return self.table.bounds[0].upper_bound

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per schedule, with the bound that it is compared with."""
        return self.table.to_pandas()


class Mechanisms(_Answer):
    """What synchronisation mechanisms reach.

    Attributes
    ----------
    comparison : Comparison
        The numbers.
    """

    def __init__(self, found: Answer[Comparison]) -> None:
        self.comparison = found.table
        self._report = answer_report(found)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per mechanism and GPU size."""
        return self.comparison.to_pandas()


class Picture:
    """A plot that shows itself.

    Attributes
    ----------
    name, title, caption : str
    figure : matplotlib.figure.Figure
    """

    def __init__(self, plot: Plot) -> None:
        if plot.figure is None:
            raise ValueError(plot.name)
        self._plot, self.figure = plot, plot.figure
        self.name, self.title, self.caption = plot.name, plot.title, plot.caption

    def __repr__(self) -> str:
        """Name the plot."""
        return f"<plot {self.name}>"

    def save(self, folder: str | Path) -> None:
        """Write the plot as PNG and SVG."""
        with house_style():
            save(self._plot, Path(folder))

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with house_style():
            self.figure.savefig(file, dpi=150, metadata={"Software": None})
        return file.getvalue()


class Reported(_Answer):
    """All that a report shows of one GPU size; each plot is a method.

    Attributes
    ----------
    study : Study
        The numbers.
    """

    def __init__(self, found: Study) -> None:
        self.study = found
        self._report = study_report(found)

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        return [table.key for table in self._report.tables]

    def to_pandas(self, table: str = "kernels") -> pd.DataFrame:
        """Return a table of the report, one of `tables`.

        Raises
        ------
        ModelError
            If there is no such table.
        """
        import pandas as pd

        for each in self._report.tables:
            if each.key == table:
                return pd.DataFrame(table_rows(each), columns=[c.key for c in each.columns])
        raise ModelError(f"the report has no table {table!r}: it has {', '.join(self.tables)}")

    @property
    def plots(self) -> list[str]:
        """Names of the plots: each is a method."""
        return sorted(drawn())

    def plot(self, name: str, pair: tuple[int, int] | None = None) -> Picture:
        """Draw a plot, one of `plots`.

        Parameters
        ----------
        name : str
        pair : (int, int), optional
            For ``pair_blocks``: source and target kernel; default the pair that shows most.

        Raises
        ------
        ModelError
            If there is no such plot.
        """
        draw = drawn().get(name)
        if draw is None:
            raise ModelError(f"there is no plot {name!r}: there are {', '.join(self.plots)}")
        with house_style():
            return Picture(draw(self.study) if pair is None else draw(self.study, pair))

    def __getattr__(self, name: str) -> Callable[..., Picture]:
        """Return the method that draws a plot."""
        if name.startswith("_") or name not in drawn():
            raise AttributeError(name)
        return lambda pair=None: self.plot(name, pair)

    def __dir__(self) -> list[str]:
        """List the plots, too."""
        return [*super().__dir__(), *self.plots]

    def write(self, folder: str | Path = "depgraph.report", *, force: bool = False) -> Path:
        """Write page, plots, tables and timeline, as ``depgraph report`` does; return the page."""
        write_report(self.study, Path(folder), self._report, force=force)
        return Path(folder) / "index.html"
