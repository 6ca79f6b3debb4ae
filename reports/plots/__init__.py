"""The plots of a report, one module each; each returns a `Plot`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from depgraph.reports.plots import (
    critical_path,
    dependence_map,
    kind_costs,
    pair_blocks,
    policies,
    speedup_by_sms,
    utilization_levels,
    utilization_over_time,
    waves,
)
from depgraph.reports.plots.style import Plot, house_style, save
from depgraph.system.forks import map_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from depgraph.analysis.study import Study

_PLOTS: tuple[Callable[[Study], Plot], ...] = (
    policies.plot,
    utilization_over_time.plot,
    speedup_by_sms.plot,
    waves.plot,
    critical_path.plot,
    kind_costs.plot,
    dependence_map.plot,
    pair_blocks.plot,
    utilization_levels.plot,
)


def drawn() -> dict[str, Callable[..., Plot]]:
    """Return what draws each plot, by the name of its module."""
    return {draw.__module__.rpartition(".")[2]: draw for draw in _PLOTS}


def write_plots(
    study: Study, folder: Path, pair: tuple[int, int] | None = None, *, jobs: int = 1
) -> list[Plot]:
    """Draw every plot of a study into a folder, as PNG and SVG.

    Processes draw side by side where the system can make copies of this one: drawing holds the
    interpreter's lock, so that threads would gain nothing.
    """

    def write(i: int) -> Plot:
        draw = _PLOTS[i]
        plot = pair_blocks.plot(study, pair) if draw is pair_blocks.plot and pair else draw(study)
        save(plot, folder)
        return plot

    with house_style():
        return map_in_forks(
            write, len(_PLOTS), jobs, without=lambda plot: replace(plot, figure=None)
        )
