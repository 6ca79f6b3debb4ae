"""What a calibration found: constants, and how far predictions with them are off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depgraph.gpu.model import CONSTANTS
from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import Column, Report, Table, show_percent
from depgraph.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from depgraph.analysis.calibration import Calibration
    from depgraph.gpu.model_file import MeasuredErrors

_MEANINGS = {
    "contention": "slowdown by a load of an eighth of the registers",
    "contention_gemm32": "the same of products in FP32",
    "contention_convolution": "the same of convolutions",
    "block_spread": "how much blocks that share an SM differ",
    "kernel_lead_us": "part of a kernel's time that holds no SM",
    "graph_node_us": "CUDA graph, a node",
    "graph_path_us": "on a path",
    "graph_path_share": "part of a kernel's time that this is at most",
    "graph_fork_us": "from branch to branch",
    "graph_root_us": "a further root",
    "graph_launch_us": "for launching it",
    "graph_memory_us": "a memset or copy, beyond its time",
}


def calibration_report(calibration: Calibration) -> Report:
    """Describe a calibration: the errors in a sentence, the constants, the errors by kind."""
    of, errors = calibration.measurements, calibration.errors
    constants = Table(
        "constants",
        "Constants",
        [
            Column("name", "constant", is_text=True),
            Column("start", calibration.constants_of, show=_plain),
            Column("fitted", "fitted", show=_plain),
            *common("meaning"),
        ],
        [
            (name, getattr(calibration.start, name), getattr(calibration.gpu, name), meaning)
            for name, meaning in _MEANINGS.items()
            if name in CONSTANTS
        ],
    )
    columns = [
        Column("what", "constants", is_text=True, wraps=True, get=lambda row: row[0]),
        *(
            Column(name, title, show=show, get=_of(name))
            for name, title, show in (
                ("family", "family", str), ("programs", "programs", str),
                ("mean", "mean error", show_percent),
                ("nine_of_ten", "nine of ten within", show_percent),
                ("worst", "worst", show_percent),
                ("direction", "faster or slower right", show_percent),
            )
        ),
    ]  # fmt: skip
    rows = [
        (said, each)
        for said, found in (
            ("fitted, the programs fitted to", calibration.fitted),
            ("fitted, other programs", errors),
            (f"{calibration.constants_of}, other programs", calibration.before),
        )
        for each in found
    ]
    table = Table.of("errors", "Predicted times, compared with measured ones", columns, rows)
    off = "; ".join(
        f"{e.family} {show_percent(e.mean)}, nine of ten within {show_percent(e.nine_of_ten)}"
        for e in errors
    )
    return Report(
        "calibration",
        {"gpu": of.gpu, "sms": of.sms, "programs": len(of.programs), **of.details},
        headline=[
            (
                f"{of.gpu}, {counted(len(of.programs), 'program')} measured: "
                f"on average predictions of others are off by: {off}"
            ),
        ],
        tables=[constants, table],
        notes=[
            (
                "times of CUDA graphs, and of kernels beside one another on an SM, are fitted; "
                "those of launches into streams are not"
            ),
        ],
    )


def _plain(value: float) -> str:
    return f"{value:g}"


def _of(name: str) -> Callable[[tuple[str, MeasuredErrors]], Any]:
    return lambda row: getattr(row[1], name)
