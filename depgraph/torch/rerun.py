"""Running the program again, up to a call of `parallelize`: to look at it where nothing is lost."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.verdicts import Verdicts
from depgraph.errors import ApplyError, RecorderError
from depgraph.system.text import in_short

CHECK_CALL = "DEPGRAPH_CHECK_CALL"
_FOLDER = "DEPGRAPH_CHECK_FOLDER"
_GENTLY = "DEPGRAPH_CHECK_GENTLY"
_LEAVE_OUT = "DEPGRAPH_CHECK_LEAVE_OUT"
_CODES = "DEPGRAPH_CHECK_CODES"
_MODULES = "DEPGRAPH_MODULES_FOLDER"
_VERDICTS, _STAGE, _ERRORS = "verdicts.json", "stage", "errors"
FUNCTION, GRAPH = "the function", "the graph "  # stages; the name of a graph follows
_MOST_TIMES = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """What a process that checks is at, and what it was told by the one that waits."""

    folder: Path | None = None  # where it says so; None where nobody waits
    is_gentle: bool = False  # whether indices, positions and masks stay as they are
    left_out: frozenset[str] = frozenset()  # graphs that ended an earlier process
    modules: Path | None = None  # where machine code is left, if that alone is to be read
    codes: dict[str, KernelCode] | None = None  # what such a process read; None if there was none

    @classmethod
    def from_environment(cls) -> "Stage":
        """Return what the environment says."""
        modules, codes = os.environ.get(_MODULES), os.environ.get(_CODES)
        return cls(
            folder=Path(os.environ[_FOLDER]),
            is_gentle=bool(os.environ.get(_GENTLY)),
            left_out=frozenset(filter(None, os.environ.get(_LEAVE_OUT, "").split("\n"))),
            modules=Path(modules) if modules else None,
            codes=Verdicts.read(Path(codes)).codes if codes else None,
        )

    def begins(self, what: str) -> None:
        """Say what comes now."""
        if self.folder is not None:
            (self.folder / _STAGE).write_text(what, encoding="utf-8")

    def ends(self, verdicts: Verdicts) -> None:
        """Leave what was found, and end the process."""
        if self.folder is not None:
            verdicts.write(self.folder / _VERDICTS)
        sys.stdout.flush()
        os._exit(0)


def call_to_check() -> int | None:
    """Return which call this process is to check; None if it is not there for that."""
    found = os.environ.get(CHECK_CALL)
    return None if found is None else int(found)


def why_not_again(environment: Mapping[str, str]) -> str:
    """Say why this program cannot be run again from its start; "" if it can."""
    words = sys.orig_argv[1:]
    if "TORCHELASTIC_RUN_ID" in environment or int(environment.get("WORLD_SIZE") or 1) > 1:
        return (
            "under torchrun the program cannot be run again by one of its processes: make the same "
            "call in a script of one process, with recording=, and give its store here"
        )
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or not words or words[0] == "-":
        return (
            "what runs here cannot be run again from its start: make the same call in a script, "
            "with recording=, and give its store here"
        )
    return ""


def run_again(command: Sequence[str], call: int, seconds: float) -> Verdicts:
    """Run a program again, in `seconds` at most, to check one of its calls."""
    try:
        with tempfile.TemporaryDirectory(prefix="depgraph-") as name:
            return _checked(command, call, Path(name), monotonic() + seconds)
    except subprocess.TimeoutExpired:
        raise ApplyError(
            f"run again to check it, the program has not ended after {seconds:.0f} s",
            "give a larger time_limit=, or call parallelize earlier in the program",
        ) from None


def _checked(command: Sequence[str], call: int, folder: Path, until: float) -> Verdicts:
    gently, left_out = False, set[str]()
    settings = {CHECK_CALL: str(call), _FOLDER: str(folder)}
    for _ in range(_MOST_TIMES):
        settings |= {_GENTLY: "1" if gently else "", _LEAVE_OUT: "\n".join(sorted(left_out))}
        last_line, code = _run(command, settings, until, folder / _ERRORS)
        if (folder / _VERDICTS).is_file():
            found = Verdicts.read(folder / _VERDICTS)
            if not found.wants_code:
                return found
            settings[_CODES] = str(_read_codes(command, settings, until, folder))
            continue
        path = folder / _STAGE
        stage = path.read_text(encoding="utf-8") if path.is_file() else ""
        if stage == FUNCTION and not gently:
            gently = True  # it asserts something about what was changed
        elif stage.startswith(GRAPH) and stage.removeprefix(GRAPH) not in left_out:
            left_out.add(stage.removeprefix(GRAPH))
        else:
            at = f"at: {stage}" if stage else "before it came to parallelize"
            message = f"the program ended with exit code {code} {at}: {last_line}"
            raise ApplyError(f"run again to check it, {message}")
    raise ApplyError("run again to check it, the program failed in another way each time")


def _read_codes(
    command: Sequence[str], settings: Mapping[str, str], until: float, folder: Path
) -> Path:
    """Run the program for the machine code of its kernels; return where that is described."""
    from depgraph.recorder.build import Builder
    from depgraph.recorder.toolkit import Toolkit

    path = folder / "codes.json"
    (folder / _VERDICTS).unlink()
    try:
        modules = folder / "modules"
        modules.mkdir()
        library = str(Builder(Toolkit()).modules())
        also = {_MODULES: str(modules), "CUDA_INJECTION64_PATH": library}
        _run(command, {**settings, **also}, until, folder / _ERRORS)
        (folder / _VERDICTS).rename(path)
    except (RecorderError, OSError) as error:
        Verdicts(notes=[f"no machine code was read: {error}"]).write(path)
    return path


def _run(
    command: Sequence[str], settings: Mapping[str, str], until: float, errors: Path
) -> tuple[str, int]:
    """Run a program without input; return its last line on stderr, and its exit code."""
    with errors.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(  # noqa: S603 - the program that runs already
            list(command), env={**os.environ, **settings}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(max(0.0, until - monotonic()))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = errors.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return in_short(lines[-1], 300) if lines else "it said nothing", code
