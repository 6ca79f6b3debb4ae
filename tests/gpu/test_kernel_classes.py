"""Kernels fill an SM as soon as others of their class do."""

from dataclasses import replace

import numpy as np
import pytest

from depgraph.gpu.kernel_classes import clusters_of, contention_of
from depgraph.gpu.model import load_gpu

H100 = load_gpu("H100 SXM")
PRODUCT, CONVOLUTION, USUAL = H100.contention_gemm32, H100.contention_convolution, H100.contention


@pytest.mark.parametrize(
    ("name", "slices", "expected"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma", 1, PRODUCT),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", 1, PRODUCT),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", 8, CONVOLUTION),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw", 1, CONVOLUTION),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", 1, USUAL),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 1, USUAL),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor>", 1, USUAL),
        ("convert_to_half", 1, USUAL),
    ],
)
def test_a_name_and_a_grid_tell_the_class(name, slices, expected):
    shape = np.array([[4, 4, slices]])
    assert contention_of([name], shape, H100).tolist() == [expected]


def test_a_gpu_with_one_constant_has_no_classes():
    plain = replace(H100, contention_gemm32=None, contention_convolution=None)
    assert contention_of(["sgemm"], np.ones((1, 3), np.int64), plain).tolist() == [USUAL]


@pytest.mark.parametrize(
    ("name", "blocks", "expected"),
    [
        ("nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT", 96, 8),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 96, 2),
        ("nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT", 48, 1),  # two blocks of the grid as one
        ("nvjet_sm90_tst_64x48_64x15_4x4_h_bz_NNT", 96, 1),  # more than every GPU can place
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3", 96, 1),
        ("", 96, 1),
    ],
)
def test_names_of_matrix_products_tell_their_clusters(name, blocks, expected):
    grid = np.array([[8, 12, 1]])
    assert clusters_of([name], grid, np.array([blocks]), H100).tolist() == [expected]


def test_gpus_before_hopper_have_no_clusters():
    name, grid = "nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT", np.array([[8, 12, 1]])
    assert clusters_of([name], grid, np.array([96]), load_gpu("V100")).tolist() == [1]
