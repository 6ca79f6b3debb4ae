"""Many programs as tables: a row each, and geometric means."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from depgraph.analysis.next_steps import Step
from depgraph.analysis.suite import (
    PREDICTED,
    RAW_ONLY,
    REACHED,
    UPPER_BOUND,
    Broken,
    Mean,
    ProgramResult,
    Suite,
)
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    common,
    row_of,
    table_rows,
    whole_sms,
)
from depgraph.system.arrays import grouped
from depgraph.system.text import clean_text, counted, show_factor

_HEADS = {UPPER_BOUND: "upper bound", RAW_ONLY: "RAW only", REACHED: "best policy"}
_NUMBERS = (
    "basis.kernels", "basis.blocks", "bound.serial", "bound.critical_path", "bound.work",
    "bound.lower_bound",
)  # fmt: skip
_OTHERS = ("basis.gpu", "basis.unit", "basis.durations", "reached_by", "verdict")
_SPEEDUPS = (
    "speedups are over serialized launches of the same program; RAW only: upper bound as if every "
    "buffer were renamed; best policy: of those whose blocks wait before they start, without what "
    "it saves of launches, which stands beside it; columns of policies count both"
)
_SPREAD = (
    "spread: geometric standard deviation, the factor by which programs typically differ from the "
    "mean"
)


def suite_report(
    suite: Suite,
    *,
    has_policies: bool = True,
    steps: Sequence[Step] = (),
    missed: Sequence[str] | None = None,
) -> Report:
    """Describe many programs: means in sentences, a row each, with the best policy or with all."""
    shown = suite.policies if has_policies else {}
    programs = Table.of("programs", "Programs", _columns(suite, shown), suite.results)
    flat = Table.of("programs", "", _flat_columns(suite), suite.results)
    means = mean_table(suite)
    kept = [m for m in suite.means if m.column in {UPPER_BOUND, RAW_ONLY, REACHED, *shown}]
    facts: dict[str, Any] = {
        "programs_asked_for": len({r.program for r in suite.results}),
        "programs_broken": len(suite.broken),
    }
    return Report(
        "suite",
        facts if missed is None else {**facts, "thresholds_missed": len(missed)},
        headline=[*threshold_lines(missed), *_answers(suite)],
        steps=steps,
        tables=[
            programs.at_first(len(programs.rows)),
            *_verdicts(suite),
            means._replace(rows=[row_of(means.columns, m) for m in kept]),
        ],
        notes=_notes(suite),
        notes_title="How to read this",
        csv_table=flat,
        extra={t.key: table_rows(t) for t in (flat, means)},
    )


def _verdicts(suite: Suite) -> list[Table]:
    verdicts = [(r.program, r.verdict.partition(". ")[0]) for r in suite.programs if r.verdict]
    columns = [*common("program"), Column.text("verdict", "verdict", wraps=True)]
    table = Table("verdicts", "What keeps each slow", columns, verdicts)
    return [table.at_first(len(verdicts))] if verdicts else []


def mean_table(suite: Suite) -> Table:
    """Build the table of geometric means."""
    columns = [
        Column.text("column", "geometric mean of", mean_name),
        *[Column.text("size", "on")] * (len(suite.sizes) > 1),
        *common("availability", availability=lambda m: suite.policies.get(m.column, "")),
        Column.number("programs", "programs"),
        Column.factor("mean", "mean"),
        Column.factor("spread", "spread"),
        Column.factor("least", "least"),
        Column.factor("most", "most"),
    ]
    return Table.of("geometric_means", "Geometric means", columns, suite.means)


def mean_name(mean: Mean) -> str:
    """Name what a mean is of."""
    name = _HEADS.get(mean.column, mean.column)
    return f"{name}, predicted" if mean.is_predicted else name


def broken_line(broken: Broken) -> str:
    """Say which program failed, and why."""
    return clean_text(f"{broken.program} failed: {broken.reason}")


def threshold_lines(missed: Sequence[str] | None) -> list[str]:
    """Say which thresholds were missed, if any were set."""
    if missed is None:
        return []
    return [f"threshold missed: {line}" for line in missed] or ["all thresholds are met"]


def _if_known(get: Callable[[ProgramResult], Any]) -> Callable[[ProgramResult | Broken], Any]:
    """Return what takes a value from a program, but from a broken one none."""
    return lambda result: None if isinstance(result, Broken) else get(result)


_sms = _if_known(lambda result: whole_sms(result.sms))
_LAUNCHES = Column.factor("reached_launches", "launches", _if_known(attrgetter("reached_launches")))


def _column(name: str) -> Column:
    get = _if_known(lambda result: result.value(name))
    key = name if name in _HEADS else f"speedup {name}"
    return Column.factor(key, _HEADS.get(name, name), get)


def _columns(suite: Suite, policies: Iterable[str]) -> list[Column]:
    """Return what people see: no more columns than there is something in."""
    reason = Column.text("error", "failed because", lambda r: getattr(r, "reason", ""), wraps=True)
    which = Column(
        "reached_by", "which", show=lambda name: name or "", is_text=True, wraps=True,
        get=_if_known(attrgetter("reached_by")),
    )  # fmt: skip
    sizes = {result.sms for result in suite.programs}
    return [
        Column.text("program", "program", wraps=True),
        *[reason] * bool(suite.broken),
        *common("sms", sms=_sms) * (len(sizes) > 1),
        _column(UPPER_BOUND),
        _column(RAW_ONLY),
        _column(REACHED),
        *[_LAUNCHES] * any(_saves_launches(result) for result in suite.programs),
        which,
        *(column for policy in policies for column in _policy_columns(suite, policy)),
    ]


def _saves_launches(result: ProgramResult) -> bool:
    return result.reached_launches not in {None, 1.0}


def _policy_columns(suite: Suite, policy: str) -> list[Column]:
    is_predicted = any(result.predicted(policy) is not None for result in suite.programs)
    get = _if_known(lambda result: result.predicted(policy))
    key, head = f"predicted {policy}", f"{policy}, predicted"
    return [_column(policy), *[Column.factor(key, head, get)] * is_predicted]


def _predicted_columns(suite: Suite, policy: str) -> list[Column]:
    """Return the predicted microseconds of a policy, if any program has them."""
    if all(result.predicted(policy, PREDICTED[0]) is None for result in suite.programs):
        return []
    return [
        Column(
            f"{key} {policy}",
            "",
            get=_if_known(partial(ProgramResult.predicted, policy=policy, what=key)),
        )
        for key in PREDICTED
    ]


def _plain_columns(paths: Iterable[str]) -> list[Column]:
    """Return a column for each attribute of a program's result, under its own name."""
    return [Column(path.rpartition(".")[2], "", get=_if_known(attrgetter(path))) for path in paths]


def _flat_columns(suite: Suite) -> list[Column]:
    return [
        Column.text("program", ""),
        Column.text("store", ""),
        *common("sms", sms=_sms),
        *_plain_columns(_NUMBERS),
        *(_column(name) for name in (UPPER_BOUND, RAW_ONLY, REACHED)),
        _LAUNCHES,
        *(
            column
            for policy in suite.policies
            for column in (*_policy_columns(suite, policy), *_predicted_columns(suite, policy))
        ),
        *_plain_columns(_OTHERS),
        Column("error", "", get=lambda r: getattr(r, "reason", None)),
    ]


def _answers(suite: Suite) -> list[str]:
    """Say what the programs could gain, and what the best policy reaches, on average."""
    answers = []
    for size, programs in suite.sizes.items():
        means = {m.column: m for m in suite.means if m.size == size and not m.is_predicted}
        if UPPER_BOUND not in means:
            continue
        count = counted(len({p.program for p in programs}), "program")
        bound = means[UPPER_BOUND]
        text = (
            f"{count} on {size}: upper bound on speedup {show_factor(bound.mean)} (geometric mean; "
            f"{show_factor(bound.least)} to {show_factor(bound.most)})"
        )
        if RAW_ONLY in means:
            text += f", RAW only {show_factor(means[RAW_ONLY].mean)}"
        if REACHED in means:
            text += f"; {show_factor(means[REACHED].mean)} reached by the best policy of each"
        if any(map(_saves_launches, programs)):
            text += ", launches aside"
        answers.append(text)
    return [*answers, *map(broken_line, suite.broken)]


def _notes(suite: Suite) -> list[str]:
    notes = [_SPEEDUPS, _SPREAD]
    for attribute, words in (
        ("basis.durations", "durations:"),
        ("basis.gpu", "occupancy by the limits of"),
    ):
        found = grouped(suite.programs, attrgetter(attribute))
        for value, results in found.items():
            names = ", ".join(dict.fromkeys(result.program for result in results))
            notes.append(f"{words} {value}" + f" ({names})" * (len(found) > 1))
    if any(m.is_predicted for m in suite.means):
        notes.append(
            "predicted: as blocks that share an SM slow each other; the upper bound is for fixed "
            "durations and does not hold for these"
        )
    notes += [
        f"{mean_name(m)}: {m.programs} of {len(suite.sizes[m.size])} programs; "
        "the others lack what it needs, or it deadlocks"
        for m in suite.means
        if not m.is_predicted and m.programs < len(suite.sizes[m.size])
    ]
    return notes
