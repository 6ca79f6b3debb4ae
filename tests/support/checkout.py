"""Copies of the checkout: what an installation holds, at a place that nothing else points to."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]  # by installed name


def copy_packages(to: Path, *, compiled: bool = False) -> Path:
    """Copy the folders that are installed, and what is compiled of them, or not; return `to`."""
    left_out = ("*.pyc", "*.tmp.*", "*.lock") if compiled else ("__pycache__",)
    for folder in FOLDERS.values():
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns(*left_out))
    return to
