"""What an extraction found, for the terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from depgraph.analysis.next_steps import Step
from depgraph.dependence.possible import uncertainty
from depgraph.extraction.workload import FORMAT as WORKLOAD
from depgraph.reports.tables.pair_table import pair_table
from depgraph.reports.tables.table import Report, show_bytes, show_number
from depgraph.reports.tables.untraced import skipped_table, untraced_notes, warnings_of
from depgraph.system.text import COPIES, counted, size_read

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.graph.program import Extraction

PAIRS_SHOWN = 25


def extract_summary(
    extraction: Extraction,
    *,
    seconds: float | None = None,
    pairs_shown: int | None = PAIRS_SHOWN,
    store: Path | None = None,
) -> Report:
    """Describe an extraction: what was read, what depends on what, what is untraced."""
    kernels, pairs, metadata = extraction.kernels, extraction.pairs, extraction.metadata
    facts = {
        "format": metadata["format"],
        "kernels": len(kernels),
        "copies": len(extraction.copies),
        "blocks": sum(k.blocks for k in kernels),
        "accesses": sum(k.accesses for k in kernels),
        "instructions": sum(k.instructions for k in kernels),
        "read_bytes": sum(k.read_bytes for k in kernels),
        "written_bytes": sum(k.written_bytes for k in kernels),
        "raw_edges": sum(p.raw for p in pairs),
        "war_edges": sum(p.war for p in pairs),
        "waw_edges": sum(p.waw for p in pairs),
        "reuse_edges": sum(p.reuse for p in pairs),
        "edges": sum(p.edges for p in pairs),
        "ldgsts_edges": sum(p.ldgsts for p in pairs),
        "possible_edges": sum(p.possible for p in pairs),
        "granularity": metadata["options"]["granularity"],
        "false_edges": metadata["false_edges"],
        "input_bytes": metadata["input_bytes"],
        "text_bytes": metadata.get("text_bytes", 0),
        "lines": metadata["lines"],
    }
    # Nobody says of a described program what it accesses.
    is_traced = metadata["format"] != WORKLOAD
    size = f"{counted(facts['kernels'], 'kernel')}, {counted(facts['blocks'], 'thread block')}"
    accesses = counted(facts["accesses"], "global-memory access", "global-memory accesses")
    copies = f", {counted(facts['copies'], *COPIES)}" if facts["copies"] else ""
    traffic = (
        f"kernels read {show_bytes(facts['read_bytes'])} and write "
        f"{show_bytes(facts['written_bytes'])} (distinct bytes per kernel, summed)"
    )
    is_known = extraction.graph.frees is not None
    reuse = f", {show_number(facts['reuse_edges'])} by allocator reuse" if is_known else ""
    headline = [
        *([f"{size}, {accesses}{copies}", traffic] if is_traced else [size]),
        (
            f"{counted(facts['edges'], 'edge')} between blocks: "
            f"{show_number(facts['raw_edges'])} RAW, {show_number(facts['war_edges'])} WAR, "
            f"{show_number(facts['waw_edges'])} WAW{reuse} (an edge may be of several kinds)"
        ),
        _patterns(extraction),
    ]
    if facts["possible_edges"]:
        headline.append(
            f"{counted(facts['possible_edges'], 'more edge')} only possible: bounds ignore them, "
            "schedules obey them"
        )
    launches = extraction.graph.launches
    if launches is not None:
        facts["device_launches"] = len(launches)
        headline.append(
            f"{counted(len(launches), 'launch', 'launches')} from the device: "
            f"{counted(int(launches.child_grid.sum()), 'child block')}"
        )
    if facts["granularity"] != 1:
        headline.append(
            f"accesses rounded out to {facts['granularity']} bytes: "
            f"{counted(facts['false_edges'], 'edge')} (by kind) by false sharing"
        )
    if seconds is not None:
        facts["seconds"] = seconds
        text_bytes = max(facts["input_bytes"], facts["text_bytes"])
        headline.append(
            f"read {size_read(facts['input_bytes'], text_bytes)} in {seconds:.2f} s, "
            f"{text_bytes / seconds / 1e6:.0f} MB/s"
        )
    return Report(
        "extract",
        facts,
        headline,
        tables=[
            pair_table(
                pairs, extraction.kernels, extraction.graph.copies, shown=pairs_shown
            ).at_first(PAIRS_SHOWN),
            *[skipped_table(metadata["skipped"])] * is_traced,
        ],
        notes=untraced_notes(extraction.kernels, pairs, metadata),
        notes_title="What this trace does not show",
        vital=[*warnings_of(metadata), *uncertainty(extraction.kernels, pairs).notes],
        steps=[] if store is None else _steps(store),
    )


def _steps(store: Path) -> list[Step]:
    command = shlex.join(["depgraph", "bound", str(store)])
    return [Step("see what running independent blocks side by side could gain:", command)]


def _patterns(extraction: Extraction) -> str:
    dependent = [p for p in extraction.pairs if p.edges]
    patterns = Counter(p.pattern.value for p in dependent)
    n = len(extraction.kernels)
    independent = n * (n - 1) // 2 - sum(min(p.source, p.target) >= 0 for p in extraction.pairs)
    possible = len(extraction.pairs) - len(dependent)
    is_opaque = any(kernel.untraced for kernel in extraction.kernels)
    listed = [f"{show_number(count)} {name}" for name, count in patterns.most_common()]
    return (
        f"{counted(len(dependent), 'dependent pair')} of kernels: "
        + ", ".join(listed or ["none"])
        + (f"; {counted(possible, 'pair')} only possibly dependent" if possible else "")
        + f"; {counted(independent, 'pair')} "
        + ("without an edge of their own" if is_opaque else "independent")
    )
