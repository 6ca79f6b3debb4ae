"""Tables and figure of docs/suite.md: what the programs of samples/suite show.

`python benchmarks/suite_page.py` writes them anew; with `--check` it only tells whether the tables
are those of `recorded.json` and `launching.json` there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from pages import replace_tables

from depgraph.reports.plots.style import Plot, house_style, label_rows, save
from depgraph.samples.suite import summaries

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "suite.md"
LOW, HIGH = 3, 7  # of ten levels
MECHANISMS = ("cuda-graph", "pdl", "mega(task)", "acs-sw", "acs-hw", "dataflow (oldest-first)")
ACS_MEAN, ACS_MOST = 1.56, 2.19  # arXiv:2401.12377, abstract

Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Return a line for each program, and geometric means."""
    names = [name.partition(" ")[0] for name in MECHANISMS]
    lines = [
        "| program | kernels | low | high | upper bound | RAW only | "
        + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|---:|---:|---:|---:|---:|" + "---:|" * len(names),
    ]  # fmt: skip
    columns = []
    for row in rows:
        levels = row["levels"]
        numbers = [row["upper_bound"], row["upper_bound_raw_only"]]
        numbers += [row["speedups"][name] for name in MECHANISMS]
        columns.append(numbers)
        shares = f"{sum(levels[:LOW]):.0%} | {sum(levels[HIGH:]):.0%}"
        factors = " | ".join(f"{number:.2f}x" for number in numbers)
        lines.append(f"| {row['name']} | {row['kernels']} | {shares} | {factors} |")
    means = map(geometric_mean, zip(*columns, strict=True))
    lines.append("| geometric mean | | | | " + " | ".join(f"{m:.2f}x" for m in means) + " |")
    predicted = (geometric_mean([row["predicted"][name] for row in rows]) for name in MECHANISMS)
    lines.append(
        "| with contention | | | | | | " + " | ".join(f"{m:.2f}x" for m in predicted) + " |"
    )
    return "\n".join([*lines, ""])


def launching_table(rows: list[Row]) -> str:
    """Return a line for each program that launches kernels from the device, over no launches."""
    names = list(rows[0]["cycles"])[1:]
    shown = " | ".join(f"`{name}`" for name in names)
    lines = [
        f"| program | kernels | launches | {shown} | best T | made by it | by `spawn` |",
        "|---|---:|---:|" + "---:|" * (len(names) + 3),
    ]
    columns = []
    for row in rows:
        gains = [row["cycles"]["flat"] / row["cycles"][name] for name in names]
        columns.append(gains)
        shown = " | ".join(f"{gain:.2f}x" for gain in gains)
        made = f"{row['threshold']} | {row['made']['cdp(best)']} | {row['made']['spawn']}"
        lines.append(f"| {row['name']} | {row['kernels']} | {row['launches']} | {shown} | {made} |")
    means = " | ".join(f"{geometric_mean(c):.2f}x" for c in zip(*columns, strict=True))
    return "\n".join([*lines, f"| geometric mean | | | {means} | | | |", ""])


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    rows, launching = summaries("recorded"), summaries("launching")
    page = PAGE.read_text(encoding="utf-8")
    written = replace_tables(page, table(rows), "suite")
    written = replace_tables(written, launching_table(launching), "launching")
    if is_check:
        sys.exit(written != page)
    PAGE.write_text(written, encoding="utf-8")
    with house_style(), tempfile.TemporaryDirectory() as folder:
        save(figure(rows), Path(folder))
        PAGE.with_suffix(".svg").write_bytes((Path(folder) / "suite.svg").read_bytes())


if __name__ == "__main__":
    main()
