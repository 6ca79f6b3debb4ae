"""Many programs beside each other: what each could gain, and geometric means over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from depgraph.system.arrays import grouped
from depgraph.system.text import size_text

if TYPE_CHECKING:
    from depgraph.analysis.bound import Basis, Bound, Outcome
    from depgraph.analysis.study import Study

UPPER_BOUND, RAW_ONLY, REACHED = "upper_bound", "upper_bound_raw_only", "reached"
PREDICTED = "predicted_us", "predicted_low_us", "predicted_high_us"


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A program of a suite on one GPU size: what is answered of it alone."""

    program: str
    store: str
    basis: Basis
    bound: Bound  # with all dependences
    renamed: Bound  # as if every buffer were renamed, if RAW dependences count
    best: Outcome | None  # of the policies whose blocks wait before they start
    policies: tuple[Outcome, ...]
    verdict: str = ""  # what keeps the program slow

    @property
    def sms(self) -> float:
        """Number of SMs."""
        return self.bound.sms

    @property
    def reached_by(self) -> str:
        """The best of the policies."""
        return "" if self.best is None else self.best.mechanism

    @property
    def reached_launches(self) -> float | None:
        """What that policy saves of launches, as a factor."""
        return None if self.best is None else self.best.launch_speedup

    def value(self, column: str) -> float | None:
        """Return an upper bound, what overlap alone reaches, or the speedup of a policy."""
        if column == UPPER_BOUND:
            return self.bound.upper_bound
        if column == RAW_ONLY:
            return self.renamed.upper_bound if self.renamed.dependences == "RAW" else None
        if column == REACHED:
            return None if self.best is None else self.best.overlap_speedup
        return next(
            (p.speedup for p in self.policies if p.mechanism == column and not p.deadlock), None
        )

    def predicted(self, policy: str, what: str = "predicted_speedup") -> float | None:
        """Return the predicted speedup, or one of `PREDICTED`, of the policy of that name."""
        found = (getattr(p, what) for p in self.policies if p.mechanism == policy)
        return next(found, None)


@dataclass(frozen=True, slots=True)
class Broken:
    """A program of a suite of which nothing is known."""

    program: str
    store: str
    reason: str  # in one line


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of speedups over programs, and their spread."""

    size: str  # on which GPU
    column: str  # a policy, or one of `UPPER_BOUND`, `RAW_ONLY`, `REACHED`
    is_predicted: bool
    programs: int  # that have a value
    mean: float
    # geometric standard deviation of the sample, a factor; None of one program
    spread: float | None
    least: float
    most: float

    @classmethod
    def of(cls, size: str, column: str, values: Sequence[float], *, is_predicted: bool) -> Mean:
        """Take the mean of numbers above 0."""
        from statistics import fmean, stdev

        logarithms = [math.log(value) for value in values]
        spread = math.exp(stdev(logarithms)) if len(values) > 1 else None
        mean = math.exp(fmean(logarithms))
        return cls(
            size, column, is_predicted, len(values), mean, spread, min(values), max(values)
        )  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """Programs in the order given, each with a result per GPU size."""

    results: Sequence[ProgramResult | Broken]

    @cached_property
    def programs(self) -> list[ProgramResult]:
        """All results but those of broken programs."""
        return [result for result in self.results if isinstance(result, ProgramResult)]

    @cached_property
    def broken(self) -> list[Broken]:
        """Programs of which nothing is known."""
        return [result for result in self.results if isinstance(result, Broken)]

    @cached_property
    def policies(self) -> dict[str, str]:
        """Every policy that any program has, and what it takes to use it today."""
        return {p.mechanism: p.availability for each in self.programs for p in each.policies}

    @cached_property
    def bounded(self) -> set[str]:
        """Policies that the upper bound holds for: blocks are whole, and wait before they start."""
        all_of = [p for each in self.programs for p in each.policies]
        return {p.mechanism for p in all_of} - {p.mechanism for p in all_of if p.against != "block"}

    @cached_property
    def sizes(self) -> dict[str, list[ProgramResult]]:
        """Programs that means are taken over: those on a GPU size, or each on its own one."""
        by_size = grouped(self.programs, attrgetter("sms"))
        if len(by_size) > 1 and len({p.program for p in self.programs}) == len(self.programs):
            return {"its own GPU": self.programs}
        return {size_text(sms): results for sms, results in by_size.items()}

    @cached_property
    def means(self) -> list[Mean]:
        """Geometric means of the bounds and of every policy, on each GPU size."""
        return [
            Mean.of(size, column, values, is_predicted=is_predicted)
            for size, results in self.sizes.items()
            for column, is_predicted, values in self._columns(results)
            if values
        ]

    def _columns(self, results: Sequence[ProgramResult]) -> Iterator[tuple[str, bool, list[float]]]:
        for column in (UPPER_BOUND, RAW_ONLY, REACHED, *self.policies):
            yield column, False, _known(each.value(column) for each in results)
            if column in self.policies:
                yield column, True, _known(each.predicted(column) for each in results)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and 0 < value < math.inf]


def result_of_study(program: str, store: str, study: Study) -> ProgramResult:
    """Return what a suite shows of a study."""
    rows = study.bound.schedules[1:] if study.comparison is None else study.comparison.outcomes
    return ProgramResult(
        program, store, study.basis, study.bound, study.renamed, study.bound.reached, rows,
        study.verdict.text,
    )  # fmt: skip


def is_simulator_compiled() -> bool:
    """Tell whether an earlier run has compiled what takes longest to compile."""
    from depgraph.schedule.simulate_jit import event_schedule

    return bool(getattr(event_schedule, "is_kept", True))
