"""What a trace holds, hides and gets wrong: reports of extract, check and check --races."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.analysis.next_steps import Step
from depgraph.extraction.workload import FORMAT as WORKLOAD
from depgraph.graph.dependences import Uncertainty, uncertainty
from depgraph.graph.program import Extraction, Kernel, kernel_remarks, remarks
from depgraph.reports.tables.show_tables import pair_table
from depgraph.reports.tables.table import Column, Report, Table, common, facts_of, kernel_names
from depgraph.system.text import (
    COPIES,
    clean_text,
    counted,
    kernels_text,
    show_bytes,
    show_number,
    size_read,
)

if TYPE_CHECKING:
    from depgraph.analysis.races import Race, RaceCheck
    from depgraph.extraction.check import Checkup
    from depgraph.store.store import Store


def untraced_notes(
    kernels: Sequence[Kernel], uncertain: Uncertainty, metadata: Mapping[str, Any]
) -> list[str]:
    """List warnings, kernels with hidden accesses or inner order, and the format's blind spots."""
    notes = warnings_of(metadata)
    is_traced = metadata.get("format") != WORKLOAD
    for reason, numbers in remarks(kernels if is_traced else ()).items():
        notes.append(f"{kernels_text(numbers)}: {reason}")
    shared = [k.kernel for k in kernels if k.shared_written_bytes and k.waits_inside is None]
    if shared:
        notes.append(
            f"{kernels_text(shared)}: blocks write bytes that other blocks of the same kernel "
            "touch; the graph has no order inside a kernel"
        )
    return [*notes, *uncertain.notes, *metadata.get("blind_spots", [])]


def warnings_of(metadata: Mapping[str, Any]) -> list[str]:
    """List what was wrong with the input, and how often."""
    warnings = metadata.get("warnings", {})
    return [f"{warning}: {show_number(count)}" for warning, count in warnings.items()]


def skipped_table(skipped: Mapping[str, int]) -> Table:
    """Build the table of what was left out, and how often."""
    columns = [Column.text("reason", "reason", wraps=True), *common("count")]
    return Table("skipped", "Left out", columns, list(skipped.items()))


_PAIRS_SHOWN = 25
_LEAST_BYTES_OF_A_RATE = 1_000_000  # below, the time is that of the start
_OF_KERNELS = ("blocks", "accesses", "instructions", "read_bytes", "written_bytes")
_OF_PAIRS = {
    **{f"{kind}_edges": kind for kind in ("raw", "war", "waw", "reuse")},
    "edges": "edges",
    "ldgsts_edges": "ldgsts",
    "possible_edges": "possible",
}


def extract_summary(
    extraction: Extraction, *, seconds: float | None = None, store: Path | None = None
) -> Report:
    """Describe an extraction: what was read, what depends on what, what is untraced."""
    kernels, pairs, metadata = extraction.kernels, extraction.pairs, extraction.metadata
    facts = {
        "format": metadata["format"],
        "kernels": len(kernels),
        "copies": len(extraction.copies),
        **{name: sum(map(attrgetter(name), kernels)) for name in _OF_KERNELS},
        **{fact: sum(map(attrgetter(name), pairs)) for fact, name in _OF_PAIRS.items()},
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
        rate = f", {text_bytes / seconds / 1e6:.0f} MB/s" * (text_bytes >= _LEAST_BYTES_OF_A_RATE)
        headline.append(
            f"read {size_read(facts['input_bytes'], text_bytes)} in {seconds:.2f} s{rate}"
        )
    steps = []
    if store is not None:
        text = "see what running independent blocks side by side could gain:"
        steps = [Step(text, shlex.join(["depgraph", "bound", str(store)]))]
    of_pairs = pair_table(pairs, kernels, extraction.graph.copies).cut(_PAIRS_SHOWN)
    uncertain = uncertainty(kernels, pairs)
    return Report(
        "extract",
        facts,
        headline,
        tables=[of_pairs.at_first(_PAIRS_SHOWN), *[skipped_table(metadata["skipped"])] * is_traced],
        notes=untraced_notes(kernels, uncertain, metadata),
        notes_title="What this trace does not show",
        vital=[*warnings_of(metadata), *uncertain.notes],
        steps=steps,
    )


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


_KERNELS_SHOWN, _KERNELS_AT_FIRST = 40, 8


def check_report(checkup: Checkup, *, verdict: str) -> Report:
    """Describe a checkup: the verdict, problems, kernels, what was left out."""
    of_most = Counter(remark for k in checkup.kernels for remark in kernel_remarks(k))

    def show_own(remarks: Sequence[str]) -> str:
        """Show what sets a kernel apart; a problem says what most have."""
        return "; ".join(r for r in remarks if 2 * of_most[r] <= len(checkup.kernels))

    problem_columns = [
        Column.text("severity", "", lambda p: "error" if p.is_error else "warning"),
        *common("count"),
        Column.text("found", "what was found", wraps=True),
        Column.text("place", "where", wraps=True),
    ]
    kernel_columns = [
        *common("kernel", "name", "blocks"),
        Column.number("active_blocks", "with code"),
        *common("accesses"),
        Column("remarks", "remarks", is_text=True, show=show_own, wraps=True, get=kernel_remarks),
    ]
    more = "--format json lists all"
    kernels = Table.of("kernels", "Kernels", kernel_columns, checkup.kernels, more)
    problems = Table.of("problems", "Problems", problem_columns, checkup.problems)
    tables = [
        problems.at_first(len(problems.rows)),
        kernels.cut(_KERNELS_SHOWN).at_first(_KERNELS_AT_FIRST),
        skipped_table(checkup.skipped),
    ]
    blocks = sum(k.blocks for k in checkup.kernels)
    return Report(
        "check",
        {
            **facts_of(checkup, "trace", "format"),
            "verdict": verdict,
            **facts_of(checkup, "errors", "warnings"),
            "n_kernels": len(checkup.kernels),
            "n_copies": checkup.copies,
            "n_blocks": blocks,
            "lines": checkup.lines,
            "input_bytes": checkup.bytes,
            "text_bytes": checkup.text_bytes,
        },
        headline=[
            (
                f"{checkup.trace}: {verdict} ({checkup.format}; "
                f"{counted(checkup.errors, 'error')}, {counted(checkup.warnings, 'warning')})"
            ),
            (
                f"{counted(len(checkup.kernels), 'kernel')}, {counted(blocks, 'block')}, "
                f"{counted(checkup.copies, *COPIES)}, "
                f"{counted(checkup.lines, 'line')}, {size_read(checkup.bytes, checkup.text_bytes)}"
            ),
        ],
        tables=tables,
        notes=checkup.blind_spots,
        notes_title="What no trace of this format shows",
    )


_RACES_SHOWN = 40


def race_report(store: Store, check: RaceCheck) -> Report:
    """Describe pairs of operations that conflict and that nothing orders."""
    name = kernel_names(store.kernels, {copy.number: copy.what for copy in store.copies})
    ranges = {kernel.kernel: kernel.nvtx or "" for kernel in store.kernels}

    def place(race: Race) -> str:
        return clean_text(race.buffer or ranges.get(race.source) or ranges.get(race.target) or "")

    columns = [
        Column("source", "kernel"),
        *common("source_name", source_name=lambda r: name(r.source)),
        Column("source_stream", "stream"),
        Column("target", "and kernel"),
        *common("target_name", target_name=lambda r: name(r.target)),
        Column("target_stream", "stream"),
        Column("kinds", "kinds", is_text=True, show=", ".join, get=lambda r: list(r.kinds)),
        Column("address", "first byte", show=lambda at: hex(at) if at else "-"),
        Column("size", "shared", "bytes", show_bytes),
        Column.text("place", "buffer or range", place, wraps=True),
    ]
    races = Table.of("races", "Unordered", columns, check.races, "--format json lists all")
    vital = []
    if check.possible:
        pairs = counted(check.possible, "pair")
        vital.append(f"{pairs} without an order may conflict: opaque kernels")
    if check.unjudged:
        pairs = f"{counted(check.unjudged, 'pair')} within one launch of a CUDA graph"
        vital.append(f"{pairs}: its edges are not in the recording")
    return Report(
        "races",
        {
            "store": str(store.path),
            "n_races": len(check.races),
            **facts_of(check, "streams", "conflicts"),
            "conflicts_across_streams": check.across,
            **facts_of(check, "possible", "unjudged"),
        },
        headline=[
            f"{store.path}: {counted(len(check.races), 'pair')} of accesses without an order",
            (
                f"{counted(check.conflicts, 'pair')} of operations depend on each other, "
                f"{check.across} of them across {counted(check.streams, 'stream')}"
            ),
        ],
        vital=vital,
        tables=[races.cut(_RACES_SHOWN).at_first(len(check.races))],
        notes=[*_RACES_REST_ON, *vital],
        notes_title="What this rests on",
    )


_RACES_REST_ON = (
    (
        "an order is one of a stream, an event, a wait of the host, the legacy stream or"
        " a CUDA graph; threads of the host are taken to be in the order of their calls"
    ),
    "of three operations that race, pairs that follow each other in launch order are named",
    "memory that was freed in between, and kernels that were not recorded, are not looked at",
)
