"""Compile for common processors as a package of depgraph is built, so that no first run has to.

``python -m depgraph.system.ahead_of_time .`` leaves in a checkout, or what is built of it, what
`compiled` looks for. ``signatures.json`` names functions, and what they are called with. What the
folder ``DEPGRAPH_COMPILED`` has of the same sources is taken from there.
"""

import importlib
import json
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from depgraph.system.machine_code import COMMON, SHIPPED

SIGNATURES = Path(__file__).with_name("signatures.json")


def argument_of(described: Any) -> Any:
    """Return some value of a described type, see ``benchmarks/signatures.py``."""
    if isinstance(described, dict):
        ((name, items),) = described.items()
        values = map(argument_of, items)
        return _found(name)(*values) if name else tuple(values)
    if isinstance(described, str):
        plain = {"int": 0, "float": 0.0, "bool": False, "NoneType": None}
        return plain[described] if described in plain else np.dtype(described).type(0)
    kind, n, layout, is_writeable = described
    dtype = kind
    if isinstance(kind, list):
        is_aligned, *fields = kind
        dtype = np.dtype([*map(tuple, fields)], align=is_aligned)
    if layout == "A":  # words that begin at every byte of a text
        array: Any = np.ndarray((8,) * n, dtype, np.zeros(64, np.uint8), strides=(1,) * n)
    else:
        array = np.zeros((2,) * n, dtype, order=layout)
    array.flags.writeable = is_writeable
    return array


def compile_for_common(folder: Path) -> None:
    """Compile all that is named, on all cores."""
    os.environ |= {"NUMBA_CPU_NAME": COMMON, "NUMBA_CPU_FEATURES": ""}
    shutil.rmtree(folder, ignore_errors=True)
    if earlier := os.environ.get("DEPGRAPH_COMPILED"):
        shutil.copytree(earlier, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_compile, folder), json.loads(SIGNATURES.read_text())))
    for file in folder.iterdir():
        file.chmod(0o644)


def _compile(folder: Path, signature: tuple[str, list[Any]]) -> None:
    name, described = signature
    _found(name).ship(folder, tuple(map(argument_of, described)))


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))


if __name__ == "__main__":
    compile_for_common(Path(sys.argv[1], "depgraph/system", SHIPPED.name))
