"""A published figure beside the one that is computed, and where both come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depgraph.errors import InputError
from depgraph.graph.program import Extraction
from depgraph.system.described import parse_toml, read_toml_text
from depgraph.timing.profile import BlockProfile, KernelProfile

PUBLISHED = "papers/published.toml"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where packaged programs lie, and who reads them."""

    path: Callable[[str], Path]  # of a sample; `InputError` where there is none
    read_workload: Callable[[Path], Extraction]
    read_profile: Callable[[Path], KernelProfile | BlockProfile]

    def workload(self, name: str) -> Extraction:
        """Read one of the packaged described programs."""
        return self.read_workload(self.path(f"workloads/{name}.toml"))


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what was published, and what comes out here."""

    what: str
    paper: float
    ours: float
    unit: str  # of both: "x" for speedups, "%" for shares, else what they count
    source: str  # table, figure or file of the publication
    why: str = ""  # the two differ; "" where they do not

    @property
    def difference(self) -> float | None:
        """How much larger ours is, relative to the paper's; None beside a published 0."""
        if self.ours == self.paper:
            return 0.0
        return self.ours / self.paper - 1 if self.paper else None


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All figures of one publication."""

    name: str
    paper: str  # how to cite it
    about: str  # what it claims, in a line
    programs: str  # what is run here, and on which GPU
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()  # what else came out, and what to believe of it


class Published:
    """What the file of published figures has of one publication."""

    def __init__(self, inputs: Inputs, name: str) -> None:
        self.inputs = inputs
        self.notes: list[str] = []  # what else comes out
        self.table = read_published(inputs)[name]
        self._rows: dict[str, Mapping[str, Any]] = {row["key"]: row for row in self.table["figure"]}

    def figure(
        self, key: str, ours: float, paper: float | None = None, *, why: str = "", **names: object
    ) -> Figure:
        """Put what was computed beside a published figure, or one `paper` of a packaged table."""
        row = self._rows[key]
        value = float(row["value"]) if paper is None else paper
        return Figure(
            what=row["what"].format(**names),
            paper=value,
            ours=float(ours),
            unit=row["unit"],
            source=row["source"],
            why=(why or row.get("why", "")) if ours != value else "",
        )

    def why(self, key: str) -> str:
        """Return one of the reasons that stand apart from figures."""
        return str(self.table.get("why", {}).get(key, ""))


def read_published(inputs: Inputs) -> dict[str, Any]:
    """Read the file of published figures: of each name the paper, what it claims, its figures."""
    path = inputs.path(PUBLISHED)
    tables = parse_toml(read_toml_text(path))
    if not tables:
        raise InputError(path, "has no figures", "install depgraph anew")
    return tables
