"""What recording needs of the machine: a GPU, the Compute Sanitizer, nvcc and a C++ compiler."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from depgraph.errors import RecorderError
from depgraph.recorder.run import MOST_GPU_MEMORY

_INSTALL = "pip install 'depgraph[record]', or set CUDA_HOME to a CUDA toolkit"
_SECONDS = 20
_TMA_HOOK = "SANITIZER_INSTRUCTION_TMA_LOAD"
_VERSION = re.compile(r"release ([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that recording needs."""

    name: str
    what: str  # what was found, "" if nothing
    hint: str  # how to get it


class Toolkit:
    """Where things are on this machine; looked up when they are asked for."""

    @cached_property
    def roots(self) -> list[Path]:
        """Folders with parts of CUDA, those to look into first at the front."""
        names = ("CUDA_HOME", "CUDA_PATH")
        given = [Path(os.environ[name]) for name in names if name in os.environ]
        found = (Path(entry or ".").glob("nvidia/cu[0-9]*") for entry in sys.path)
        installed = [root for roots in found for root in sorted(roots, reverse=True)]
        usual = sorted(Path("/usr/local").glob("cuda*"), reverse=True)
        return [*given, *installed, *usual]

    def _first(self, *names: str) -> Path | None:
        paths = (root / name for root in self.roots for name in names)
        return next((path for path in paths if path.exists()), None)

    @cached_property
    def sanitizer(self) -> Path | None:
        """The folder of the Compute Sanitizer's API: one that sees TMA loads, if there is one."""
        parts = ("libsanitizer-public.so", "include/sanitizer.h")
        folders = [root / "compute-sanitizer" for root in self.roots]
        whole = [f for f in folders if all((f / part).is_file() for part in parts)]
        return next(filter(sees_tiles, whole), whole[0] if whole else None)

    @cached_property
    def headers(self) -> Path | None:
        """The folder of cuda.h."""
        found = self._first("include/cuda.h")
        return found.parent if found else None

    @cached_property
    def cupti(self) -> tuple[Path, Path] | None:
        """The header and the library of CUPTI, of one version."""
        for root in self.roots:
            for folder in (root, root / "extras" / "CUPTI"):
                header = folder / "include" / "cupti_activity.h"
                libraries = [*folder.glob("lib/libcupti.so*"), *folder.glob("lib64/libcupti.so*")]
                if header.is_file() and libraries:
                    return header, min(libraries)
        return None

    @cached_property
    def nvcc(self) -> Path | None:
        """CUDA's compiler."""
        on_path = shutil.which("nvcc")
        return self._first("bin/nvcc") or (Path(on_path) if on_path else None)

    @cached_property
    def nvdisasm(self) -> Path | None:
        """The disassembler: of a CUDA toolkit, of its own package, or of Triton."""
        if (on_path := shutil.which("nvdisasm")) is not None:
            return Path(on_path)
        spec = importlib.util.find_spec("triton")
        roots = (spec.submodule_search_locations or ()) if spec else ()
        of_triton = (Path(root) / "backends/nvidia/bin/nvdisasm" for root in roots)
        return self._first("bin/nvdisasm") or next(filter(Path.is_file, of_triton), None)

    @cached_property
    def compiler(self) -> Path | None:
        """A C++ compiler."""
        found = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
        return Path(found) if found else None

    @cached_property
    def gpus(self) -> list[tuple[str, int]]:
        """Name and architecture (90 for compute capability 9.0) of each GPU."""
        text = _output("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
        rows = [line.rsplit(",", 1) for line in text.splitlines() if "," in line]
        return [
            (name.strip(), int(capability.strip().replace(".", "")))
            for name, capability in rows
            if re.fullmatch(r"[0-9]+\.[0-9]", capability.strip())
        ]

    @property
    def table_bytes(self) -> int:
        """Bytes of GPU memory that tables get where nobody says how many."""
        text = _output("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        sizes = [int(line) << 20 for line in text.split() if line.isdigit()]
        return min(max(min(sizes, default=0) // 8, 1 << 30), MOST_GPU_MEMORY)

    @property
    def requirements(self) -> list[Requirement]:
        """Everything that recording needs, and what there is of it."""
        version = _VERSION.search(_output(str(self.nvcc), "--version")) if self.nvcc else None
        compiled = f" ({version[1]})" if version else ""
        return [
            Requirement(
                "GPU", ", ".join(f"{name} (sm_{sm})" for name, sm in self.gpus),
                "nvidia-smi lists no GPU: recording needs an NVIDIA GPU and its driver",
            ),
            Requirement("Compute Sanitizer API", _shown(self.sanitizer), _INSTALL),
            Requirement("CUDA headers", _shown(self.headers), _INSTALL),
            Requirement("nvcc", _shown(self.nvcc) + compiled, _INSTALL),
            Requirement(
                "CUPTI", _shown(self.cupti and self.cupti[1]), f"{_INSTALL}; or pass --no-time"
            ),
            Requirement("C++ compiler", _shown(self.compiler), "install g++, or set CXX"),
        ]  # fmt: skip

    @property
    def helpers(self) -> list[Requirement]:
        """What recording is worse without, and what there is of it."""
        return [
            Requirement(
                "nvdisasm", _shown(self.nvdisasm),
                "without it what no hook sees (stores by TMA, textures, __constant__) is guessed: "
                "pip install nvidia-cuda-nvdisasm, or set CUDA_HOME to a CUDA toolkit",
            )
        ]  # fmt: skip

    def check(self, *, without: str = "") -> None:
        """Refuse to go on where something is missing, but for what is not needed."""
        for each in self.requirements:
            if not each.what and each.name != without:
                raise RecorderError(f"no {each.name} was found", each.hint)


def sees_tiles(sanitizer: Path) -> bool:
    """Tell whether an API's folder has the hook for loads of tiles by TMA (13.5 and later)."""
    header = sanitizer / "include" / "sanitizer_patching.h"
    try:
        return _TMA_HOOK in header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _shown(path: Path | None) -> str:
    return "" if path is None else str(path)


def output_of(*command: str | Path, seconds: float) -> str:
    """Return what one of the user's own tools prints; `RecorderError` if it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderError(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        tool, reason = Path(command[0]).name, (lines or ["no word"])[0]
        raise RecorderError(f"{command[-1]}: {tool} failed: {reason}")
    return done.stdout


def _output(*command: str) -> str:
    try:
        return output_of(*command, seconds=_SECONDS)
    except RecorderError:
        return ""
