"""What ``depgraph show`` prints: kernels, pairs, groups of both, the critical path, one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from depgraph.errors import ModelError
from depgraph.graph.queries import block_number, describe_neighbours, neighbour_kinds
from depgraph.reports.tables import table as tables
from depgraph.system.arrays import grouped
from depgraph.system.text import operations_text, show_bytes, show_number
from depgraph.timing.profile import NOWHERE, SITE_COLUMNS, Site
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from depgraph.analysis.kernel_groups import KernelGroup, PairGroup
    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.dependences import PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.graph.queries import Neighbour, PathStep
    from depgraph.timing.program_times import Durations


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
) -> tables.Report:
    """Build the table of kernels; streams are lettered in the order of their first use."""
    measured = times or {}
    in_order = dict.fromkeys(kernel.stream for kernel in kernels)
    streams = {stream: _letters(index) for index, stream in enumerate(in_order)}
    columns = [
        *tables.common("kernel", "name", "grid"),
        tables.Column("block", "block", show=tables.show_dimensions),
        tables.Column.number("registers", "regs"),
        tables.Column.number("shared_bytes", "shared", "B"),
        tables.Column("stream", "stream", show=streams.__getitem__),
        *tables.common("accesses", "read_bytes", "written_bytes"),
        *[tables.Column("nvtx", "NVTX ranges", is_text=True, show=tables.show_value)]
        * any(kernel.nvtx for kernel in kernels),
        *tables.common("time", unit=unit, time=lambda k: measured.get(k.kernel)) * bool(measured),
        *site_columns(sites or {}),
    ]
    table = tables.Table.of("kernels", "Kernels", columns, kernels)
    return tables.Report("kernels", {"n_kernels": len(kernels)}, tables=[table])


def pairs_report(
    pairs: Sequence[PairSummary], kernels: Sequence[Kernel], copies: Mapping[int, str]
) -> tables.Report:
    """Build the table of dependent pairs of kernels."""
    return tables.Report(
        "pairs", {"n_pairs": len(pairs)}, tables=[pair_table(pairs, kernels, copies)]
    )


def path_report(
    path: Sequence[PathStep],
    kernels: Sequence[Kernel],
    copies: Mapping[int, str],
    durations: Durations,
) -> tables.Report:
    """Describe the critical path: the block of each kernel on it, and where the time goes."""
    unit, name = durations.unit, tables.kernel_names(kernels, copies)
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
        tables.Column.text("name", "function"),
        tables.Column("kernels", "kernels"),
        *tables.common("duration", "share", unit=unit),
    ]
    *columns, kinds = path_columns(unit, name)
    columns += [*tables.common("share", share=lambda s: s.duration / length), kinds]
    source = durations.source
    answer = f"critical path: {show_number(total)} {unit} through {through}; durations: {source}"
    return tables.Report(
        "path",
        {"critical_path": total, "unit": unit, "durations": source},
        headline=[answer],
        tables=[
            tables.Table("functions", "Where the time goes", of_functions, rows),
            tables.Table.of("path", "Critical path", columns, path),
        ],
        notes=durations.assumptions,
    )


def path_columns(unit: str, name: Callable[[int], str]) -> list[tables.Column]:
    """Return the columns of a table of blocks on the critical path."""
    return [
        *tables.common("kernel", "name", name=lambda s: name(s.kernel)),
        tables.Column.number("block", "block"),
        tables.Column.number("start", "start", unit),
        tables.Column.number("duration", "duration", unit),
        tables.Column.text("kinds", "waits by", lambda s: ", ".join(s.kinds) or "-"),
    ]


def block_report(
    graph: BlockGraph,
    footprints: Footprints,
    kernels: Sequence[Kernel],
    kernel: int,
    block: int,
    *,
    is_whole: bool = False,
) -> tables.Report:
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
    ) -> tables.Table:
        chosen = {each: found[each] for each in sorted(found)[:most]}
        described = describe_neighbours(graph, footprints, number, chosen, is_source=is_source)
        return _neighbour_table(key, title, described, len(found))

    answer = (
        f"kernel {kernel} block {block} ({x},{rest % row.grid_y},{rest // row.grid_y}) of "
        f"{tables.kernel_name(row.name)}: reads {show_bytes(read)}, writes {show_bytes(written)}"
    )
    return tables.Report(
        "block",
        facts,
        headline=[answer],
        tables=[
            _range_table(own).cut(_RANGES_SHOWN),
            neighbours("sources", "Waits for", sources, is_source=True),
            neighbours("targets", "Waited for by", targets, is_source=False),
        ],
    )


def _range_table(own: Footprints) -> tables.Table:
    columns = [
        tables.Column.text("kind", "kind"),
        tables.Column("start", "from", show=hex),
        tables.Column("end", "to", show=hex),
        tables.Column.number("bytes", "bytes"),
    ]
    rows = [
        ("read" if kind == READ else "write", int(start), int(end), int(end - start))
        for kind, start, end in zip(own.access, own.start, own.end, strict=True)
    ]
    return tables.Table("footprint", "Footprint", columns, rows, more="footprints.parquet")


def _neighbour_table(
    key: str, title: str, neighbours: Sequence[Neighbour], total: int
) -> tables.Table:
    columns = [
        *tables.common("kernel"),
        tables.Column("block", "block"),
        tables.Column.text("kinds", "kinds", lambda n: ", ".join(n.kinds)),
        tables.Column.number("raw_bytes", "RAW", "B"),
        tables.Column.number("war_bytes", "WAR", "B"),
        tables.Column.number("waw_bytes", "WAW", "B"),
        *[tables.Column.number("reuse_bytes", "reuse", "B")]
        * any(n.reuse_bytes for n in neighbours),
    ]
    table = tables.Table.of(
        key, f"{title} ({total})", columns, neighbours, more="depgraph export --what edges"
    )
    return table._replace(omitted=total - len(neighbours))


def pair_table(
    pairs: Sequence[PairSummary], kernels: Sequence[Kernel], copies: Mapping[int, str]
) -> tables.Table:
    """Build the table of dependent pairs; rare kinds of edges have columns if any."""
    name = tables.kernel_names(kernels, copies)
    streams = {k.kernel: k.stream for k in kernels}
    columns = [
        *tables.columns_of_pairs(name),
        tables.Column.text("pattern", "pattern", lambda p: p.pattern.value),
        *tables.common("edges", "raw", "war", "waw"),
        *tables.common("reuse") * any(p.reuse for p in pairs),
        *[tables.Column.number("ldgsts", "by LDGSTS")] * any(p.ldgsts for p in pairs),
        *[tables.Column.number("possible", "possible")] * any(p.possible for p in pairs),
        tables.Column(
            "cross_stream",
            "streams",
            is_text=True,
            show=lambda v: "cross" if v else "",
            get=lambda p: min(p.source, p.target) >= 0 and streams[p.source] != streams[p.target],
        ),
    ]
    title = "Dependent pairs of kernels"
    return tables.Table.of("pairs", title, columns, pairs, more="depgraph show pairs")


def known_columns(sites: Mapping[int, Site]) -> list[str]:
    """Return what is known of where kernels come from: names of attributes of `Site`."""
    return [name for name in SITE_COLUMNS if any(getattr(s, name) for s in sites.values())]


def site_columns(sites: Mapping[int, Site]) -> list[tables.Column]:
    """Return a column for each of `known_columns`, for rows about what has a kernel number."""

    def of(name: str) -> Callable[[Any], str]:
        return lambda row: getattr(sites.get(row.kernel, NOWHERE), name)

    return [tables.Column.text(name, name, of(name)) for name in known_columns(sites)]


def groups_report(groups: Sequence[KernelGroup], by: str, unit: str) -> tables.Report:
    """Build the table of groups of kernels."""
    total = sum(group.time or 0.0 for group in groups)
    times = tables.common("time", "share", unit=unit, share=lambda g: g.time / total)
    columns = [
        tables.Column.text(by, by, lambda g: g.group),
        *tables.common("kernels", "blocks"),
        *times * (total > 0),
        *tables.common("accesses", "read_bytes", "written_bytes"),
    ]
    table = tables.Table.of("groups", f"Kernels by {by}", columns, groups)
    return tables.Report("kernels", {"group_by": by, "n_groups": len(groups)}, tables=[table])


def pair_groups_report(groups: Sequence[PairGroup], by: str) -> tables.Report:
    """Build the table of dependences between groups of kernels."""
    columns = [
        tables.Column.text("target", by),
        tables.Column.text("source", "waits for"),
        tables.Column.number("pairs", "kernel pairs"),
        *tables.common("edges", "raw", "war", "waw"),
        *tables.common("reuse") * any(g.reuse for g in groups),
    ]
    table = tables.Table.of("pair_groups", f"Dependences by {by}", columns, groups)
    return tables.Report("pairs", {"group_by": by, "n_groups": len(groups)}, tables=[table])
