"""The table of kernel pairs that depend on one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import Column, Table, kernel_names, show_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel


def pair_table(
    pairs: Sequence[PairSummary],
    kernels: Sequence[Kernel],
    copies: Mapping[int, str],
    *,
    shown: int | None = None,
) -> Table:
    """Build the table of dependent pairs, in the order of the kernel that waits.

    Allocator reuse, edges by LDGSTS alone and possible edges have columns where there are any.
    """
    name = kernel_names(kernels, copies)
    streams = {k.kernel: k.stream for k in kernels}
    columns = [
        *common("target"),
        Column("target_name", "name", is_text=True, get=lambda p: name(p.target)),
        *common("source"),
        Column("source_name", "name", is_text=True, get=lambda p: name(p.source)),
        Column("pattern", "pattern", is_text=True, get=lambda p: p.pattern.value),
        *common("edges", "raw", "war", "waw"),
        *common("reuse") * any(p.reuse for p in pairs),
        *[Column("ldgsts", "by LDGSTS", show=show_number)] * any(p.ldgsts for p in pairs),
        *[Column("possible", "possible", show=show_number)] * any(p.possible for p in pairs),
        Column(
            "cross_stream", "streams", is_text=True, show=lambda v: "cross" if v else "",
            get=lambda p: min(p.source, p.target) >= 0 and streams[p.source] != streams[p.target],
        ),
    ]  # fmt: skip
    title = "Dependent pairs of kernels"
    return Table.of("pairs", title, columns, pairs, more="depgraph show pairs").cut(shown)
