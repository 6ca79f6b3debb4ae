"""Inter-block dependence graphs of GPU programs, and the overlap they allow."""

from pathlib import Path

_here = Path(__file__).resolve().parent
if not (_here / "cli").is_dir():
    __path__.append(str(_here.parent))
