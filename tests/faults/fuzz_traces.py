"""Coverage-guided fuzzing of everything that reads traces, with atheris.

    pip install atheris
    python tests/faults/fuzz_traces.py CORPUS -max_total_time=3600

The first byte of an input picks the name under which the rest is opened. A new CORPUS is filled
with the undamaged traces of the fault suite. Compiled scanners are opaque to the fuzzer, so they
run as Python, which also checks every index.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path

os.environ["NUMBA_DISABLE_JIT"] = "1"
TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support"), str(TESTS.parent)]

import atheris  # type: ignore[import-not-found] # noqa: E402

with atheris.instrument_imports(include=["depgraph"]):
    from faults import inputs

    from depgraph.errors import DepgraphError
    from depgraph.extraction.pipeline import analyse
    from depgraph.parsers import open_trace

    # What is imported when a trace is opened would come too late to be instrumented.
    for name in ("accelsim.trace", "nvbit.log", "formats", "simlog.accesses"):
        importlib.import_module(f"depgraph.parsers.{name}")

NAMES = ("trace", "kernelslist.g", "kernel-3.tracez")
MAX_BYTES = 1 << 16
MEMORY_BYTES = 256 << 20


def main():
    folder = Path(tempfile.mkdtemp(prefix="depgraph.fuzz."))
    for file, text in inputs.kernel_files("list").items():
        (folder / file).write_bytes(text)

    def one_input(data):
        if not data or len(data) > MAX_BYTES:
            return
        path = folder / NAMES[data[0] % len(NAMES)]
        path.write_bytes(data[1:])
        with contextlib.suppress(DepgraphError):
            analyse(
                open_trace(path),
                jobs=1,
                memory_limit=MEMORY_BYTES,
                allow_damaged=bool(data[0] & 0x80),
            )
        path.unlink()

    corpus = next((Path(a) for a in sys.argv[1:] if not a.startswith("-")), None)
    if corpus is not None and not corpus.exists():
        corpus.mkdir(parents=True)
        for number, (name, text) in enumerate(inputs.traces().items()):
            first = bytes([0x80 | NAMES.index("kernelslist.g" if name == "list" else "trace")])
            for packing, pack in inputs.PACKERS.items():
                (corpus / f"{number}-{packing}").write_bytes(first + pack(text))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
