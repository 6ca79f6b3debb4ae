"""What the name and the grid of a kernel show: how soon it fills an SM, and its clusters."""

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
_CLUSTER = re.compile(r"nvjet_sm\d+\w*?_\d+x\d+_\d+x\d+_(\d+)x(\d+)_")
_PORTABLE = 8  # blocks of a cluster that any GPU can place: CUDA C++ programming guide
_FIRST_WITH_CLUSTERS = 90
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


def clusters_of(
    functions: Sequence[str], shape: NDArray[np.int64], blocks: NDArray[np.int64], gpu: Gpu
) -> NDArray[np.int64]:
    """Return how many blocks of each operation are placed together: int64[n_operations].

    cuBLAS names it in its kernels for Hopper, after the tile and the depth and stages of its
    pipeline: ``nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT`` runs in clusters of 2 x 4.

    Parameters
    ----------
    functions : sequence of str
        Names; empty where they are not known.
    shape : int64[n_operations, 3]
        Grids; where they are not of as many blocks as a program has, no cluster is told.
    blocks : int64[n_operations]
    """
    found = np.ones(len(blocks), np.int64)
    if gpu.architecture < _FIRST_WITH_CLUSTERS or gpu.vendor != "NVIDIA":
        return found
    largest = min(_PORTABLE, max(gpu.gpc_sms or (_PORTABLE,)))
    for place, name in enumerate(functions):
        named = _CLUSTER.search(name)
        if named is None or shape[place].prod() != blocks[place]:
            continue
        size = int(named[1]) * int(named[2])
        if size <= largest and blocks[place] % size == 0:
            found[place] = size
    return found
