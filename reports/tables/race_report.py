"""What ``depgraph check --races`` says of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.reports.tables.table import Column, Report, Table, kernel_names, show_bytes
from depgraph.system.text import clean_text, counted

if TYPE_CHECKING:
    from depgraph.analysis.races import Race, RaceCheck
    from depgraph.store.store import Store

_RACES_SHOWN = 40


def race_report(store: Store, found: RaceCheck, *, shown: int | None = _RACES_SHOWN) -> Report:
    """Describe pairs of operations that conflict and that nothing orders."""
    name = kernel_names(store.kernels, {copy.number: copy.what for copy in store.copies})
    ranges = {kernel.kernel: kernel.nvtx or "" for kernel in store.kernels}

    def place(race: Race) -> str:
        return clean_text(race.buffer or ranges.get(race.source) or ranges.get(race.target) or "")

    columns = [
        Column("source", "kernel"),
        Column("source_name", "name", is_text=True, get=lambda r: name(r.source)),
        Column("source_stream", "stream"),
        Column("target", "and kernel"),
        Column("target_name", "name", is_text=True, get=lambda r: name(r.target)),
        Column("target_stream", "stream"),
        Column("kinds", "kinds", is_text=True, show=", ".join, get=lambda r: list(r.kinds)),
        Column("address", "first byte", show=_hexadecimal),
        Column("size", "shared", "bytes", show_bytes),
        Column("place", "buffer or range", is_text=True, wraps=True, get=place),
    ]
    races = Table.of("races", "Unordered", columns, found.races, "--format json lists all")
    verdict = counted(len(found.races), "pair") + " of accesses without an order"
    facts: dict[str, Any] = {
        "store": str(store.path),
        "n_races": len(found.races),
        "streams": found.streams,
        "conflicts": found.conflicts,
        "conflicts_across_streams": found.across,
        "possible": found.possible,
        "unjudged": found.unjudged,
    }
    headline = [
        f"{store.path}: {verdict}",
        (
            f"{counted(found.conflicts, 'pair')} of operations depend on each other, {found.across}"
            f" of them across {counted(found.streams, 'stream')}"
        ),
    ]
    return Report("races", facts, headline=headline, tables=[races.cut(shown)],
                  notes=_notes(found), notes_title="What this rests on")  # fmt: skip


def _hexadecimal(address: int) -> str:
    return f"0x{address:x}" if address else "-"


def _notes(found: RaceCheck) -> list[str]:
    notes = [
        (
            "an order is one of a stream, an event, a wait of the host, the legacy stream or"
            " a CUDA graph; threads of the host are taken to be in the order of their calls"
        ),
        "of three operations that race, pairs that follow each other in launch order are named",
        "memory that was freed in between, and kernels that were not recorded, are not looked at",
    ]
    if found.possible:
        notes.append(
            f"{counted(found.possible, 'pair')} without an order may conflict: opaque kernels"
        )
    if found.unjudged:
        notes.append(
            f"{counted(found.unjudged, 'pair')} within one launch of a CUDA graph: its edges are "
            "not in the recording"
        )
    return notes
