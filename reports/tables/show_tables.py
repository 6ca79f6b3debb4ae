"""What ``depgraph show`` prints: kernels, pairs, groups of both, the critical path, one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from depgraph.errors import ModelError
from depgraph.graph.queries import block_number, describe_neighbours, neighbour_kinds
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    columns_of_pairs,
    common,
    kernel_name,
    kernel_names,
    show_dimensions,
    show_value,
)
from depgraph.system.rows import grouped
from depgraph.system.text import operations_text, show_bytes, show_number
from depgraph.timing.profile import NOWHERE, SITE_COLUMNS, Site
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from depgraph.analysis.kernel_groups import KernelGroup, PairGroup
    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.graph.queries import Neighbour, PathStep
    from depgraph.timing.durations import Durations


_NEIGHBOURS_SHOWN = 20
_RANGES_SHOWN = 12


def _letters(index: int) -> str:
    """Return A, B, ..., Z, AA, AB, ... for 0, 1, ..."""
    letters = ""
    while index >= 0:
        letters = chr(ord("A") + index % 26) + letters
        index = index // 26 - 1
    return letters


def kernels_report(
    kernels: Sequence[Kernel],
    sites: Mapping[int, Site] | None = None,
    times: Mapping[int, float] | None = None,
    unit: str = "us",
) -> Report:
    """Build the table of kernels; streams are lettered in the order of their first use."""
    measured = times or {}
    in_order = dict.fromkeys(kernel.stream for kernel in kernels)
    streams = {stream: _letters(index) for index, stream in enumerate(in_order)}
    columns = [
        *common("kernel", "name", "grid"),
        Column("block", "block", show=show_dimensions),
        Column.number("registers", "regs"),
        Column.number("shared_bytes", "shared", "B"),
        Column("stream", "stream", show=streams.__getitem__),
        *common("accesses", "read_bytes", "written_bytes"),
        *[Column("nvtx", "NVTX ranges", is_text=True, show=show_value)]
        * any(kernel.nvtx for kernel in kernels),
        *common("time", unit=unit, time=lambda k: measured.get(k.kernel)) * bool(measured),
        *site_columns(sites or {}),
    ]
    table = Table.of("kernels", "Kernels", columns, kernels)
    return Report("kernels", {"n_kernels": len(kernels)}, tables=[table])


def pairs_report(
    pairs: Sequence[PairSummary], kernels: Sequence[Kernel], copies: Mapping[int, str]
) -> Report:
    """Build the table of dependent pairs of kernels."""
    return Report("pairs", {"n_pairs": len(pairs)}, tables=[pair_table(pairs, kernels, copies)])


def path_report(
    path: Sequence[PathStep],
    kernels: Sequence[Kernel],
    copies: Mapping[int, str],
    durations: Durations,
) -> Report:
    """Describe the critical path: the block of each kernel on it, and where the time goes."""
    unit, name = durations.unit, kernel_names(kernels, copies)
    through = operations_text([step.kernel for step in path], len(kernels))
    total = path[-1].start + path[-1].duration if path else 0.0
    length = total or 1.0
    by_function = grouped(path, lambda step: name(step.kernel))
    rows = [
        (function, len(steps), time := sum(step.duration for step in steps), time / length)
        for function, steps in by_function.items()
    ]
    rows.sort(key=lambda row: (-row[2], row[0]))
    of_functions = [
        Column.text("name", "function"),
        Column("kernels", "kernels"),
        *common("duration", "share", unit=unit),
    ]
    *columns, kinds = path_columns(unit, name)
    columns += [*common("share", share=lambda s: s.duration / length), kinds]
    source = durations.source
    answer = f"critical path: {show_number(total)} {unit} through {through}; durations: {source}"
    return Report(
        "path",
        {"critical_path": total, "unit": unit, "durations": source},
        headline=[answer],
        tables=[
            Table("functions", "Where the time goes", of_functions, rows),
            Table.of("path", "Critical path", columns, path),
        ],
        notes=durations.assumptions,
    )


def path_columns(unit: str, name: Callable[[int], str]) -> list[Column]:
    """Return the columns of a table of blocks on the critical path."""
    return [
        *common("kernel", "name", name=lambda s: name(s.kernel)),
        Column.number("block", "block"),
        Column.number("start", "start", unit),
        Column.number("duration", "duration", unit),
        Column.text("kinds", "waits by", lambda s: ", ".join(s.kinds) or "-"),
    ]


def block_report(
    graph: BlockGraph,
    footprints: Footprints,
    kernels: Sequence[Kernel],
    kernel: int,
    block: int,
    *,
    is_whole: bool = False,
) -> Report:
    """Describe a block: its footprint, what it waits for, what waits for it, and why."""
    most = None if is_whole else _NEIGHBOURS_SHOWN
    number = block_number(graph, kernel, block)
    row = next((k for k in kernels if k.kernel == kernel), None)
    if row is None:
        raise ModelError(f"{kernel} is {graph.copy_name(kernel)}: name a block of a kernel")
    sources, targets = neighbour_kinds(graph, number)
    own = footprints.of_block(number)
    x, rest = block % row.grid_x, block // row.grid_x
    read, written = (int((own.end - own.start)[own.access == kind].sum()) for kind in (READ, WRITE))
    facts = {
        "kernel": kernel,
        "block": block,
        "name": row.name,
        "waits_for": len(sources),
        "waited_for_by": len(targets),
        "read_bytes": read,
        "written_bytes": written,
    }

    def neighbours(
        key: str, title: str, found: Mapping[int, set[str]], *, is_source: bool
    ) -> Table:
        chosen = {each: found[each] for each in sorted(found)[:most]}
        described = describe_neighbours(graph, footprints, number, chosen, is_source=is_source)
        return _neighbour_table(key, title, described, len(found))

    answer = (
        f"kernel {kernel} block {block} ({x},{rest % row.grid_y},{rest // row.grid_y}) of "
        f"{kernel_name(row.name)}: reads {show_bytes(read)}, writes {show_bytes(written)}"
    )
    return Report(
        "block",
        facts,
        headline=[answer],
        tables=[
            _range_table(own).cut(_RANGES_SHOWN),
            neighbours("sources", "Waits for", sources, is_source=True),
            neighbours("targets", "Waited for by", targets, is_source=False),
        ],
    )


def _range_table(own: Footprints) -> Table:
    columns = [
        Column.text("kind", "kind"),
        Column("start", "from", show=hex),
        Column("end", "to", show=hex),
        Column.number("bytes", "bytes"),
    ]
    rows = [
        ("read" if kind == READ else "write", int(start), int(end), int(end - start))
        for kind, start, end in zip(own.access, own.start, own.end, strict=True)
    ]
    return Table("footprint", "Footprint", columns, rows, more="footprints.parquet")


def _neighbour_table(key: str, title: str, neighbours: Sequence[Neighbour], total: int) -> Table:
    columns = [
        *common("kernel"),
        Column("block", "block"),
        Column.text("kinds", "kinds", lambda n: ", ".join(n.kinds)),
        Column.number("raw_bytes", "RAW", "B"),
        Column.number("war_bytes", "WAR", "B"),
        Column.number("waw_bytes", "WAW", "B"),
        *[Column.number("reuse_bytes", "reuse", "B")] * any(n.reuse_bytes for n in neighbours),
    ]
    table = Table.of(
        key, f"{title} ({total})", columns, neighbours, more="depgraph export --what edges"
    )
    return replace(table, omitted=total - len(neighbours))


def pair_table(
    pairs: Sequence[PairSummary], kernels: Sequence[Kernel], copies: Mapping[int, str]
) -> Table:
    """Build the table of dependent pairs; rare kinds of edges have columns if any."""
    name = kernel_names(kernels, copies)
    streams = {k.kernel: k.stream for k in kernels}
    columns = [
        *columns_of_pairs(name),
        Column.text("pattern", "pattern", lambda p: p.pattern.value),
        *common("edges", "raw", "war", "waw"),
        *common("reuse") * any(p.reuse for p in pairs),
        *[Column.number("ldgsts", "by LDGSTS")] * any(p.ldgsts for p in pairs),
        *[Column.number("possible", "possible")] * any(p.possible for p in pairs),
        Column(
            "cross_stream",
            "streams",
            is_text=True,
            show=lambda v: "cross" if v else "",
            get=lambda p: min(p.source, p.target) >= 0 and streams[p.source] != streams[p.target],
        ),
    ]
    title = "Dependent pairs of kernels"
    return Table.of("pairs", title, columns, pairs, more="depgraph show pairs")


def known_columns(sites: Mapping[int, Site]) -> list[str]:
    """Return what is known of where kernels come from: names of attributes of `Site`."""
    return [name for name in SITE_COLUMNS if any(getattr(s, name) for s in sites.values())]


def site_columns(sites: Mapping[int, Site]) -> list[Column]:
    """Return a column for each of `known_columns`, for rows about what has a kernel number."""

    def of(name: str) -> Callable[[Any], str]:
        return lambda row: getattr(sites.get(row.kernel, NOWHERE), name)

    return [Column.text(name, name, of(name)) for name in known_columns(sites)]


def groups_report(groups: Sequence[KernelGroup], by: str, unit: str) -> Report:
    """Build the table of groups of kernels."""
    total = sum(group.time or 0.0 for group in groups)
    times = common("time", "share", unit=unit, share=lambda g: g.time / total)
    columns = [
        Column.text(by, by, lambda g: g.group),
        *common("kernels", "blocks"),
        *times * (total > 0),
        *common("accesses", "read_bytes", "written_bytes"),
    ]
    table = Table.of("groups", f"Kernels by {by}", columns, groups)
    return Report("kernels", {"group_by": by, "n_groups": len(groups)}, tables=[table])


def pair_groups_report(groups: Sequence[PairGroup], by: str) -> Report:
    """Build the table of dependences between groups of kernels."""
    columns = [
        Column.text("target", by),
        Column.text("source", "waits for"),
        Column.number("pairs", "kernel pairs"),
        *common("edges", "raw", "war", "waw"),
        *common("reuse") * any(g.reuse for g in groups),
    ]
    table = Table.of("pair_groups", f"Dependences by {by}", columns, groups)
    return Report("pairs", {"group_by": by, "n_groups": len(groups)}, tables=[table])
