"""What came of giving a program a graph with only its real edges: numbers for people and files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.apply.plan import PLAIN, EdgeReason
from depgraph.errors import ApplyError
from depgraph.system.strict_json import read_json, restore
from depgraph.system.text import ratio

if TYPE_CHECKING:
    from depgraph.mechanisms.predicted_time import PredictedTime


@dataclass(frozen=True, slots=True)
class Tried:
    """A graph that was measured."""

    name: str
    edges: int
    predicted: float | None  # microseconds; None where no times were recorded
    measured: float  # microseconds a replay
    refused: str = ""  # why it is not used although it is fast, "" if nothing speaks against it
    orders: int = 0  # in how many orders that it permits it was run and compared
    # predicted_low, predicted_high: nine of ten measured times lie between; None where nobody
    # measured how far such predictions are off
    predicted_low: float | None = None
    predicted_high: float | None = None

    @classmethod
    def of(
        cls, name: str, edges: int, predicted: PredictedTime | None, measured: float, **more: Any
    ) -> Tried:
        """Make a row of a graph, what is predicted for it in microseconds."""
        if predicted is None:
            return cls(name, edges, None, measured, **more)
        low, high = predicted.low_us, predicted.high_us
        return cls(
            name, edges, predicted.us, measured, predicted_low=low, predicted_high=high, **more
        )


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of one call of `depgraph.torch.parallelize`."""

    name: str  # of the function
    gpu: str
    nodes: int
    kernels: int
    tried: tuple[Tried, ...]  # the graph as anybody would capture it first
    chosen: str  # name of the one that is used
    # plain_call_us, call_us: what a call takes with either, arguments copied in, and with the one
    # that is used all guards looked at and results copied out
    plain_call_us: float
    call_us: float
    edges: tuple[EdgeReason, ...] = ()  # what keeps the nodes of the chosen graph in order
    fixed: dict[str, int] | None = None  # why nodes keep their place, and how many do
    more_bytes: int = 0  # memory that it takes beyond that of the plain graph
    inputs: int = 0  # that results were compared on, with those of the function
    varies: bool = False  # whether the function leaves other bits in each run
    guards: int = 0  # how many things are looked at before each call
    notes: tuple[str, ...] = ()  # what else to know

    @property
    def before(self) -> Tried:
        """The graph as anybody would capture it."""
        return self.tried[0]

    @property
    def after(self) -> Tried:
        """The graph that is used."""
        return next(each for each in self.tried if each.name == self.chosen)

    @property
    def speedup(self) -> float:
        """Measured, of calls, over those of the graph as anybody would capture it."""
        return ratio(self.plain_call_us, self.call_us)

    @property
    def predicted_speedup(self) -> float | None:
        """Of replays, as predicted."""
        before, after = self.before.predicted, self.after.predicted
        return None if before is None or after is None else ratio(before, after)

    @property
    def is_plain(self) -> bool:
        """Whether the graph is used as it was captured."""
        return self.chosen == PLAIN

    def row(self) -> dict[str, Any]:
        """Return a row of a validation file."""
        return {
            "program": self.name,
            "gpu": self.gpu,
            "kernels": self.kernels,
            "graph": self.chosen,
            "captured_predicted_us": self.before.predicted,
            "captured_predicted_low_us": self.before.predicted_low,
            "captured_predicted_high_us": self.before.predicted_high,
            "captured_measured_us": self.before.measured,
            "applied_predicted_us": self.after.predicted,
            "applied_predicted_low_us": self.after.predicted_low,
            "applied_predicted_high_us": self.after.predicted_high,
            "applied_measured_us": self.after.measured,
            "plain_call_us": self.plain_call_us,
            "call_us": self.call_us,
            "speedup": self.speedup,
            "more_bytes": self.more_bytes,
            "inputs": self.inputs,
            "orders": self.after.orders,
            "bit_equal": not self.varies,
        }

    def __str__(self) -> str:
        """Return the lines that a terminal shows."""
        calls = f"{self.call_us:.4g} us a call, {self.plain_call_us:.4g} us as captured"
        return f"{self.name}: {calls}: {self.speedup:.2f}x ({self.chosen})"


def write_applied(path: Path, found: list[Applied]) -> None:
    """Write what came of a program's calls, for `read_applied`."""
    path.write_text(json.dumps([asdict(each) for each in found]), encoding="utf-8")


def read_applied(path: Path) -> list[Applied]:
    """Read what `write_applied` wrote; a damaged file is an `ApplyError`."""
    try:
        found: list[Applied] = restore(list[Applied], read_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ApplyError(f"{path}: what came of the program cannot be read ({error})") from None
    return found
