"""What a trace does not show, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.kernel_rows import remarks
from depgraph.reports.tables import show_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from depgraph.extraction import Kernel

_LISTED = 8


def unseen_notes(kernels: Sequence[Kernel], metadata: Mapping[str, Any]) -> list[str]:
    """List warnings, kernels with hidden accesses or inner order, and the format's blind spots.

    Parameters
    ----------
    kernels : sequence of Kernel
    metadata : mapping
        Provenance of the extraction.
    """
    notes = [
        f"{show_number(count)} {warning}" for warning, count in metadata.get("warnings", {}).items()
    ]
    for reason, numbers in remarks(kernels).items():
        what = "kernel" if len(numbers) == 1 else "kernels"
        notes.append(f"{what} {_listed(numbers)}: {reason}")
    shared = [k.kernel for k in kernels if k.shared_written_bytes]
    if shared:
        notes.append(
            f"blocks of kernel {_listed(shared)} write bytes that other blocks of the same kernel "
            "touch (atomics, semaphores): order inside a kernel is not part of the graph"
        )
    return [*notes, *metadata.get("blind_spots", [])]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_LISTED])) + (", ..." if len(numbers) > _LISTED else "")
