"""Compiling the native parts, once for each GPU architecture and each version of the tools."""

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeVar

from depgraph.errors import RecorderError
from depgraph.recorder.toolkit import Toolkit, sees_tiles
from depgraph.system.loading import is_ours
from depgraph.system.output import WorkFolder, one_line_errors, work_folder

Thing = TypeVar("Thing")

_LIBRARY = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
_PATCH = ("-fatbin", "--keep-device-functions", "-Xptxas", "--compile-as-tools-patch")


def cache_folder() -> Path:
    """Return the user's folder for what is compiled."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "depgraph" / "recorder"


@cache
def _folder_of_this_process() -> WorkFolder:
    """Return a folder that is removed when the process ends."""
    return WorkFolder(Path(tempfile.gettempdir()), "recorder")


class Builder:
    """Compiles the native parts; keeps them in the user's cache, if others may not write there."""

    def __init__(
        self,
        toolkit: Toolkit,
        folder: Path | None = None,
        say: Callable[[str], object] = lambda _: None,  # is told what is compiled, and where not
    ) -> None:
        self._toolkit = toolkit
        self._folder = folder or cache_folder()
        self._say = say

    def patch(self, architectures: Iterable[int], *, block_times: bool = False) -> Path:
        """Return a patch that notes what kernels of architectures touch, or when blocks run."""
        nvcc = _needed(self._toolkit.nvcc)
        codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in sorted(set(architectures))]
        words = [str(nvcc), *codes, *_PATCH, *self._sanitizer_flags()]
        return self._compiled(words, "blocks.cu" if block_times else "patch.cu")

    def recorder(self) -> Path:
        """Return the library that the driver loads into a program that is recorded."""
        return self._with_sanitizer("recorder.cpp")

    def modules(self) -> Path:
        """Return the library that the driver loads into a program whose code is wanted."""
        return self._with_sanitizer("modules.cpp")

    def pause(self) -> Path:
        """Return a program that launches a kernel whose blocks do nothing for `PAUSE_NS`."""
        includes = f"-I{_needed(self._toolkit.headers)}"
        words = [str(_needed(self._toolkit.compiler)), "-std=c++17", "-O2", includes]
        return self._compiled(words, "pause.cpp", ["-ldl"])

    def _with_sanitizer(self, source: str) -> Path:
        sanitizer = _needed(self._toolkit.sanitizer)
        words = [str(_needed(self._toolkit.compiler)), *_LIBRARY, *self._sanitizer_flags()]
        links = [f"-L{sanitizer}", "-l:libsanitizer-public.so", f"-Wl,-rpath,{sanitizer}", "-ldl"]
        return self._compiled(words, source, links)

    def timer(self) -> Path:
        """Return the library that the driver loads into a program that is timed."""
        header, library = _needed(self._toolkit.cupti)
        text = header.read_text(encoding="utf-8", errors="replace")
        records = []
        for name in ("Kernel", "Memcpy", "Memset"):
            latest = max(map(int, re.findall(rf"\}} CUpti_Activity{name}(\d+);", text)), default="")
            records.append(f"-DDEPGRAPH_{name.upper()}=CUpti_Activity{name}{latest}")
        includes = [f"-I{header.parent}", f"-I{_needed(self._toolkit.headers)}"]
        words = [str(_needed(self._toolkit.compiler)), *_LIBRARY, *records, *includes]
        return self._compiled(words, "timer.cpp", [str(library), f"-Wl,-rpath,{library.parent}"])

    def _sanitizer_flags(self) -> list[str]:
        sanitizer = _needed(self._toolkit.sanitizer)
        old = [] if sees_tiles(sanitizer) else ["-DDEPGRAPH_NO_TILES"]
        return [*old, f"-I{sanitizer / 'include'}", f"-I{_needed(self._toolkit.headers)}"]

    def _compiled(self, words: Sequence[str], name: str, links: Sequence[str] = ()) -> Path:
        """Return what a source compiles to; compile it if no earlier run has."""
        with as_file(files("depgraph.recorder") / "native") as sources:
            digest = hashlib.sha256("\n".join([*words, *links]).encode())
            for source in sorted([name, *(path.name for path in sources.glob("*.h"))]):
                digest.update((sources / source).read_bytes())
            target = self._place_of(f"{Path(name).stem}-{digest.hexdigest()[:16]}.so")
            if not target.is_file():
                self._say(f"compiling {name} of the recorder, for this machine, once")
                _compile([*words, str(sources / name), *links], target)
        return target

    def _place_of(self, name: str) -> Path:
        kept = self._folder / name
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            reason = "" if os.access(self._folder, os.W_OK) else "no permission to write there"
        except OSError as error:
            reason = error.strerror or "cannot be made"
        if not reason or kept.is_file():
            strange = [path for path in (self._folder, kept) if path.exists() and not is_ours(path)]
            reason = f"others may write {strange[0]}" if strange else ""
        if not reason:
            return kept
        self._say(f"{self._folder}: {reason}; what is compiled is not kept")
        self._folder = _folder_of_this_process().path
        return self._folder / name


def _needed(found: Thing | None) -> Thing:
    """Return what `Toolkit.check` has seen to be there."""
    if found is None:
        raise RecorderError("something that recording needs is missing", "depgraph record --doctor")
    return found


def _compile(command: Sequence[str], target: Path) -> None:
    with one_line_errors(target.parent), work_folder(target.parent, "compiling") as folder:
        made = folder / target.name
        try:
            done = subprocess.run(  # noqa: S603 - the user's own compiler
                [*command, "-o", str(made)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise RecorderError(f"{command[0]}: {error.strerror}", "install it") from None
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            reason = next((line for line in lines if "error" in line or "fatal" in line), "")
            found = f"{Path(command[0]).name} failed: {reason or (lines or ['no word'])[-1]}"
            raise RecorderError(found, "depgraph record --doctor shows which tools are used")
        made.chmod(0o700)
        made.replace(target)
