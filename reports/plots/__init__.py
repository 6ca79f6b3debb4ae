"""The plots of a report, one module each; each returns a `Plot`."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from depgraph.analysis.study import Study
from depgraph.reports.plots import (
    critical_path,
    dependence_map,
    pair_blocks,
    policies,
    schedules,
    speedup_by_sms,
    utilization_over_time,
)
from depgraph.reports.plots.style import Plot, house_style, save
from depgraph.system.forks import map_in_forks

# What draws a plot, and whether it says anything of a study: a report goes without it if not.
_PLOTS: dict[Callable[[Study], Plot], Callable[[Study], bool]] = {
    schedules.plot: schedules.tells,
    policies.plot: policies.tells,
    utilization_over_time.plot: utilization_over_time.tells,
    speedup_by_sms.plot: speedup_by_sms.tells,
    critical_path.plot: critical_path.tells,
    dependence_map.plot: dependence_map.tells,
    pair_blocks.plot: pair_blocks.tells,
}


def drawn() -> dict[str, Callable[..., Plot]]:
    """Return what draws each plot, by the name of its module."""
    return {draw.__module__.rpartition(".")[2]: draw for draw in _PLOTS}


def write_plots(
    study: Study,
    folder: Path,
    pair: tuple[int, int] | None = None,
    *,
    png: bool = False,
    jobs: int = 1,
) -> list[Plot]:
    """Draw the plots that say something of a study into a folder, as SVG and, if asked, PNG."""
    # Processes draw side by side where the system can make copies of this one: drawing holds the
    # interpreter's lock, so that threads would gain nothing.
    draws = [partial(draw, study) for draw, tells in _PLOTS.items() if tells(study)]
    if pair is not None:
        draws = [draw for draw in draws if draw.func is not pair_blocks.plot]
        draws.append(partial(pair_blocks.plot, study, pair))

    def write(i: int) -> Plot:
        plot = draws[i]()
        save(plot, folder, png=png)
        return plot

    _import_matplotlib()
    with house_style():
        return map_in_forks(
            write, len(draws), jobs, without=lambda plot: replace(plot, figure=None)
        )


def _import_matplotlib() -> None:
    """Import it once for all processes, less what it says of its classes: that takes as long."""
    from matplotlib import artist

    described, artist.kwdoc = artist.kwdoc, lambda artist: ""  # noqa: ARG005
    for name in ("figure", "backends.backend_agg", "backends.backend_svg"):
        importlib.import_module(f"matplotlib.{name}")
    artist.kwdoc = described
