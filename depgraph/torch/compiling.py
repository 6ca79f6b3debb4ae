"""Functions that `torch.compile` has made: what they run, and what they allocate."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from depgraph.errors import ApplyError
from depgraph.torch.executed import Executed

_ORIGINAL = "_torchdynamo_orig_callable"
_OWN_GRAPHS = "triton.cudagraphs"
# Compiled code that writes a result where an earlier tensor lay lets branches wait for each other.
_APART = {"allow_buffer_reuse": False, "inplace_buffers": False}
_RUNS_COMPILED = "_TorchDynamoContext.__call__."  # begins the name of what does
_RUNS_GRAPHS = "cudagraph_trees.py", "run"  # the file of PyTorch, and its function
# Files of Python, and their functions: Thread.start, ThreadPoolExecutor.submit, Queue.put.
_FEEDS_THREADS = {("threading.py", "start"), ("thread.py", "submit"), ("queue.py", "put")}
_ALLOCATE = "empty_strided_cuda", "empty_strided_cpu"  # in Inductor's code: no operators
_HINT = "compile it in the mode 'default' or 'max-autotune-no-cudagraphs'"


def uncompiled() -> AbstractContextManager[None]:
    """Let compiled functions run as they were written: what they read and change is seen then."""
    made: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return made


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function so that what its code does not need again goes back to the allocator."""
    made: Callable[..., Any] = torch.compile(function, dynamic=False, options=_APART)
    return made


def without_own_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that was compiled with CUDA graphs of its own compiled without them."""
    tell = getattr(function, "get_compiler_config", None)
    config = tell() if callable(tell) and hasattr(function, _ORIGINAL) else None
    if not config or not config.get(_OWN_GRAPHS):
        return function
    from torch._inductor import config as usual

    others = usual.get_config_copy()
    options = {key: config[key] for key in config if config[key] != others.get(key)}
    original = getattr(function, "_orig_mod", None) or getattr(function, _ORIGINAL)
    made: Callable[..., Any] = torch.compile(original, options={**options, _OWN_GRAPHS: False})
    return made


def refuse_unseen(run: Callable[[], Any], name: str) -> None:
    """Run a function that is warm; refuse what it runs whose operators would not be noted."""
    executed = Executed()
    with executed.listening():
        run()
    file, function = _RUNS_GRAPHS
    stays_compiled = hasattr(TorchDispatchMode, "ignore_compile_internals")
    for code in executed.codes():
        if not stays_compiled and code.co_qualname.startswith(_RUNS_COMPILED):
            raise ApplyError(
                f"{name} runs a compiled function, which PyTorch {torch.__version__} would not "
                "compile while its operators are noted",
                "install a later PyTorch, or give the function as it was written",
            )
        if code.co_name == function and code.co_filename.endswith(file):
            raise ApplyError(
                f"{name} calls a function that was compiled with CUDA graphs of its own", _HINT
            )
        if (Path(code.co_filename).name, code.co_name) in _FEEDS_THREADS:
            raise ApplyError(
                f"{name} lets threads of its own work, whose operators nobody notes",
                "call all operators in one thread",
            )


@contextmanager
def allocation_hook(tell: Callable[[Any], None]) -> Iterator[None]:
    """Tell of each tensor that compiled functions allocate: no operator does."""
    code = sys.modules.get("torch._inductor.codecache")
    modules = [] if code is None else code.PyCodeCache.modules
    scopes = [(vars(module), name) for module in modules for name in _ALLOCATE]
    before = [(names, name, names[name]) for names, name in scopes if name in names]

    def telling(allocate: Callable[..., Any]) -> Callable[..., Any]:
        def allocated(*how: Any) -> Any:
            made = allocate(*how)
            tell(made)
            return made

        return allocated

    for names, name, allocate in before:
        names[name] = telling(allocate)
    try:
        yield
    finally:
        for names, name, allocate in before:
            names[name] = allocate
