"""The table of kernel pairs that depend on one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.reports.tables.table import Column, Table, kernel_name, show_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel


def pair_table(
    pairs: Sequence[PairSummary], kernels: Sequence[Kernel], *, shown: int | None = None
) -> Table:
    """Build the table of dependent pairs, in the order of the kernel that waits.

    Edges by LDGSTS alone and possible edges have columns where there are any.

    Parameters
    ----------
    pairs : sequence of PairSummary
    kernels : sequence of Kernel
    shown : int, optional
        Rows at most; default all.
    """
    names = {k.kernel: kernel_name(k.name) for k in kernels}
    streams = {k.kernel: k.stream for k in kernels}
    with_ldgsts = any(pair.ldgsts for pair in pairs)
    with_possible = any(pair.possible for pair in pairs)
    rows = [
        (
            pair.target,
            names.get(pair.target, "host copy"),
            pair.source,
            names.get(pair.source, "host copy"),
            pair.pattern.value,
            pair.edges,
            pair.raw,
            pair.war,
            pair.waw,
            *[pair.ldgsts] * with_ldgsts,
            *[pair.possible] * with_possible,
            min(pair.source, pair.target) >= 0 and streams[pair.source] != streams[pair.target],
        )
        for pair in pairs
    ]
    kept = rows if shown is None else rows[:shown]
    return Table(
        "pairs",
        "Dependent pairs of kernels",
        [
            Column("target", "kernel"),
            Column("target_name", "name", is_text=True),
            Column("source", "waits for"),
            Column("source_name", "name", is_text=True),
            Column("pattern", "pattern", is_text=True),
            Column("edges", "edges", show=show_number),
            Column("raw", "RAW", show=show_number),
            Column("war", "WAR", show=show_number),
            Column("waw", "WAW", show=show_number),
            *[Column("ldgsts", "by LDGSTS", show=show_number)] * with_ldgsts,
            *[Column("possible", "possible", show=show_number)] * with_possible,
            Column("cross_stream", "streams", is_text=True, show=lambda v: "cross" if v else ""),
        ],
        kept,
        omitted=len(rows) - len(kept),
        more="depgraph show pairs",
    )
