"""What changed between two stores, as sentences and tables."""

from depgraph.analysis.compare_stores import StoreDiff
from depgraph.reports.tables.table import Column, Report, Table, common, show_value
from depgraph.system.text import counted, show_factor, show_number, show_percent, size_text

_CHANGED = 0.005
_MEANING = {
    "upper_bound": "upper bound on the speedup",
    "bound_raw": "upper bound, RAW only",
    "speedup": "speedup reached",
    "utilization": "slot utilization of serial",
    "untraced": "share of kernels with untraced accesses",
    "edges": "edges between blocks",
    "serial": "serial time",
    "launched_serial": "serial time with launches",
    "critical_path": "critical path",
}


def diff_report(diff: StoreDiff, *, top: int | None = None) -> Report:
    """Describe what changed."""
    changed = [k for k in diff.kernels if k.change != "same"]
    counts = {
        "kernels_same": len(diff.kernels) - len(changed),
        "kernels_changed": sum(k.change not in {"added", "removed"} for k in changed),
        "kernels_added": sum(k.change == "added" for k in changed),
        "kernels_removed": sum(k.change == "removed" for k in changed),
        "pairs_changed": len(diff.pairs),
    }
    bound, used = diff.metrics["upper_bound"], diff.metrics["utilization"]
    return Report(
        "compare",
        {"sms": int(diff.sms), "unit": diff.unit, **counts},
        headline=[
            (
                f"kernels: {counts['kernels_same']} same, {counts['kernels_changed']} changed, "
                f"{counts['kernels_added']} added, {counts['kernels_removed']} removed; "
                f"dependences differ for {counted(counts['pairs_changed'], 'pair')} of kernels"
            ),
            (
                f"on {size_text(diff.sms)} the upper bound on the speedup goes from "
                f"{show_factor(bound[0])} to {show_factor(bound[1])}, slot utilization of serial "
                f"from {show_percent(used[0])} to {show_percent(used[1])}"
            ),
            *what_it_means(diff),
            *_noise_lines(diff),
        ],
        tables=[_metric_table(diff), _kernel_table(diff).cut(top), _pair_table(diff).cut(top)],
        notes=diff.notes,
    )


def _noise_lines(diff: StoreDiff) -> list[str]:
    if not diff.noise:
        return []
    beyond = [name for name in diff.metrics if not diff.is_noise(name)]
    names = ", ".join(beyond) or "nothing"
    return [f"beyond what two recordings of the base differ by: {names}"]


def what_it_means(diff: StoreDiff) -> list[str]:
    """Say what a change of the bound tells about the change of the program."""
    before, after = diff.metrics["upper_bound"]
    if diff.is_noise("upper_bound"):
        return []
    if after < before * (1 - _CHANGED):
        edges = diff.metrics["edges"]
        if edges[1] > edges[0]:
            added = show_number(edges[1] - edges[0])
            return [f"the upper bound fell: the change added dependences ({added} edges more)"]
        return ["the upper bound fell: the critical path takes more of the serial time"]
    if after > before * (1 + _CHANGED):
        return ["the upper bound rose: the change left parallelism unused that launches could use"]
    return []


def _metric_table(diff: StoreDiff) -> Table:
    def meaning(name: str) -> str:
        is_time = name in {"serial", "launched_serial", "critical_path"}
        return _MEANING[name] + f" ({diff.unit})" * is_time

    def change(name: str) -> float | None:
        base, new = diff.metrics[name]
        return new / base - 1 if base else None

    columns = [
        Column.text("metric", "metric", str),
        *common("meaning", meaning=meaning),
        Column.number("base", "base", get=lambda name: diff.metrics[name][0]),
        Column.number("new", "new", get=lambda name: diff.metrics[name][1]),
        Column("change", "change", show=_signed_percent, get=change),
        *[Column.number("noise", "noise", get=diff.noise.get)] * bool(diff.noise),
    ]
    return Table.of("metrics", "Metrics", columns, diff.metrics)


def _signed_percent(value: float | None) -> str:
    if value is None:
        return "-"
    return "0 %" if value == 0 else f"{100 * value:+.1f} %"


def _kernel_table(diff: StoreDiff) -> Table:
    replaces = Column(
        "replaces", "replaces", is_text=True, show=lambda ks: ", ".join(map(str, ks)) or "-"
    )
    columns = [
        Column("base", "base", show=show_value),
        Column("new", "new", show=show_value),
        *common("name"),
        Column.text("change", "change"),
        *[replaces] * any(kernel.replaces for kernel in diff.kernels),
        Column.number("base_time", "base", diff.unit),
        Column.number("new_time", "new", diff.unit),
    ]
    changed = [k for k in diff.kernels if k.change != "same" or k.base_time != k.new_time]
    changed.sort(key=lambda kernel: kernel.change == "same")  # what is merely slower comes last
    return Table.of("kernels", "Kernels that differ", columns, changed)


def _pair_table(diff: StoreDiff) -> Table:
    columns = [
        *common("target", "source"),
        Column.text("side", "numbered in"),
        Column("base_pattern", "base", is_text=True, show=show_value),
        Column("new_pattern", "new", is_text=True, show=show_value),
        Column.number("base_edges", "base edges"),
        Column.number("new_edges", "new edges"),
    ]
    return Table.of("pairs", "Pairs of kernels whose dependences differ", columns, diff.pairs)
