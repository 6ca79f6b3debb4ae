"""`parallelize`: from a function and example inputs to a callable that runs what is independent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.apply.applied import Applied, write_applied
from depgraph.apply.captured import KERNEL, write_captures
from depgraph.apply.order import chain
from depgraph.apply.plan import make_plan
from depgraph.apply.prediction import make_predictor, recorded_profile
from depgraph.apply.recorded import (
    APPLY_MEMORY,
    APPLY_REPORT,
    APPLY_STORE,
    RECORD_CALL,
    captures_left,
    is_patched,
    recording_folder,
    store_of_call,
)
from depgraph.apply.short_memory import memory_told
from depgraph.apply.trial import choose
from depgraph.errors import ApplyError, DepgraphError
from depgraph.store.store import Store
from depgraph.system.memory import parse_size
from depgraph.system.text import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from depgraph.apply.captured import Captured

_INPUTS = 3
_BEFORE_TIMES = 20
_calls = count()
_used: set[Path] = set()
_recorded: list[Captured] = []
_found: list[Applied] = []


class Parallelized:
    """A function that runs as a CUDA graph.

    Call it with tensors of the shapes and types of the examples: they are copied into the buffers
    of the graph, and those that the function changes in place are copied back. What it returns is
    overwritten by the next call. For other shapes it calls the function itself.

    Attributes
    ----------
    report : Applied or None
        What came of it; None while the program is being recorded.
    """

    def __init__(self, buffers: Any, replay: Callable[[], object] | None, outputs: Any) -> None:
        self.buffers = buffers
        self._replay = replay
        self._outputs = outputs
        self.report: Applied | None = None
        self.memory: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph on some inputs."""
        if self._replay is None or not self.buffers.take(arguments):
            return self.buffers.function(*arguments)
        self._replay()
        self.buffers.give_back(arguments)
        return self._outputs


def parallelize(
    function: Callable[..., Any],
    example_inputs: Any,
    *,
    recording: str | Path | None = None,
    check_inputs: Sequence[Any] = (),
    max_extra_memory: int | str = "1GiB",
    name: str = "",
) -> Parallelized:
    """Run a function as a CUDA graph in which only what depends on something waits for it.

    The function is captured. What its kernels touch was recorded, or is now: for that the program
    is run again from its start, twice, up to this call. Of the graphs that the recorded
    dependences allow the fastest is taken whose results are the same as those of the captured
    graph, on three inputs if there are so many, bit by bit; the captured graph itself where none
    is faster.

    Parameters
    ----------
    function : callable
        A model, or any function of tensors that CUDA graphs can capture.
    example_inputs : tensor, tuple or list
        The arguments; tensors among them are on the GPU.
    recording : str or Path, optional
        A store that this program was recorded into; made if it is not there. For a further call
        that names the same one, it is the store NAME-CALL beside it. By default the recording is
        thrown away.
    check_inputs : sequence, optional
        More arguments to compare results on. The examples, with the values of floating tensors in
        other orders, stand for what is missing to three.
    max_extra_memory : int or str
        Bytes of GPU memory for buffers that kernels otherwise share, such as "64MiB".
    name : str, optional
        What reports call it; default the function's name.

    Returns
    -------
    Parallelized

    Raises
    ------
    ApplyError
        If there is no GPU, no recording can be made, the recording is of another program, the
        function cannot be captured, or memory is short.
    """
    call = next(_calls)
    try:
        with memory_told():
            return _parallelize(
                call, function, example_inputs, name, recording, check_inputs, max_extra_memory
            )
    except DepgraphError as error:
        if APPLY_STORE in os.environ or recording_folder() is not None:
            sys.exit(f"depgraph: {error}")  # the program runs under a command of depgraph
        raise


def _parallelize(
    call: int,
    function: Callable[..., Any],
    example_inputs: Any,
    name: str,
    recording: str | Path | None,
    check_inputs: Sequence[Any],
    max_extra_memory: int | str,
) -> Parallelized:
    try:
        import torch
    except ImportError:
        raise ApplyError("PyTorch is not installed", "install torch") from None
    if not torch.cuda.is_available():
        raise ApplyError("no GPU: PyTorch sees none", "apply needs an NVIDIA GPU and its driver")
    from depgraph.torch.capture import capture
    from depgraph.torch.driver import Driver
    from depgraph.torch.input_buffers import Buffers

    memory = os.environ.get(APPLY_MEMORY) or max_extra_memory
    most_bytes = memory if isinstance(memory, int) else parse_size(memory, least=0)
    buffers = Buffers(function, example_inputs, name)
    only = os.environ.get(RECORD_CALL)
    folder = recording_folder()
    if folder is not None and only is not None and int(only) != call:
        return Parallelized(buffers, None, None)
    driver = Driver()
    # An operator is seen by Python, as keeping its memory needs it, only where none is compiled.
    program = capture(buffers.run, (), driver, 0 if buffers.is_compiled else most_bytes)
    buffers.note_changed()
    made = Parallelized(buffers, program.graph.replay, program.outputs)
    if folder is not None:
        _record_here(program, driver, folder, call)
        if only is not None:
            sys.exit(0)  # what was asked for is recorded
        return Parallelized(buffers, None, None)
    given = _store_of(call, recording)
    if given is not None:
        if not given.exists():
            _record(given, call)
        _apply(made, program, driver, given, call, check_inputs, most_bytes)
        return made
    with tempfile.TemporaryDirectory(prefix="depgraph-") as temporary:
        store = Path(temporary) / "recording"
        _record(store, call)
        _apply(made, program, driver, store, call, check_inputs, most_bytes)
    return made


def _store_of(call: int, recording: str | Path | None) -> Path | None:
    """Return the store that `depgraph apply` or the call names, a further one for further calls."""
    named = os.environ.get(APPLY_STORE) or recording
    return None if named is None else store_of_call(named, call, _used)


def _record_here(program: Any, driver: Any, folder: Path, call: int) -> None:
    """Run the captured nodes one after another, in the region that is recorded."""
    import torch

    graph = driver.clone(program.raw)
    handles = [driver.in_clone(node, graph) for node in program.handles]
    edges = [(handles[a], handles[b]) for a, b in chain(len(handles))]
    driver.change_edges(graph, driver.edges(graph), edges)
    executable = driver.instantiate(graph)
    stream = torch.cuda.current_stream().cuda_stream
    if not is_patched():  # times are to be those of a program that is warm
        for _ in range(_BEFORE_TIMES):
            driver.launch(executable, stream)
    torch.cuda.synchronize()
    _recorded.append(replace(program.captured, call=call))
    write_captures(captures_left(folder, os.getpid()), _recorded)
    torch.cuda.cudart().cudaProfilerStart()
    driver.launch(executable, stream)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    driver.destroy(graph, executable)


def _record(store: Path, call: int) -> None:
    """Run this program again under the recorder, up to a call."""
    words = sys.orig_argv[1:]
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or not words or words[0] == "-":
        raise ApplyError(
            "no recording, and what runs here cannot be run again from its start",
            "record a script that makes the same call, and give its store as recording=",
        )
    command = [sys.executable, "-m", "depgraph", "record", "--region", "profiler", "-o", str(store)]
    environment = {**os.environ, RECORD_CALL: str(call)}
    done = subprocess.run(  # noqa: S603 - the program that runs already
        [*command, "--", sys.executable, *words],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not store.is_dir():
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((s for s in reversed(said) if s.startswith("depgraph")), (said or ["?"])[-1])
        raise ApplyError(f"no recording: {reason.removeprefix('depgraph: ')}")


def _apply(
    made: Parallelized,
    program: Any,
    driver: Any,
    path: Path,
    call: int,
    check_inputs: Sequence[Any],
    most_bytes: int,
) -> None:
    """Choose a graph, and let the program's own be it."""
    import torch

    from depgraph.torch.bench import GpuBench

    store = Store(path)
    profile = recorded_profile(path)
    times = None if profile is None else (profile.duration / 1000).tolist
    plan = make_plan(store, call, times, program.captured)
    if plan.placed is None:
        message = "a plan for a captured graph knows where its memory is"
        raise RuntimeError(message)
    device = torch.cuda.get_device_properties()
    kept = program.captured.kept_bytes
    notes = [f"no two tensors share memory, which takes {show_bytes(kept)}"] if kept else []
    predictor = None
    try:
        predictor = make_predictor(plan, store, profile, device.multi_processor_count)
    except DepgraphError as error:
        notes.append(f"nothing is predicted: {error}")
    values = plan.values_within(most_bytes - kept)
    buffers = made.buffers
    bench = GpuBench(
        driver, program, plan, plan.placed, buffers.writers(check_inputs, _INPUTS),
        lambda: buffers.tensors_of(program.outputs),
    )  # fmt: skip
    chosen, tried = choose(
        bench,
        plan.candidates(values),
        predictor.time if predictor else lambda _: None,
        plan.estimate,
    )
    made.memory = bench.use(chosen)
    kernels = sum(node.kind == KERNEL for node in plan.recorded.nodes)
    moved = [value for value in values if value.number in chosen.moved]
    made.report = Applied(
        name=buffers.name,
        gpu=device.name,
        nodes=plan.n,
        kernels=kernels,
        kernel_us=None if profile is None else float(profile.duration.sum()) / 1000,
        fixed=dict(plan.why_fixed),
        tried=tuple(tried),
        chosen=chosen.name,
        more_bytes=kept + sum(value.size for value in moved),
        bought=tuple(plan.bought_by(moved)),
        inputs=bench.compared,
        is_reproducible=bench.is_reproducible,
        tolerance=bench.tolerance,
        notes=tuple(notes),
    )
    _found.append(made.report)
    if APPLY_REPORT in os.environ:
        folder = Path(os.environ[APPLY_REPORT])
        write_applied(folder / f"applied-{os.getpid()}.json", _found)
