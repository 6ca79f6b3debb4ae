"""What came of giving a program a graph with only its real edges: numbers for people and files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from depgraph.apply.plan import Bought
from depgraph.errors import ApplyError
from depgraph.system.ratios import ratio

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tried:
    """A graph that was measured.

    Attributes
    ----------
    name : str
    edges : int
    predicted : float or None
        Microseconds; None where no times were recorded.
    measured : float
        Microseconds.
    refused : str
        Why it is not used although it is fast, "" if nothing speaks against it.
    """

    name: str
    edges: int
    predicted: float | None
    measured: float
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of one call of `depgraph.torch.parallelize`.

    Attributes
    ----------
    name : str
        Of the function.
    gpu : str
    nodes, kernels : int
    kernel_us : float or None
        What the kernels take, added up; None where no times were recorded.
    fixed : dict
        Why nodes keep their place, and how many do.
    tried : tuple of Tried
        The graph as it was captured first.
    chosen : str
        Name of the one that is used.
    more_bytes : int
        Memory of their own that values of the chosen graph have.
    bought : tuple of Bought
    inputs : int
        Number of inputs that results were compared on.
    is_reproducible : bool
        Whether the captured graph leaves the same bits in each run.
    tolerance : float
        Largest difference that was allowed in what the function returns; 0 for none.
    notes : tuple of str
        What else to know.
    """

    name: str
    gpu: str
    nodes: int
    kernels: int
    kernel_us: float | None
    fixed: dict[str, int]
    tried: tuple[Tried, ...]
    chosen: str
    more_bytes: int
    bought: tuple[Bought, ...]
    inputs: int
    is_reproducible: bool = True
    tolerance: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> Tried:
        """The graph as it was captured."""
        return self.tried[0]

    @property
    def after(self) -> Tried:
        """The graph that is used."""
        return next(each for each in self.tried if each.name == self.chosen)

    @property
    def speedup(self) -> float:
        """Measured, over the graph as it was captured."""
        return ratio(self.before.measured, self.after.measured)

    @property
    def predicted_speedup(self) -> float | None:
        """The same as predicted."""
        before, after = self.before.predicted, self.after.predicted
        return None if before is None or after is None else ratio(before, after)

    def row(self) -> dict[str, Any]:
        """Return a row of a validation file."""
        return {
            "program": self.name,
            "gpu": self.gpu,
            "kernels": self.kernels,
            "graph": self.chosen,
            "captured_predicted_us": self.before.predicted,
            "captured_measured_us": self.before.measured,
            "applied_predicted_us": self.after.predicted,
            "applied_measured_us": self.after.measured,
            "speedup": self.speedup,
            "more_bytes": self.more_bytes,
            "bit_equal": self.is_reproducible and self.tolerance == 0,
        }

    def __str__(self) -> str:
        """Return the lines that a terminal shows."""
        before, after = self.before, self.after
        times = f"{before.measured:.4g} us as captured, {after.measured:.4g} us as {after.name}"
        lines = [f"{self.name}: {times}: {self.speedup:.2f}x"]
        if before.predicted is not None and after.predicted is not None:
            lines.append(f"predicted: {before.predicted:.4g} us and {after.predicted:.4g} us")
        return "\n".join(lines)


def write_applied(path: Path, found: list[Applied]) -> None:
    """Write what came of a program's calls, for `read_applied`."""
    path.write_text(json.dumps([asdict(each) for each in found]), encoding="utf-8")


def read_applied(path: Path) -> list[Applied]:
    """Read what `write_applied` wrote.

    Raises
    ------
    ApplyError
        If it is damaged.
    """
    try:
        return [
            Applied(
                **{
                    **each,
                    "notes": tuple(each["notes"]),
                    "tried": tuple(Tried(**row) for row in each["tried"]),
                    "bought": tuple(
                        Bought(**{**row, "nodes": tuple(row["nodes"])}) for row in each["bought"]
                    ),
                }
            )
            for each in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ApplyError(f"{path}: what came of the program cannot be read ({error})") from None
