"""What PyTorch's profiler calls with a trace that is ready: the answer is printed beside it."""

from __future__ import annotations

import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.cli.hooks import answer_of_profile
from depgraph.errors import DepgraphError

if TYPE_CHECKING:
    from collections.abc import Callable


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

    Examples
    --------
    >>> from torch.profiler import profile
    >>> import depgraph.torch
    >>> with profile(on_trace_ready=depgraph.torch.on_trace_ready()):  # doctest: +SKIP
    ...     step()
    """
    cycle = count(1)

    def answer(profiler: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kept = None if path is None else _numbered(Path(path), next(cycle))
            file = kept or Path(folder) / "profile.json"
            try:
                profiler.export_chrome_trace(str(file))
                text = answer_of_profile(file, gpu=gpu, wall_us=wall_us, is_kept=kept is not None)
            except (DepgraphError, OSError, RuntimeError) as error:
                print(f"depgraph: {error}", file=sys.stderr)  # noqa: T201 - as warnings are
                return
            print(text, end="")  # noqa: T201 - the answer is what it is called for

    return answer


def _numbered(path: Path, cycle: int) -> Path:
    name, dot, endings = path.name.partition(".")
    return path if cycle == 1 else path.with_name(f"{name}-{cycle}{dot}{endings}")
