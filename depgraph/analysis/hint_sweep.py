"""What a kilobyte of filter buys: speedups of `dataflow-hints` by size, grain and number of SMs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING

from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.errors import ModelError
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.dataflow_hints import DataflowHints
from depgraph.mechanisms.hints import GRAINS
from depgraph.system.steps import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.analysis.outcome import Outcome
    from depgraph.mechanisms.costs import ChangedCosts
    from depgraph.scenario.scenario import Scenario
    from depgraph.system.steps import Steps

SIZES = tuple(1 << n for n in range(2, 17, 2))
"""Bits, or counters, of a filter."""
OTHERS = ("dataflow", "dataflow-learned", "dataflow-bloom(4096,4)", "blockmaestro", "acs-hw")
CLOSE = 0.01
"""A speedup that falls short of another by no more than this share of it counts as the same."""
_SHARE = f"{100 * CLOSE:g} %"


@dataclass(frozen=True, slots=True)
class Point:
    """What one mechanism reaches for one program on one GPU size."""

    program: str
    sms: float
    mechanism: str
    grain: str  # of hints; "" for other mechanisms
    kib: float | None  # of all filters; None where there are none, or nobody says how large
    speedup: float  # over serialized launches
    lookups: int | None
    false_waits: int | None  # of blocks for unfinished kernels
    missed: int | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Geometric means over programs and GPU sizes; of hints at one grain by size of filter."""

    name: str  # grain, or mechanism
    kib: tuple[float | None, ...]  # the last is None: no filter, the hints themselves
    speedup: tuple[float, ...]

    @property
    def most(self) -> float:
        """What it reaches without a filter."""
        return self.speedup[-1]

    @property
    def knee(self) -> float | None:
        """The size from which on it stays close to that; None if no size that was tried does."""
        found = None
        for kib, speedup in zip(self.kib[-2::-1], self.speedup[-2::-1], strict=True):
            if speedup < self.most * (1 - CLOSE):
                break
            found = kib
        return found


@dataclass(frozen=True, slots=True)
class HintSweep:
    """All points, and what they come to."""

    points: tuple[Point, ...]
    curves: tuple[Curve, ...]  # of each grain
    others: tuple[Curve, ...]  # one point each, of programs that all of them can run
    left_out: Mapping[str, str]  # mechanism and program to why there is no point

    @property
    def worth_it(self) -> Curve | None:
        """The grain of the smallest knee of those that come close to the best of all."""
        known = [curve for curve in self.curves if curve.knee is not None]
        best = max((curve.most for curve in known), default=0.0)
        close = [curve for curve in known if curve.most >= best * (1 - CLOSE)]
        return min(close, key=lambda curve: curve.knee or 0.0, default=None)

    @property
    def sentences(self) -> list[str]:
        """What a kilobyte buys, where the curve bends, and which grain is worth it."""
        reached = _listed([f"{curve.most:.2f}x ({curve.name})" for curve in self.curves])
        known = [curve for curve in self.curves if curve.knee is not None]
        sizes = _listed([f"{curve.knee:.3g} KiB ({curve.name})" for curve in known])
        exact = "".join(f"exact edges reach {c.most:.2f}x, " for c in self.others[:1])
        found = [f"In the geometric mean {exact}hints without a filter {reached}."]
        if known:
            found.append(f"Filters of {sizes} in all come within {_SHARE} of that.")
        best = self.worth_it
        if best is not None:
            found.append(
                f"Hints at the grain of a {best.name} are worth it: no other grain is more than "
                f"{_SHARE} faster, and none as fast gets by on less memory."
            )
        return found


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def sweep_hints(
    programs: Sequence[tuple[str, Scenario]],
    sms: Sequence[float],
    *,
    sort: str = "ring",
    window: int = 32,
    hashes: int = 4,
    costs: ChangedCosts | None = None,
    steps: Steps = NOBODY,
) -> HintSweep:
    """Run `dataflow-hints` with filters of all sizes, and what it is compared with.

    Parameters
    ----------
    programs : sequence of (str, Scenario)
        With their names.
    sms : sequence of float
        SM counts.
    sort, window, hashes : str, int, int
        As of `DataflowHints`.
    costs : mapping, optional
        Mechanism to the costs that are not the defaults.

    Raises
    ------
    ModelError
        If no program has hints.
    """
    hints = [
        DataflowHints(grain, bits, hashes, window, sort) for grain in GRAINS for bits in (*SIZES, 0)
    ]
    of_label = {mechanism.label: mechanism for mechanism in hints}
    others = find_mechanisms(OTHERS)
    points: list[Point] = []
    left_out: dict[str, str] = {}
    for name, scenario in programs:
        found = compare_mechanisms(scenario, sms, [*others, *hints], costs=costs, steps=steps)
        left_out |= {f"{mechanism}, {name}": why for mechanism, why in found.left_out.items()}
        for outcome in found.outcomes:
            own = of_label.get(outcome.mechanism)
            points.append(_point(name, outcome, "" if own is None else own.grain, scenario))
    curves = [_curve(grain, [m for m in hints if m.grain == grain], points) for grain in GRAINS]
    labels = dict.fromkeys(point.mechanism for point in points if not point.grain)
    single = [Curve(label, (None,), (_mean(points, label),)) for label in labels]
    known = tuple(curve for curve in curves if curve.speedup)
    if not known:
        raise ModelError("; ".join(dict.fromkeys(left_out.values())))
    return HintSweep(tuple(points), known, tuple(single), left_out)


def _curve(grain: str, hints: Sequence[DataflowHints], points: Sequence[Point]) -> Curve:
    done = {point.mechanism for point in points}
    known = [mechanism for mechanism in hints if mechanism.label in done]
    return Curve(
        grain,
        tuple(_kib(mechanism.filter_bits()) for mechanism in known),
        tuple(_mean(points, mechanism.label) for mechanism in known),
    )


def _point(program: str, outcome: Outcome, grain: str, scenario: Scenario) -> Point:
    figures = outcome.figures
    kib = _kib(figures.get("bits"))
    if outcome.mechanism.startswith("dataflow-bloom"):
        kib = _kib(2 * 4096 * scenario.graph.n_blocks)
    return Point(
        program, outcome.sms, outcome.mechanism, grain, kib, outcome.speedup,
        figures.get("lookups"),
        figures["by_grain"] + figures["by_filter"] if figures else None,
        figures.get("missed"),
    )  # fmt: skip


def _kib(bits: int | None) -> float | None:
    return None if bits is None else bits / 8192


def _mean(points: Sequence[Point], label: str) -> float:
    return geometric_mean(point.speedup for point in points if point.mechanism == label)
