"""Builds as setuptools does, with numba where a wheel is made: an editable installation needs none.

It stands alone: `pyproject.toml` names it to pip, before anything of depgraph can be imported.
"""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what a wheel needs to be built: `setup.py` compiles what a first run would."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), "numba>=0.61"]
