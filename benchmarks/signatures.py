"""Write what is compiled ahead of time: what the commands compile of each sample, and some tests.

Run it where a compiled function is added, renamed, or called with something else::

    python benchmarks/signatures.py

It runs every command that `same_answers.py` compares, and tests of the formats of which there is no
sample, with an empty cache, and writes ``depgraph/system/signatures.json``. Takes minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SAMPLES = {"recording", "gru_train", "accelsim"}
MORE = (
    "extract trace.log.xz -o again --memory-limit 64MiB -q",
    "sweep-hints again",
    "extract described.toml -o described -q",
    "bound described --sms 132 --mechanism all",
)
TESTS = (
    "tests/parsers/nvbit/test_nvbit.py",
    "tests/parsers/accelsim/test_accelsim_text.py",
    "tests/parsers/cutracer",
    "tests/parsers/test_simlog_trace.py",
)


def main() -> None:
    """Run all, and write what has been compiled, the longest first."""
    from depgraph.system.machine_code import SHIPPED

    shutil.rmtree(SHIPPED, ignore_errors=True)  # what is loaded from there would not be listed
    with tempfile.TemporaryDirectory() as work:
        os.environ["NUMBA_CACHE_DIR"] = work
        found = _listen()
        _run_all(Path(work))
    from depgraph.system.ahead_of_time import SIGNATURES

    rows = sorted(found, key=lambda row: (-found[row], row))
    SIGNATURES.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{SIGNATURES}: {len(rows)} functions")


def _listen() -> dict[str, int]:
    """Return what will hold each signature that is compiled, with the bytes of its code."""
    from depgraph.system import compiled
    from depgraph.system.ahead_of_time import argument_of
    from depgraph.system.machine_code import types_of

    compiled.compile_always()
    compile_now = compiled.CompiledFunction._compile  # noqa: SLF001
    found: dict[str, int] = {}

    def listen(self: Any, types: Any, arguments: tuple[Any, ...]) -> Any:
        made = compile_now(self, types, arguments)
        row = json.dumps(
            [f"{self.__module__}:{self.__qualname__}", [*map(description_of, arguments)]]
        )
        if self.__module__.startswith("depgraph."):
            again = tuple(types_of(argument_of(item)) for item in json.loads(row)[1])
            if repr(again) != repr(types):
                message = f"{row}: described as {again}, is {types}"
                raise TypeError(message)
            found[row] = len(made.code)
        return made

    compiled.CompiledFunction._compile = listen  # type: ignore[method-assign]  # noqa: SLF001
    return found


def description_of(argument: Any) -> Any:
    """Describe the type of an argument for JSON."""
    if isinstance(argument, np.ndarray):
        flags, dtype = argument.flags, argument.dtype
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        kind: Any = dtype.str
        if dtype.names:
            kind = [dtype.isalignedstruct, *([name, dtype[name].str] for name in dtype.names)]
        return [kind, argument.ndim, layout, flags.writeable]
    if isinstance(argument, tuple):
        kind = type(argument)
        name = f"{kind.__module__}:{kind.__qualname__}" if kind is not tuple else ""
        return {name: [description_of(item) for item in argument]}
    return argument.dtype.str if isinstance(argument, np.generic) else type(argument).__name__


def _run_all(work: Path) -> None:
    import pytest
    import same_answers

    for case in same_answers.cases():
        if case[0] in SAMPLES:
            same_answers.answers_of(case)
    (work / "trace.log.xz").symlink_to(same_answers.SAMPLES / "nvbit/gru_train.log.xz")
    (work / "described.toml").symlink_to(same_answers.SAMPLES / "workloads/llama_mlp_1024.toml")
    for line in MORE:
        code, _, errors = same_answers.run(line.split(), work)
        if code:
            sys.exit(f"{line}: {errors}")
    os.chdir(ROOT)
    if pytest.main(["-n0", "-q", "-p", "no:cacheprovider", *TESTS]):
        sys.exit("tests fail")


if __name__ == "__main__":
    main()
