"""Compile for common processors what a first run of depgraph would: pyproject.toml has the rest."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildPy(build_py):
    """Leave machine code beside the modules, where the machine that builds can make it."""

    def run(self) -> None:
        """Copy the modules, then compile; without numba, or in a checkout, the first run will."""
        super().run()
        if (sys.platform, platform.machine()) != ("linux", "x86_64") or self.editable_mode:
            return
        to = Path(self.build_lib).resolve()
        made = subprocess.run(  # noqa: S603 - this interpreter, and what is built
            [sys.executable, "-m", "depgraph.system.ahead_of_time", to],
            cwd=ROOT,
            # What the build needs may itself be on the path, where pip builds apart from the rest.
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            self.warn(f"nothing is compiled ahead of time: {made.stderr.strip()[-500:]}")


setup(cmdclass={"build_py": BuildPy})
