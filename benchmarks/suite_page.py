"""Tables and figure of docs/suite.md: what the programs of samples/suite show.

`python benchmarks/suite_page.py` writes them anew; with `--check` it only tells whether the tables
are those of `recorded.json` and `launching.json` there.
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import pages

from depgraph.reports.plots.style import Plot, label_rows
from depgraph.samples.suite import summaries

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "suite.md"
LOW, HIGH = 3, 7  # of ten levels
MECHANISMS = ("cuda-graph", "pdl", "mega(task)", "acs-sw", "acs-hw", "dataflow (oldest-first)")
ACS_MEAN, ACS_MOST = 1.56, 2.19  # arXiv:2401.12377, abstract

if TYPE_CHECKING:
    from collections.abc import Iterable

Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Return a line for each program, and geometric means."""
    names = [f"`{name.partition(' ')[0]}`" for name in MECHANISMS]
    heads = ["program", "kernels", "low", "high", "upper bound", "RAW only", *names]
    cells, columns = [], []
    for row in rows:
        levels = row["levels"]
        numbers = [row["upper_bound"], row["upper_bound_raw_only"]]
        numbers += [row["speedups"][name] for name in MECHANISMS]
        columns.append(numbers)
        shares = f"{sum(levels[:LOW]):.0%}", f"{sum(levels[HIGH:]):.0%}"
        cells.append([row["name"], row["kernels"], *shares, *factors(numbers)])
    means = map(geometric_mean, zip(*columns, strict=True))
    predicted = (geometric_mean([row["predicted"][name] for row in rows]) for name in MECHANISMS)
    cells += [
        ["geometric mean", *[None] * 3, *factors(means)],
        ["with contention", *[None] * 5, *factors(predicted)],
    ]
    return _set(heads, cells)


def factors(numbers: Iterable[float]) -> list[str]:
    """Show speedups."""
    return [f"{number:.2f}x" for number in numbers]


def _set(heads: list[str], cells: list[list[Any]]) -> str:
    return f"{pages.table(heads, 'l' + 'r' * (len(heads) - 1), cells)}\n"


def launching_table(rows: list[Row]) -> str:
    """Return a line for each program that launches kernels from the device, over no launches."""
    names = list(rows[0]["cycles"])[1:]
    heads = ["program", "kernels", "launches", *(f"`{name}`" for name in names)]
    cells, columns = [], []
    for row in rows:
        gains = [row["cycles"]["flat"] / row["cycles"][name] for name in names]
        columns.append(gains)
        made = row["threshold"], row["made"]["cdp(best)"], row["made"]["spawn"]
        cells.append([row["name"], row["kernels"], row["launches"], *factors(gains), *made])
    means = factors(geometric_mean(c) for c in zip(*columns, strict=True))
    cells.append(["geometric mean", None, None, *means, None, None, None])
    return _set([*heads, "best T", "made by it", "by `spawn`"], cells)


def figure(rows: list[Row]) -> Plot:
    """Draw the time at each level of utilization, and beside it what could be gained."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.0, 3.4), layout="constrained")
    used, gains = drawn.subplots(1, 2, sharey=True, width_ratios=(1.1, 1))
    places = range(len(rows))
    colours = colormaps["Blues"]
    left = [0.0] * len(rows)
    for level in range(10):
        shares = [100 * row["levels"][level] for row in rows]
        used.barh(places, shares, 0.75, left, color=colours(0.15 + 0.085 * level), linewidth=0,
                  label=f"{10 * level} to {10 * level + 10} %")  # fmt: skip
        left = [a + b for a, b in zip(left, shares, strict=True)]
    label_rows(used, [row["name"] for row in rows])
    used.set_xlim(0, 100)
    used.set_xlabel("share of serial kernel time (%), by slot utilization")
    used.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=5, columnspacing=0.8,
                handlelength=1)  # fmt: skip
    for at, marker, colour, label in (
        ([row["upper_bound_raw_only"] for row in rows], "D", "#E69F00", "upper bound, RAW only"),
        ([row["upper_bound"] for row in rows], "s", "#0072B2", "upper bound"),
        ([row["speedups"]["acs-hw"] for row in rows], "o", "#D55E00", "acs-hw, launches included"),
    ):
        gains.plot(at, places, marker, color=colour, label=label, markersize=4)
    for x, style, label in ((ACS_MEAN, "--", "ACS reports: mean"), (ACS_MOST, ":", "at most")):
        gains.axvline(x, color="grey", linestyle=style, linewidth=0.8, label=label)
    gains.set_xlim(left=0.9)
    gains.set_xlabel("speedup over one stream")
    gains.tick_params(axis="y", length=0)
    gains.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, columnspacing=0.8)
    mean = geometric_mean([row["upper_bound"] for row in rows])
    return Plot(
        "suite", "The recorded suite",
        f"{len(rows)} programs could run {mean:.2f} times as fast in the geometric mean.",
        "Left: serial kernel time by the slot utilization of the kernel. Right: bounds on overlap, "
        "and what ACS in hardware would reach, launch costs included.", drawn,
    )  # fmt: skip


def main() -> None:
    """Write or check the page."""
    rows = summaries("recorded")
    made = {"suite": table(rows), "launching": launching_table(summaries("launching"))}
    pages.keep_page(__doc__, PAGE, made, lambda: figure(rows))


if __name__ == "__main__":
    main()
