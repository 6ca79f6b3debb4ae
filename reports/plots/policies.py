"""What each synchronisation policy reaches on one GPU size, grouped by what it takes to use it."""

from collections.abc import Sequence

from depgraph.analysis.bound import Outcome
from depgraph.analysis.study import Study
from depgraph.mechanisms import Against, Availability
from depgraph.reports.plots import style
from depgraph.system.text import show_factor, size_text

GROUPS = {
    Availability.SHIPS.value: "ships today",
    Availability.CODE.value: "code change",
    Availability.HARDWARE.value: "new hardware",
}
_STYLES = {"ships today": (3, ""), "code change": (1, "////"), "new hardware": (5, "xxxx")}
_LABEL_WIDTH = 30
# Gains that are drawn in full, and that the picture has room for at least.
_ROOM, _LEAST_ROOM = 2.0, 0.25
_ANYTHING = 1.02  # a smaller speedup is none
_TITLE, _NAME = "What each policy reaches", "policies"


def tells(study: Study) -> bool:
    """Whether any policy gains anything."""
    return any(speedup >= _ANYTHING for _, _, speedup in _rows(study))


def plot(study: Study) -> style.Plot:
    """Draw one bar for the policies of a group that reach the same, beside the upper bound."""
    rows = _rows(study)
    if not rows:
        figure = style.no_data(style.new_figure(1.0), "no policies were compared")
        how = "A study compares the policies that it is told to list; the report lists all of them."
        return style.Plot(_NAME, _TITLE, "No policies were compared.", how, figure)
    bound, gains = study.bound.upper_bound, [speedup - 1 for *_, speedup in rows]
    room = min(max(_ROOM, style.longest_drawn(gains)), max(_LEAST_ROOM, *gains, bound - 1))
    figure = style.new_figure(0.7 + 0.135 * (len(rows) + len({group for group, *_ in rows})))
    axes = figure.subplots()
    axes.set_xlim(1 + min([0.0, *gains]) - 0.04 * room, 1 + 1.04 * room)
    labels: list[str] = []
    for i, (group, names, speedup) in enumerate(rows):
        if not i or rows[i - 1][0] != group:
            axes.annotate(
                group, (0, len(labels)), xycoords=("axes fraction", "data"), xytext=(-3, 0),
                textcoords="offset points", ha="right", va="center", weight="bold", fontsize=6.5,
            )  # fmt: skip
            labels.append("")
        colour, hatch = _STYLES[group]
        axes.barh(len(labels), min(room, speedup - 1), left=1, height=0.7, hatch=hatch,
                  facecolor=style.COLOURS[colour], edgecolor="white", linewidth=0)  # fmt: skip
        axes.annotate(
            show_factor(speedup) + " →" * (speedup - 1 > room), (1, len(labels)),
            xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=6,
        )  # fmt: skip
        labels.append(style.plain_text(_listed(names)))
    axes.axvline(1, color="grey", linewidth=0.6)
    name = f"upper bound {show_factor(bound)}"
    if bound - 1 <= room:
        axes.axvline(bound, color="black", linewidth=1.1, label=name)
    else:
        axes.plot([], [], color="black", linewidth=1.1, label=f"{name} →")
    style.label_rows(axes, labels)
    axes.set_xlabel(f"speedup on {size_text(study.sms)} (x)")
    figure.legend(loc="outside lower center", handlelength=1.8)
    return style.Plot(
        _NAME,
        _TITLE,
        _result(rows, study),
        "Over serialized launches, launch costs aside"
        + (", slowed by blocks that share an SM" if study.basis.has_contention else "")
        + ". Policies that reach the same share a bar; of one with parameters the best counts. "
        "What cuts blocks up or assumes steps has another bound and stands in the table alone."
        + (" An arrow goes on beyond the picture." if max(*gains, bound - 1) > room else ""),
        figure,
    )  # fmt: skip


def _speedup(outcome: Outcome) -> float | None:
    """Return what is drawn of a policy: what overlap brings; None of one that never ends."""
    if outcome.deadlock:
        return None
    if outcome.predicted_overlap is None:
        return outcome.overlap_speedup
    return min(outcome.overlap_speedup, outcome.predicted_overlap)


def _rows(study: Study) -> list[tuple[str, list[str], float]]:
    """Return group, policies that reach the same and that speedup, by best parameter."""
    best: dict[tuple[str, str], float] = {}
    for outcome in () if study.comparison is None else study.comparison.outcomes:
        group, speedup = GROUPS.get(outcome.availability), _speedup(outcome)
        is_comparable = outcome.against == Against.BLOCK.value and outcome.mechanism != "serial"
        if group is not None and speedup is not None and is_comparable:
            key = group, outcome.mechanism.split("(")[0].strip()
            best[key] = max(speedup, best.get(key, speedup))
    tied: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for (group, family), speedup in best.items():
        tied.setdefault((group, show_factor(speedup)), []).append((family, speedup))
    rows = [
        (group, sorted(name for name, _ in same), max(speedup for _, speedup in same))
        for (group, _), same in tied.items()
    ]
    order = list(GROUPS.values())
    return sorted(rows, key=lambda row: (order.index(row[0]), -row[2]))


def _listed(names: Sequence[str]) -> str:
    """List as many names as there is room for, and count the others."""
    shown = names[0]
    for i, name in enumerate(names[1:], start=1):
        more = f"{shown}, {name}"
        if len(more) > _LABEL_WIDTH - 4:
            return f"{shown}, +{len(names) - i}"
        shown = more
    return shown


def _result(rows: Sequence[tuple[str, list[str], float]], study: Study) -> str:
    best: dict[str, str] = {}
    for group, names, speedup in rows:
        best.setdefault(group, f"{group}: {', '.join(names)} {show_factor(speedup)}")
    bound = f"Upper bound on {size_text(study.sms)}: {show_factor(study.bound.upper_bound)}."
    return f"{bound} Best: {'; '.join(best.values())}."
