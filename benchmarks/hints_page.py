"""The page on what a kilobyte of filter buys, from `samples/suite/hints.csv.xz`.

`python benchmarks/hints_page.py` writes table and figure of docs/hints.md anew; with `--check` it
only tells whether the page is that of the points. They are made by

    for name in $(ls stores); do for filter in ring counting; do
        profile=profiles/$name.kineto.json.gz
        depgraph sweep-hints stores/$name --timing $profile --filter $filter --format csv
    done; done | awk 'NR == 1 || !/^program/' | xz > ../samples/suite/hints.csv.xz
"""

from __future__ import annotations

import csv
import lzma
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pages

from depgraph.analysis.hint_sweep import Curve, HintSweep, Point
from depgraph.reports.plots.style import COLOURS, LINES, MARKERS, Plot
from depgraph.reports.tables.hint_sweep_table import hint_sweep_report
from depgraph.reports.tables.render import render

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hints.md"
POINTS = ROOT / "samples" / "suite" / "hints.csv.xz"
_HINTS = re.compile(r"dataflow-hints\((?P<grain>\w+)")
SHORT = {
    "dataflow (oldest-first)": "exact edges",
    "dataflow-learned": "learned edges",
    "dataflow-learned(relative)": "learned footprints",
    "dataflow-bloom(4096,4)": "Bloom",
    "blockmaestro": "BlockMaestro",
    "acs-hw": "ACS",
}


def points(sort: str) -> Iterator[Point]:
    """Yield what was found with filters of one sort, and of other mechanisms."""
    with lzma.open(POINTS, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            match = _HINTS.match(row["mechanism"])
            if match and ("counting" in row["mechanism"]) != (sort == "counting"):
                continue
            yield Point(
                row["program"], float(row["sms"]), row["mechanism"],
                match["grain"] if match else "", *(float(row[name]) if row[name] else None
                for name in ("kib", "speedup", "lookups", "false_waits", "missed")),
            )  # fmt: skip


def sweep(sort: str) -> HintSweep:
    """Return the sweep over the programs and sizes that have filters of this sort."""
    found = list(points(sort))
    own = {(point.program, point.sms) for point in found if point.grain}
    return HintSweep.of([p for p in found if (p.program, p.sms) in own], {})


def by_sms(found: HintSweep) -> str:
    """Return a table of what each grain reaches without a filter, by the number of SMs."""
    names = ["exact edges", *(curve.name for curve in found.curves)]
    rows = []
    for size in sorted({point.sms for point in found.points}):
        here = HintSweep.of([p for p in found.points if p.sms == size], {})
        most = [here.others[0].most, *(curve.most for curve in here.curves)]
        knees = ", ".join("-" if c.knee is None else f"{c.knee:.3g}" for c in here.curves)
        rows.append((f"{size:g}", *(f"{each:.2f}x" for each in most), knees))
    heads = ["SMs", *names, "from KiB on"]
    return f"{pages.table(heads, 'r' * len(heads), rows)}\n"


def tables(found: HintSweep) -> str:
    """Return sentences and tables of a sweep."""
    report = hint_sweep_report(found)
    shown = replace(report, tables=report.tables[:2], notes=())
    return f"{render(shown, 'markdown').rstrip()}\n"


def reached(found: HintSweep) -> str:
    """Return the table of what each mechanism reaches."""
    report = hint_sweep_report(found)
    shown = replace(report, headline=(), brief=(), tables=[report.tables[1]], notes=())
    return f"{render(shown, 'markdown').strip()}\n"


def figure(found: HintSweep) -> Plot:
    """Draw a curve for each grain of hints, and a point for each other mechanism."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    drawn = Figure(figsize=(7.0, 3.4), layout="constrained")
    curves, beside = drawn.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
    for i, curve in enumerate(found.curves):
        style = {"color": COLOURS[i + 1], "marker": MARKERS[i], "markersize": 4}
        curves.plot(
            curve.kib[:-1], curve.speedup[:-1], label=f"hints: {curve.name}", linestyle=LINES[i],
            **style,
        )  # fmt: skip
        beside.plot(i, curve.most, linestyle="", **style)
    for i, other in enumerate(found.others, start=len(found.curves)):
        beside.plot(i, other.most, "o", color=COLOURS[0], markersize=4)
    exact = found.others[0].most
    for axes in (curves, beside):
        axes.axhline(exact, color="grey", linewidth=0.8, linestyle=":")
        axes.grid(axis="y", linewidth=0.3)
    curves.text(
        0.02, exact, "exact edges", va="bottom", fontsize=7, color="grey",
        transform=curves.get_yaxis_transform(),
    )  # fmt: skip
    curves.set_ylim(top=exact + 0.05)
    curves.set_xscale("log")
    curves.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    curves.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1f}x"))
    curves.set_xlabel("KiB of all filters (logarithmic)")
    curves.set_ylabel("speedup over serialized launches")
    curves.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    names = [f"{curve.name}, no filter" for curve in found.curves] + [
        _said(other, found.curves[0].programs) for other in found.others
    ]
    beside.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor")
    beside.set_xlabel("without a filter, and other mechanisms")
    return Plot(
        "hints", "Speedup by kilobytes of filter", " ".join(found.sentences),
        "Geometric means over programs and numbers of SMs.", drawn,
    )  # fmt: skip


def _said(curve: Curve, programs: int) -> str:
    fewer = f" ({curve.programs} programs)" if curve.programs < programs else ""
    return f"{SHORT.get(curve.name, curve.name)}{fewer}"


def main() -> None:
    """Write or check the page."""
    ring, counting = sweep("ring"), sweep("counting")
    made = {"ring": tables(ring), "sms": by_sms(ring), "counting": reached(counting)}
    pages.keep_page(__doc__.partition("\n")[0], PAGE, made, lambda: figure(ring))


if __name__ == "__main__":
    main()
