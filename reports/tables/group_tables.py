"""Kernels and pairs by function, operator, module, line or range; where kernels come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import Column, Report, Table, show_number, show_percent
from depgraph.timing.launch_sites import NOWHERE, SITE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from depgraph.analysis.kernel_groups import KernelGroup, PairGroup
    from depgraph.timing.launch_sites import Site


def known_columns(sites: Mapping[int, Site]) -> list[str]:
    """Return what is known of where kernels come from: names of attributes of `Site`."""
    return [name for name in SITE_COLUMNS if any(getattr(s, name) for s in sites.values())]


def site_columns(sites: Mapping[int, Site]) -> list[Column]:
    """Return a column for each of `known_columns`, for rows about what has a kernel number."""

    def of(name: str) -> Callable[[Any], str]:
        return lambda row: getattr(sites.get(row.kernel, NOWHERE), name)

    return [Column(name, name, is_text=True, get=of(name)) for name in known_columns(sites)]


def groups_report(groups: Sequence[KernelGroup], by: str, unit: str) -> Report:
    """Build the table of groups of kernels."""
    total = sum(group.time or 0.0 for group in groups)
    times = [
        *common("time", unit=unit),
        Column("share", "share", show=show_percent, get=lambda g: g.time / total),
    ]
    columns = [
        Column(by, by, is_text=True, get=lambda g: g.group),
        *common("kernels", "blocks"),
        *times * (total > 0),
        *common("accesses", "read_bytes", "written_bytes"),
    ]
    table = Table.of("groups", f"Kernels by {by}", columns, groups)
    return Report("kernels", {"group_by": by, "n_groups": len(groups)}, tables=[table])


def pair_groups_report(groups: Sequence[PairGroup], by: str) -> Report:
    """Build the table of dependences between groups of kernels."""
    table = Table.of(
        "pair_groups",
        f"Dependences by {by}",
        [
            Column("target", by, is_text=True),
            Column("source", "waits for", is_text=True),
            Column("pairs", "kernel pairs", show=show_number),
            *common("edges", "raw", "war", "waw"),
            *common("reuse") * any(g.reuse for g in groups),
        ],
        groups,
    )
    return Report("pairs", {"group_by": by, "n_groups": len(groups)}, tables=[table])
