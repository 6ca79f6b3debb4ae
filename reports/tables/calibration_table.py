"""What a calibration found: constants, and how far predictions with them are off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.gpu.model import CONSTANTS
from depgraph.reports.tables.columns import common
from depgraph.reports.tables.table import Column, Report, Table, show_percent
from depgraph.system.text import counted

if TYPE_CHECKING:
    from depgraph.analysis.calibration import Calibration

_MEANINGS = {
    "contention": "slowdown by a load of an eighth of the registers",
    "block_spread": "how much blocks that share an SM differ",
    "kernel_lead_us": "part of a kernel's time that holds no SM",
    "graph_node_us": "CUDA graph, a node",
    "graph_path_us": "on a path",
    "graph_fork_us": "after a fork",
    "graph_root_us": "a further root",
    "graph_launch_us": "for launching it",
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
        Column("programs", "programs"),
        Column("mean", "mean error", show=show_percent),
        Column("nine_of_ten", "nine of ten within", show=show_percent),
        Column("worst", "worst", show=show_percent),
        Column("direction", "faster or slower right", show=show_percent),
    ]
    names = [column.key for column in columns]
    rows = [
        (said, *(getattr(found, name) for name in names))
        for said, found in (
            ("fitted, the programs fitted to", calibration.fitted),
            ("fitted, other programs", errors),
            (f"{calibration.constants_of}, other programs", calibration.before),
        )
    ]
    fixed = ("no contention, other programs", errors.programs, errors.fixed_mean, None,
             errors.fixed_worst, None)  # fmt: skip
    table = Table(
        "errors",
        "Predicted times, compared with measured ones",
        [Column("what", "constants", is_text=True, wraps=True), *columns],
        [*rows, fixed],
    )
    return Report(
        "calibration",
        {"gpu": of.gpu, "sms": of.sms, "programs": len(of.programs), **of.details},
        headline=[
            (
                f"{of.gpu}, {counted(len(of.programs), 'program')} measured: "
                f"{errors.sentence(contention=True)}"
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
