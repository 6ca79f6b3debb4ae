"""The list of GPU models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.gpu.model import compiler_target
from depgraph.reports.tables.table import Column, Report, Table, show_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.gpu.model import Gpu


def gpus_report(gpus: Sequence[Gpu]) -> Report:
    """List GPU models with what decides how many blocks run at a time."""
    columns = [
        Column("name", "name", is_text=True),
        Column("architecture", "arch", show=compiler_target),
        Column("sms", "SMs"),
        Column("max_warps_per_sm", "warps/SM"),
        Column("max_blocks_per_sm", "blocks/SM"),
        Column("registers_per_sm", "registers/SM", show=show_number),
        Column("shared_bytes_per_sm", "shared/SM", "KiB", _kibibytes),
        Column("max_shared_bytes_per_block", "a block", "KiB", _kibibytes),
        Column("memory_gb_per_s", "memory", "GB/s", show_number),
    ]
    return Report(
        "gpus",
        {"n_gpus": len(gpus)},
        tables=[Table.of("gpus", "GPU models", columns, gpus)],
        notes=[
            "names are found in any case, with or without blanks, dashes and brand names",
            "describe another GPU in a file and pass --gpu-file FILE",
        ],
        notes_title="Use",
    )


def _kibibytes(size: int) -> str:
    return show_number(size // 1024)
