"""How soon the blocks of one kernel fill an SM: by the class that its name and its grid show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from depgraph.gpu.model import Gpu

_CONVOLUTION = re.compile(r"[fdw](prop|grad)|conv(?!ert)", re.IGNORECASE)
_FP32_PRODUCT = re.compile(r"sgemm|f32f32_f32f32|gemmSN", re.IGNORECASE)
_SUM = re.compile(r"split_?k_kernel|splitKreduce", re.IGNORECASE)


def contention_of(
    functions: Sequence[str], shape: NDArray[np.int64], gpu: Gpu
) -> NDArray[np.float64]:
    """Return the constant of contention of each operation: float64[n_operations].

    A product that is split along K, a part for each z of its grid, is as slow to fill an SM as a
    convolution (``samples/validation``, half 0). Kernels of no class, and GPUs whose file has one
    constant for all, take that one.

    Parameters
    ----------
    functions : sequence of str
        Names; empty where they are not known.
    shape : int64[n_operations, 3]
        Grids.
    """
    usual = gpu.contention or 0.0
    product, convolution = gpu.contention_gemm32, gpu.contention_convolution
    found = np.full(len(functions), usual)
    for place, name in enumerate(functions):
        if _SUM.search(name):
            continue
        is_product = _FP32_PRODUCT.search(name) is not None
        is_split = is_product and shape[place, 2] > 1
        if _CONVOLUTION.search(name) or is_split:
            found[place] = convolution or usual
        elif is_product:
            found[place] = product or usual
    return found
