"""GPU models, what a calibration found of one, and what a machine has for recording."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from depgraph.gpu.model import Gpu, compiler_target
from depgraph.reports.tables.table import Column, Report, Table, common, row_of
from depgraph.system.text import counted, show_number, show_percent

if TYPE_CHECKING:
    from depgraph.analysis.calibration import Calibration
    from depgraph.recorder.toolkit import Requirement


def gpus_report(gpus: Sequence[Gpu]) -> Report:
    """List GPU models with what decides how many blocks run at a time."""
    columns = [
        Column.text("name", "name"),
        Column("architecture", "arch", show=compiler_target),
        Column("sms", "SMs"),
        Column("max_warps_per_sm", "warps/SM"),
        Column("max_blocks_per_sm", "blocks/SM"),
        Column.number("registers_per_sm", "registers/SM"),
        Column("shared_bytes_per_sm", "shared/SM", "KiB", _kibibytes),
        Column("max_shared_bytes_per_block", "a block", "KiB", _kibibytes),
        Column.number("memory_gb_per_s", "memory", "GB/s"),
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


_MEANINGS = {
    "contention": "slowdown by a load of an eighth of the registers",
    "contention_gemm32": "the same of products in FP32",
    "contention_convolution": "the same of convolutions",
    "contention_attention": "the same of attention",
    "contention_norm": "the same of norms of layers",
    "contention_rows": "the same of sums, other norms and scans of rows",
    "contention_across": "part of it between attention and other kernels",
    "block_spread": "how much blocks that share an SM differ",
    "kernel_lead_us": "part of a kernel's time that holds no SM",
    "blocks_per_us": "blocks that the GPU takes back",
    "cluster_start_us": "for which large clusters keep others to the SMs where none can stand",
    "fill_us": "for each further block that an empty SM takes at once",
    "graph_node_us": "CUDA graph, a node",
    "graph_path_us": "on a path",
    "graph_path_share": "part of a kernel's time that this is at most",
    "graph_fork_us": "from branch to branch",
    "graph_wide_us": "more where more than six wait for one",
    "graph_root_us": "a further root",
    "graph_second_us": "the second of two roots",
    "graph_leaf_us": "a further root, for each leaf",
    "graph_issue_us": "of the host, for each root",
    "graph_launch_us": "for launching it",
    "graph_memory_us": "a memset or copy, beyond its time",
    "stream_kernel_us": "a kernel of several streams",
    "stream_turn_us": "before the first kernels, for each pair of streams",
    "stream_event_us": "an event between streams",
}


def calibration_report(calibration: Calibration) -> Report:
    """Describe a calibration: the errors in a sentence, the constants, the errors by kind."""
    of, errors = calibration.measurements, calibration.errors
    show, start, fitted = "{:g}".format, calibration.start, calibration.gpu
    columns = [
        Column.text("name", "constant", str),
        Column("start", calibration.constants_of, show=show, get=partial(getattr, start)),
        Column("fitted", "fitted", show=show, get=partial(getattr, fitted)),
        *common("meaning", meaning=_MEANINGS.get),
    ]
    constants = Table.of("constants", "Constants", columns, _MEANINGS)

    of_errors = [
        Column("family", "family"),
        Column("programs", "programs"),
        Column.percent("mean", "mean error"),
        Column.percent("nine_of_ten", "nine of ten within"),
        Column.percent("worst", "worst"),
        Column.percent("direction", "faster or slower right"),
    ]
    found = {
        "fitted, the programs fitted to": calibration.fitted,
        "fitted, other programs": errors,
        f"{calibration.constants_of}, other programs": calibration.before,
    }
    table = Table(
        "errors",
        "Predicted times, compared with measured ones",
        [Column.text("what", "constants", wraps=True), *of_errors],
        [(which, *row_of(of_errors, each)) for which, some in found.items() for each in some],
    )
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
            )
        ],
        tables=[constants, table],
        notes=[
            (
                f"taken over from the {calibration.constants_of}, as nothing that was measured "
                f"tells them: {', '.join(calibration.taken_over)}"
            )
        ],
    )


def doctor_report(needs: Sequence[Requirement], helpers: Sequence[Requirement]) -> Report:
    """List what recording needs, and is worse without; how to get what is missing."""
    columns = [
        Column.text("name", "needed"),
        Column.text("what", "found", lambda each: each.what or "missing"),
    ]
    missing, lacking = (
        [f"{each.name}: {each.hint}" for each in some if not each.what] for some in (needs, helpers)
    )
    return Report(
        "doctor",
        {"can_record": not missing},
        headline=["recording can work here" if not missing else "recording cannot work here yet"],
        tables=[Table.of("needs", "What recording needs", columns, [*needs, *helpers])],
        notes=[*missing, *lacking],
        notes_title="What to do",
    )
