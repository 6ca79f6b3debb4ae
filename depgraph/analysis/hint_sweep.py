"""What a kilobyte of filter buys: speedups of `dataflow-hints` by size, grain and number of SMs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import geometric_mean

from depgraph.analysis.bound import Outcome
from depgraph.analysis.compare_mechanisms import compare_mechanisms
from depgraph.errors import ModelError
from depgraph.mechanisms import find_mechanisms
from depgraph.mechanisms.dataflow_hints import DataflowHints
from depgraph.mechanisms.hints import GRAINS
from depgraph.scenario.scenario import Scenario
from depgraph.system.arrays import grouped
from depgraph.system.text import in_short
from depgraph.system.workers import NOBODY, Steps

SIZES = tuple(1 << n for n in range(2, 17, 2))
"""Bits, or counters, of a filter."""
OTHERS = (
    "dataflow", "dataflow-learned", "dataflow-learned(relative)", "dataflow-bloom(4096,4)",
    "blockmaestro", "acs-hw",
)  # fmt: skip
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
    kib: tuple[float | None, ...]  # of hints the last is None: no filter, the hints themselves
    speedup: tuple[float, ...]
    programs: int = 1

    @classmethod
    def of(cls, name: str, points: Sequence[Point]) -> "Curve":
        """Take means of the points of one grain, or mechanism."""
        sizes = sorted({point.kib for point in points}, key=lambda kib: kib or math.inf)
        reached = [[p.speedup for p in points if p.kib == kib] for kib in sizes]
        programs = len({point.program for point in points})
        return cls(name, tuple(sizes), tuple(map(geometric_mean, reached)), programs)

    @property
    def most(self) -> float:
        """What it reaches without a filter."""
        return self.speedup[-1]

    @property
    def knee(self) -> float | None:
        """The size from which on it stays close to that; None if no size that was tried does."""
        return self.size_for(self.most)

    def size_for(self, speedup: float) -> float | None:
        """Return the size from which on it stays close to a speedup, or above; None for none."""
        found = None
        for kib, own in zip(self.kib[-2::-1], self.speedup[-2::-1], strict=True):
            if own < speedup * (1 - CLOSE):
                break
            found = kib
        return found


@dataclass(frozen=True, slots=True)
class HintSweep:
    """All points, and what they come to."""

    points: tuple[Point, ...]
    curves: tuple[Curve, ...]  # of each grain
    others: tuple[Curve, ...]  # one point each, of the programs that each can run
    left_out: Mapping[str, str]  # program and mechanisms to why there are no points

    @classmethod
    def of(cls, points: Sequence[Point], left_out: Mapping[str, str]) -> "HintSweep":
        """Take means over sizes and programs with hints at each grain; refuse if none has any."""
        hinted = [{p.program for p in points if p.grain == grain} for grain in GRAINS]
        shared = set.intersection(*filter(None, hinted)) if any(hinted) else set[str]()
        if not shared:
            reasons = [why for name, why in left_out.items() if DataflowHints.name in name]
            raise ModelError("; ".join(dict.fromkeys(reasons)))
        known = [point for point in points if point.program in shared]
        own = grouped(known, lambda point: point.grain or point.mechanism)
        curves = tuple(Curve.of(grain, own[grain]) for grain in GRAINS if grain in own)
        # How large their filters are differs by program.
        others = tuple(
            Curve.of(name, [replace(p, kib=None) for p in found])
            for name, found in own.items()
            if name not in GRAINS
        )
        return cls(tuple(points), curves, others, left_out)

    @property
    def worth_it(self) -> Curve | None:
        """The grain that needs the smallest filter to come close to the best, if that gains."""
        best = max((curve.speedup[-2] for curve in self.curves if len(curve.kib) > 1), default=0.0)
        sizes = [(curve.size_for(best), curve) for curve in self.curves]
        close = [(size, curve) for size, curve in sizes if size is not None]
        if best <= 1 + CLOSE or not close:
            return None
        return min(close, key=itemgetter(0))[1]

    @property
    def sentences(self) -> list[str]:
        """What a kilobyte buys, where the curve bends, and which grain is worth it."""
        reached = _listed([f"{curve.most:.2f}x ({curve.name})" for curve in self.curves])
        known = [curve for curve in self.curves if curve.knee is not None]
        sizes = _listed([f"{curve.knee:.3g} KiB ({curve.name})" for curve in known])
        others = _listed([curve.name for curve in self.curves if curve.knee is None])
        exact = "".join(f"exact edges reach {c.most:.2f}x, " for c in self.others[:1])
        found = [f"In the geometric mean {exact}hints without a filter {reached}."]
        close = f"Filters of {sizes} in all come" if known else "No filter that was tried comes"
        none = f", none that was tried for {others}" if known and others else ""
        found.append(f"{close} within {_SHARE} of that{none}.")
        best = self.worth_it
        last = f"No hints are worth it: none with a filter gains more than {_SHARE}."
        if best is not None:
            with_one = " with a filter" if others else ""
            last = (
                f"Hints at the grain of a {best.name} are worth it: no other grain{with_one} is "
                f"more than {_SHARE} faster, and none as fast gets by on less memory."
            )
        return [*found, last]


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def sweep_hints(
    programs: Sequence[tuple[str, Scenario]],
    sms: Sequence[float],
    *,
    sort: str = "ring",
    window: int = 32,
    hashes: int = 4,
    steps: Steps = NOBODY,
) -> HintSweep:
    """Run `dataflow-hints` with filters of all sizes, and what it is compared with."""
    hints = [
        each
        for grain in GRAINS
        for each in DataflowHints.of_sizes(grain, (*SIZES, 0), hashes, window, sort)
    ]
    of_label = {mechanism.label: mechanism for mechanism in hints}
    others = find_mechanisms(OTHERS)
    points: list[Point] = []
    left_out: dict[str, str] = {}
    for name, scenario in programs:
        found = compare_mechanisms(scenario, sms, [*others, *hints], steps=steps)
        reasons = grouped(found.left_out, found.left_out.__getitem__)
        left_out |= {f"{name}: {in_short(', '.join(m))}": why for why, m in reasons.items()}
        for outcome in found.outcomes:
            own = of_label.get(outcome.mechanism)
            points.append(_point(name, outcome, "" if own is None else own.grain, scenario))
    return HintSweep.of(points, left_out)


def _point(program: str, outcome: Outcome, grain: str, scenario: Scenario) -> Point:
    figures = outcome.figures
    bits = figures.get("bits")
    if outcome.mechanism.startswith("dataflow-bloom"):
        bits = 2 * 4096 * scenario.graph.n_blocks
    return Point(
        program, outcome.sms, outcome.mechanism, grain, None if bits is None else bits / 8192,
        outcome.speedup, figures.get("lookups"),
        figures["by_grain"] + figures["by_filter"] if figures else None, figures.get("missed"),
    )  # fmt: skip
