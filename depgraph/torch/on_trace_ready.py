"""What PyTorch's profiler calls with a trace that is ready: the answer is printed beside it."""

import sys
import tempfile
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from depgraph.cli.hooks import answer_of_profile
from depgraph.errors import DepgraphError
from depgraph.scenario.of_store import named_gpu


def on_trace_ready(
    path: str | Path | None = None, *, gpu: str | None = None, wall_us: float | None = None
) -> Callable[[Any], None]:
    """Return what to hand to ``torch.profiler.profile(on_trace_ready=...)``.

    At the end of each cycle it prints what ``depgraph bound PROFILE`` says of the profile alone:
    how long a step takes now and as a CUDA graph, and why the GPU is idle. What it cannot read it
    says in one line; the profiled program goes on.

    Parameters
    ----------
    path : str or Path, optional
        Where to keep the trace (``.json`` or ``.json.gz``); that of a second cycle gets ``-2``
        behind its name, and so on. Default nowhere. PyTorch exports a trace once:
        `tensorboard_trace_handler` cannot have it as well.
    gpu : str, optional
        GPU whose limits and launch costs count; default the one that the profile names.
    wall_us : float, optional
        Time of a step without a profiler, in microseconds, which slows the host.

    Raises
    ------
    DepgraphError
        If no GPU has that name.
    ValueError, FileNotFoundError
        If the time or the folder of `path` makes no sense.

    Examples
    --------
    >>> from torch.profiler import profile
    >>> import depgraph.torch
    >>> with profile(on_trace_ready=depgraph.torch.on_trace_ready()):  # doctest: +SKIP
    ...     step()
    """
    model = None if gpu is None else named_gpu(gpu)
    if wall_us is not None and not 0 < wall_us < inf:
        message = f"wall_us is {wall_us}: give the microseconds that a step takes"
        raise ValueError(message)
    if path is not None and not Path(path).absolute().parent.is_dir():
        message = f"{path}: no such folder to keep the trace in"
        raise FileNotFoundError(message)
    cycle = count(1)

    def answer(profiler: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = None if path is None else _numbered(Path(path), next(cycle))
            file = kept or Path(folder) / "profile.json"
            try:
                profiler.export_chrome_trace(str(file))
                text = answer_of_profile(file, gpu=model, wall_us=wall_us, is_kept=kept is not None)
            except (DepgraphError, OSError, RuntimeError) as error:
                said = str(error) if kept else str(error).replace(str(file), "the profile")
                print(f"depgraph: {said}", file=sys.stderr)  # noqa: T201 - as warnings are
                return
            print(text, end="")  # noqa: T201 - the answer is what it is called for

    return answer


def _numbered(path: Path, cycle: int) -> Path:
    name, dot, endings = path.name.partition(".")
    return path if cycle == 1 else path.with_name(f"{name}-{cycle}{dot}{endings}")
