"""Compiling the native part, once for each GPU architecture and each version of its tools."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from depgraph.errors import RecorderError
from depgraph.recorder.toolkit import sees_tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depgraph.recorder.toolkit import Toolkit

_SOURCES = ("table.h", "patch.cu", "recorder.cpp")
_LIBRARY = "librecorder.so"
_PATCH = "patch.fatbin"
_NOT_TMA = "-DDEPGRAPH_NO_TILES"


@dataclass(frozen=True, slots=True)
class Native:
    """The compiled recorder.

    Attributes
    ----------
    library : Path
        What the CUDA driver loads into the program.
    patch : Path
        What kernels are patched with.
    """

    library: Path
    patch: Path


def cache_folder() -> Path:
    """Return the user's folder for what is compiled."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "depgraph" / "recorder"


def build(toolkit: Toolkit, architecture: int, folder: Path | None = None) -> Native:
    """Return the compiled recorder for an architecture; compile it if no earlier run has.

    Parameters
    ----------
    toolkit : Toolkit
    architecture : int
        Such as 90.
    folder : Path, optional
        Where compiled ones are kept; default the user's cache.

    Raises
    ------
    RecorderError
        If a tool is missing or fails.
    """
    sanitizer, headers = toolkit.sanitizer, toolkit.headers
    nvcc, compiler = toolkit.nvcc, toolkit.compiler
    if sanitizer is None or headers is None or nvcc is None or compiler is None:
        missing = next(each for each in toolkit.found if not each.what and each.name != "GPU")
        raise RecorderError(f"no {missing.name} was found", missing.hint)
    defines = () if sees_tiles(sanitizer) else (_NOT_TMA,)
    includes = [f"-I{sanitizer / 'include'}", f"-I{headers}"]
    with as_file(files("depgraph.recorder") / "native") as sources:
        patch = [
            str(nvcc), f"-arch=sm_{architecture}", "-fatbin", "--keep-device-functions",
            "-Xptxas", "--compile-as-tools-patch", *defines, *includes, str(sources / "patch.cu"),
        ]  # fmt: skip
        library = [
            str(compiler), "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden",
            *defines, *includes, str(sources / "recorder.cpp"), f"-L{sanitizer}",
            "-l:libsanitizer-public.so", f"-Wl,-rpath,{sanitizer}", "-ldl",
        ]  # fmt: skip
        kept = (folder or cache_folder()) / _key(sources, [*patch, *library])
        native = Native(kept / _LIBRARY, kept / _PATCH)
        if not (native.library.is_file() and native.patch.is_file()):
            _compile(patch, native.patch)
            _compile(library, native.library)
    return native


def _key(sources: Path, words: Sequence[str]) -> str:
    """Digest what the result depends on."""
    digest = hashlib.sha256("\n".join(words).encode())
    for name in _SOURCES:
        digest.update((sources / name).read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: Sequence[str], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise RecorderError(
            f"{target.parent}: {error.strerror}", "set XDG_CACHE_HOME to a folder of yours"
        ) from None
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler
            [*command, "-o", made], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            reason = next((line for line in said if "error" in line or "fatal" in line), "")
            raise RecorderError(
                f"{Path(command[0]).name} failed: {reason or (said or ['no word'])[-1]}",
                "depgraph record --doctor shows which tools are used",
            )
        Path(made).replace(target)
    except OSError as error:
        raise RecorderError(f"{command[0]}: {error.strerror}", "install it") from None
    finally:
        Path(made).unlink(missing_ok=True)
