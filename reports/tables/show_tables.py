"""What ``depgraph show`` prints: kernels, pairs, the critical path, one block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from depgraph.errors import ModelError
from depgraph.graph.queries import block_number, describe_neighbours, neighbour_kinds
from depgraph.reports.tables.columns import common
from depgraph.reports.tables.group_tables import site_columns
from depgraph.reports.tables.pair_table import pair_table
from depgraph.reports.tables.table import (
    Column,
    Report,
    Table,
    kernel_name,
    kernel_names,
    show_bytes,
    show_dimensions,
    show_number,
    show_percent,
    show_value,
)
from depgraph.system.text import operations_text
from depgraph.trace.records import READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from depgraph.footprint.footprints import Footprints
    from depgraph.graph.block_graph import BlockGraph
    from depgraph.graph.pairs import PairSummary
    from depgraph.graph.program import Kernel
    from depgraph.graph.queries import Neighbour, PathStep
    from depgraph.timing.durations import Durations
    from depgraph.timing.launch_sites import Site

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
        Column("registers", "regs", show=show_number),
        Column("shared_bytes", "shared", "B", show=show_number),
        Column("stream", "stream", show=streams.__getitem__),
        *common("accesses", "read_bytes", "written_bytes"),
        *[Column("nvtx", "NVTX ranges", is_text=True, show=show_value)]
        * any(kernel.nvtx for kernel in kernels),
        *[Column("time", "time", unit, show_number, get=lambda k: measured.get(k.kernel))]
        * bool(measured),
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
    by_function: dict[str, list[float]] = {}
    for step in path:
        by_function.setdefault(name(step.kernel), []).append(step.duration)
    functions = sorted(
        ((function, len(times), sum(times)) for function, times in by_function.items()),
        key=lambda row: (-row[2], row[0]),
    )
    columns = [
        *path_columns(unit, name)[:-1],
        Column("share", "share", show=show_percent, get=lambda s: s.duration / length),
        *path_columns(unit, name)[-1:],
    ]
    return Report(
        "path",
        {"critical_path": total, "unit": unit, "durations": durations.source},
        headline=[
            (
                f"critical path: {show_number(total)} {unit} through {through}; "
                f"durations: {durations.source}"
            )
        ],
        tables=[
            Table(
                "functions",
                "Where the time goes",
                [
                    Column("name", "function", is_text=True),
                    Column("kernels", "kernels"),
                    *common("duration", "share", unit=unit),
                ],
                [(*row, row[2] / length) for row in functions],
            ),
            Table.of("path", "Critical path", columns, path),
        ],
        notes=durations.assumptions,
    )


def path_columns(unit: str, name: Callable[[int], str]) -> list[Column]:
    """Return the columns of a table of blocks on the critical path."""
    return [
        *common("kernel"),
        Column("name", "name", is_text=True, show=kernel_name, get=lambda s: name(s.kernel)),
        Column("block", "block", show=show_number),
        Column("start", "start", unit, show_number),
        Column("duration", "duration", unit, show_number),
        Column("kinds", "waits by", is_text=True, get=lambda s: ", ".join(s.kinds) or "-"),
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
    ranges_shown, shown = (None, None) if is_whole else (_RANGES_SHOWN, _NEIGHBOURS_SHOWN)
    ranges = [
        ("read" if kind == READ else "write", int(start), int(end), int(end - start))
        for kind, start, end in zip(own.access, own.start, own.end, strict=True)
    ]
    return Report(
        "block",
        facts,
        headline=[
            (
                f"kernel {kernel} block {block} ({x},{rest % row.grid_y},{rest // row.grid_y}) of "
                f"{kernel_name(row.name)}: reads {show_bytes(read)}, writes "
                f"{show_bytes(written)}"
            ),
        ],
        tables=[
            Table(
                "footprint",
                "Footprint",
                [
                    Column("kind", "kind", is_text=True),
                    Column("start", "from", show=hex),
                    Column("end", "to", show=hex),
                    Column("bytes", "bytes", show=show_number),
                ],
                ranges,
                more="footprints.parquet",
            ).cut(ranges_shown),
            *(
                _neighbour_table(
                    key,
                    title,
                    describe_neighbours(
                        graph,
                        footprints,
                        number,
                        {b: found[b] for b in sorted(found)[:shown]},
                        is_source=is_source,
                    ),
                    len(found),
                )
                for key, title, found, is_source in (
                    ("sources", "Waits for", sources, True),
                    ("targets", "Waited for by", targets, False),
                )
            ),
        ],
    )


def _neighbour_table(key: str, title: str, found: Sequence[Neighbour], total: int) -> Table:
    columns = [
        *common("kernel"),
        Column("block", "block"),
        Column("kinds", "kinds", is_text=True, get=lambda n: ", ".join(n.kinds)),
        Column("raw_bytes", "RAW", "B", show_number),
        Column("war_bytes", "WAR", "B", show_number),
        Column("waw_bytes", "WAW", "B", show_number),
        *[Column("reuse_bytes", "reuse", "B", show_number)] * any(n.reuse_bytes for n in found),
    ]
    table = Table.of(key, f"{title} ({total})", columns, found, more="depgraph export --what edges")
    return replace(table, omitted=total - len(found))
