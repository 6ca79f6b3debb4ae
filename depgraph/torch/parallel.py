"""`parallelize`: from a function and example inputs to a callable that runs what is independent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.apply import recorded
from depgraph.apply.applied import write_applied
from depgraph.apply.captured import write_captures
from depgraph.apply.order import chain
from depgraph.apply.plan import Layout
from depgraph.apply.verdicts import Verdicts
from depgraph.errors import ApplyError, DepgraphError, OutputError
from depgraph.system.workers import parse_size
from depgraph.torch.rerun import call_to_check, run_again, why_not_again

if TYPE_CHECKING:
    from depgraph.apply.applied import Applied
    from depgraph.apply.captured import Captured
    from depgraph.torch.on_demand import OnDemand
    from depgraph.torch.parallelized import Parallelized

_BEFORE_TIMES = 20
_TRUST = "operators", "recording"
_OUTPUTS = "own", "reuse"
_RAISED = "OutOfMemoryError"  # by PyTorch, which need not be there
_HOW_MUCH = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)
_one_at_a_time = threading.RLock()  # what is changed while a graph is made is the process's
_calls = count()
_used: set[Path] = set()
_recorded: list[Captured] = []
_found: list[Applied] = []


@dataclass(frozen=True, slots=True)
class Request:
    """What a call of `parallelize` asks for."""

    call: int  # which one, from 0
    function: Callable[..., Any]
    example_inputs: Any = None
    example_keywords: Mapping[str, Any] = field(default_factory=dict)
    recording: str | Path | None = None
    check_inputs: Sequence[Any] = ()
    most_bytes: int = 1 << 30
    name: str = ""
    trusts_recording: bool = False
    outputs: str = "own"
    verify_every: int = 0
    time_limit: float = 600.0
    compiles: bool = False  # whether the function is compiled first


def parallelize(
    function: Callable[..., Any],
    example_inputs: Any = None,
    example_keywords: Mapping[str, Any] | None = None,
    *,
    compile: bool = False,  # noqa: A002 - what PyTorch calls it
    most_graphs: int = 8,
    recording: str | Path | None = None,
    check_inputs: Sequence[Any] = (),
    max_extra_memory: int | str = "1GiB",
    name: str = "",
    trust: str = "operators",
    outputs: str = "own",
    verify_every: int = 0,
    time_limit: float = 600.0,
) -> Parallelized | OnDemand:
    """Run a function as a CUDA graph in which only what may depend on something waits for it.

    For every value of its tensors a call does what the function does, as long as its Python code
    would call the same operators. What that rests on is looked at before each call; where
    something has changed the function itself runs, with one warning.

    The program is run again from its start, up to this call, to compare graphs with the function
    where nothing is lost if one of them is wrong.

    Parameters
    ----------
    function : callable
        A model, or any function of tensors that CUDA graphs can capture.
    example_inputs : tensor, tuple or list, optional
        The arguments; tensors among them are on the GPU. Without them, and without
        `example_keywords`, a graph is made at the first call, and at each call with arguments of
        other shapes, types or values that are no tensors.
    example_keywords : mapping, optional
        Arguments by name.
    compile : bool
        Whether `torch.compile` is tried, too: the faster of both is used.
    most_graphs : int
        How many graphs may be made where no examples are given; for further kinds of arguments
        the function itself runs.
    recording : str or Path, optional
        A store that this program was recorded into; made if it is not there. Times are predicted
        with it, and what the check found is kept beside it. For a further call that names the same
        one, it is the store NAME-CALL beside it.
    check_inputs : sequence, optional
        More arguments to compare results on, besides variations of the examples; those by name
        are the examples'.
    max_extra_memory : int or str
        Bytes of GPU memory that a graph may spend on tensors that do not share any, such as
        "64MiB".
    name : str, optional
        What reports call it; default the function's name.
    trust : str
        "operators": what an operator may touch for some value of its tensors counts. "recording":
        what it touched when it was recorded. That is wrong for values that lead elsewhere.
    outputs : str
        "own": what a call returns belongs to the caller. "reuse": the next call overwrites it.
    verify_every : int
        Every so many calls the graph as it was captured runs, too: if results differ, it is used
        from then on. 0 for never.
    time_limit : float
        Seconds that the program may take to come to this call again, and to be checked.

    Returns
    -------
    Parallelized or OnDemand
        Is called as the function; attributes are the function's.

    Raises
    ------
    ApplyError
        If there is no GPU, the function cannot be captured or does what no graph does again, the
        program cannot be run again, or memory is short. Without examples the function itself runs
        then, with one warning.

    Examples
    --------
    >>> fast = parallelize(model, x)  # doctest: +SKIP
    >>> y = fast(x)  # doctest: +SKIP
    >>> model = parallelize(model)  # at the first call  # doctest: +SKIP
    """
    with _ended_under_commands():
        memory = os.environ.get(recorded.APPLY_MEMORY) or max_extra_memory
        most_bytes = memory if isinstance(memory, int) else parse_size(memory, least=0)
        _check_choice("trust", trust, _TRUST)
        _check_choice("outputs", outputs, _OUTPUTS)
        name = name or getattr(function, "__name__", type(function).__name__)
        request = Request(
            -1, function, example_inputs, dict(example_keywords or {}), recording, check_inputs,
            most_bytes, name, trust == "recording", outputs, int(verify_every), float(time_limit),
        )  # fmt: skip
        if example_inputs is not None or example_keywords is not None:
            return _made(request, tries_compiled=compile)
        from depgraph.torch.on_demand import OnDemand

        def make(args: tuple[Any, ...], keywords: dict[str, Any]) -> Parallelized | None:
            wanted = replace(request, example_inputs=args, example_keywords=keywords)
            if not _one_at_a_time.acquire(blocking=False):  # a backward pass may be waited for
                return None
            try:
                with _ended_under_commands():
                    return _made(wanted, tries_compiled=compile)
            finally:
                _one_at_a_time.release()

        return OnDemand(function, name, make, most_graphs)


def _made(request: Request, *, tries_compiled: bool) -> Parallelized:
    """Make a graph of a function, and one of it compiled where that is asked for."""
    with _one_at_a_time, out_of_memory_explained():
        made = _parallelize(replace(request, call=next(_calls)))
        if not tries_compiled:
            return made
        also = replace(request, call=next(_calls), name=f"{request.name}, compiled", compiles=True)
        try:
            return faster_of(made, _parallelize(also))
        except ApplyError as error:
            made.add_note(f"compiled: {error}")
            return made


def faster_of(made: Parallelized, compiled: Parallelized) -> Parallelized:
    """Keep the faster of a function's graph and its compiled one's; the first where none is."""
    if made.report is None or compiled.report is None:
        return made  # this process looks at another call
    best, other = made, compiled
    if compiled.report.call_us < made.report.call_us:
        best, other = compiled, made
    us = f"{made.report.call_us:.4g} us a call as written, {compiled.report.call_us:.4g} compiled"
    best.add_note(us)
    other.let_go()
    return best


@contextmanager
def _ended_under_commands() -> Iterator[None]:
    """End the program at an error where it runs under a command of depgraph."""
    try:
        yield
    except DepgraphError as error:
        if recorded.APPLY_STORE in os.environ or recorded.recording_folder() is not None:
            sys.exit(f"depgraph: {error}")
        raise


@contextmanager
def out_of_memory_explained() -> Iterator[None]:
    """Say in one line what to do where PyTorch gets no memory."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != _RAISED:
            raise
        found = _HOW_MUCH.search(str(error))
        amount = f": tried to allocate {found[1]}" if found else ""
        raise ApplyError(f"out of GPU memory{amount}", "lower max_extra_memory") from None


def _check_choice(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ApplyError(f"{name}={given!r} is not known", f"give {' or '.join(map(repr, known))}")


def _parallelize(request: Request) -> Parallelized:
    try:
        import torch
    except ImportError:
        raise ApplyError("PyTorch is not installed", "install torch") from None
    if not torch.cuda.is_available():
        raise ApplyError("no GPU: PyTorch sees none", "apply needs an NVIDIA GPU and its driver")
    from depgraph.torch.arguments import Arguments
    from depgraph.torch.parallelized import Parallelized

    arguments = Arguments(request.example_inputs, request.example_keywords)
    made = Parallelized(
        request.function, arguments, request.name,
        outputs=request.outputs, verify_every=request.verify_every,
    )  # fmt: skip
    folder, wanted = recorded.recording_folder(), os.environ.get(recorded.RECORD_CALL)
    checked = call_to_check()
    if (folder is not None and wanted not in {None, str(request.call)}) or (
        checked is not None and checked != request.call
    ):
        return made  # the function itself runs
    with torch.cuda.device(arguments.device):
        if folder is not None:
            _record_here(request, arguments, folder)
            if wanted is not None:
                sys.exit(0)  # what was asked for is recorded
        elif checked is not None:
            from depgraph.torch.check_here import check_here

            check_here(request, arguments)
        else:
            _make_ready(request, arguments, made)
    return made


def _record_here(request: Request, arguments: Any, folder: Path) -> None:
    """Run the captured nodes one after another, in the region that is recorded."""
    import torch

    from depgraph.torch.prepare import Prepared

    prepared = Prepared(request, arguments)
    prepared.warm_up()
    program = prepared.captured(Layout())
    with prepared.bench.instantiated(program, chain(len(program.handles))) as executable:
        if not recorded.is_patched():  # times are to be those of a program that is warm
            for _ in range(_BEFORE_TIMES):
                prepared.undo()
                prepared.bench.launch(executable, request.name)
        prepared.undo()
        _recorded.append(program.captured)
        write_captures(recorded.captures_left(folder, os.getpid()), _recorded)
        torch.cuda.cudart().cudaProfilerStart()
        prepared.bench.launch(executable, request.name)
        torch.cuda.cudart().cudaProfilerStop()
    prepared.undo()


def _make_ready(request: Request, arguments: Any, made: Parallelized) -> None:
    """Choose a graph, and let calls run it."""
    from depgraph.torch.choose import choose
    from depgraph.torch.prepare import Prepared

    store = _store_of(request)
    verdicts = _verdicts(request, store)
    if verdicts.refused:
        raise ApplyError(verdicts.refused)
    prepared = Prepared(request, arguments)
    try:
        made.report = choose(prepared, verdicts, store, made)
    except BaseException:
        made.set_ready(None)
        prepared.abandon()
        raise
    _found.append(made.report)
    if recorded.APPLY_REPORT in os.environ:
        folder = Path(os.environ[recorded.APPLY_REPORT])
        write_applied(folder / f"applied-{os.getpid()}.json", _found)


def _store_of(request: Request) -> Path | None:
    """Return the store that `depgraph apply` or the call names; record it if it is not there."""
    named = os.environ.get(recorded.APPLY_STORE) or request.recording
    if named is None:
        if request.trusts_recording:
            raise ApplyError('trust="recording" needs a recording', "give recording=, a store")
        return None
    store = recorded.store_of_call(named, request.call, _used)
    if not store.exists():
        _record(store, request.call)
    return store


def _verdicts(request: Request, store: Path | None) -> Verdicts:
    """Return what a check found: kept beside the store, without codes, or by running again."""
    # What machine code says is not kept: another kernel may have the same name.
    from depgraph.store.companions import store_named_by, verdicts_of
    from depgraph.store.store import Store

    kept = None if store is None else verdicts_of(store, request.call)
    identity = "" if store is None else Store(store).identity
    if kept is not None and kept.is_file() and store_named_by(kept) in {None, identity}:
        return Verdicts.read(kept, identity, call=request.call)
    if why := why_not_again(os.environ):
        raise ApplyError(why)
    command = [sys.executable, *sys.orig_argv[1:]]
    found = run_again(command, request.call, request.time_limit)
    if kept is not None and not found.refused and not found.codes:
        try:
            found.write(kept, store=identity, call=request.call)
        except OutputError as error:
            found.notes.append(f"what the check found is not kept: {error}")
    return found


def _record(store: Path, call: int) -> None:
    """Run this program again under the recorder, up to a call."""
    if why := why_not_again(os.environ):
        raise ApplyError(f"no recording, and {why}")
    words = sys.orig_argv[1:]
    command = [sys.executable, "-m", "depgraph", "record", "--region", "profiler", "-o", str(store)]
    environment = {**os.environ, recorded.RECORD_CALL: str(call)}
    done = subprocess.run(  # noqa: S603 - the program that runs already
        [*command, "--", sys.executable, *words], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not store.is_dir():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next(
            (s for s in reversed(lines) if s.startswith("depgraph")), (lines or ["?"])[-1]
        )
        raise ApplyError(f"no recording: {reason.removeprefix('depgraph: ')}")
