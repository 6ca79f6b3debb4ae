"""Real traces, small enough to ship, with the program that made them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from depgraph.errors import InputError

NVBIT_TRACE = "nvbit/gru_train.log.xz"
KERNEL_TIMES = "timing/gru_train.kineto.json"
GOLDEN_EDGES = "golden/gru_train.edges.parquet"
RECORDING = "recording/gru_train.recording"
MEMORY_PROFILE = "timing/gru_train.memory.json"


def sample_path(name: str = NVBIT_TRACE) -> Path:
    """Return where a sample lies on this machine.

    Parameters
    ----------
    name : str
        Path of the file (or of the folder, for an Accel-Sim trace) inside the samples. An
        installed depgraph has `NVBIT_TRACE`, `KERNEL_TIMES`, `GOLDEN_EDGES`, `RECORDING` and
        `MEMORY_PROFILE`; the Accel-Sim trace of the same program is in the source repository alone.

    Raises
    ------
    InputError
        This copy of depgraph has no such sample.
    """
    path = Path(str(resources.files(__name__))) / name
    if not path.exists():
        raise InputError(path, "no such sample", f"samples/README.md lists them, say {NVBIT_TRACE}")
    return path
