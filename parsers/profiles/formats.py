"""Files of measured times: one module per format, told apart by contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depgraph.errors import ProfileError, TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.timing.profile import BlockProfile, KernelProfile

__all__ = ["read_profile"]


def read_profile(path: Path) -> KernelProfile | BlockProfile:
    """Read the times of kernels, or of thread blocks, from a file of any known format.

    Parameters
    ----------
    path : Path
        A PyTorch profiler trace, an nsys ``cuda_gpu_trace`` CSV or SQLite export, CSV of ncu or
        nvprof, a GPGPU-Sim or Accel-Sim log (text formats plain, gz, xz, zst or bz2), or a
        table of one's own, CSV or Parquet. ``docs/timing-formats.md`` describes them.

    Raises
    ------
    ProfileError
        If the file cannot be read, is damaged, or has no time of single kernels; the message
        says what was found, on which line, and what to do.
    """
    if path.is_dir():
        raise ProfileError(path, "is a folder", "name the file of times in it")
    try:
        return _read(path)
    except TraceError as error:
        raise ProfileError(error.path, error.found, error.hint, line=error.line) from None


def _read(path: Path) -> KernelProfile | BlockProfile:
    from depgraph.parsers.profiles import kineto, ncu, nsys_csv, nsys_sqlite, nvprof, own_tables
    from depgraph.parsers.profiles.sniff import sniff
    from depgraph.parsers.profiles.source import read_head
    from depgraph.parsers.simlog import times as simlog

    readers = {
        "kineto": kineto.read_kineto,
        "nsys-csv": nsys_csv.read_nsys_csv,
        "nsys-sqlite": nsys_sqlite.read_nsys_sqlite,
        "ncu": ncu.read_ncu,
        "nvprof": nvprof.read_nvprof,
        "simlog": simlog.read_simlog,
        "own-csv": own_tables.read_csv_table,
        "own-parquet": own_tables.read_parquet_table,
    }
    return readers[sniff(read_head(path))](path)
